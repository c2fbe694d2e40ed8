"""The parts of the conformance runner that decide whether a test passes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.conformance import exceptions, trace, wpt
from tests.conformance import format as wpt_format
from tests.conformance.compare import first_difference
from tests.conformance.exceptions import ExpectedFailure, Verdict
from tests.conformance.format import Case, FormatError, Step, array, number
from tests.conformance.report import Report


def entry(data: object, data_type: str, *shape: int) -> dict[str, object]:
    return {"data": data, "descriptor": {"dataType": data_type, "shape": list(shape)}}


def test_words_stand_for_what_json_cannot_hold() -> None:
    assert number("Infinity") == np.inf
    assert number("-Infinity") == -np.inf
    assert np.isnan(number("NaN"))
    assert np.signbit(number("-0"))
    assert number("-9223372036854775807") == -9223372036854775807
    assert number(1.5) == 1.5


def test_arrays_have_type_and_shape_and_exact_integers() -> None:
    values = array(entry(["18446744073709551615", 3], "uint64", 2, 1))
    assert (values.dtype, values.shape) == (np.uint64, (2, 1))
    assert values.ravel().tolist() == [2**64 - 1, 3]


def test_a_bare_number_fills_the_shape() -> None:
    assert array(entry(0.5, "float16", 2, 3)).tolist() == [[0.5] * 3] * 2
    assert array(entry(5.5, "float32")).shape == array(entry([5.5], "float32")).shape == ()


def test_a_wrong_number_of_values_is_an_error() -> None:
    with pytest.raises(FormatError, match="3 values"):
        array(entry([1, 2, 3], "float32", 2))


def test_arguments_are_translated_by_type_not_by_spelling() -> None:
    # "nhwc" is an operand here, and still the option keeps its text.
    step = Step(
        "conv2d",
        (
            ("input", "nhwc"),
            ("filter", "w"),
            ("options", {"inputLayout": "nhwc", "bias": "nhwc", "strides": [2, 2]}),
        ),
        ("y",),
    )
    positional, keywords = step.call(str.upper)
    assert positional == ["NHWC", "W"]
    assert keywords == {"input_layout": "nhwc", "bias": "NHWC", "strides": [2, 2]}


def test_operands_inside_a_list_are_looked_up() -> None:
    step = Step("concat", (("inputs", ["a", "b"]), ("axis", 1)), ("y",))
    assert step.call(str.upper) == ([["A", "B"], 1], {})


def test_numbers_of_options_may_be_words() -> None:
    step = Step("clamp", (("input", "x"), ("options", {"minValue": "-Infinity"})), ("y",))
    assert step.call(str.upper) == (["X"], {"min_value": -np.inf})


def test_an_argument_in_the_wrong_place_is_an_error() -> None:
    with pytest.raises(FormatError, match="expected 'axis'"):
        Step("concat", (("inputs", ["a"]), ("asix", 1)), ("y",)).call(str)


def bits(value: float, dtype: type[np.generic], steps: int) -> wpt_format.Array:
    """The number that many representable steps above a positive one."""
    unsigned = {2: np.uint16, 4: np.uint32}[np.dtype(dtype).itemsize]
    moved: wpt_format.Array = np.array([value], dtype).view(unsigned) + unsigned(steps)
    return moved.view(dtype)


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_ulp_counts_representable_numbers(dtype: type[np.generic]) -> None:
    expected, actual = np.array([1.5], dtype), bits(1.5, dtype, 3)
    assert first_difference(actual, expected, "ULP", 3) is None
    difference = first_difference(actual, expected, "ULP", 2)
    assert difference is not None
    assert difference.distance == 3


def test_float32_ulp_goes_through_zero_and_float16_does_not() -> None:
    tiny32 = bits(0.0, np.float32, 1)
    assert first_difference(tiny32, -tiny32, "ULP", 2) is None
    tiny16 = bits(0.0, np.float16, 1)
    difference = first_difference(tiny16, -tiny16, "ULP", 2)
    assert difference is not None
    assert difference.distance == 2**15


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_zeros_are_equal_and_zero_is_one_step_from_the_least(dtype: type[np.generic]) -> None:
    zero, negative = np.array([0.0], dtype), np.array([-0.0], dtype)
    assert first_difference(negative, zero, "ULP", 0) is None
    assert first_difference(bits(0.0, dtype, 1), negative, "ULP", 1) is None


@pytest.mark.parametrize("metric", ["ULP", "ATOL"])
def test_nan_equals_only_nan(metric: str) -> None:
    nan, one = np.array([np.nan], np.float32), np.array([1], np.float32)
    assert first_difference(nan, -nan, metric, 0) is None
    assert first_difference(nan, one, metric, 1e30) is not None
    assert first_difference(one, nan, metric, 1e30) is not None


def test_infinities_of_one_sign_are_equal() -> None:
    infinity = np.array([np.inf], np.float32)
    assert first_difference(infinity, infinity, "ATOL", 0) is None
    assert first_difference(infinity, -infinity, "ATOL", 1e30) is not None


def test_64_bit_integers_are_compared_exactly() -> None:
    low, high = np.array([-(2**63)]), np.array([2**63 - 1])
    difference = first_difference(low, high, "ULP", 2**40)
    assert difference is not None
    assert difference.distance == float(2**64 - 1)
    assert first_difference(high, high - 1, "ULP", 0) is not None
    assert first_difference(high, high - 1, "ULP", 1) is None


def test_atol_is_inclusive_and_the_first_wrong_element_is_named() -> None:
    expected = np.zeros((2, 3), np.float32)
    actual = np.array([[0, 0.5, 0], [0.25, 2, 3]], np.float32)
    assert first_difference(actual, expected, "ATOL", 3) is None
    difference = first_difference(actual, expected, "ATOL", 0.5)
    assert difference is not None
    assert (difference.index, difference.actual, difference.count) == ((1, 1), 2.0, 2)


def test_report_counts_and_writes(tmp_path: Path) -> None:
    report = Report()
    report.add("relu", "cpu", "passed")
    report.add("relu", "webgpu", "not supported")
    report.add("abs", "cpu", "failed")
    assert list(report.rows()) == [
        ["operator", "cpu", "webgpu"],
        ["abs", "0 / 1 failed", "-"],
        ["relu", "1", "0 / 1 not supported"],
        ["total", "1 / 1 failed", "0 / 1 not supported"],
    ]
    report.write(tmp_path / "r.md")
    assert "| relu | 1 | 0 / 1 not supported |" in (tmp_path / "r.md").read_text()
    report.write(tmp_path / "r.json")
    assert '"failed": 1' in (tmp_path / "r.json").read_text()


def relu_case(expected: list[float], data_type: str = "float32") -> Case:
    return Case(
        "relu",
        "relu of two numbers",
        {"x": entry([-1, 2], "float32", 2)},
        (Step("relu", (("input", "x"), ("options", {"label": "r"})), ("y",)),),
        {"y": entry(expected, data_type, 2)},
        "ULP",
        0,
    )


@pytest.mark.parametrize(
    ("case", "detail"),
    [
        (relu_case([0, 2]), ""),
        (relu_case([0, 3]), "first at [1]: got 2.0, expected 3.0"),
        (relu_case([0, 2], "float16"), "got float32[2], expected float16[2]"),
    ],
)
def test_a_case_is_judged_by_values_and_type(case: Case, detail: str) -> None:
    outcome = wpt.run_case("reference", case)
    assert outcome.status == ("failed" if detail else "passed")
    assert detail in outcome.detail


X = {"call": "input", "receiver": "b0", "args": ["x", {"dataType": "float32", "shape": [2]}]}
INPUT = X | {"expect": "ok", "result": "o0"}
SOFTMAX = {"call": "softmax", "receiver": "b0", "args": [{"$op": "o0"}, 1, {"label": "late"}]}


@pytest.mark.parametrize(
    ("step", "detail"),
    [
        (SOFTMAX | {"expect": "throw", "label": "late"}, ""),
        (SOFTMAX | {"expect": "throw", "label": "early"}, "the label [early] is missing"),
        (SOFTMAX | {"expect": "throw", "error": "InvalidStateError"}, "expected InvalidStateError"),
        (SOFTMAX | {"expect": "ok"}, "raised ValidationError"),
        (X | {"expect": "ok", "output": {"dataType": "float32", "shape": [2]}}, ""),
        (X | {"expect": "ok", "output": {"dataType": "float32", "shape": [3]}}, "expected [3]"),
        (X | {"expect": "ok", "output": {"dataType": "int8", "shape": [2]}}, "expected int8"),
        (X | {"expect": "throw"}, ""),  # the name is taken
        (SOFTMAX | {"call": "relu", "args": [{"$op": "o0"}], "expect": "throw"}, "did not raise"),
    ],
)
def test_a_trace_is_judged_by_errors_and_outputs(step: dict[str, object], detail: str) -> None:
    status, complaint = trace.run_trace("reference", trace.Trace("f", "n", (INPUT, step)))
    assert status == ("failed" if detail else "passed")
    assert detail in complaint


SLICE = ExpectedFailure("conformance", "slice", "[s] *", "D1", "why", backend="cpu")


@pytest.fixture
def one_exception(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exceptions, "load", lambda: (SLICE,))


@pytest.mark.usefixtures("one_exception")
def test_a_listed_failure_is_an_exception_and_others_are_not() -> None:
    verdict = Verdict("conformance", "slice", "cpu")
    assert verdict.status("[s] one", "failed", "why") == "exception"
    assert verdict.status("[t] two", "failed", "why") == "failed"
    assert verdict.status("[t] three", "passed", "") == "passed"
    with pytest.raises(AssertionError, match=r"1 complaints:\n\[t\] two: why"):
        verdict.check()


@pytest.mark.usefixtures("one_exception")
def test_an_unused_exception_fails() -> None:
    verdict = Verdict("conformance", "slice", "cpu")
    assert verdict.status("[s] one", "passed", "") == "passed"
    with pytest.raises(AssertionError, match="matches no failure any more"):
        verdict.check()


@pytest.mark.usefixtures("one_exception")
def test_an_exception_is_for_its_own_backend_and_suite() -> None:
    for kind, backend in (("conformance", "webgpu"), ("validation", "cpu")):
        verdict = Verdict(kind, "slice", backend)
        assert verdict.status("[s] one", "failed", "") == "failed"


def test_listed_exceptions_cite_a_section_or_deviation() -> None:
    deviations = (wpt_format.ROOT / "spec" / "deviations.md").read_text(encoding="utf-8")
    for entry in exceptions.load():
        if not entry.section.startswith(("api-", "appendices-", "algorithms-")):
            assert f"| {entry.section} |" in deviations
        assert entry.reason
        assert entry.backend in {"*", *wpt.BACKENDS}


def test_all_data_can_be_read_and_translated() -> None:
    folder = wpt_format.data_folder()
    if folder is None:
        pytest.skip(wpt_format.NO_DATA)
    for path in wpt_format.case_files(folder):
        for case in wpt_format.read_cases(path):
            assert all(step.idl_name in wpt_format.signatures() for step in case.steps)
            for values in (*case.inputs.values(), *case.expected.values()):
                array(values)
            for step in case.steps:
                step.call(lambda name: name)

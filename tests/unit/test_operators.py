"""The declared operators are those of the specification, and each has a definition."""

from __future__ import annotations

import inspect
import json
import typing
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.graphs import normal
from tests.internals import recipe_of
from tests.property.drawing import Array, Call
from tests.property.strategies import calls
from webnn_py import (
    MLContext,
    MLExecution,
    MLGraph,
    MLGraphBuilder,
    MLOperandDataType,
    ValidationError,
    ml,
)
from webnn_py.core.convert import MLNumber, Signed, SignedSize, Size
from webnn_py.core.dtypes import ANY, DTYPES, FLOATS, PACKED_4BIT
from webnn_py.core.shapes import MAX_RANK
from webnn_py.engines.reference import ReferenceEngine, evaluate
from webnn_py.engines.reference.functions import FUNCTIONS
from webnn_py.ops.declare import REGISTRY, Operator
from webnn_py.ops.decompositions import DECOMPOSITIONS
from webnn_py.passes.decompose import decompose
from webnn_py.passes.target import Target

SPEC = json.loads((Path(__file__).parents[2] / "spec" / "operators.json").read_text("utf-8"))
OPERATORS: dict[str, dict[str, Any]] = {entry["python"]: entry for entry in SPEC["operators"]}
COMPOSITES = sorted(DECOMPOSITIONS)

each_operator = pytest.mark.parametrize("name", sorted(OPERATORS))
each_composite = pytest.mark.parametrize("name", COMPOSITES)
few = settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))

# Deviation D8: packed data types of quantised weights.
EXTRA_TYPES = {
    ("dequantize_linear", "input"): PACKED_4BIT,
    ("quantize_linear", "zero_point"): PACKED_4BIT,
}
# The table of isNaN and isInfinite says any data type, the steps raise for all but floats.
OTHER_TYPES = {("is_nan", "a"): FLOATS, ("is_infinite", "a"): FLOATS}
# The table of gather has no output of rank 0, which a vector and a scalar index make.
OTHER_RANKS = {("gather", "output"): (0, MAX_RANK)}
# The IDL type of an option, and the annotation that stands for it.
ANNOTATIONS = {
    "boolean": bool,
    "double": float,
    "long": Signed,
    "unsigned long": int,
    "MLNumber": MLNumber,
    "MLOperandDataType": MLOperandDataType,
    "sequence<unsigned long>": typing.get_type_hints(MLGraphBuilder.tile)["repetitions"],
    "sequence<float>": typing.get_type_hints(MLGraphBuilder.resample2d)["scales"],
    "(unsigned long or sequence<unsigned long>)": typing.get_type_hints(MLGraphBuilder.split)[
        "splits"
    ],
}


def tensors(name: str) -> list[dict[str, Any]]:
    return [*OPERATORS[name]["operands"], *OPERATORS[name]["option_operands"]]


def python_names(name: str) -> dict[str, str]:
    return {entry["name"]: entry["python"] for entry in tensors(name)}


def expected_types(name: str, entry: Mapping[str, Any]) -> tuple[str, ...] | str:
    """The specification's data types as a declaration writes them."""
    types = entry["data_types"]
    if isinstance(types, dict):
        return python_names(name)[types["same_as"]]
    key = name, entry.get("python", entry["name"])
    listed = ANY if types == "any" else tuple(types)
    return OTHER_TYPES.get(key, listed) + EXTRA_TYPES.get(key, ())


def expected_ranks(name: str, entry: Mapping[str, Any]) -> tuple[int, int]:
    ranks = entry["ranks"]
    if isinstance(ranks, dict):
        same = next(other for other in tensors(name) if other["name"] == ranks["same_as"])
        return expected_ranks(name, same)
    low, high = ranks
    listed = low, MAX_RANK if high is None else high
    return OTHER_RANKS.get((name, entry["name"]), listed)


def as_set(types: tuple[str, ...] | str) -> set[str] | str:
    return types if isinstance(types, str) else set(types)


def test_the_registry_has_just_the_operators_of_the_specification() -> None:
    declared = {name for name, op in REGISTRY.items() if not op.extension}
    assert declared == set(OPERATORS)


@each_operator
def test_every_operator_is_a_documented_method_of_the_builder(name: str) -> None:
    method = getattr(MLGraphBuilder, name)
    assert method.operator is REGISTRY[name]
    assert REGISTRY[name].idl == OPERATORS[name]["name"]
    assert inspect.getdoc(method)
    returned = list if OPERATORS[name]["returns"] == "list" else None
    assert typing.get_origin(method.__annotations__["return"]) is returned


@each_operator
def test_operands_have_the_data_types_and_ranks_of_the_specification(name: str) -> None:
    op = REGISTRY[name]
    assert list(op.limits) == [entry["python"] for entry in tensors(name)]
    for entry in tensors(name):
        limits = op.limits[entry["python"]]
        assert as_set(limits.types) == as_set(expected_types(name, entry)), entry
        assert limits.rank_range == expected_ranks(name, entry), entry
    assert op.variadic == any(entry.get("sequence", False) for entry in tensors(name))


@each_operator
def test_outputs_have_the_data_types_and_ranks_of_the_specification(name: str) -> None:
    op, outputs = REGISTRY[name], OPERATORS[name]["outputs"]
    ranks = {entry["name"]: expected_ranks(name, entry) for entry in outputs}
    assert dict(op.output_ranks) == ranks
    for entry in outputs:
        types = expected_types(name, entry)
        resolved = op.operand_types(types) if isinstance(types, str) else types
        assert set(op.operand_types("output")) == set(resolved)


@each_operator
def test_arguments_and_options_are_those_of_the_idl(name: str) -> None:
    op, spec = REGISTRY[name], OPERATORS[name]
    parameters = list(op.signature.parameters.values())[1:]
    positional = [p.name for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD]
    assert positional == [e["python"] for e in (*spec["operands"], *spec["arguments"])]
    options = {p.name: p for p in parameters if p.kind is p.KEYWORD_ONLY}
    assert set(options) == {e["python"] for e in (*spec["option_operands"], *spec["options"])}
    for entry in spec["options"]:
        default = entry.get("default")
        wanted = tuple(default) if isinstance(default, list) else default
        assert options[entry["python"]].default == wanted, entry["python"]
    assert all(options[entry["python"]].default is None for entry in spec["option_operands"])


def idl_annotation(idl_type: str) -> Any:
    if idl_type in ANNOTATIONS:
        return ANNOTATIONS[idl_type]
    if idl_type.startswith("sequence<"):
        return ("list", *SPEC["enums"][idl_type.removeprefix("sequence<").removesuffix(">")])
    return tuple(SPEC["enums"][idl_type])


SIZES: dict[Any, Any] = {
    Size: int,
    SignedSize: Signed,
    Sequence[Size]: Sequence[int],
    Sequence[Size] | None: Sequence[int] | None,
    int | Sequence[Size]: int | Sequence[int],
}


def plain(annotation: Any) -> Any:
    """An annotation without `| None`, enums as tuples of their values, sizes as integers."""
    annotation = SIZES.get(annotation, annotation)
    members = [m for m in typing.get_args(annotation) if m is not type(None)]
    if type(None) in typing.get_args(annotation):
        annotation = members[0] if len(members) == 1 else typing.Union[tuple(members)]  # noqa: UP007
    if annotation != MLOperandDataType and typing.get_origin(annotation) is typing.Literal:
        return typing.get_args(annotation)
    inner = next(iter(typing.get_args(annotation)), None)
    if typing.get_origin(inner) is typing.Literal:
        return ("list", *typing.get_args(inner))
    return annotation


@each_operator
def test_sections_are_those_of_the_specification(name: str) -> None:
    assert REGISTRY[name].section == OPERATORS[name]["section"]


@each_operator
def test_annotations_are_the_types_of_the_idl(name: str) -> None:
    hints = typing.get_type_hints(REGISTRY[name].infer, include_extras=True)
    for entry in (*OPERATORS[name]["arguments"], *OPERATORS[name]["options"]):
        if entry["name"] != "label":
            assert plain(hints[entry["python"]]) == idl_annotation(entry["type"]), entry["python"]


@each_operator
def test_the_context_lists_the_limits_of_every_operand_and_output(name: str) -> None:
    limits = ml.create_context_sync(engine="reference").op_support_limits()[name]
    outputs = [entry["name"] for entry in OPERATORS[name]["outputs"]]
    assert set(limits) == {entry["python"] for entry in tensors(name)} | set(outputs)
    for entry in tensors(name):
        low, high = expected_ranks(name, entry)
        assert limits[entry["python"]]["rank_range"] == {"min": low, "max": high}


def test_every_operator_has_one_definition_on_the_reference_backend() -> None:
    """A NumPy expression in its row, or a function; none too many."""
    rows = {name for name, op in REGISTRY.items() if op.numpy or op.reduce_numpy}
    assert not rows & set(FUNCTIONS)
    assert set(REGISTRY) == rows | set(FUNCTIONS)


def test_elementwise_operators_have_an_expression_in_wgsl() -> None:
    assert [name for name, op in REGISTRY.items() if op.elementwise != (op.wgsl is not None)] == []


# Composites


@pytest.fixture(scope="module")
def context() -> MLContext:
    return ml.create_context_sync(engine="reference")


def built(context: MLContext, call: Call) -> tuple[MLGraph, dict[str, Array]]:
    """A graph of one call, and the contents of its inputs."""
    builder = MLGraphBuilder(context)
    graph = builder.build_sync({f"out{i}": o for i, o in enumerate(call(builder))})
    return graph, {name: array for name, array in call.inputs.items() if name in graph.inputs}


def run_decomposed(graph: MLGraph, op: Operator, inputs: Mapping[str, Array]) -> dict[str, Array]:
    """The results where `op` has no kernel."""
    target = Target(lambda node: node.op != op.name, evaluate)
    parts = decompose(recipe_of(graph), target)
    assert op.name not in [node.op for node in parts.nodes]
    results = {
        name: np.empty(descriptor.shape, DTYPES[descriptor.data_type].numpy)
        for name, descriptor in parts.outputs
    }
    given = [inputs[value.name] for value in parts.inputs]
    ReferenceEngine().compile(parts).run(given, [*results.values()])
    return results


def assert_near(got: Array, expected: Array) -> None:
    """Within some roundings of the largest element."""
    assert got.dtype == expected.dtype
    if expected.dtype.kind != "f":
        np.testing.assert_array_equal(got, expected)
        return
    wide = expected.astype(np.float64)
    largest = np.max(np.abs(wide), where=np.isfinite(wide), initial=1.0)
    roundings = 64 * float(np.finfo(expected.dtype).eps)
    np.testing.assert_allclose(got, wide, rtol=roundings, atol=roundings * largest)


@each_composite
@few
@given(data=st.data())
def test_a_decomposition_computes_what_the_reference_does(
    context: MLContext, name: str, data: st.DataObject
) -> None:
    call = data.draw(calls(name).filter(decomposable))
    graph, inputs = built(context, call)
    expected = MLExecution(context).compute(graph, inputs)
    results = run_decomposed(graph, REGISTRY[name], inputs)
    for output, array in expected.items():
        assert_near(results[output], array)


def test_a_mask_of_attention_may_be_one_number(context: MLContext) -> None:
    builder = MLGraphBuilder(context)
    rows = builder.input("rows", "float32", [1, 2, 3, 4])
    mask = builder.input("mask", "uint8", [])
    y = builder.scaled_dot_product_attention(rows, rows, rows, mask=mask)
    graph = builder.build_sync({"y": y})
    for keeps in (0, 1):
        inputs = {"rows": normal(1, 2, 3, 4), "mask": np.asarray(keeps, np.uint8)}
        expected = MLExecution(context).compute(graph, inputs)["y"]
        assert_near(
            run_decomposed(graph, REGISTRY["scaled_dot_product_attention"], inputs)["y"], expected
        )


def decomposable(call: Call) -> bool:
    """No cast takes the packed types: a backend has a kernel for them or does not offer them."""
    return call.op.name == "matmul_packed" or all(
        tensor.data_type not in PACKED_4BIT for tensor in call.named().values()
    )


@pytest.mark.parametrize("name", ["gru", "lstm"])
@pytest.mark.parametrize("data_type", FLOATS)
def test_a_long_sequence_is_joined_in_parts(
    context: MLContext, name: str, data_type: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("webnn_py.ops.decompositions.recurrent.MAX_TENSORS", 3)
    gates = 3 if name == "gru" else 4
    builder = MLGraphBuilder(context)
    rng = np.random.default_rng(1)
    dtype = DTYPES[data_type].numpy
    weight, recurrent = (
        builder.constant(rng.uniform(-1, 1, (2, gates * 2, 2)).astype(dtype)) for _ in range(2)
    )
    x = builder.input("x", data_type, [8, 1, 2])
    method = getattr(builder, name)
    outputs = method(x, weight, recurrent, 8, 2, return_sequence=True, direction="both")
    graph = builder.build_sync({"all": outputs[-1]})
    inputs = {"x": rng.uniform(-1, 1, (8, 1, 2)).astype(dtype)}
    expected = MLExecution(context).compute(graph, inputs)["all"]
    assert_near(run_decomposed(graph, REGISTRY[name], inputs)["all"], expected)


# None, the one absent value


def test_none_stands_for_an_option_that_is_absent(context: MLContext) -> None:
    builder = MLGraphBuilder(context)
    x = builder.input("x", "float32", [1, 1, 4, 4])
    pooled = builder.max_pool2d(x, strides=None, window_dimensions=[2, 2])  # type: ignore[arg-type]
    assert pooled.shape == (1, 1, 3, 3)


def test_none_for_a_required_argument_is_an_error(context: MLContext) -> None:
    builder = MLGraphBuilder(context)
    x = builder.input("x", "float32", [4])
    with pytest.raises(ValidationError, match="softmax"):
        builder.softmax(x, None)  # type: ignore[arg-type]


def test_a_label_in_a_message_cannot_break_the_line(context: MLContext) -> None:
    builder = MLGraphBuilder(context)
    x = builder.input("x", "float32", [4])
    with pytest.raises(ValidationError, match=r"^softmax \[a\\nb é\]: axis: got 1"):
        builder.softmax(x, 1, label="a\nb é")

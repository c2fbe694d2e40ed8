"""Calls with open dimensions that no bounds decide, or that bounds refuse: each a clear error.

A case is a call of an operator that is valid where a condition holds, and the condition. It is made
in several spellings of its dimensions: bounds that leave the condition open, or that exclude it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from webnn_py import MLContext, MLExecution, MLGraphBuilder, MLOperand, ValidationError, ml

MOST = 2**31 - 1
Call = Callable[["Inputs"], object]


@pytest.fixture(scope="module")
def context() -> MLContext:
    return ml.create_context_sync(engine="reference")


class Inputs:
    """A builder, and inputs of it with open dimensions.

    Attributes:
        n, m: Two open dimensions.
    """

    def __init__(self, context: MLContext, spelling: Callable[[Any], Any], **bounds: Any) -> None:
        self.b = MLGraphBuilder(context, dimensions=bounds)
        self.n, self.m = (spelling(self("float32", name).shape[0]) for name in "nm")

    def __call__(self, data_type: Any, *shape: Any) -> MLOperand:
        number = self.number = getattr(self, "number", 0) + 1
        return self.b.input(f"x{number}", data_type, shape)

    def f(self, *shape: Any) -> MLOperand:
        """A float32 input."""
        return self("float32", *shape)


# Calls that are valid where n == 8, m == 8.
EQUALITIES: dict[str, Call] = {
    "add": lambda i: i.b.add(i.f(i.n, 3), i.f(8, 3)),
    "sub": lambda i: i.b.sub(i.f(8), i.f(4, i.n)),
    "mul": lambda i: i.b.mul(i.f(i.n), i.f(i.m)),
    "max": lambda i: i.b.max(i.f(2, i.n), i.f(2, 8)),
    "pow": lambda i: i.b.pow(i.f(2, i.n, 1), i.f(2, 8, 3)),
    "equal": lambda i: i.b.equal(i.f(i.n), i.f(i.m)),
    "where": lambda i: i.b.where(i("uint8", i.n), i.f(8), i.f(8)),
    "prelu": lambda i: i.b.prelu(i.f(4, i.n), i.f(8)),
    "matmul": lambda i: i.b.matmul(i.f(2, i.n), i.f(8, 3)),
    "matmul ": lambda i: i.b.matmul(i.f(i.n, 2, 3), i.f(8, 3, 2)),
    "gemm": lambda i: i.b.gemm(i.f(2, i.n), i.f(8, 3)),
    "gemm ": lambda i: i.b.gemm(i.f(i.n, 2), i.f(2, 3), c=i.f(8, 3)),
    "gemm  ": lambda i: i.b.gemm(i.f(2, i.n), i.f(3, i.m), b_transpose=True),
    "concat": lambda i: i.b.concat([i.f(2, i.n), i.f(3, 8)], 0),
    "concat ": lambda i: i.b.concat([i.f(2, 8), i.f(3, i.n)], 0),
    "expand": lambda i: i.b.expand(i.f(i.n), [4, 8]),
    "expand ": lambda i: i.b.expand(i.f(8), [4, i.n]),
    "reshape": lambda i: i.b.reshape(i.f(i.n, 3), [24]),
    "reshape ": lambda i: i.b.reshape(i.f(24), [i.n, 3]),
    "reshape  ": lambda i: i.b.reshape(i.f(i.n, 3), [3, i.m]),
    "split": lambda i: i.b.split(i.f(i.n), [3, 5]),
    "split ": lambda i: i.b.split(i.f(12), [4, i.n]),
    "gather_elements": lambda i: i.b.gather_elements(i.f(i.n, 4), i("int32", 8, 2), axis=1),
    "scatter_elements": lambda i: i.b.scatter_elements(
        i.f(8, 4), i("int32", i.n, 2), i.f(i.n, 2), axis=1
    ),
    "scatter_elements ": lambda i: i.b.scatter_elements(
        i.f(8, 4), i("int32", 8, 2), i.f(i.n, 2), axis=1
    ),
    "scatter_nd": lambda i: i.b.scatter_nd(i.f(5, i.n), i("int32", 3, 1), i.f(3, 8)),
    "batch_normalization": lambda i: i.b.batch_normalization(i.f(2, i.n), i.f(8), i.f(8)),
    "batch_normalization ": lambda i: i.b.batch_normalization(i.f(2, 8), i.f(8), i.f(i.n)),
    "instance_normalization": lambda i: i.b.instance_normalization(
        i.f(1, i.n, 4, 4), scale=i.f(8)
    ),
    "layer_normalization": lambda i: i.b.layer_normalization(i.f(2, 8), scale=i.f(i.n)),
    "layer_normalization ": lambda i: i.b.layer_normalization(i.f(2, i.n), bias=i.f(i.m)),
    "quantize_linear": lambda i: i.b.quantize_linear(i.f(16), i.f(8), i("int8", i.n)),
    "conv2d": lambda i: i.b.conv2d(i.f(1, i.n, 9, 9), i.f(4, 8, 3, 3)),
    "conv2d ": lambda i: i.b.conv2d(i.f(1, 8, 9, 9), i.f(4, i.n, 3, 3)),
    "conv2d  ": lambda i: i.b.conv2d(i.f(1, 2, 9, 9), i.f(i.n, 2, 3, 3), bias=i.f(8)),
    "conv_transpose2d": lambda i: i.b.conv_transpose2d(i.f(1, i.n, 9, 9), i.f(8, 2, 3, 3)),
    "conv_transpose2d ": lambda i: i.b.conv_transpose2d(
        i.f(1, 2, 9, 9), i.f(2, i.n, 3, 3), bias=i.f(8)
    ),
    "average_pool2d": lambda i: i.b.average_pool2d(
        i.f(1, 1, i.n, 8), window_dimensions=[2, 2], output_sizes=[7, 7]
    ),
    "gru": lambda i: i.b.gru(i.f(i.n, 1, 2), i.f(1, 12, 2), i.f(1, 12, 4), 8, 4),
    "gru ": lambda i: i.b.gru(i.f(3, 1, i.n), i.f(1, 12, 8), i.f(1, 12, 4), 3, 4),
    "gru_cell": lambda i: i.b.gru_cell(
        i.f(i.n, 2), i.f(12, 2), i.f(12, 4), i.f(8, 4), 4
    ),
    "lstm": lambda i: i.b.lstm(
        i.f(3, i.n, 2), i.f(1, 16, 2), i.f(1, 16, 4), 3, 4, initial_cell_state=i.f(1, 8, 4)
    ),
    "lstm_cell": lambda i: i.b.lstm_cell(
        i.f(2, 3), i.f(32, 3), i.f(32, 8), i.f(2, i.n), i.f(2, 8), 8
    ),
}  # fmt: skip

# Calls that are valid where n >= 8.
LEAST: dict[str, Call] = {
    "slice": lambda i: i.b.slice(i.f(i.n), [0], [8]),
    "slice ": lambda i: i.b.slice(i.f(4, i.n), [1, 5], [2, 3]),
    "slice  ": lambda i: i.b.slice(i.f(i.n), [0], [i.n - 7]),
    "slice   ": lambda i: i.b.slice(i.f(i.n), [i.n - 8], [8]),
    "pad": lambda i: i.b.pad(i.f(i.n), [7], [7], mode="reflection"),
    "pad ": lambda i: i.b.pad(i.f(4), [i.n - 8], [0]),
    "tile": lambda i: i.b.tile(i.f(4), [i.n - 7]),
    "arg_top_k": lambda i: i.b.arg_top_k(i.f(i.n), 0, i.n - 7),
    "arg_top_k ": lambda i: i.b.arg_top_k(i.f(4, i.n), 1, 8),
    "expand": lambda i: i.b.expand(i.f(1), [i.n - 7]),
    "split": lambda i: i.b.split(i.f(i.n), [7, i.n - 7]),
    "conv2d": lambda i: i.b.conv2d(i.f(1, 1, i.n, 9), i.f(1, 1, 8, 3)),
    "conv2d ": lambda i: i.b.conv2d(i.f(1, 1, 9, i.n), i.f(1, 1, 3, 4), padding=[0, 0, 1, 1],
                                    dilations=[1, 3]),
    "conv_transpose2d": lambda i: i.b.conv_transpose2d(
        i.f(1, 1, i.n, 9), i.f(1, 1, 1, 1), padding=[3, 4, 0, 0]
    ),
    "max_pool2d": lambda i: i.b.max_pool2d(i.f(1, 1, i.n, 9), window_dimensions=[8, 2]),
    "l2_pool2d": lambda i: i.b.l2_pool2d(i.f(1, i.n, 9, 1), window_dimensions=[8, 2],
                                         layout="nhwc"),
    "resample2d": lambda i: i.b.resample2d(i.f(1, 1, i.n, 4), scales=[0.125, 1.0]),
    "resample2d ": lambda i: i.b.resample2d(i.f(1, 1, 4, 4), sizes=[i.n - 7, 2]),
}  # fmt: skip

# Calls that are valid where 4 divides n.
DIVISIBLE: dict[str, Call] = {
    "split": lambda i: i.b.split(i.f(i.n), 4),
    "conv2d": lambda i: i.b.conv2d(i.f(1, 8, 9, 9), i.f(i.n, 2, 3, 3), groups=4),
    "quantize_linear": lambda i: i.b.quantize_linear(i.f(i.n), i.f(4), i("int8", 4)),
    "dequantize_linear": lambda i: i.b.dequantize_linear(i("int8", 6, i.n), i.f(3, 4),
                                                         i("int8", 3, 4)),
}  # fmt: skip

# Options and operands that are known at build, and what messages call them.
FIXED: dict[str, tuple[Call, str]] = {
    "split": (lambda i: i.b.split(i.f(8), i.n), "splits"),
    "transpose": (lambda i: i.b.transpose(i.f(2, 2), permutation=[i.n, 0]), "permutation"),
    "softmax": (lambda i: i.b.softmax(i.f(2, 2), i.n), "axis"),
    "reduce_sum": (lambda i: i.b.reduce_sum(i.f(2), axes=[i.n]), "axes"),
    "concat": (lambda i: i.b.concat([i.f(2)], i.n), "axis"),
    "slice": (lambda i: i.b.slice(i.f(8), [0], [8], strides=[i.n]), "strides"),
    "conv2d": (lambda i: i.b.conv2d(i.f(1, 1, 9, 9), i.f(1, 1, 3, 3), strides=[i.n, 1]), "strides"),
    "max_pool2d": (lambda i: i.b.max_pool2d(i.f(1, 1, 9, 9), dilations=[1, i.n]), "dilations"),
    "conv_transpose2d": (
        lambda i: i.b.conv_transpose2d(i.f(1, 1, 9, 9), i.f(1, 1, 3, 3), groups=i.n), "groups"
    ),
    "linear": (lambda i: i.b.linear(i.f(2), alpha=i.n), "alpha"),
    "clamp": (lambda i: i.b.clamp(i.f(2), max_value=i.n), "max_value"),
    "gather_nd": (lambda i: i.b.gather_nd(i.f(2, 2), i("int32", 4, i.n)), "indices"),
    "scatter_nd": (lambda i: i.b.scatter_nd(i.f(2, 2), i("int32", 4, i.n), i.f(4)), "indices"),
    "cumulative_sum": (lambda i: i.b.cumulative_sum(i.f(2), i.n), "axis"),
    "arg_max": (lambda i: i.b.arg_max(i.f(2), i.n), "axis"),
}  # fmt: skip

FREE = {"n": (1, 64), "m": (2, 100)}
SPELLINGS: dict[str, tuple[Callable[[Any], Any], dict[str, Any]]] = {
    "default bounds": (lambda d: d, {}),
    "bounds": (lambda d: d, FREE),
    "low bounds": (lambda d: d, {"n": (3, None), "m": (5, None)}),
    "sum": (lambda d: d + 1, FREE),
    "twice": (lambda d: 2 * d, FREE),
}
GIVEN = re.compile(r"; (give (dimensions=|both one name)|make the dimension a multiple)")


def refused(call: Call, inputs: Inputs) -> str:
    with pytest.raises(ValidationError) as caught:
        call(inputs)
    return str(caught.value)


def undecided() -> list[tuple[str, str, Call]]:
    """Operator, spelling and call, where what is asked depends on sizes."""
    cases = [(*item, spelling) for group in (EQUALITIES, DIVISIBLE)
             for item in group.items() for spelling in SPELLINGS]  # fmt: skip
    return [(name, spelling, call) for name, call, spelling in cases]


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_what_is_not_decided_is_said(context: MLContext, spelling: str) -> None:
    change, bounds = SPELLINGS[spelling]
    for name, _, call in (case for case in undecided() if case[1] == spelling):
        inputs = Inputs(context, change, **bounds)
        text = refused(call, inputs)
        assert text.startswith(f"{name.strip()}: "), text
        asked = re.search(r"whether `(.+?)` is not known for (.+?)(;|$)", text)
        assert asked, text
        assert GIVEN.search(text), text
        for variable in re.findall(r"\b[nm]\b", asked[1]):
            low, high = bounds.get(variable, (1, MOST))
            assert f"{variable} in {low}..{high or MOST}" in asked[2], text


def test_there_are_three_hundred() -> None:
    decided = 2 * len(LEAST) + len(LEAST) * len(DECIDING) + len(EQUALITIES)
    assert len(undecided()) + decided + len(FIXED) >= 300


@pytest.mark.parametrize("name", EQUALITIES)
def test_sizes_that_are_never_equal_are_refused_as_numbers_are(
    context: MLContext, name: str
) -> None:
    inputs = Inputs(context, lambda d: d, n=(9, 20), m=(30, 40))
    text = refused(EQUALITIES[name], inputs)
    assert "not known" not in text
    assert re.match(rf"{name.strip()}: .*\bn\b", text)


@pytest.mark.parametrize("name", EQUALITIES)
def test_one_name_or_size_decides(context: MLContext, name: str) -> None:
    EQUALITIES[name](Inputs(context, lambda d: d, n=8, m=8))


@pytest.mark.parametrize("name", LEAST)
def test_bounds_decide(context: MLContext, name: str) -> None:
    LEAST[name](Inputs(context, lambda d: d, n=(8, None)))
    assert "not known" not in refused(LEAST[name], Inputs(context, lambda d: d, n=(1, 7)))


DECIDING: dict[str, tuple[Callable[[Any], Any], int]] = {
    "one size": (lambda d: d, 8),
    "sum": (lambda d: d + 1, 7),
    "twice": (lambda d: 2 * d, 4),
}
"""Spellings of a dimension, and the least size for which it is at least 8."""


def fixed(shape: Sequence[Any], n: int) -> list[int]:
    """A shape for one size of its open dimension."""
    return [size if isinstance(size, int) else size.evaluate({"n": n}) for size in shape]


@pytest.mark.parametrize("spelling", DECIDING)
@pytest.mark.parametrize("name", LEAST)
def test_what_sizes_decide_is_checked_when_they_are_known(
    context: MLContext, name: str, spelling: str
) -> None:
    change, least = DECIDING[spelling]
    inputs = Inputs(context, change)
    made: Any = LEAST[name](inputs)
    outputs = made if isinstance(made, list) else [made]
    graph = inputs.b.build_sync({str(i): one for i, one in enumerate(outputs)})
    sizes = {"n": least}
    shapes = graph.output_shapes(sizes)
    assert all(size >= 1 for shape in shapes.values() for size in shape)
    arrays = {
        key: np.zeros(
            [d if isinstance(d, int) else d.evaluate(sizes) for d in one.shape], "float32"
        )
        for key, one in graph.inputs.items()
    }
    results = MLExecution(context).compute(graph, arrays)
    assert {key: array.shape for key, array in results.items()} == shapes
    with pytest.raises(ValidationError, match=rf"^{name.strip()}: ") as caught:
        graph.output_shapes({"n": least - 1})
    assert "not known" not in str(caught.value)


@pytest.mark.parametrize("name", LEAST)
def test_a_run_of_sizes_that_do_not_fit_is_refused(context: MLContext, name: str) -> None:
    inputs = Inputs(context, lambda d: d)
    made: Any = LEAST[name](inputs)
    graph = inputs.b.build_sync({"y": made[0] if isinstance(made, list) else made})
    arrays = {key: np.zeros(fixed(one.shape, 7), "float32") for key, one in graph.inputs.items()}
    with pytest.raises(ValidationError, match=rf"^{name.strip()}: "):
        MLExecution(context).compute(graph, arrays)


@pytest.mark.parametrize("name", DIVISIBLE)
def test_multiples_are_known_to_be_divisible(context: MLContext, name: str) -> None:
    DIVISIBLE[name](Inputs(context, lambda d: 4 * d))
    with pytest.raises(ValidationError, match=r"(parts|divi|dimensions that)") as caught:
        DIVISIBLE[name](Inputs(context, lambda d: 4 * d + 1))
    assert "not known" not in str(caught.value)


@pytest.mark.parametrize("name", FIXED)
def test_what_may_not_be_open_says_so(context: MLContext, name: str) -> None:
    call, told = FIXED[name]
    text = refused(call, Inputs(context, lambda d: d))
    assert re.match(rf"{name}: .*'{told}'.*\bn\b.* open", text)


def test_dimensions_of_another_builder_are_refused(context: MLContext) -> None:
    other, own = Inputs(context, lambda d: d, n=(1, 9)), Inputs(context, lambda d: d)
    stranger = other.b.input("z", "float32", [-1]).shape[0]
    for size in (other.n, 2 * other.n, stranger):
        with pytest.raises(ValidationError, match=r"^expand: dimension .* is of another builder"):
            own.b.expand(own.f(1), [size])
        if size is not other.n:  # a name stands for that of the builder
            with pytest.raises(
                ValidationError, match=r"^input 'x\d': dimension .* another builder"
            ):
                own.f(size)


def test_contents_have_no_open_size(context: MLContext) -> None:
    inputs = Inputs(context, lambda d: d)
    with pytest.raises(ValidationError, match="constant: shape: got n, an open dimension"):
        inputs.b.constant(np.ones(2, np.float32), "float32", [inputs.n])
    with pytest.raises(ValidationError, match="shape: got n, an open dimension"):
        context.create_tensor_sync("float32", [inputs.n])

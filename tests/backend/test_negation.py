"""Negations beside maxima, minima and comparisons: some drivers join them, and compute wrongly."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import pytest

from tests.backend.compared import assert_close
from tests.graphs import awaited, build
from tests.property.drawing import Array
from tests.public import WHOLE_BYTES
from webnn_py import MLContext, MLExecution, MLGraphBuilder, MLOperand

TYPES = WHOLE_BYTES
SIGNED = [name for name in TYPES if not name.startswith("uint")]
SHAPES = [(40, 6), (3, 1), (7, 1024), (2, 1500)]
Make = Callable[[MLGraphBuilder, MLOperand], MLOperand]


def _number(b: MLGraphBuilder, x: MLOperand, value: int) -> MLOperand:
    return b.constant(value, x.data_type)


NEGATED: Mapping[str, Make] = {
    "neg": lambda b, x: b.neg(x),
    "0 - x": lambda b, x: b.sub(_number(b, x, 0), x),
    "zeros - x": lambda b, x: b.sub(b.expand(_number(b, x, 0), x.shape), x),
    "-1 * x": lambda b, x: b.mul(_number(b, x, -1), x),
    "x / -1": lambda b, x: b.div(x, _number(b, x, -1)),
    "neg abs": lambda b, x: b.neg(b.abs(x)),
    "abs": lambda b, x: b.abs(x),
    "sign of neg": lambda b, x: b.sign(b.neg(x)),
    "prelu": lambda b, x: b.prelu(x, _number(b, x, -1)),
    "neg of a part": lambda b, x: b.neg(b.reverse(x, axes=[0])),
    "neg twice": lambda b, x: b.neg(b.add(b.neg(x), _number(b, x, 1))),
}
UNSIGNED: Mapping[str, Make] = {
    "0 - x": NEGATED["0 - x"],
    "zeros - x": NEGATED["zeros - x"],
    "all ones * x": lambda b, x: b.mul(_number(b, x, int(np.iinfo(x.data_type).max)), x),
    "1 - x": lambda b, x: b.sub(_number(b, x, 1), x),
}


def _best(b: MLGraphBuilder, negated: Make, x: MLOperand, y: MLOperand) -> dict[str, MLOperand]:
    """Everything that compares what is negated."""
    made, other = negated(b, x), negated(b, y)
    rows = b.reshape(made, [1, 1, *made.shape])
    results = {
        "reduce_max": b.reduce_max(made, axes=[1]),
        "reduce_min": b.reduce_min(made, axes=[1]),
        "reduce_max of columns": b.reduce_max(made, axes=[0]),
        "reduce_min of all": b.reduce_min(made),
        "max": b.max(made, y),
        "min": b.min(y, made),
        "max of two": b.max(made, other),
        "min of two": b.min(made, other),
        "max of max": b.max(b.max(made, other), x),
        "min of min": b.min(x, b.min(made, other)),
        "clamp": b.clamp(made, min_value=1, max_value=50),
        "arg_max": b.arg_max(made, 1),
        "arg_min": b.arg_min(made, 0),
        "where": b.where(b.greater(made, y), made, y),
        "max_pool2d": b.max_pool2d(rows, window_dimensions=[1, 1 if x.shape[1] == 1 else 3]),
        "less": b.lesser(made, x),
    }
    if not x.data_type.startswith("uint"):
        results["relu"] = b.relu(made)
        results["abs"] = b.max(b.abs(made), y)
        results["negated maximum"] = b.neg(b.max(b.neg(x), b.neg(y)))
        results["max of a negated sum"] = b.max(b.neg(b.add(x, y)), x)
        results["negated row maximum"] = b.neg(b.reduce_max(b.neg(x), axes=[1]))
    if x.data_type in ("int32", "int64", "uint32", "uint64", "float32"):
        results["sum"] = b.max(negated(b, b.reduce_sum(x, axes=[1], keep_dimensions=True)), y)
    return results


def _values(data_type: str, shape: tuple[int, ...], seed: int) -> Array:
    """Small numbers and, of integers, all of the range."""
    rng = np.random.default_rng(seed)
    low = 0 if data_type.startswith("uint") else -100
    small = rng.integers(low, 100, shape)
    if data_type.startswith("float"):
        return np.asarray(small / 4).astype(data_type)
    info = np.iinfo(data_type)
    wide = rng.integers(info.min, info.max, shape, info.dtype.type, endpoint=True)
    return np.where(rng.integers(0, 4, shape) == 0, wide, small.astype(data_type))


CASES = [
    pytest.param(data_type, name, shape, id=f"{data_type}-{name}-{shape[0]}x{shape[1]}")
    for data_type in TYPES
    for name in (NEGATED if data_type in SIGNED else UNSIGNED)
    for shape in (SHAPES if data_type in ("int32", "uint32") else SHAPES[:1])
]


@pytest.mark.parametrize(("data_type", "name", "shape"), CASES)
def test_negation_beside_comparisons(
    each_device: MLContext,
    reference: MLContext,
    data_type: str,
    name: str,
    shape: tuple[int, ...],
) -> None:
    negated = (NEGATED if data_type in SIGNED else UNSIGNED)[name]
    inputs = {name: _values(data_type, shape, seed) for seed, name in enumerate("xy")}

    def model(b: MLGraphBuilder) -> dict[str, MLOperand]:
        return _best(b, negated, *(b.input(name, data_type, shape) for name in inputs))

    wanted = MLExecution(reference).compute(build(reference, model), inputs)
    graph = build(each_device, model)
    for result, got in awaited(graph, inputs).items():
        try:
            assert_close(got, wanted[result])
        except AssertionError as error:
            raise AssertionError(f"{result}: {error}") from None
    graph.destroy()

"""Every operator on a million elements and a dimension above 65,536, against the reference.

With WEBNN_STRESS above 1, on ten million elements, long and wide.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest

from tests.backend.compared import ELEMENTWISE, QUANTIZED, assert_like_reference, declared
from tests.property.drawing import Array, Call, Tensor
from tests.public import OPERANDS, OPERATORS, REDUCTIONS
from webnn_py import MLContext

pytestmark = pytest.mark.kernels

BEYOND = 65_537
"""More than 16 bits count, and than a grid has workgroups along one dimension."""

SHAPES = [(BEYOND, 16)]
if int(os.environ.get("WEBNN_STRESS", "1")) > 1:
    SHAPES = [(BEYOND, 153), (153, BEYOND), (10_000_001, 1), (1, 10_000_001)]

Given = tuple[Mapping[str, Any], dict[str, Any]]
_RNG = np.random.default_rng(0)


def floats(*shape: int) -> Array:
    """Within what every function is defined for."""
    return _RNG.uniform(0.1, 0.9, shape).astype(np.float32)


def places(size: int, *shape: int) -> Array:
    return _RNG.integers(0, size, shape).astype(np.int32)


def small(*shape: int) -> Array:
    """Whose sums are exact, so that they may be made in any order."""
    return _RNG.integers(-3, 4, shape).astype(np.float32)


def elementwise(name: str, rows: int, columns: int) -> Given:
    """Operands of the first data type each may have, and of one byte if it may."""
    operands = {}
    for operand, types in OPERANDS[name].items():
        if "float32" in types:
            operands[operand] = floats(rows, columns)
        else:
            operands[operand] = _RNG.integers(0, 2, (rows, columns)).astype(np.uint8)
    return operands, {"data_type": "uint8"} if name == "cast" else {}


def reduction(name: str, rows: int, columns: int) -> Given:
    data = np.ones((rows, columns), "f") if name == "reduce_product" else floats(rows, columns)
    return {"input": data}, {"axes": [0]}


def pooling(rows: int, columns: int) -> Given:
    return {"input": floats(1, 1, rows, columns)}, {
        "window_dimensions": [min(rows, 3), min(columns, 3)],
        "strides": [2, 1],
    }


def recurrent(gates: int, states: tuple[str, ...], steps: int, rows: int) -> Given:
    data = floats(steps, rows, 2) if steps else floats(rows, 2)
    operands = {"input": data}
    lead = (1,) if steps else ()
    operands["weight"] = small(*lead, gates * 2, 2) / 4
    operands["recurrent_weight"] = small(*lead, gates * 2, 2) / 4
    operands |= {name: floats(*lead, rows, 2) for name in states}
    return operands, ({"steps": steps} if steps else {}) | {"hidden_size": 2}


CASES: dict[str, Callable[[int, int], Given]] = {
    "arg_max": lambda r, c: ({"input": floats(r, c)}, {"axis": 0}),
    "arg_min": lambda r, c: ({"input": floats(r, c)}, {"axis": 1}),
    "arg_top_k": lambda r, c: ({"input": floats(r, c)}, {"axis": 1, "k": min(c, 4)}),
    "average_pool2d": pooling,
    "batch_normalization": lambda r, c: (
        {"input": floats(r, c), "mean": floats(c), "variance": floats(c)},
        {},
    ),
    "concat": lambda r, c: ({"inputs": [floats(r, c), floats(1, c)]}, {"axis": 0}),
    "conv2d": lambda r, c: (
        {"input": small(1, 1, r, c), "filter": small(2, 1, min(r, 3), 1)},
        {},
    ),
    "conv2d_integer": lambda r, c: (
        {
            "input": places(255, 1, 1, r, c).astype(np.uint8),
            "filter": places(255, 2, 1, min(r, 3), 1).astype(np.uint8),
        },
        {},
    ),
    "conv_transpose2d": lambda r, c: (
        {"input": small(1, 1, r, c), "filter": small(1, 2, 2, 1)},
        {"strides": [2, 1]},
    ),
    "cumulative_sum": lambda r, c: ({"input": small(r, c)}, {"axis": 0}),
    "dequantize_linear": lambda r, c: (
        {
            "input": places(200, r, c).astype(np.uint8),
            "scale": floats(r, 1),
            "zero_point": places(200, r, 1).astype(np.uint8),
        },
        {},
    ),
    "dynamic_quantize_linear": lambda r, c: ({"input": floats(r, c)}, {}),
    "expand": lambda r, c: ({"input": floats(r, 1)}, {"new_shape": [2, r, c]}),
    "gather": lambda r, c: ({"input": floats(r, c), "indices": places(r, r)}, {"axis": 0}),
    "gather_elements": lambda r, c: (
        {"input": floats(r, c), "indices": places(r, r, c)},
        {"axis": 0},
    ),
    "gather_nd": lambda r, c: ({"input": floats(r, c), "indices": places(min(r, c), r, 2)}, {}),
    "gemm": lambda r, c: ({"a": small(r, c), "b": small(c, 3), "c": small(3)}, {}),
    "gru": lambda r, c: recurrent(3, (), 2, r),
    "gru_cell": lambda r, c: recurrent(3, ("hidden_state",), 0, r),
    "instance_normalization": lambda r, c: ({"input": floats(1, 2, r, c)}, {}),
    "l2_pool2d": pooling,
    "layer_normalization": lambda r, c: ({"input": floats(r, c)}, {"axes": [0]}),
    "lstm": lambda r, c: recurrent(4, (), 2, r),
    "lstm_cell": lambda r, c: recurrent(4, ("hidden_state", "cell_state"), 0, r),
    "lstm_packed": lambda r, c: (
        {
            "input": floats(2, r, 2),
            "weight": places(255, 1, 2, 8).astype(np.uint8),
            "recurrent_weight": places(255, 1, 2, 8).astype(np.uint8),
            "weight_scale": np.full((1, 1), 1 / 256, np.float32),
            "recurrent_scale": np.full((1, 1), 1 / 256, np.float32),
        },
        {},
    ),
    "matmul": lambda r, c: ({"a": small(2, r, c), "b": small(c, 3)}, {}),
    "matmul_integer": lambda r, c: (
        {
            "a": places(255, r, c).astype(np.uint8),
            "b": places(255, c, 3).astype(np.uint8),
            "a_zero_point": places(255, r).astype(np.uint8),
        },
        {},
    ),
    "matmul_packed": lambda r, c: (
        {
            "x": small(3, c),
            "codes": places(255, r, c).astype(np.uint8),
            "scales": np.full((r, -(-c // 32)), 0.25, np.float32),
        },
        {},
    ),
    "max_pool2d": pooling,
    "pad": lambda r, c: (
        {"input": floats(r, c)},
        {"beginning_padding": [1, 2], "ending_padding": [3, 0], "mode": "edge"},
    ),
    "quantize_linear": lambda r, c: (
        {
            "input": small(r, c),
            "scale": np.full((r, 1), 0.25, np.float32),
            "zero_point": places(200, r, 1).astype(np.uint8),
        },
        {},
    ),
    "resample2d": lambda r, c: (
        {"input": floats(1, 1, r, c)},
        {"scales": [1.5, 1.0], "mode": "linear"},
    ),
    "reshape": lambda r, c: ({"input": floats(r, c)}, {"new_shape": [c, r]}),
    "reverse": lambda r, c: ({"input": places(200, r, c).astype(np.uint8)}, {}),
    "rms_normalization": lambda r, c: ({"x": floats(r, c), "scale": floats(c)}, {}),
    "rotary_embedding": lambda r, c: (
        {
            "x": floats(1, 2, r, 2 * c),
            "cos": floats(r, c),
            "sin": floats(r, c),
            "positions": places(r, r),
        },
        {},
    ),
    "scaled_dot_product_attention": lambda r, c: (
        {
            "query": floats(1, 2, min(r, c, 64), 4),
            "key": floats(1, 1, max(r, c), 4),
            "value": floats(1, 1, max(r, c), 4),
            "lengths": np.array([max(r, c) - 5], np.int32),
        },
        {"causal": True},
    ),
    "scatter_elements": lambda r, c: (
        {"input": floats(r, c), "indices": places(r, r, c), "updates": floats(r, c)},
        {"axis": 0},
    ),
    "scatter_nd": lambda r, c: (
        {
            "input": places(200, r, c).astype(np.uint8),
            "indices": places(min(r, c), r, 2),
            "updates": places(200, r).astype(np.uint8),
        },
        {},
    ),
    "scatter_rows": lambda r, c: (
        {"cache": floats(2, r, c), "rows": floats(2, r // 2, c), "starts": places(r, 2)},
        {"axis": 1},
    ),
    "slice": lambda r, c: (
        {"input": floats(r, c)},
        {"starts": [r // 2, 0], "sizes": [r - r // 2, c], "strides": [2, 1]},
    ),
    "softmax": lambda r, c: ({"input": floats(r, c)}, {"axis": 0}),
    "split": lambda r, c: ({"input": floats(r, c)}, {"splits": [r], "axis": 0}),
    "tile": lambda r, c: ({"input": floats(r, c)}, {"repetitions": [1, 2]}),
    "transpose": lambda r, c: ({"input": places(200, r, c).astype(np.uint8)}, {}),
    "triangular": lambda r, c: ({"input": floats(r, c)}, {"upper": False, "diagonal": 5}),
}


def given(name: str, rows: int, columns: int) -> Given:
    if name in REDUCTIONS:
        return reduction(name, rows, columns)
    if name in CASES:
        return CASES[name](rows, columns)
    return elementwise(name, rows, columns)


def _tensor(array: Array) -> Tensor:
    return Tensor(array.dtype.name, array, False)


@pytest.mark.parametrize("shape", SHAPES, ids=[f"{r}x{c}" for r, c in SHAPES])
@pytest.mark.parametrize("name", OPERATORS)
def test_a_large_size(
    gpu: MLContext, reference: MLContext, name: str, shape: tuple[int, int]
) -> None:
    arrays, options = given(name, *shape)
    operands = {
        operand: [_tensor(one) for one in array] if isinstance(array, list) else _tensor(array)
        for operand, array in arrays.items()
    }
    integers = 1 if name in ("cast", *QUANTIZED) else 0
    assert_like_reference(gpu, reference, Call(declared(name), operands, options), integers)


def test_elementwise_operators_alone_go_without_a_case() -> None:
    assert sorted([*CASES, *REDUCTIONS, *ELEMENTWISE]) == OPERATORS

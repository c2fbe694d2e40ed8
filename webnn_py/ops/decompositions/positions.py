"""Positions along a dimension as tensors, also where the dimension is open."""

from __future__ import annotations

from typing import Any

import numpy as np

from webnn_py.core.dimensions import span
from webnn_py.core.dtypes import DTYPES, MLOperandDataType
from webnn_py.ops.graph_builder import GraphBuilder
from webnn_py.ops.operand import MLOperand

MAX_EXACT_FLOAT32 = 1 << 24
"""Greatest integer up to which float32 holds all integers."""


def position_type(*sizes: int) -> MLOperandDataType:
    """Return the data type for arithmetic on positions below the product of `sizes`.

    float32, which all engines add exactly up to 2^24; OpenVINO's int32 addition is not exact.
    """
    product: Any = 1
    for size in sizes:
        product = product * size
    return "float32" if span(product)[1] <= MAX_EXACT_FLOAT32 else "int32"


def iota(
    g: GraphBuilder,
    count: int,
    axis: int,
    rank: int,
    data_type: MLOperandDataType,
    *,
    reversed: bool = False,
) -> MLOperand:
    """Return 0 to count - 1 along one axis, from the end if `reversed`, 1 element along others."""
    shape = [count if i == axis else 1 for i in range(rank)]
    if type(count) is int:
        numbers = np.arange(count, dtype=DTYPES[data_type].numpy).reshape(shape)
        return g.add_constant(np.flip(numbers).copy() if reversed else numbers, data_type)
    one = g.add_constant(np.ones([1] * rank, DTYPES[data_type].numpy), data_type)
    return g.cumulative_sum(g.expand(one, shape), axis, exclusive=True, reversed=reversed)


def number(g: GraphBuilder, value: int, data_type: MLOperandDataType) -> MLOperand:
    """Return a size of at least 1 as a tensor of one element, [1]."""
    if type(value) is int:
        return g.add_constant(np.array([value], DTYPES[data_type].numpy), data_type)
    one = g.add_constant(np.ones([1], DTYPES[data_type].numpy), data_type)
    return g.slice(g.cumulative_sum(g.expand(one, [value]), 0, reversed=True), [0], [1])

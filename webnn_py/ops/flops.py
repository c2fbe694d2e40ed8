"""Counts the arithmetic operations of a node; each call of a function counts as one."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from webnn_py.ir import Node, Value
from webnn_py.ops.registry import REGISTRY


def flops(node: Node) -> int:
    """Return the number of arithmetic operations of a node; a multiply-add counts as two.

    Operators that only move elements count 0. Operators without a rule count one for each output
    element.
    """
    rule = _RULES.get(node.op) or _RULES_OF_FAMILIES.get(REGISTRY[node.op].family)
    return _output_elements(node) if rule is None else rule(node)


def _output_elements(node: Node) -> int:
    return sum(value.size for value in node.outputs)


def _input_elements(node: Node) -> int:
    return _operand(node, 0).size


def _operand(node: Node, place: int) -> Value:
    value = node.inputs[place]
    assert value is not None
    return value


def _matmul(node: Node) -> int:
    return 2 * node.output.size * _operand(node, 0).shape[-1]


def _packed_product(node: Node) -> int:
    """Return a product's operations; to dequantize takes two for each weight."""
    depth = _operand(node, 0).shape[-1]
    return 2 * node.output.size * depth + 2 * depth * node.output.shape[-1]


def _attention(node: Node) -> int:
    """Return the operations of both products and of a softmax over the scores."""
    batch, heads, rows, size = _operand(node, 0).shape
    keys, width = _operand(node, 2).shape[2:]
    return batch * heads * rows * keys * (2 * size + 2 * width + 5)


def _gemm(node: Node) -> int:
    rows, columns = _operand(node, 0).shape
    added = node.output.size if node.inputs[2] is not None else 0
    return 2 * node.output.size * (rows if node.attrs["a_transpose"] else columns) + added


def _convolution(node: Node) -> int:
    """Return two operations for each pair of an element and a filter tap that meet.

    Each output element meets the filter's taps of one output channel. In the transposed form, each
    input element meets the taps of one input channel.
    """
    transposed = node.op == "conv_transpose2d"
    axis: int = node.attrs["filter_layout"].index("i" if transposed else "o")
    filters = _operand(node, 1)
    through = _operand(node, 0).size if transposed else node.output.size
    has_bias = node.op in ("conv2d", "conv_transpose2d") and node.inputs[2] is not None
    bias = node.output.size if has_bias else 0
    return 2 * through * (filters.size // filters.shape[axis]) + bias


def _pooling(node: Node) -> int:
    window: tuple[int, ...] = node.attrs["window_dimensions"]
    return node.output.size * math.prod(window)


def _recurrent(node: Node) -> int:
    """Return the operations of the matrix products: each row of each step uses every weight."""
    x, weight, recurrent = (_operand(node, place) for place in range(3))
    rows = x.size // x.shape[-1]
    return 2 * rows * (weight.size + recurrent.size)


def _times(count: int) -> Callable[[Node], int]:
    return lambda node: count * _input_elements(node)


_NONE = _times(0)

_RULES_OF_FAMILIES: Mapping[str, Callable[[Node], int]] = {
    "movement": _NONE,
    "indexing": _NONE,
    "convolution": _convolution,
    "pooling": _pooling,
    "recurrent": _recurrent,
    "reduction": _input_elements,
    "scan": _input_elements,
    "resampling": lambda node: 8 * node.output.size if node.attrs["mode"] == "linear" else 0,
    "quantization": _times(2),
}
_RULES: Mapping[str, Callable[[Node], int]] = {
    "conv2d_integer": _convolution,
    "matmul": _matmul,
    "matmul_integer": _matmul,
    "matmul_packed": _packed_product,
    "scaled_dot_product_attention": _attention,
    "rotary_embedding": _times(3),
    "rms_normalization": _times(5),
    "gemm": _gemm,
    "identity": _NONE,
    # Mean, difference, square, variance, quotient, scale and bias count one each; batch
    # normalization computes no mean, square and variance.
    "batch_normalization": _times(4),
    "instance_normalization": _times(7),
    "layer_normalization": _times(7),
    "softmax": _times(5),
}

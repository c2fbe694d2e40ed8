"""Pass that folds scales and shifts of channels into the weights of the product before them.

Results change in the last bits: weights are computed in float64 and rounded once, instead of
rounding the result at each step. Only float32 is folded, because a scaled float16 weight may lose
digits that the scaled sum would keep.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from webnn_py.core.dimensions import is_dimension
from webnn_py.core.parallel_map import parallel_map
from webnn_py.ir import Array, Graph, Node, Shape, Value
from webnn_py.ops.declare import REGISTRY
from webnn_py.ops.operand import MLOperand
from webnn_py.passes.rewrite import Rewriter
from webnn_py.passes.target import Target

Attributes = Mapping[str, Any]
Constants = Mapping[Value, Array]

KIND = "scale"
"""Name of this computation in `constant_replay.KINDS`."""


@dataclass(frozen=True, slots=True)
class Affine:
    """The function x * scale + shift, with one float64 scale and shift for each channel."""

    scale: Array
    shift: Array

    def then(self, other: Affine) -> Affine:
        """Return the composition: this function first, then `other`."""
        return Affine(self.scale * other.scale, self.shift * other.scale + other.shift)

    @property
    def has_scale(self) -> bool:
        """Whether any scale differs from 1."""
        return bool((self.scale != 1).any())


@dataclass(frozen=True, slots=True)
class Chain:
    """A product and the affine function of each channel that the nodes behind it compute.

    Attributes:
        root: The convolution or matrix product.
        axis: The dimension of the channels in its result.
        affine: The function.
    """

    root: Node
    axis: int
    affine: Affine

    @property
    def channels(self) -> int:
        """Number of channels."""
        return self.root.output.shape[self.axis]


def fuse_batch_norm(graph: Graph, target: Target) -> Graph:
    """Fold batch_normalization, add, sub, mul, div and linear with constants into constant weights.

    Requires: each result of the chain has one use. A matmul with only a bias stays unchanged,
    because matmul has no bias operand.
    """
    chains = {
        value: chain
        for value, chain in _find_chains(graph).items()
        if value not in chain.root.outputs and (_bias_of(chain.root) or chain.affine.has_scale)
    }
    made = parallel_map(
        [functools.partial(_derived, graph.constants, chain, target) for chain in chains.values()],
        sum(weights.byte_length for chain in chains.values() if (weights := chain.root.inputs[1])),
        target.threads,
    )
    folded = dict(zip(chains, made, strict=True))

    def rule(rewriter: Rewriter, node: Node) -> list[MLOperand] | None:
        value = node.outputs[0]
        arrays = folded.get(value)
        return [_replacement(rewriter, chains[value].root, arrays)] if arrays else None

    return Rewriter(graph).run(rule)


def _find_chains(graph: Graph) -> dict[Value, Chain]:
    """Return the longest foldable chains by the last value of each."""
    uses = graph.uses
    chains: dict[Value, Chain] = {}
    for node in graph.nodes:
        if node.op in SCALE_SHAPES and node.output.data_type == "float32":
            axis = _channel_axis(node)
            channels = node.output.shape[axis]
            if not is_dimension(channels):
                affine = Affine(_repeat(1, channels), _repeat(0, channels))
                chains[node.output] = Chain(node, axis, affine)
            continue
        before = next((value for value in node.operands if value in chains), None)
        if before is None or uses[before] > 1 or node.outputs[0].shape != before.shape:
            continue
        step = step_of(graph.constants, node, before, chains[before])
        if step is None:
            continue
        chain = Chain(chains[before].root, chains[before].axis, chains[before].affine.then(step))
        if _is_foldable(graph.constants, chain):
            chains[node.output] = chain
            del chains[before]
    return chains


def _channel_axis(node: Node) -> int:
    layout = node.attrs.get("input_layout")
    return node.output.rank - 1 if layout is None else int(layout.index("c"))


def _repeat(number: float, count: int) -> Array:
    """Return a view that repeats a number `count` times without using memory for each."""
    return np.broadcast_to(np.float64(number), (count,))


def step_of(constants: Constants, node: Node, before: Value, chain: Chain) -> Affine | None:
    """Return the affine function of each channel that a node computes, or None.

    Args:
        constants: The graph's constants.
        node: The node.
        before: The operand of the node that is the chain's result.
        chain: The chain before the node.
    """
    ones, zeros = _repeat(1, chain.channels), _repeat(0, chain.channels)
    if node.op == "linear":
        return Affine(ones * node.attrs["alpha"], ones * node.attrs["beta"])
    if node.op == "batch_normalization":
        return _normalization(constants, node, chain) if node.inputs[0] is before else None
    if node.op not in ("add", "sub", "mul", "div"):
        return None
    a, b = node.operands
    other = _by_channel(constants.get(b if a is before else a), before.rank, chain)
    if other is None:
        return None
    if node.op == "add":
        return Affine(ones, other)
    if node.op == "mul":
        return Affine(other, zeros)
    if node.op == "sub":
        return Affine(ones, -other) if a is before else Affine(-ones, other)
    if b is before or (other == 0).any():
        return None
    return Affine(1 / other, zeros)


def _normalization(constants: Constants, node: Node, chain: Chain) -> Affine | None:
    arrays = [None if value is None else constants.get(value) for value in node.inputs[1:]]
    present = [value is not None for value in node.inputs[1:]]
    if node.attrs["axis"] != chain.axis or any(
        array is None and is_present for array, is_present in zip(arrays, present, strict=True)
    ):
        return None
    mean, variance, scale, bias = (
        np.asarray(default if array is None else array, np.float64)
        for array, default in zip(arrays, (0, 0, 1, 0), strict=True)
    )
    spread = variance + node.attrs["epsilon"]
    if not (spread > 0).all():
        return None
    factor = scale / np.sqrt(spread) * np.ones(chain.channels)
    return Affine(factor, bias - mean * factor)


def _by_channel(array: Array | None, rank: int, chain: Chain) -> Array | None:
    """Return the constant as one float64 for each channel, if it varies along no other axis."""
    if array is None or array.ndim > rank:
        return None
    shape = (1,) * (rank - array.ndim) + array.shape
    if any(size != 1 for axis, size in enumerate(shape) if axis != chain.axis):
        return None
    return np.broadcast_to(array.reshape(-1).astype(np.float64), (chain.channels,))


def _is_foldable(constants: Constants, chain: Chain) -> bool:
    """Whether all operands that must change are constants, and the bias has one per channel."""
    root = chain.root
    weights, bias = root.inputs[1], root.inputs[2] if len(root.inputs) > 2 else None
    if bias is not None and bias not in constants:
        return False
    if root.op == "conv_transpose2d" and chain.channels % root.attrs["groups"]:
        return False
    if root.op == "gemm" and bias is not None:
        return _by_channel(constants[bias], 2, chain) is not None
    return not chain.affine.has_scale or weights in constants


def _bias_of(root: Node) -> str:
    """Return the name of a product's bias operand, or "" if the operator has none."""
    _, _, *bias = REGISTRY[root.op].limits
    return bias[0] if bias else ""


def _derived(constants: Constants, chain: Chain, target: Target) -> tuple[Array, ...]:
    """Return the new weights and bias of a chain, from the target's cache if it has them."""
    root, affine = chain.root, chain.affine
    values = root.inputs[1:3] if _bias_of(root) else root.inputs[1:2]
    old = [None if value is None else constants.get(value) for value in values]
    attrs = dict(root.attrs)
    what = KIND, repr((root.op, attrs)), affine.scale.tobytes(), affine.shift.tobytes()
    return target.derive(what, old, lambda: products(root.op, attrs, affine, *old))


def _replacement(rewriter: Rewriter, root: Node, made: tuple[Array, ...]) -> MLOperand:
    """Build the chain as one product, with an addition if the operator has no bias operand."""
    *scaled, shift = made
    weights, bias = list(REGISTRY[root.op].limits)[1], _bias_of(root)
    arguments = rewriter.arguments(root)
    changes: dict[str, Any] = {}
    if scaled:
        changes[weights] = rewriter.add_constant(scaled[0], "float32")
    if bias and (arguments[bias] is not None or shift.any()):
        changes[bias] = rewriter.add_constant(shift, "float32")
    if "beta" in arguments:
        changes["beta"] = 1.0
    (product,) = rewriter.apply_again(root, **changes)
    if bias or not shift.any():
        return product
    return rewriter.add(product, rewriter.add_constant(shift, "float32"))


def products(
    op: str, attrs: Attributes, affine: Affine, weights: Any, bias: Array | None = None
) -> tuple[Array, ...]:
    """Return the scaled weights (if any scale is not 1) and the bias.

    Returns:
        One or two float32 arrays; none if float32 cannot represent them.
    """
    shift = affine.shift
    if bias is not None:
        shift = bias.reshape(-1) * np.float64(attrs.get("beta", 1.0)) * affine.scale + shift
    with np.errstate(over="ignore", under="ignore"):
        made: tuple[Array, ...] = (shift.astype(np.float32),)
        if affine.has_scale:
            # Multiply in float64 and round once, without a float64 copy of the large weights.
            scaled = np.empty(weights.shape, np.float32)
            scale = SCALE_SHAPES[op](attrs, weights.shape, affine.scale)
            np.multiply(weights, scale, out=scaled, dtype=np.float64, casting="same_kind")
            made = (scaled, *made)
    return made if all(map(fits_float32, made)) else ()


def fits_float32(array: Array) -> bool:
    """Whether an array's largest magnitude is 0, or finite and far from float32's subnormals."""
    info = np.finfo(np.float32)
    largest = max(array.max(), -array.min())
    return bool(largest == 0 or info.tiny / info.eps < largest <= info.max)


def _conv_scale(attrs: Attributes, shape: Shape, scale: Array) -> Array:
    return scale.reshape([-1 if letter == "o" else 1 for letter in attrs["filter_layout"]])


def _conv_transpose_scale(attrs: Attributes, shape: Shape, scale: Array) -> Array:
    """Scale the output channels of each group, which belong to that group's input channels."""
    layout, groups = attrs["filter_layout"], attrs["groups"]
    channels = shape[layout.index("i")]
    by_input = np.repeat(scale.reshape(groups, -1), channels // groups, axis=0)
    sizes = {"i": by_input.shape[0], "o": by_input.shape[1]}
    placed = by_input if layout.index("i") < layout.index("o") else by_input.T
    return placed.reshape([sizes.get(letter, 1) for letter in layout])


def _gemm_scale(attrs: Attributes, shape: Shape, scale: Array) -> Array:
    return scale.reshape((-1, 1) if attrs["b_transpose"] else (1, -1))


def _matmul_scale(attrs: Attributes, shape: Shape, scale: Array) -> Array:
    return scale


SCALE_SHAPES: dict[str, Callable[[Attributes, Shape, Array], Array]] = {
    "conv2d": _conv_scale,
    "conv_transpose2d": _conv_transpose_scale,
    "gemm": _gemm_scale,
    "matmul": _matmul_scale,
}
"""Function of each product that reshapes the scales to broadcast with the weights.

It takes the product's attributes, the shape of the weights, and one scale for each channel."""

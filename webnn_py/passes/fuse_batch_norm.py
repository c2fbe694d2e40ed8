"""What is done to each channel of a convolution or matrix product, folded into its weights.

The one pass that changes results: a product is rounded once where it was rounded at each step. New
weights are computed in float64 and rounded once, for float32 only: in float16, a scaled weight may
lose digits that the scaled sum would have kept.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from webnn_py.core.dimensions import is_dimension
from webnn_py.core.parallel_map import at_once
from webnn_py.ir import Array, Graph, Node, Shape, Value
from webnn_py.ops.declare import REGISTRY
from webnn_py.ops.operand import MLOperand
from webnn_py.passes.rewrite import Rewriter
from webnn_py.passes.target import Target

Attributes = Mapping[str, Any]
Constants = Mapping[Value, Array]

KIND = "scale"
"""The first word of what is computed here."""


@dataclass(frozen=True, slots=True)
class Affine:
    """x * scale + shift, float64, one number for each channel."""

    scale: Array
    shift: Array

    def then(self, other: Affine) -> Affine:
        """This one, and `other` after it."""
        return Affine(self.scale * other.scale, self.shift * other.scale + other.shift)

    @property
    def scales(self) -> bool:
        """Whether it does more than to add."""
        return bool((self.scale != 1).any())


@dataclass(frozen=True, slots=True)
class Chain:
    """A product, and what is done to each channel of it by nodes that follow."""

    root: Node
    axis: int
    affine: Affine

    @property
    def channels(self) -> int:
        """The size of the channels' dimension."""
        return self.root.output.shape[self.axis]


def fuse_batch_norm(graph: Graph, target: Target) -> Graph:
    """Fold batch_normalization, add, sub, mul, div and linear with constants into constant weights.

    Only results with one use are taken. A bias added to a matmul alone stays where it is.
    """
    chains = {
        value: chain
        for value, chain in _find_chains(graph).items()
        if value not in chain.root.outputs and (_bias_of(chain.root) or chain.affine.scales)
    }
    made = at_once(
        [functools.partial(_derived, graph.constants, chain, target) for chain in chains.values()],
        sum(weights.byte_length for chain in chains.values() if (weights := chain.root.inputs[1])),
        target.threads,
    )
    folded = dict(zip(chains, made, strict=True))

    def rule(rewriter: Rewriter, node: Node) -> list[MLOperand] | None:
        value = node.outputs[0]
        arrays = folded.get(value)
        return [_folded(rewriter, chains[value].root, arrays)] if arrays else None

    return Rewriter(graph).run(rule)


def _find_chains(graph: Graph) -> dict[Value, Chain]:
    """The longest chains, by the last value of each."""
    uses = graph.uses
    chains: dict[Value, Chain] = {}
    for node in graph.nodes:
        if node.op in PLACES and node.output.data_type == "float32":
            axis = _channel_axis(node)
            channels = node.output.shape[axis]
            if not is_dimension(channels):
                affine = Affine(_repeated(1, channels), _repeated(0, channels))
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


def _repeated(number: float, count: int) -> Array:
    """A number for each of so many channels, which takes no memory for each."""
    return np.broadcast_to(np.float64(number), (count,))


def step_of(constants: Constants, node: Node, before: Value, chain: Chain) -> Affine | None:
    """What a node does to the chain's result, if it is the same for all of a channel."""
    ones, zeros = _repeated(1, chain.channels), _repeated(0, chain.channels)
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
    given = [value is not None for value in node.inputs[1:]]
    if node.attrs["axis"] != chain.axis or any(
        array is None and there for array, there in zip(arrays, given, strict=True)
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
    """The constant as one float64 for each channel, if it broadcasts so."""
    if array is None or array.ndim > rank:
        return None
    shape = (1,) * (rank - array.ndim) + array.shape
    if any(size != 1 for axis, size in enumerate(shape) if axis != chain.axis):
        return None
    return np.broadcast_to(array.reshape(-1).astype(np.float64), (chain.channels,))


def _is_foldable(constants: Constants, chain: Chain) -> bool:
    """Whether the operands that must change are constants (and a bias has a place)."""
    root = chain.root
    weights, bias = root.inputs[1], root.inputs[2] if len(root.inputs) > 2 else None
    if bias is not None and bias not in constants:
        return False
    if root.op == "conv_transpose2d" and chain.channels % root.attrs["groups"]:
        return False
    if root.op == "gemm" and bias is not None:
        return _by_channel(constants[bias], 2, chain) is not None
    return not chain.affine.scales or weights in constants


def _bias_of(root: Node) -> str:
    """The name of the operand of a product that is added, if the operator takes one."""
    _, _, *bias = REGISTRY[root.op].limits
    return bias[0] if bias else ""


def _derived(constants: Constants, chain: Chain, target: Target) -> tuple[Array, ...]:
    """What `products` gives."""
    root, affine = chain.root, chain.affine
    values = root.inputs[1:3] if _bias_of(root) else root.inputs[1:2]
    old = [None if value is None else constants.get(value) for value in values]
    attrs = dict(root.attrs)
    what = KIND, repr((root.op, attrs)), affine.scale.tobytes(), affine.shift.tobytes()
    return target.derive(what, old, lambda: products(root.op, attrs, affine, *old))


def _folded(rewriter: Rewriter, root: Node, made: tuple[Array, ...]) -> MLOperand:
    """The chain as one product (with an addition after it, where the operator takes no bias)."""
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
    """The weights, if they are scaled, and what is added; nothing if float32 cannot hold them."""
    shift = affine.shift
    if bias is not None:
        shift = bias.reshape(-1) * np.float64(attrs.get("beta", 1.0)) * affine.scale + shift
    with np.errstate(over="ignore", under="ignore"):
        made: tuple[Array, ...] = (shift.astype(np.float32),)
        if affine.scales:
            # In float64, and rounded once; without an array of that type, as weights are large.
            scaled = np.empty(weights.shape, np.float32)
            places = PLACES[op](attrs, weights.shape, affine.scale)
            np.multiply(weights, places, out=scaled, dtype=np.float64, casting="same_kind")
            made = (scaled, *made)
    return made if all(map(fits, made)) else ()


def fits(array: Array) -> bool:
    """Whether float32 held the numbers, but for what is nothing beside the largest."""
    info = np.finfo(np.float32)
    largest = max(array.max(), -array.min())
    return bool(largest == 0 or info.tiny / info.eps < largest <= info.max)


def _conv_scale(attrs: Attributes, shape: Shape, scale: Array) -> Array:
    return scale.reshape([-1 if letter == "o" else 1 for letter in attrs["filter_layout"]])


def _conv_transpose_scale(attrs: Attributes, shape: Shape, scale: Array) -> Array:
    """Each group of input channels has output channels of its own."""
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


PLACES: dict[str, Callable[[Attributes, Shape, Array], Array]] = {
    "conv2d": _conv_scale,
    "conv_transpose2d": _conv_transpose_scale,
    "gemm": _gemm_scale,
    "matmul": _matmul_scale,
}
"""By product: the scale of each output channel, in a shape that broadcasts to that of the weights.

Of its attributes, the shape of the weights, and one number for each channel."""

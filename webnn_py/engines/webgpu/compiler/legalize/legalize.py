"""Rewrites that device limits and number formats require, applied before kernels are formed.

`legalize` applies all rules: those of this folder's other modules and the small ones below.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

from webnn_py.core.dtypes import DTYPES
from webnn_py.engines.webgpu.compiler.legalize.attention import fuse_attention, keeps_attention
from webnn_py.engines.webgpu.compiler.legalize.integer_products import (
    is_integer_product,
    multiply_codes,
)
from webnn_py.engines.webgpu.compiler.legalize.packed_products import (
    is_packed_product,
    keep_packed,
)
from webnn_py.engines.webgpu.compiler.legalize.sequences import expand_sequence, is_sequence
from webnn_py.engines.webgpu.compiler.legalize.space_to_depth import to_depth
from webnn_py.engines.webgpu.compiler.legalize.split_loops import split_long_loop
from webnn_py.engines.webgpu.compiler.legalize.split_products import SplitProducts
from webnn_py.engines.webgpu.compiler.lower.pointwise import EXACT, EXACTLY
from webnn_py.engines.webgpu.compiler.lower.registry import VIEWS
from webnn_py.engines.webgpu.program.storage import Features, storage_of
from webnn_py.ir import Graph, Node, Value
from webnn_py.ops.convolution import dims
from webnn_py.ops.declare import REGISTRY
from webnn_py.ops.decompositions.casts import narrow, wide
from webnn_py.ops.operand import MLOperand, value_of
from webnn_py.ops.windows import Windows
from webnn_py.passes.rewrite import Rewriter

Rule = Callable[[Rewriter, Node], list[MLOperand] | None]

ROUNDINGS = ("ceil", "floor", "quantize_linear", "round_even")
MOVES = ("concat", "gather", "gather_elements", "gather_nd", "pad", "split", "tile")
"""Operators besides VIEWS that keep elements unchanged."""


def has_own_operator(node: Node, features: Features) -> bool:
    """Whether `legalize` replaces a composite node by an operator of the compiler's own."""
    own = (is_sequence, keeps_attention, is_integer_product, is_packed_product)
    return any(is_own(node, features) for is_own in own)


def legalize(graph: Graph, features: Features) -> Graph:
    """Apply the rules to all nodes, and to the nodes that rules emit."""
    sequences = functools.partial(_expand_sequence, features=features)
    concats = functools.partial(_narrow_concat, features=features)
    attentions = functools.partial(fuse_attention, features=features)
    integers = functools.partial(multiply_codes, features=features)
    packed = functools.partial(keep_packed, features=features)
    depths = functools.partial(to_depth, features=features)
    exact = ExactQuotients(graph)
    growing = _GrowingConcats(features)
    rules = (
        *(stabilize, narrow_starts, sequences, attentions, depths, integers, packed, crop_pool),
        *(pool_codes, SplitProducts(graph, features), split_long_loop, growing, concats, exact),
    )
    legalizer = _Legalizer(graph, rules)
    return legalizer.run(lambda _, node: legalizer.rewrite(node))


class _Legalizer(Rewriter):
    """Applies rules to each node and to their output, until no rule matches.

    To terminate, a rule must emit nodes that it does not match again, or smaller ones.
    """

    def __init__(self, graph: Graph, rules: tuple[Rule, ...]) -> None:
        super().__init__(graph)
        self._rules = rules

    def emit(self, node: Node) -> list[MLOperand]:
        """Add a node, or the replacement by its first matching rule; return the outputs."""
        outputs = super().emit(node)
        self._nodes.pop()
        rewritten = self.rewrite(node)
        if rewritten is not None:
            return rewritten
        self._nodes.append(node)
        return outputs

    def rewrite(self, node: Node) -> list[MLOperand] | None:
        """Return the replacement by the first matching rule; None if none matches."""
        for rule in self._rules:
            outputs = rule(self, node)
            if outputs is not None:
                return outputs
        return None


class _GrowingConcats:
    """Rule that builds a concat on an earlier concat of its first operands.

    The two may then share one buffer (`inplace_concat`).
    """

    def __init__(self, features: Features) -> None:
        self._features = features
        self._earlier: dict[tuple[int, Value], list[Node]] = {}

    def __call__(self, rewriter: Rewriter, node: Node) -> list[MLOperand] | None:
        """Return the longest earlier concat extended by the missing operands."""
        if node.op != "concat" or storage_of(node.output.data_type, self._features).per_word > 1:
            return None
        axis, operands = node.attrs["axis"], tuple(node.operands)
        alike = self._earlier.setdefault((axis, operands[0]), [])
        shorter = [n for n in alike if operands[: len(n.inputs)] == n.inputs != operands]
        alike.append(node)
        if not shorter:
            return None
        longest = max(shorter, key=lambda other: len(other.inputs))
        parts = (longest.output, *operands[len(longest.inputs) :])
        return [rewriter.concat([rewriter.map[v] for v in parts], axis, label=node.label)]


def _narrow_concat(rewriter: Rewriter, node: Node, features: Features) -> list[MLOperand] | None:
    """Split a concat with more inputs than a kernel can bind into concats of concats."""
    most = max(2, features.max_bindings - 1)
    if node.op != "concat" or len(node.inputs) <= most:
        return None
    parts = [rewriter.map[value] for value in node.operands]
    axis = node.attrs["axis"]
    while len(parts) > most:
        groups = [parts[i : i + most] for i in range(0, len(parts), most)]
        parts = [
            group[0] if len(group) == 1 else rewriter.concat(group, axis, label=node.label)
            for group in groups
        ]
    return [rewriter.concat(parts, axis, label=node.label)]


def _expand_sequence(rewriter: Rewriter, node: Node, features: Features) -> list[MLOperand] | None:
    """Replace a recurrent network by products and its step operator."""
    return expand_sequence(rewriter, node) if is_sequence(node, features) else None


def narrow_starts(rewriter: Rewriter, node: Node) -> list[MLOperand] | None:
    """Cast the starts of `scatter_rows` to int32, which its kernels count in."""
    if node.op != "scatter_rows":
        return None
    *_, starts = node.operands
    if starts.data_type == "int32":
        return None
    return rewriter.apply_again(node, starts=rewriter.cast(rewriter.map[starts], "int32"))


def crop_pool(rewriter: Rewriter, node: Node) -> list[MLOperand] | None:
    """Crop the window and padding of a pool to the taps that can meet its input."""
    if "window_dimensions" not in node.attrs:
        return None
    attrs = node.attrs
    layout, operand = attrs["layout"], next(node.operands)
    sizes, counts = (dims(value.shape, layout, "hw") for value in (operand, node.output))
    taps, padding = list(attrs["window_dimensions"]), list(attrs["padding"])
    for i in (0, 1):
        stride, dilation = attrs["strides"][i], attrs["dilations"][i]
        whole = Windows(sizes[i], padding[2 * i], taps[i], stride, dilation, counts[i])
        less = whole.cropped()
        behind = less.span - less.padding - sizes[i]
        # The options define the number of windows; keep it where the last one ends past the input.
        if less.taps < taps[i] and behind >= 0:
            taps[i], padding[2 * i : 2 * i + 2] = less.taps, (less.padding, behind)
    if tuple(taps) == attrs["window_dimensions"]:
        return None
    return rewriter.apply_again(node, window_dimensions=taps, padding=padding, output_sizes=counts)


def pool_codes(rewriter: Rewriter, node: Node) -> list[MLOperand] | None:
    """Pool quantized elements as they are, where the greatest one is quantized again alike."""
    if node.op != "quantize_linear":
        return None
    value, *parameters = (rewriter.map[operand] for operand in node.operands)
    pool = rewriter.producer_of(value)
    if pool is None or pool.op != "max_pool2d":
        return None
    dequantize = rewriter.producer_of(rewriter.map[next(pool.operands)])
    if dequantize is None or dequantize.op != "dequantize_linear":
        return None
    codes, *others = (rewriter.map[operand] for operand in dequantize.operands)
    if codes.data_type != node.output.data_type:
        return None
    (scale, zero), before = (
        [rewriter.array_of(one) if one.size == 1 else None for one in operands]
        for operands in (parameters, others)
    )
    if scale is None or zero is None or not scale.item() > 0:
        return None
    if any(one is None for one in before) or [scale, zero] != before:
        return None
    return rewriter.apply_again(pool, input=codes)


def stabilize(rewriter: Rewriter, node: Node) -> list[MLOperand] | None:
    """Rewrite an operator whose plain formula overflows; None for all others."""
    if node.op != "reduce_log_sum_exp":
        return None
    return [_log_sum_exp(rewriter, node)]


def _log_sum_exp(rewriter: Rewriter, node: Node) -> MLOperand:
    """Return log(sum(exp(x - top))) + top; `top` is the greatest element, or 0 if infinite."""
    x = wide(rewriter, rewriter.map[next(node.operands)])
    axes = node.attrs["axes"]
    greatest = rewriter.reduce_max(x, axes=axes, keep_dimensions=True, label=node.label)
    none = rewriter.constant_of(0.0, x)
    top = rewriter.where(rewriter.is_infinite(greatest), none, greatest)
    total = rewriter.reduce_sum(
        rewriter.exp(rewriter.sub(x, top)), axes=axes, keep_dimensions=True, label=node.label
    )
    result = rewriter.add(rewriter.log(total), top)
    shaped = rewriter.reshape(result, node.output.shape)
    return narrow(rewriter, shaped, node.output.data_type)


class ExactQuotients:
    """Rule that marks quotients which later operators round to integers.

    WGSL allows division an error of 2.5 units in the last place, and NVIDIA makes use of it. If an
    operator rounds the quotient, that error can become a whole step.
    """

    def __init__(self, graph: Graph) -> None:
        self._rounded_values = _rounded_values(graph)

    def __call__(self, rewriter: Rewriter, node: Node) -> list[MLOperand] | None:
        """Return the node with the attribute EXACT; None where precision does not matter."""
        if node.op not in EXACTLY or node.output not in self._rounded_values or EXACT in node.attrs:
            return None
        inputs = tuple(value_of(rewriter.map[value]) for value in node.operands)
        output = Value(node.output.data_type, node.output.shape)
        return rewriter.emit(Node(node.op, inputs, {EXACT: True}, (output,), node.label))


def _rounded_values(graph: Graph) -> set[Value]:
    """Return the floats that are rounded to integers, directly or after elementwise operators."""
    if not any(node.op in EXACTLY for node in graph.nodes):
        return set()
    rounded: set[Value] = set()
    for node in reversed(graph.nodes):
        if _is_rounding(node) or (_passes_rounding(node) and not rounded.isdisjoint(node.outputs)):
            rounded.update(v for v in node.operands if DTYPES[v.data_type].kind == "f")
    return rounded


def _is_rounding(node: Node) -> bool:
    """Whether a node rounds its operand to integers."""
    to_integer = node.op == "cast" and DTYPES[node.output.data_type].kind != "f"
    return node.op in ROUNDINGS or to_integer


def _passes_rounding(node: Node) -> bool:
    """Whether each output element is an operand's element, or computed from one of each operand."""
    if node.op in VIEWS or node.op in MOVES:
        return True
    return node.op in REGISTRY and REGISTRY[node.op].wgsl is not None

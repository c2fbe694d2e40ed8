"""Pass that replaces transposed convolutions by convolutions, one for each phase of the stride.

Only every stride-th filter tap reaches a given output element. Output elements whose distance is a
multiple of the stride use the same taps and form one phase. One convolution computes all phases as
groups of channels; its results are then interleaved and cut to the output's size.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from webnn_py.core.dimensions import is_dimension
from webnn_py.core.shape_tracing import is_traced
from webnn_py.ir import Array, Graph, Node
from webnn_py.ops.convolution import dims, transposed_sizes
from webnn_py.ops.operand import MLOperand
from webnn_py.passes.copy_contiguous import contiguous
from webnn_py.passes.rewrite import Rewriter, in_layout
from webnn_py.passes.target import Target

KIND = "phases"
"""Name of this computation in `constant_replay.KINDS`."""

MIN_GROUP_CHANNELS = 8
"""Least input channels of a group; with fewer, interleaving costs more than the pass gains."""

MAX_TAPS_RATIO = 4
"""Most taps after padding all phases to equal length with zeros, in multiples of the filter's."""


@dataclass(frozen=True, slots=True)
class PhasesAlong:
    """A transposed convolution along one dimension, as a convolution for each phase.

    Attributes:
        taps: Number of taps of the filter.
        stride: Number of phases.
        dilation: Distance between the taps of a phase's convolution.
        own: Number of taps of each phase.
        before: Padding before the input.
        after: Padding behind the input.
        first: Position of the output's first element in the interleaved results.
    """

    taps: int
    stride: int
    dilation: int
    own: int
    before: int
    after: int
    first: int

    @classmethod
    def of(
        cls, taps: int, stride: int, dilation: int, low: int, high: int, extra: int
    ) -> PhasesAlong | None:
        """Return the phases of a transposed convolution; None if it has both stride and dilation.

        Args:
            taps: Number of taps of its filter.
            stride: Its stride.
            dilation: Its dilation.
            low: Elements that its padding cuts off before the output.
            high: Elements that its padding cuts off behind the output.
            extra: Elements that its output padding adds behind the output.
        """
        if stride > 1 and dilation > 1 and taps > 1:
            return None
        own = -(-taps // stride)
        reach = (own - 1) * dilation
        skipped = min(low // stride, reach)
        behind = -(-((taps - 1) * dilation + 1 - high + extra) // stride) - 1
        return cls(
            taps,
            stride,
            dilation,
            own,
            reach - skipped,
            max(0, behind),
            low - skipped * stride,
        )


def convolve_transposed(graph: Graph, target: Target) -> Graph:
    """Replace conv_transpose2d with constant filters by conv2d.

    Other filters stay: a kernel that rearranges them as it loads takes drivers minutes to compile.
    """

    def rule(rewriter: Rewriter, node: Node) -> list[MLOperand] | None:
        sides = _match(graph, node)
        if sides is None:
            return None
        arguments = rewriter.arguments(node)
        layout, groups = arguments["input_layout"], arguments["groups"]
        rows, columns = sides
        strides = rows.stride, columns.stride
        made = rewriter.conv2d(
            in_layout(rewriter, arguments["input"], layout, "nchw"),
            _filters(rewriter, node, target, sides),
            bias=_bias(rewriter, node, strides[0] * strides[1]),
            padding=[rows.before, rows.after, columns.before, columns.after],
            dilations=[rows.dilation, columns.dilation],
            groups=groups,
        )
        if strides != (1, 1):
            made = _interleave(rewriter, made, groups, strides)
        sizes = dims(node.output.shape, layout, "nchw")
        if made.shape != sizes:
            made = rewriter.slice(made, [0, 0, rows.first, columns.first], sizes)
        return [in_layout(rewriter, made, "nchw", layout)]

    return Rewriter(graph).run(rule)


def _match(graph: Graph, node: Node) -> tuple[PhasesAlong, PhasesAlong] | None:
    """Return the phases along height and width, if the pass replaces this node."""
    if node.op != "conv_transpose2d" or node.inputs[1] not in graph.constants:
        return None
    data, filter_, *_ = node.operands
    attrs = node.attrs
    ins, *taps = dims(filter_.shape, attrs["filter_layout"], "ihw")
    strides, dilations, padding = attrs["strides"], attrs["dilations"], attrs["padding"]
    extra = attrs["output_padding"]
    if attrs["output_sizes"] is not None:
        size, made = (dims(v.shape, attrs["input_layout"], "hw") for v in (data, node.output))
        least = transposed_sizes(size, taps, padding, strides, dilations)
        extra = [n - low for n, low in zip(made, least, strict=True)]
    if any(is_dimension(n) or is_traced(n) for n in (ins, *taps, *padding, *extra)):
        return None
    if ins % attrs["groups"] or ins // attrs["groups"] < MIN_GROUP_CHANNELS:
        return None
    sides = zip(taps, strides, dilations, padding[::2], padding[1::2], extra, strict=True)
    rows, columns = (PhasesAlong.of(*side) for side in sides)
    if rows is None or columns is None:
        return None
    filled = rows.own * rows.stride * columns.own * columns.stride
    return (rows, columns) if filled <= MAX_TAPS_RATIO * rows.taps * columns.taps else None


def _filters(
    rewriter: Rewriter, node: Node, target: Target, found: tuple[PhasesAlong, PhasesAlong]
) -> MLOperand:
    """Add the filters of all phases as a constant in the layout OIHW.

    The order of the output channels is groups, phases along height, along width, channels.
    """
    layout, groups, filter_ = node.attrs["filter_layout"], node.attrs["groups"], node.inputs[1]
    assert filter_ is not None
    array = rewriter.graph.constants[filter_]
    sides = [(along.own, along.stride) for along in found]
    what = (KIND, repr((layout, groups, sides)))
    (made,) = target.derive(what, [array], lambda: (phases(array, layout, groups, sides),))
    return rewriter.add_constant(made, filter_.data_type)


TO_OIHW = (0, 4, 6, 2, 1, 3, 5)
"""Permutation from (groups, inputs, outputs, taps and phases along height, along width) to OIHW."""

Sides = Sequence[tuple[int, int]]
"""Number of taps of each phase, and number of phases, along height and along width."""


def phases(array: Array, layout: str, groups: int, sides: Sides) -> Array:
    """Return the filters of all phases, OIHW, from a transposed convolution's filter."""
    iohw = array.transpose([layout.index(letter) for letter in "iohw"])
    padded = np.pad(iohw, [(0, end) for end in (0, 0, *_ends(iohw.shape, sides))])
    parts = padded.reshape(_parts(iohw.shape, groups, sides))[:, :, :, ::-1, :, ::-1]
    return contiguous(parts.transpose(TO_OIHW)).reshape(_oihw_shape(iohw.shape, groups, sides))


def _ends(shape: Sequence[int], sides: Sides) -> list[int]:
    """Return the number of zeros to append to the taps, because some phases have one less."""
    return [own * stride - taps for (own, stride), taps in zip(sides, shape[2:], strict=True)]


def _parts(shape: Sequence[int], groups: int, sides: Sides) -> list[int]:
    ins, outs = shape[:2]
    return [groups, ins // groups, outs, *(n for side in sides for n in side)]


def _oihw_shape(shape: Sequence[int], groups: int, sides: Sides) -> list[int]:
    ins, outs = shape[:2]
    (rows, down), (columns, across) = sides
    return [groups * down * across * outs, ins // groups, rows, columns]


def _bias(rewriter: Rewriter, node: Node, phases: int) -> MLOperand | None:
    """Repeat the bias for each phase of a group."""
    _, _, bias = node.inputs
    if bias is None:
        return None
    groups, graph = node.attrs["groups"], rewriter.graph
    sizes = groups, phases, bias.size // groups
    if bias in graph.constants:
        array = graph.constants[bias].reshape(groups, 1, -1)
        return rewriter.add_constant(np.broadcast_to(array, sizes).reshape(-1), bias.data_type)
    made = rewriter.reshape(rewriter.map[bias], [groups, 1, sizes[2]])
    return rewriter.reshape(rewriter.expand(made, sizes), [bias.size * phases])


def _interleave(
    rewriter: Rewriter, made: MLOperand, groups: int, strides: tuple[int, int]
) -> MLOperand:
    """Move the phases from the channels to rows and columns."""
    batch, channels, height, width = made.shape
    down, across = strides
    outs = channels // (groups * down * across)
    made = rewriter.reshape(made, [batch, groups, down, across, outs, height, width])
    made = rewriter.transpose(made, permutation=[0, 1, 4, 5, 2, 6, 3])
    return rewriter.reshape(made, [batch, groups * outs, height * down, width * across])

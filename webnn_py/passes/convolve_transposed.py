"""Transposed convolutions as convolutions, for engines that multiply these through tiles.

An output element is met by every stride-th tap alone, and which these are differs from one to the
next until the stride is over: so many convolutions of the same input, one for each phase, with
their channels side by side. Their results are interleaved, and cut to the output.
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
"""The first word of what is computed here."""

FEWEST = 8
"""Input channels of a group, below which to interleave the results takes what that gains."""

MOST_ZEROS = 4
"""Times as many taps as there are, at most, with the zeros that fill up the last phases."""


@dataclass(frozen=True, slots=True)
class Along:
    """A transposed convolution along one dimension, as convolutions.

    Attributes:
        taps: Of the filter.
        stride: Phases.
        dilation: Between the taps of a convolution.
        own: Taps of each convolution.
        before: Padding before the input.
        after: Padding behind it.
        first: Where the output begins in the interleaved results.
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
    ) -> Along | None:
        """The same as a transposed convolution, but for the size of its input.

        Args:
            taps: Of its filter.
            stride: Its stride.
            dilation: Its dilation.
            low: What it cuts off before the output.
            high: What it cuts off behind it.
            extra: What it adds there.
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
    """Put conv2d in the place of conv_transpose2d with constant filters.

    Others stay: computed where they are loaded, they take drivers minutes to compile.
    """

    def rule(rewriter: Rewriter, node: Node) -> list[MLOperand] | None:
        found = _along(graph, node)
        if found is None:
            return None
        given = rewriter.arguments(node)
        layout, groups = given["input_layout"], given["groups"]
        rows, columns = found
        strides = rows.stride, columns.stride
        made = rewriter.conv2d(
            in_layout(rewriter, given["input"], layout, "nchw"),
            _filters(rewriter, node, target, found),
            bias=_bias(rewriter, node, strides[0] * strides[1]),
            padding=[rows.before, rows.after, columns.before, columns.after],
            dilations=[rows.dilation, columns.dilation],
            groups=groups,
        )
        if strides != (1, 1):
            made = _interleaved(rewriter, made, groups, strides)
        sizes = dims(node.output.shape, layout, "nchw")
        if made.shape != sizes:
            made = rewriter.slice(made, [0, 0, rows.first, columns.first], sizes)
        return [in_layout(rewriter, made, "nchw", layout)]

    return Rewriter(graph).run(rule)


def _along(graph: Graph, node: Node) -> tuple[Along, Along] | None:
    """A transposed convolution along height and width, if it is to be convolutions."""
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
    if ins % attrs["groups"] or ins // attrs["groups"] < FEWEST:
        return None
    sides = zip(taps, strides, dilations, padding[::2], padding[1::2], extra, strict=True)
    rows, columns = (Along.of(*side) for side in sides)
    if rows is None or columns is None:
        return None
    filled = rows.own * rows.stride * columns.own * columns.stride
    return (rows, columns) if filled <= MOST_ZEROS * rows.taps * columns.taps else None


def _filters(
    rewriter: Rewriter, node: Node, target: Target, found: tuple[Along, Along]
) -> MLOperand:
    """Those of all phases, OIHW: groups, phases along height and width, output channels."""
    layout, groups, filter_ = node.attrs["filter_layout"], node.attrs["groups"], node.inputs[1]
    assert filter_ is not None
    array = rewriter.graph.constants[filter_]
    sides = [(along.own, along.stride) for along in found]
    what = (KIND, repr((layout, groups, sides)))
    (made,) = target.derive(what, [array], lambda: (phases(array, layout, groups, sides),))
    return rewriter.add_constant(made, filter_.data_type)


FILTERS = (0, 4, 6, 2, 1, 3, 5)
"""Groups, inputs, outputs, taps and phases along height, and along width, in the order of OIHW."""

Sides = Sequence[tuple[int, int]]
"""Taps of each phase, and phases, along height and width."""


def phases(array: Array, layout: str, groups: int, sides: Sides) -> Array:
    """The filters of all phases, from that of a transposed convolution in some layout."""
    laid = array.transpose([layout.index(letter) for letter in "iohw"])
    padded = np.pad(laid, [(0, end) for end in (0, 0, *_ends(laid.shape, sides))])
    parts = padded.reshape(_parts(laid.shape, groups, sides))[:, :, :, ::-1, :, ::-1]
    return contiguous(parts.transpose(FILTERS)).reshape(_made(laid.shape, groups, sides))


def _ends(shape: Sequence[int], sides: Sides) -> list[int]:
    """Zeros behind the taps, for phases that have one less."""
    return [own * stride - taps for (own, stride), taps in zip(sides, shape[2:], strict=True)]


def _parts(shape: Sequence[int], groups: int, sides: Sides) -> list[int]:
    ins, outs = shape[:2]
    return [groups, ins // groups, outs, *(n for side in sides for n in side)]


def _made(shape: Sequence[int], groups: int, sides: Sides) -> list[int]:
    ins, outs = shape[:2]
    (rows, down), (columns, across) = sides
    return [groups * down * across * outs, ins // groups, rows, columns]


def _bias(rewriter: Rewriter, node: Node, phases: int) -> MLOperand | None:
    """The numbers of the output channels, for each phase of a group."""
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


def _interleaved(
    rewriter: Rewriter, made: MLOperand, groups: int, strides: tuple[int, int]
) -> MLOperand:
    """Phases that are channels as rows and columns."""
    batch, channels, height, width = made.shape
    down, across = strides
    outs = channels // (groups * down * across)
    made = rewriter.reshape(made, [batch, groups, down, across, outs, height, width])
    made = rewriter.transpose(made, permutation=[0, 1, 4, 5, 2, 6, 3])
    return rewriter.reshape(made, [batch, groups * outs, height * down, width * across])

"""Transposed convolution, element by element: loops over the taps that reach it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from webnn_py.core.errors import OperationError
from webnn_py.engines.webgpu.compiler.code.index import Index
from webnn_py.engines.webgpu.compiler.kernel_builder import Body
from webnn_py.engines.webgpu.compiler.lower.registry import lowering
from webnn_py.engines.webgpu.compiler.lower.window import flat, output_position
from webnn_py.ir import Node
from webnn_py.ops.convolution import dims


@contextlib.contextmanager
def _taps(body: Body, node: Node, axis: int, place: Index) -> Iterator[tuple[Index, Index]]:
    """A loop over taps along height (0) or width (1): the tap, and the input's place it meets.

    An output element at p is met by the input at (p - tap * dilation) / stride where that divides.
    """
    data, filter_, *_ = node.operands
    attrs = node.attrs
    size = dims(data.shape, attrs["input_layout"], "hw")[axis]
    taps = dims(filter_.shape, attrs["filter_layout"], "hw")[axis]
    stride, dilation = attrs["strides"][axis], attrs["dilations"][axis]
    start = body.let(place + attrs["padding"][2 * axis], "p")
    # Undilated, every stride-th tap divides.
    apart = stride if dilation == 1 else 1
    first = body.let(start % apart, "first")
    with body.loop(-(-taps // apart), "t") as step:
        tap = body.let(first + step * apart, "tap")
        reach = body.let(start - tap * dilation, "d")
        checks = [f"{reach} <= {(size - 1) * stride}u"]  # what is below 0 is huge
        if apart > 1 and taps % apart:
            checks.append(f"{tap} < {taps}u")
        if stride > 1 and apart == 1 and size > 1:
            checks.append(f"{reach % stride} == 0u")
        with body.block(f"if ({' && '.join(checks)})"):
            yield tap.below(taps), body.let(reach // stride, "at").below(size)


@lowering("conv_transpose2d", loops=True)
def conv_transpose2d(body: Body, node: Node, output: int, index: Index) -> str:
    """One output element: a loop over the taps that reach it and the group's channels."""
    data, filter_, bias = node.inputs
    assert data is not None
    assert filter_ is not None
    attrs = node.attrs
    groups = attrs["groups"]
    ins, outs = dims(filter_.shape, attrs["filter_layout"], "io")
    if ins % groups:
        label = f" [{node.label}]" if node.label else ""
        raise OperationError(f"{node.op}{label}: {ins} channels in {groups} groups do not divide")
    at = output_position(body, node, index, attrs["input_layout"])
    group = body.let(at["c"] // outs * (ins // groups), "first")
    channel = body.let(at["c"] % outs, "o")
    total = body.var("f32", "0.0")
    with (
        _taps(body, node, 0, at["h"]) as (y, row),
        _taps(body, node, 1, at["w"]) as (x, column),
        body.loop(ins // groups, "k") as k,
    ):
        source = body.let(group + k, "c")
        place = {"n": at["n"], "c": source, "h": row, "w": column}
        element = body.load(data, flat(attrs["input_layout"], data, place))
        tap = {"i": source, "o": channel, "h": y, "w": x}
        weight = body.load(filter_, flat(attrs["filter_layout"], filter_, tap))
        body.line(f"{total} = fma({element}, {weight}, {total});")
    if bias is None:
        return total
    return f"{total} + {body.load(bias, at['c'])}"

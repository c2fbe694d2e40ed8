"""Epilogues of the templates: a loop's result through what is fused behind it into the buffer."""

from __future__ import annotations

from collections.abc import Callable

from webnn_py.engines.webgpu.compiler.index import Index, symbol
from webnn_py.engines.webgpu.compiler.kernel_builder import Body, KernelBuilder
from webnn_py.ir import Node


def emit_epilogue(
    builder: KernelBuilder,
    node: Node,
    finish: Callable[[Body, Index, str], str] | None = None,
    channel: Index | None = None,
    step: int = 0,
) -> None:
    """Functions `put(i, total)` and, for four consecutive elements, `put4(i, total)`.

    With a channel they are `put(i, channel, total)` and `put4(i, channel, total)`.

    Args:
        builder: Of the kernel.
        node: The node whose result `total` is, at flat index `i` of its output.
        finish: What the node itself does last (a bias): called with body, `i` and "total".
        channel: What the caller knows already: a coordinate of `i`.
        step: By how much it grows from one of four elements to the next.
    """
    storage = builder.storage(builder.root)
    compute = builder.storage(node.output).compute
    body, i = Body(builder), symbol("i")
    total = "total"
    at, parameters = [str(i + n) for n in range(4)], "i: u32"
    if channel is not None:
        body.name(channel, "channel")
        at = [f"{i + n}, {symbol('channel') + n * step}" for n in range(4)]
        parameters = "i: u32, channel: u32"
    if finish or node.output is not builder.root:
        total = body.let("wn_settled(total)", "whole")
    if finish:
        total = body.let(finish(body, i, total), "whole")
    body.preset(node.output, i, total)
    result = body.load(builder.root, i)
    body.line(f"return {result};")
    builder.function("tail", f"{parameters}, total: {compute}", storage.compute, body)
    element = storage.element
    place = builder.places.at(builder.root, i)
    if builder.vector_out:
        lanes = ", ".join(f"{element}(tail({at[n]}, t.{'xyzw'[n]}))" for n in range(4))
        to = place.enclosed
        one = f"out0[{to} >> 2u][{to} & 3u] = {element}(tail({at[0]}, t));"
        four = f"out0[{to} >> 2u] = vec4<{element}>({lanes});"
        builder.functions.append(f"fn put4({parameters}, t: vec4<{compute}>) {{ {four} }}")
    else:
        one = f"out0[{place}] = {element}(tail({at[0]}, t));"
    builder.functions.append(f"fn put({parameters}, t: {compute}) {{ {one} }}")

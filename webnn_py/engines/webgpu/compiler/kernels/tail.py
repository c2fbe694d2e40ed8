"""The end of structured kernels: a loop's result through the epilogue into the root's buffer."""

from __future__ import annotations

from collections.abc import Callable

from webnn_py.engines.webgpu.compiler.index import Index, symbol
from webnn_py.engines.webgpu.compiler.kernel_builder import Body, KernelBuilder
from webnn_py.ir import Node


def emit_tail(
    emission: KernelBuilder, anchor: Node, finish: Callable[[Body, Index, str], str] | None = None
) -> None:
    """Functions `put(i, total)` and, for four consecutive elements, `put4(i, total)`.

    Args:
        emission: The kernel.
        anchor: The node whose result `total` is, at flat index `i` of its output.
        finish: What the node itself does last (a bias): called with body, `i` and "total".
    """
    storage = emission.storage(emission.root)
    compute = emission.storage(anchor.output).compute
    body, i = Body(emission), symbol("i")
    total = "total"
    if finish or anchor.output is not emission.root:
        total = body.let("wn_settled(total)", "whole")
    if finish:
        total = body.let(finish(body, i, total), "whole")
    body.preset(anchor.output, i, total)
    result = body.load(emission.root, i)
    body.line(f"return {result};")
    emission.function("tail", f"i: u32, total: {compute}", storage.compute, body)
    element = storage.element
    if emission.vector_out:
        lanes = ", ".join(f"{element}(tail({i + n}, t.{'xyzw'[n]}))" for n in range(4))
        one = f"out0[i >> 2u][i & 3u] = {element}(tail(i, t));"
        four = f"out0[i >> 2u] = vec4<{element}>({lanes});"
        emission.functions.append(f"fn put4(i: u32, t: vec4<{compute}>) {{ {four} }}")
    else:
        one = f"out0[i] = {element}(tail(i, t));"
    emission.functions.append(f"fn put(i: u32, t: {compute}) {{ {one} }}")

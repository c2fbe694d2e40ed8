"""Epilogues: fused operators between a template's result and its store."""

from __future__ import annotations

from collections.abc import Callable

from webnn_py.engines.webgpu.compiler.code.functions import Function
from webnn_py.engines.webgpu.compiler.code.index import Index, symbol
from webnn_py.engines.webgpu.compiler.fusing.op_traits import traits_of
from webnn_py.engines.webgpu.compiler.kernel_builder import OUT, Body, KernelBuilder
from webnn_py.engines.webgpu.program.pieces import declared
from webnn_py.ir import Node, Value
from webnn_py.ops.declare import REGISTRY

PUT, PUT4, _TAIL = declared("put"), declared("put4"), declared("tail")


def emit_epilogue(
    builder: KernelBuilder,
    node: Node,
    finish: Callable[[Body, Index, str], str] | None = None,
    channel: Index | None = None,
    step: int = 0,
) -> None:
    """Add the functions `put(i, total)` and, for four consecutive elements, `put4(i, total)`.

    With a channel they are `put(i, channel, total)` and `put4(i, channel, total)`.

    Args:
        builder: The kernel's builder.
        node: The node whose result `total` is, at flat index `i` of its output.
        finish: The node's own last operation (a bias); arguments: body, `i`, "total".
        channel: A coordinate of `i` that the caller already has.
        step: Increment of the channel between consecutive elements.
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
    vectors = (
        _vec4_operands(builder, node, channel is not None and step == 1)
        if builder.vector_out
        else {}
    )
    for number, leaf in enumerate(vectors):
        body.preset(leaf, None, f"e{number}")
    if finish or node.output is not builder.root:
        total = body.let("wn_settled(total)", "whole")
    if finish:
        total = body.let(finish(body, i, total), "whole")
    body.preset(node.output, i, total)
    result = body.load(builder.root, i)
    body.line(f"return {result};")
    more = "".join(f", e{number}: f32" for number in range(len(vectors)))
    builder.function("tail", f"{parameters}, total: {compute}{more}", storage.compute, body)
    element = storage.element
    place = builder.places.at(builder.root, i)
    if builder.vector_out:
        read = "".join(f"let q{n} = vec4<f32>({q}); " for n, (q, _) in enumerate(vectors.values()))
        lanes_read = ["".join(f", q{n}.{lane}" for n in range(len(vectors))) for lane in "xyzw"]
        lanes = ", ".join(
            f"{element}({_TAIL}({at[n]}, t.{lane}{lanes_read[n]}))" for n, lane in enumerate("xyzw")
        )
        to = place.enclosed
        single = "".join(f", {e}" for _, e in vectors.values())
        one = f"{OUT}[{to} >> 2u][{to} & 3u] = {element}({_TAIL}({at[0]}, t{single}));"
        four = f"{read}{OUT}[{to} >> 2u] = vec4<{element}>({lanes});"
        taken = f"{parameters}, t: vec4<{compute}>"
        builder.functions.append(Function.of("put4", taken, "", f" {four} "))
    else:
        one = f"{OUT}[{place}] = {element}({_TAIL}({at[0]}, t));"
    builder.functions.append(Function.of("put", f"{parameters}, t: {compute}", "", f" {one} "))


def _vec4_operands(
    builder: KernelBuilder, node: Node, channels_last: bool
) -> dict[Value, tuple[str, str]]:
    """Return the operands of an epilogue that are read as vec4s.

    Args:
        builder: The kernel's builder.
        node: The node whose result enters the epilogue.
        channels_last: Whether consecutive elements belong to consecutive channels.

    Returns:
        For each operand the expressions of a vec4 and of one element.
    """
    found: dict[Value, tuple[str, str]] = {}
    count = node.output.shape[-1]
    channel = symbol("channel") if channels_last else symbol("i", node.output.size) % count
    channels_last = channels_last or node.op == "matmul"
    for leaf, is_whole in _stored_operands(builder, node).items():
        by_channel = channels_last and leaf.shape[-1:] == (count,) and leaf.size == count
        at = builder.vector(leaf) if is_whole or by_channel else None
        if at is not None:
            place = builder.places.at(leaf, symbol("i") if is_whole else channel)
            one = builder.storage(leaf).load(builder.element(leaf), place)
            found[leaf] = at(f"{place.enclosed} >> 2u"), one
    return found


def _stored_operands(builder: KernelBuilder, node: Node) -> dict[Value, bool]:
    """Return the stored operands of an epilogue, and whether each has the output's shape."""
    bias = node.inputs[2] if node.op == "conv2d" and len(node.inputs) > 2 else None
    found = {} if bias is None or builder.computes(bias) else {bias: False}
    todo, seen = [builder.root], {node.output}
    for value in todo:
        if value in seen:
            continue
        seen.add(value)
        maker = builder.producers[value]
        if not _is_step(maker):
            return {}
        for operand in maker.operands:
            if operand is node.output or builder.computes(operand):
                todo.append(operand)
                if operand.size != value.size:
                    return {}
            elif builder.scalar(operand) is None:
                is_whole = operand.shape == value.shape
                if found.setdefault(operand, is_whole) != is_whole:
                    return {}
    return found


def _is_step(node: Node) -> bool:
    """Whether a node maps each element to the element at the same flat index."""
    view = traits_of(node.op).view
    return REGISTRY[node.op].wgsl is not None if view is None else view(node, 0).identity

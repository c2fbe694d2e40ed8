"""Epilogues of the templates: a loop's result through what is fused behind it into the buffer."""

from __future__ import annotations

from collections.abc import Callable

from webnn_py.engines.webgpu.compiler.code.index import Index, symbol
from webnn_py.engines.webgpu.compiler.fusing.op_traits import facts_of
from webnn_py.engines.webgpu.compiler.kernel_builder import Body, KernelBuilder
from webnn_py.ir import Node, Value
from webnn_py.ops.declare import REGISTRY


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
    fours = _fours(builder, node, channel is not None and step == 1) if builder.vector_out else {}
    for number, leaf in enumerate(fours):
        body.preset(leaf, None, f"e{number}")
    if finish or node.output is not builder.root:
        total = body.let("wn_settled(total)", "whole")
    if finish:
        total = body.let(finish(body, i, total), "whole")
    body.preset(node.output, i, total)
    result = body.load(builder.root, i)
    body.line(f"return {result};")
    more = "".join(f", e{number}: f32" for number in range(len(fours)))
    builder.function("tail", f"{parameters}, total: {compute}{more}", storage.compute, body)
    element = storage.element
    place = builder.places.at(builder.root, i)
    if builder.vector_out:
        read = "".join(f"let q{n} = vec4<f32>({q}); " for n, (q, _) in enumerate(fours.values()))
        given = ["".join(f", q{n}.{lane}" for n in range(len(fours))) for lane in "xyzw"]
        lanes = ", ".join(
            f"{element}(tail({at[n]}, t.{lane}{given[n]}))" for n, lane in enumerate("xyzw")
        )
        to = place.enclosed
        single = "".join(f", {e}" for _, e in fours.values())
        one = f"out0[{to} >> 2u][{to} & 3u] = {element}(tail({at[0]}, t{single}));"
        four = f"{read}out0[{to} >> 2u] = vec4<{element}>({lanes});"
        builder.functions.append(f"fn put4({parameters}, t: vec4<{compute}>) {{ {four} }}")
    else:
        one = f"out0[{place}] = {element}(tail({at[0]}, t));"
    builder.functions.append(f"fn put({parameters}, t: {compute}) {{ {one} }}")


def _fours(builder: KernelBuilder, node: Node, beside: bool) -> dict[Value, tuple[str, str]]:
    """What an epilogue reads that lies in vec4s, and the expressions of a vec4 and of one element.

    Args:
        builder: Of the kernel.
        node: The node whose result flows through the epilogue.
        beside: Channels are, so that four elements have four.
    """
    found: dict[Value, tuple[str, str]] = {}
    count = node.output.shape[-1]
    channel = symbol("channel") if beside else symbol("i", node.output.size) % count
    beside = beside or node.op == "matmul"
    for leaf, is_whole in _read(builder, node).items():
        by_channel = beside and leaf.shape[-1:] == (count,) and leaf.size == count
        at = builder.vector(leaf) if is_whole or by_channel else None
        if at is not None:
            place = builder.places.at(leaf, symbol("i") if is_whole else channel)
            one = builder.storage(leaf).load(builder.element(leaf), place)
            found[leaf] = at(f"{place.enclosed} >> 2u"), one
    return found


def _read(builder: KernelBuilder, node: Node) -> dict[Value, bool]:
    """The stored values that an epilogue reads, and whether each goes element by element."""
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
    """Whether a node goes element by element, in their order."""
    view = facts_of(node.op).view
    return REGISTRY[node.op].wgsl is not None if view is None else view(node, 0).identity

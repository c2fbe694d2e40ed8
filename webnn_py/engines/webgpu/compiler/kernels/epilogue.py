"""Epilogues: fused operators between a template's result and its store."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from webnn_py.engines.webgpu.compiler.code.functions import Function
from webnn_py.engines.webgpu.compiler.code.index import Index, symbol
from webnn_py.engines.webgpu.compiler.fusing.op_traits import traits_of
from webnn_py.engines.webgpu.compiler.kernel_builder import OUT, Body, KernelBuilder
from webnn_py.engines.webgpu.compiler.legalize.integer_products import CODES_PRODUCT
from webnn_py.engines.webgpu.compiler.legalize.packed_products import PACKED_PRODUCT
from webnn_py.engines.webgpu.compiler.legalize.split_products import SPLIT_PRODUCT
from webnn_py.engines.webgpu.compiler.lower.registry import FUSES
from webnn_py.engines.webgpu.program.pieces import declared
from webnn_py.engines.webgpu.program.storage import Storage
from webnn_py.ir import Node, Value
from webnn_py.ops.declare import REGISTRY

PUT, PUT4, _TAIL = declared("put"), declared("put4"), declared("tail")
RESULT4, WRITE4 = declared("result4"), declared("write4")
_TAIL_NEAR = declared("tail_near")


def emit_epilogue(
    builder: KernelBuilder,
    node: Node,
    finish: Callable[[Body, Index, str], str] | None = None,
    channel: Index | None = None,
    step: int = 0,
) -> None:
    """Add the functions `put(i, total)` and, for four consecutive elements, `put4(i, total)`.

    With a channel they are `put(i, channel, total)` and `put4(i, channel, total)`. `result4` has
    the parameters of `put4` and returns what that stores; `write4(i, made)` stores it.

    Args:
        builder: The kernel's builder.
        node: The node whose result `total` is, at flat index `i` of its output.
        finish: The node's own last operation (a bias); arguments: body, `i`, "total".
        channel: A coordinate of `i` that the caller already has.
        step: Increment of the channel between consecutive elements.
    """
    storage = builder.storage(builder.root)
    compute = builder.storage(node.output).compute
    i = symbol("i")
    at, parameters = [str(i + n) for n in range(4)], "i: u32"
    if channel is not None:
        at = [f"{i + n}, {symbol('channel') + n * step}" for n in range(4)]
        parameters = "i: u32, channel: u32"
    vectors = (
        _vec4_operands(builder, node, channel is not None and step == 1)
        if builder.vector_out
        else {}
    )

    def tail(unsure: str = "") -> Body:
        """Return what follows the node's result, and returns the element to store."""
        body, total = Body(builder, unsure=unsure), "total"
        if channel is not None:
            body.name(channel, "channel")
        for number, leaf in enumerate(vectors):
            body.preset(leaf, None, f"e{number}")
        if compute == "f32" and (finish or node.output is not builder.root):
            total = body.let("wn_settled(total)", "whole")
        if finish:
            total = body.let(finish(body, i, total), "whole")
        body.preset(node.output, i, total)
        body.line(f"return {body.load(builder.root, i)};")
        return body

    body = tail()
    more = "".join(f", e{number}: {leaf.type}" for number, leaf in enumerate(vectors.values()))
    taken = f"{parameters}, total: {compute}{more}"
    builder.function("tail", taken, storage.compute, body)
    place = builder.places.at(builder.root, i)
    single = "".join(f", {leaf.one}" for leaf in vectors.values())
    one = f"{storage.element}({_TAIL}({at[0]}, t{single}))"
    put = f" {OUT}[{place}] = {one}; "
    if builder.vector_out:
        to = place.enclosed
        put = f" {OUT}[{to} >> 2u][{to} & 3u] = {one}; "
        has_near = storage.per_word == 4 and body.quantizes
        if has_near:
            flagging = f"unsure: ptr<function, bool>, {taken}"
            builder.function("tail_near", flagging, storage.compute, tail("unsure"))
        read, four = _four_results(storage, at, [*vectors.values()], has_near)
        kind = "u32" if storage.per_word == 4 else f"vec4<{storage.element}>"
        parameters4, to4 = f"{parameters}, t: vec4<{compute}>", f"{OUT}[{to} >> 2u]"
        builder.functions += [
            Function.of("put4", parameters4, "", f" {read}{to4} = {four}; "),
            Function.of("result4", parameters4, kind, f" {read}return {four}; "),
            Function.of("write4", f"i: u32, made: {kind}", "", f" {to4} = made; "),
        ]
    builder.functions.append(Function.of("put", f"{parameters}, t: {compute}", "", put))


def _four_results(
    storage: Storage, at: Sequence[str], leaves: Sequence[_Leaf], has_near: bool
) -> tuple[str, str]:
    """Return statements, and an expression of the four elements of the vec4 `t` to store.

    Args:
        storage: How the output is stored.
        at: Coordinates of each element.
        leaves: Operands that are read four elements at a time.
        has_near: Whether `tail_near` computes codes that are right unless it says so.
    """
    calls = [
        ", ".join([place, f"t.{lane}", *(f"q{n}.{lane}" for n in range(len(leaves)))])
        for place, lane in zip(at, "xyzw", strict=True)
    ]
    read = "".join(f"let q{n} = {leaf.four}; " for n, leaf in enumerate(leaves))
    lanes = [f"{_TAIL}({call})" for call in calls]
    if has_near:  # one branch for all four, as each would wait for the one before
        near = ", ".join(f"{_TAIL_NEAR}(&unsure, {call})" for call in calls)
        four = f"vec4<{storage.compute}>"
        read += f"var unsure = false; var codes = {four}({near}); "
        read += f"if (unsure) {{ codes = {four}({', '.join(lanes)}); }} "
        lanes = [f"codes.{lane}" for lane in "xyzw"]
    if storage.per_word == 4:
        return read, storage.pack(lanes)
    element = storage.element
    return read, f"vec4<{element}>({', '.join(f'{element}({lane})' for lane in lanes)})"


@dataclass(frozen=True, slots=True)
class _Leaf:
    """An operand of an epilogue that is read four elements at a time.

    Attributes:
        four: Expression of a vec4.
        one: Expression of one element.
        type: WGSL type of an element.
    """

    four: str
    one: str
    type: str


def _vec4_operands(builder: KernelBuilder, node: Node, channels_last: bool) -> dict[Value, _Leaf]:
    """Return the operands of an epilogue that are read as vec4s.

    Args:
        builder: The kernel's builder.
        node: The node whose result enters the epilogue.
        channels_last: Whether consecutive elements belong to consecutive channels.
    """
    found: dict[Value, _Leaf] = {}
    count = node.output.shape[-1]
    channel = symbol("channel") if channels_last else symbol("i", node.output.size) % count
    matmuls = ("matmul", CODES_PRODUCT, PACKED_PRODUCT, SPLIT_PRODUCT)
    channels_last = channels_last or node.op in matmuls
    for leaf, is_whole in _stored_operands(builder, node).items():
        by_channel = channels_last and leaf.shape[-1:] == (count,) and leaf.size == count
        place = symbol("i") if is_whole else channel
        four = _four(builder, leaf, place) if is_whole or by_channel else None
        if four is not None:
            storage = builder.storage(leaf)
            one = storage.load(builder.element(leaf), builder.places.at(leaf, place))
            found[leaf] = _Leaf(four, one, storage.compute)
    return found


def _four(builder: KernelBuilder, leaf: Value, place: Index) -> str | None:
    """Return four neighboring elements of a stored value as a vec4, if memory allows."""
    storage = builder.storage(leaf)
    at = builder.vector(leaf) or builder.integers(leaf) or builder.codes(leaf, 4)
    if at is None:
        return None
    loaded = at(f"{builder.places.at(leaf, place).enclosed} >> 2u")
    if storage.per_word == 1:
        return f"vec4<{storage.compute}>({loaded})"
    if storage.compute == "u32":
        return f"(vec4<u32>({loaded}) >> vec4<u32>(0u, 8u, 16u, 24u)) & vec4<u32>(255u)"
    moved = f"vec4<u32>({loaded}) << vec4<u32>(24u, 16u, 8u, 0u)"
    return f"bitcast<vec4<i32>>({moved}) >> vec4<u32>(24u)"


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
    is_elementwise = node.op in FUSES or REGISTRY[node.op].wgsl is not None
    return is_elementwise if view is None else view(node, 0).identity

"""Row kernels: reductions and their readers, without a buffer in between.

A workgroup computes one row, or each of its invocations computes its own row.
"""

from __future__ import annotations

from webnn_py.engines.webgpu.compiler.code.index import symbol
from webnn_py.engines.webgpu.compiler.fusing.row_fusion import (
    MAX_FUSED_ROW,
    is_reduction,
    is_step,
    is_writable,
    threads_for,
)
from webnn_py.engines.webgpu.compiler.kernel import (
    BY_INVOCATION,
    BY_WORKGROUP,
    EntryPoint,
    Kernel,
    WorkgroupArray,
    grid,
    place_in,
)
from webnn_py.engines.webgpu.compiler.kernel_builder import Body, KernelBuilder
from webnn_py.engines.webgpu.compiler.kernels.reduce_kernel import combine_shared, combined_name
from webnn_py.engines.webgpu.compiler.kernels.row_loop import RowLoop
from webnn_py.engines.webgpu.compiler.lower import reduction
from webnn_py.engines.webgpu.program.pieces import declared, u32
from webnn_py.ir import Node

WORKGROUP_SIZE = {"gpu": 64, "cpu": 16}
"""Invocations of a workgroup that compute a row each, by kind of device."""


def emit(builder: KernelBuilder, node: Node) -> Kernel | None:
    """Return a kernel that loops over a row once for each reduction, and once more to write it.

    A single reduction to one element a row pays only if it reads vec4s.
    """
    if not is_reduction(node):
        return None
    root = builder.root
    rows, features = node.output.size, builder.features
    body = Body(builder)
    i = symbol("i", rows)
    loop = RowLoop(builder, body, node, threads_for(reduction.count_of(node), rows, features))
    threads = loop.threads
    nodes = _nodes_to_root(builder)
    if not _pays(builder, node, nodes, loop) or (builder.sums and not loop.is_held):
        return None
    arrays: list[WorkgroupArray] = []
    for part in nodes:
        if is_reduction(part):
            arrays += _reduce(builder, body, loop, part, threads, f"shared{len(arrays)}")
        elif part.output.shape == node.output.shape:
            body.preset(part.output, None, body.load(part.output, i))
    shared = threads > 1
    if root.size == rows:
        with body.block(f"if ({'t == 0u && ' if shared else ''}row < {u32(rows)})"):
            body.store(i, body.load(root, i))
    else:
        body.line(f"if (row >= {u32(rows)}) {{ return; }}")
        loop.write()
    rows_per_group = 1 if shared else WORKGROUP_SIZE[features.kind]  # rows of a workgroup
    groups = grid(-(-rows // rows_per_group), features.grid)
    lines = [
        f"  let row = {place_in(groups, rows_per_group)};",
        f"  let i = min(row, {u32(rows - 1)});",
        *body.lines,
    ]
    invocations, builtins = (threads, BY_WORKGROUP) if shared else (rows_per_group, BY_INVOCATION)
    entry = EntryPoint.of(invocations, builtins, lines, arrays)
    return builder.finish(builder.producers[root].op, entry, groups)


def _pays(builder: KernelBuilder, node: Node, nodes: list[Node], loop: RowLoop) -> bool:
    """Whether a row kernel pays; for a single reduction, only if it reads vec4s."""
    root, features = builder.root, builder.features
    if sum(map(is_reduction, nodes)) > 1 or root.size != node.output.size:
        return True
    if (
        loop.width == 1
        or loop.is_held
        or reduction.count_of(node) > MAX_FUSED_ROW
        or not is_writable(root, features)
    ):
        return False
    steps = (part for part in nodes if part is not node)
    return all(part.output.shape == node.output.shape and is_step(part, features) for part in steps)


def _reduce(
    builder: KernelBuilder, body: Body, loop: RowLoop, node: Node, threads: int, array: str
) -> list[WorkgroupArray]:
    """Emit the reduction of row `i` and name its result.

    Returns:
        The declaration of the shared array, if a workgroup's threads share the row.
    """
    rule, storage = reduction.rule_of(node), builder.storage(node.output)
    start = reduction.initial(rule, storage)
    totals = [body.var(storage.compute, start) for _ in range(loop.width)]
    adds = storage.compute == "f32" and rule.init not in ("min", "max")
    with loop.in_blocks(adds) as divided:
        parts = [body.var(storage.compute, start) for _ in totals] if divided else totals
        for number, _, element in loop.elements(next(node.operands)):
            part = parts[number]
            body.line(f"{part} = {reduction.step(rule, storage, part, element)};")
        for total, part in zip(totals, parts, strict=True) if divided else ():
            body.line(f"{total} = {reduction.combine(rule, storage, total, part)};")
    while len(totals) > 1:
        a, b, *others = totals
        totals = [*others, body.let(reduction.combine(rule, storage, a, b), "acc")]
    (total,) = totals
    if threads > 1:
        body.line(f"{declared(array)}[t] = {total};")
        body.lines += combine_shared(array, threads, rule, storage)
        total = combined_name(array)
    whole = reduction.finish(rule, storage, total, reduction.count_of(node))
    body.preset(node.output, None, body.let(whole, "whole"))
    return [WorkgroupArray(array, storage.compute, (threads,))] if threads > 1 else []


def _nodes_to_root(builder: KernelBuilder) -> list[Node]:
    """Return the nodes from the kernel's reductions to its root, in topological order."""
    follows: dict[Node, bool] = {}
    order: list[Node] = []
    todo = [(builder.producers[builder.root], False)]
    while todo:
        node, ready = todo.pop()
        if node in follows and not ready:
            continue
        operands = [builder.producers[v] for v in node.operands if builder.computes(v)]
        if not ready:
            follows[node] = False
            todo += [(node, True), *((operand, False) for operand in operands)]
        elif is_reduction(node) or any(follows[operand] for operand in operands):
            follows[node] = True
            order.append(node)
    return order

"""Scatter in three kernels: clear the winners, find them, and let each element load its winner.

Updates store their numbers at their targets with an atomic maximum. So the last update wins,
whatever the order of invocations. Rows that are scattered into a state in place take one kernel.
"""

from __future__ import annotations

from webnn_py.engines.webgpu.compiler.code.index import constant, symbol
from webnn_py.engines.webgpu.compiler.kernel import Kernel, Part
from webnn_py.engines.webgpu.compiler.kernel_builder import OUT, Body, KernelBuilder, Make
from webnn_py.engines.webgpu.compiler.kernels import elementwise_kernel
from webnn_py.engines.webgpu.compiler.kernels.elementwise_kernel import map_kernel
from webnn_py.engines.webgpu.compiler.lower.indexing import RowScatter, Scatter, scatter_of
from webnn_py.engines.webgpu.program.pieces import u32
from webnn_py.engines.webgpu.program.storage import storage_of
from webnn_py.ir import Node, Value


def emit(make: Make, node: Node) -> list[Kernel] | None:
    """Return the kernels of a scatter, with its fused epilogue; None for other nodes."""
    scatter = scatter_of(node)
    if scatter is None:
        return None
    winners = Value("uint32", (scatter.targets(node.output.size),), "winners")
    kernels: list[Kernel] = []
    for part in make(winners).parts(winners):
        kernels += [
            _clear(make(winners), node, part),
            _find(make(winners), node, scatter, part),
        ]
    for part in make().parts(make().root):
        builder = make()
        builder.scratch[node.output] = winners
        kernels.append(elementwise_kernel.emit(builder, node, part))
    return kernels


def _elements_of_part(builder: KernelBuilder, part: Part) -> tuple[int, int]:
    """Return the first element of a part, and the number of its elements."""
    word_bytes = storage_of(part.value.data_type, builder.features).word_bytes
    return part.offset // word_bytes, part.size // word_bytes


def _clear(builder: KernelBuilder, node: Node, part: Part) -> Kernel:
    """Return the kernel that marks all targets as without winner."""
    body = Body(builder)
    body.line(f"{OUT}[i] = 0u;")
    return map_kernel(builder, body, node.op, _elements_of_part(builder, part)[1], part)


def _find(builder: KernelBuilder, node: Node, scatter: Scatter, part: Part) -> Kernel:
    """Return the kernel in which each update stores its number, counted from 1, at its target."""
    *_, updates = node.operands
    builder.atomic_out = True
    body = Body(builder)
    count = scatter.count if scatter.whole else updates.size
    line, update, behind = constant(0), symbol("i", count), constant(0)
    if not scatter.whole:
        line, update, behind = scatter.split_index(body, update, scatter.count)
    place = scatter.target_of(body, line, update, behind)
    target = place if scatter.whole else scatter.flat_index(line, scatter.places, place, behind)
    first, size = _elements_of_part(builder, part)
    target = body.let(target - first, "target")
    with body.block(f"if ({target} < {u32(size)})"):  # targets below `first` wrap to huge ones
        body.line(f"atomicMax(&{OUT}[{target}], {update + 1});")
    return map_kernel(builder, body, node.op, count, part)


def emit_in_place(make: Make) -> list[Kernel] | None:
    """Return the kernels that write new rows into a state in place; None for other roots."""
    builder = make()
    if builder.root not in builder.places.states:
        return None
    node = builder.producers[builder.root]
    return [_write_rows(make(), node, part) for part in builder.parts(builder.root)]


def _write_rows(builder: KernelBuilder, node: Node, part: Part) -> Kernel:
    """Return the kernel in which each element of the new rows is stored at its place."""
    _, rows, _ = node.operands
    scatter = RowScatter.of(node)
    body = Body(builder)
    index = symbol("i", rows.size)
    value = body.load(rows, index)
    behind = body.let(index % scatter.inner, "m")
    line = body.let(index // (scatter.count * scatter.inner), "q")
    row = body.let(index // scatter.inner % scatter.count, "row")
    place = symbol(body.let(f"{row.enclosed} + {scatter.start(body, line)}", "place"))
    with body.block(f"if ({place} < {u32(scatter.places)})"):
        inside = place.below(scatter.places)
        target = (line * scatter.places + inside) * scatter.inner + behind
        first, size = _elements_of_part(builder, part)
        at = body.let(target - first, "target")
        packed = builder.storage(builder.root).pack([value])
        if builder.is_whole(builder.root):
            body.line(f"{OUT}[{at}] = {packed};")
        else:
            with body.block(f"if ({at} < {u32(size)})"):  # targets below `first` wrap to huge ones
                body.line(f"{OUT}[{at}] = {packed};")
    return map_kernel(builder, body, node.op, rows.size, part)

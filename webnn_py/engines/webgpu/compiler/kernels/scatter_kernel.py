"""Scattering in three steps: who writes where is cleared, found, and followed by each element.

The updates leave their numbers at the places they point to, and the highest number stays: the last
update wins, whatever the order in which invocations run.
"""

from __future__ import annotations

from webnn_py.engines.webgpu.compiler.code.index import constant, symbol
from webnn_py.engines.webgpu.compiler.kernel import Kernel, Part
from webnn_py.engines.webgpu.compiler.kernel_builder import Body, KernelBuilder, Make
from webnn_py.engines.webgpu.compiler.kernels import elementwise_kernel
from webnn_py.engines.webgpu.compiler.kernels.elementwise_kernel import map_kernel
from webnn_py.engines.webgpu.compiler.lower.indexing import Scatter, scatter_of
from webnn_py.engines.webgpu.program.storage import storage_of
from webnn_py.ir import Node, Value


def emit(make: Make, node: Node) -> list[Kernel] | None:
    """The kernels of a node that scatters, with what is fused behind it; else None."""
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


def _words(builder: KernelBuilder, part: Part) -> tuple[int, int]:
    """The first element in a part, and how many there are."""
    word_bytes = storage_of(part.value.data_type, builder.features).word_bytes
    return part.offset // word_bytes, part.size // word_bytes


def _clear(builder: KernelBuilder, node: Node, part: Part) -> Kernel:
    """Nobody has won yet."""
    body = Body(builder)
    body.line("out0[i] = 0u;")
    return map_kernel(builder, body, node.op, _words(builder, part)[1], part)


def _find(builder: KernelBuilder, node: Node, scatter: Scatter, part: Part) -> Kernel:
    """Each update leaves its number, counted from 1, where it points to."""
    *_, updates = node.operands
    builder.atomic_out = True
    body = Body(builder)
    count = scatter.count if scatter.whole else updates.size
    line, update, behind = constant(0), symbol("i", count), constant(0)
    if not scatter.whole:
        line, update, behind = scatter.divided(body, update, scatter.count)
    place = scatter.target_of(body, line, update, behind)
    target = place if scatter.whole else scatter.joined(line, scatter.places, place, behind)
    first, size = _words(builder, part)
    target = body.let(target - first, "target")
    with body.block(f"if ({target} < {size}u)"):  # below `first` it is huge
        body.line(f"atomicMax(&out0[{target}], {update + 1});")
    return map_kernel(builder, body, node.op, count, part)

"""Scattering in two steps: the input is copied, then each update writes where it points to."""

from __future__ import annotations

from webnn_py.backends.webgpu.emission import Body, Emission, Kernel, Make, grid
from webnn_py.backends.webgpu.lower.indexing import scatter_of
from webnn_py.ir import Node

WORKGROUP = 64


def emit(make: Make, heavy: Node) -> list[Kernel] | None:
    """The two kernels; None if elements share words, or something is fused behind."""
    copying, writing = make(), make()
    scatter = scatter_of(heavy)
    if scatter is None or heavy.output is not copying.root:
        return None
    if copying.storage(heavy.output).per_word != 1:
        return None
    operand, _, updates = heavy.operands
    copy = Body(copying)
    copy.store("i", copy.load(operand, "i"))
    copying.function("write", "i: u32", "", copy)
    body = Body(writing)
    line, number, behind = scatter.divided(body, "i", scatter.count, updates.size)
    place = body.let(scatter.pointed(body, line, number, behind), "place")
    with body.block(f"for (var r = {number} + 1u; r < {scatter.count}u; r++)"):
        # The last of several updates wins, and no two invocations write to one place.
        other = scatter.pointed(body, line, "r", behind)
        with body.block(f"if ({other} == {place})"):
            body.line("return;")
    body.store(scatter.joined(line, scatter.places, place, behind), body.load(updates, "i"))
    writing.function("write", "i: u32", "", body)
    return [_each(copying, heavy, operand.size), _each(writing, heavy, updates.size)]


def _each(emission: Emission, heavy: Node, count: int) -> Kernel:
    """A kernel that calls `write` with each number below the count."""
    groups = grid(-(-count // WORKGROUP), emission.features.grid)
    place = "g.x" if groups[1] == 1 else f"g.x + g.y * {groups[0] * WORKGROUP}u"
    main = f"""@compute @workgroup_size({WORKGROUP})
fn main(@builtin(global_invocation_id) g: vec3<u32>) {{
  let i = {place};
  if (i < {count}u) {{ write(i); }}
}}"""
    return emission.finish(heavy.op, main, groups)

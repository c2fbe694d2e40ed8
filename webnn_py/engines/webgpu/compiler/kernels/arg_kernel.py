"""arg_max and arg_min of long lines: a tree reduction by a workgroup for one or more results."""

from __future__ import annotations

from webnn_py.engines.webgpu.compiler.code.index import symbol
from webnn_py.engines.webgpu.compiler.fusing.row_fusion import beside_for, threads_for
from webnn_py.engines.webgpu.compiler.kernel import (
    BY_WORKGROUP,
    EntryPoint,
    Kernel,
    WorkgroupArray,
    grid,
    place_in,
)
from webnn_py.engines.webgpu.compiler.kernel_builder import Body, KernelBuilder
from webnn_py.engines.webgpu.compiler.loop_bounds import halvings
from webnn_py.engines.webgpu.compiler.lower import scan
from webnn_py.engines.webgpu.program.pieces import END_LOOP, declared, loop, u32
from webnn_py.ir import Node

_CANDIDATE = declared("candidate")
_BETTER = declared("better")
_PUT = declared("put")
_SHARED_BEST = declared("shared_best")


def emit(builder: KernelBuilder, node: Node) -> Kernel | None:
    """Stride over a line with all threads, then reduce the candidates; the first of equals wins."""
    if node.op not in scan.BETTER or builder.storage(builder.root).per_word != 1:
        return None
    operand = next(node.operands)
    count = operand.shape[node.attrs["axis"]]
    threads = threads_for(count, node.output.size, builder.features)
    if threads == 1:
        return None
    results = node.output.size
    results_per_group = beside_for(threads, operand, node.attrs["axis"], results, builder.features)
    lanes = threads // results_per_group
    _declare_functions(builder, node, count, lanes)
    groups = grid(-(-results // results_per_group), builder.features.grid)
    own = symbol("t", threads)
    head = f"for (var s = {u32(threads // 2)}; s > {u32(results_per_group // 2)}; s = s >> 1u)"
    halving = loop(head, halvings(threads // 2))
    own_result = f"t < {u32(results_per_group)} && i < {u32(results)}"
    lines = f"""  let i = {place_in(groups) * results_per_group + own % results_per_group};
  {_SHARED_BEST}[t] = {_CANDIDATE}(min(i, {u32(results - 1)}), {own // results_per_group});
  workgroupBarrier();
  {halving}
    if (t < s) {{ {_SHARED_BEST}[t] = {_BETTER}({_SHARED_BEST}[t], {_SHARED_BEST}[t + s]); }}
    workgroupBarrier();
  {END_LOOP}
  if ({own_result}) {{ {_PUT}(i, {_SHARED_BEST}[t].place); }}"""
    shared = WorkgroupArray("shared_best", "Best", (threads,))
    compute = builder.storage(operand).compute
    struct = f"struct Best {{ value: {compute}, place: u32 }}"
    entry = EntryPoint.of(threads, BY_WORKGROUP, lines.split("\n"), (shared,), struct=struct)
    return builder.finish(node.op, entry, groups)


def _declare_functions(builder: KernelBuilder, node: Node, count: int, lanes: int) -> None:
    """Add functions for a thread's best element, for the better of two, and for the store.

    Args:
        builder: The kernel's builder.
        node: The node.
        count: Elements of a line.
        lanes: Threads of a line.
    """
    operand = next(node.operands)
    body = Body(builder)
    i, t, r = symbol("i"), symbol("t", lanes), symbol("r", count)
    base, step = scan.line_of(body, operand, node.attrs["axis"], i)
    first = body.load(operand, base + t * step)
    body.line(f"var best = Best({first}, t);")
    head = f"for (var r = t + {u32(lanes)}; r < {u32(count)}; r += {u32(lanes)})"
    with body.block(head, -(-count // lanes)):
        element = body.load(operand, base + r * step)
        with body.block(f"if ({scan.is_better(body, node, element, 'best.value')})"):
            body.line(f"best = Best({element}, r);")
    body.line("return best;")
    builder.function("candidate", "i: u32, t: u32", "Best", body)
    tests = Body(builder)
    tests.line(f"if ({scan.is_better(tests, node, 'a.value', 'b.value')}) {{ return a; }}")
    tests.line(f"if ({scan.is_better(tests, node, 'b.value', 'a.value')}) {{ return b; }}")
    tests.line("if (a.place < b.place) { return a; }")
    tests.line("return b;")
    builder.function("better", "a: Best, b: Best", "Best", tests)
    after = Body(builder)
    after.preset(node.output, i, after.let(scan.as_position(after, node, "place"), "whole"))
    after.store(i, after.load(builder.root, i))
    builder.function("put", "i: u32, place: u32", "", after)

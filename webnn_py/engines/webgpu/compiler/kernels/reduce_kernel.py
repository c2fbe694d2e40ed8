"""Reductions of many elements to few: a tree reduction by a workgroup for one or more results."""

from __future__ import annotations

from webnn_py.engines.webgpu.compiler.code.affine import subset_map
from webnn_py.engines.webgpu.compiler.code.index import symbol
from webnn_py.engines.webgpu.compiler.fusing.row_fusion import beside_for, is_reduction, threads_for
from webnn_py.engines.webgpu.compiler.kernel import (
    BY_WORKGROUP,
    EntryPoint,
    Kernel,
    WorkgroupArray,
    grid,
    place_in,
)
from webnn_py.engines.webgpu.compiler.kernel_builder import Body, KernelBuilder
from webnn_py.engines.webgpu.compiler.lower import reduction
from webnn_py.engines.webgpu.program.pieces import declared, u32
from webnn_py.engines.webgpu.program.storage import Storage
from webnn_py.ir import Node
from webnn_py.ops.declare import Reduce

_SHARED_PART, _PARTIAL, _PUT = declared("shared_part"), declared("partial"), declared("put")


def emit(builder: KernelBuilder, node: Node) -> Kernel | None:
    """Stride over the reduced elements with all threads, then combine their partial results."""
    storage = builder.storage(builder.root)
    if not is_reduction(node) or storage.per_word != 1:
        return None
    count = reduction.count_of(node)
    threads = threads_for(count, node.output.size, builder.features)
    if threads == 1:
        return None
    operand = next(node.operands)
    rule = reduction.rule_of(node)
    inner = builder.storage(node.output)
    kept, reduced = reduction.axes_of(node)
    results = node.output.size
    results_per_group = beside_for(threads, operand, reduced[-1], results, builder.features)
    body = Body(builder)
    i, r = symbol("i"), symbol("r", count)
    base = body.let(subset_map(operand.shape, kept).at(i), "base")
    total = body.var(inner.compute, reduction.initial(rule, inner))
    step = threads // results_per_group
    with body.block(f"for (var r = t; r < {u32(count)}; r += {u32(step)})", -(-count // step)):
        element = body.load(operand, base + subset_map(operand.shape, reduced).at(r))
        body.line(f"{total} = {reduction.step(rule, inner, total, element)};")
    body.line(f"return {total};")
    builder.function("partial", "i: u32, t: u32", inner.compute, body)
    after = Body(builder)
    whole = after.let(reduction.finish(rule, inner, "total", count), "whole")
    after.preset(node.output, i, whole)
    after.store(i, after.load(builder.root, i))
    builder.function("put", f"i: u32, total: {inner.compute}", "", after)
    groups = grid(-(-results // results_per_group), builder.features.grid)
    t, own = (
        symbol("t", threads),
        f"< {u32(results_per_group)}" if results_per_group > 1 else "== 0u",
    )
    lines = [
        f"  let i = {place_in(groups) * results_per_group + t % results_per_group};",
        f"  {_SHARED_PART}[t] = {_PARTIAL}(min(i, {u32(results - 1)}), {t // results_per_group});",
        *combine_shared("shared_part", threads, rule, inner, results_per_group),
        f"  if (t {own} && i < {u32(results)}) {{ {_PUT}(i, {combined_name('shared_part')}); }}",
    ]
    shared = WorkgroupArray("shared_part", inner.compute, (threads,))
    return builder.finish(node.op, EntryPoint.of(threads, BY_WORKGROUP, lines, (shared,)), groups)


def combine_shared(
    array: str, threads: int, rule: Reduce, storage: Storage, results_per_group: int = 1
) -> list[str]:
    """Emit the combination of a shared array's elements; every thread `t` gets the result.

    The last line declares the name `combined_name(array)`. Some threads combine several elements
    each, then all threads combine those results. That takes two barriers; halving would take one
    for each power of two.

    Args:
        array: The array's name.
        threads: Its elements, one for each thread.
        rule: The reduction.
        storage: Storage of the elements.
        results_per_group: Number of interleaved results.
    """
    count, shared = threads // results_per_group, declared(array)
    some = min(divisors(count), key=lambda n: n + count // n)
    parts = [f"{shared}[t + {u32(first * results_per_group)}]" for first in range(0, count, some)]
    *steps, name = _combined(array, parts, rule, storage)
    lines = ["  workgroupBarrier();", f"  if (t < {u32(some * results_per_group)}) {{", *steps]
    lines += [f"    {shared}[t] = {name};", "  }", "  workgroupBarrier();"]
    own = symbol("t", threads) % results_per_group
    parts = [
        f"{shared}[{own + n * results_per_group}]" if results_per_group > 1 else f"{shared}[{n}]"
        for n in range(some)
    ]
    *steps, name = _combined(array, parts, rule, storage)
    return [*lines, *steps, f"  let {combined_name(array)} = {name};"]


def combined_name(array: str) -> str:
    """Return the name of the combined elements of a shared array."""
    return f"all_{array}"


def divisors(number: int) -> list[int]:
    """Return the divisors of a number, in order."""
    return [n for n in range(1, number + 1) if number % n == 0]


def _combined(array: str, parts: list[str], rule: Reduce, storage: Storage) -> list[str]:
    """Emit a tree that combines `parts`; the last item is the name of the result."""
    lines: list[str] = []
    while len(parts) > 1:
        names = []
        for a, b in zip(parts[::2], parts[1::2], strict=False):
            names.append(f"{array}_{len(lines)}")
            lines.append(f"    let {names[-1]} = {reduction.combine(rule, storage, a, b)};")
        parts = names + parts[2 * len(names) :]
    return [*lines, *parts]

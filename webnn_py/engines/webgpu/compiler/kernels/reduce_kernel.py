"""Reductions of many elements to few: a workgroup for each result."""

from __future__ import annotations

from webnn_py.engines.webgpu.compiler.affine import subset_map
from webnn_py.engines.webgpu.compiler.index import symbol
from webnn_py.engines.webgpu.compiler.kernel_builder import (
    Body,
    Kernel,
    KernelBuilder,
    grid,
    place_in,
)
from webnn_py.engines.webgpu.compiler.lower import reduction
from webnn_py.ir import Node
from webnn_py.ops.declare import REGISTRY

FEWEST = {"gpu": 64, "cpu": 512}
"""Elements in one result from which a workgroup pays, by kind of device."""

MOST_RESULTS = {"gpu": 1 << 20, "cpu": 1 << 12}


def emit(builder: KernelBuilder, node: Node) -> Kernel | None:
    """Threads stride over the reduced elements, then halve their partial results."""
    storage = builder.storage(builder.root)
    kind = builder.features.kind
    if REGISTRY[node.op].reduce is None or storage.per_word != 1:
        return None
    count = reduction.count_of(node)
    if count < FEWEST[kind] or node.output.size > MOST_RESULTS[kind]:
        return None
    operand = next(node.operands)
    rule = reduction.rule_of(node)
    inner = builder.storage(node.output)
    kept, reduced = reduction.axes_of(node)
    threads = min(256 if count >= 256 else 64, builder.features.invocations)
    body = Body(builder)
    i, r = symbol("i"), symbol("r", count)
    base = body.let(subset_map(operand.shape, kept).at(i), "base")
    total = body.var(inner.compute, reduction.initial(rule, inner))
    with body.block(f"for (var r = t; r < {count}u; r += {threads}u)"):
        element = body.load(operand, base + subset_map(operand.shape, reduced).at(r))
        body.line(f"{total} = {reduction.step(rule, inner, total, element)};")
    body.line(f"return {total};")
    builder.function("partial", "i: u32, t: u32", inner.compute, body)
    after = Body(builder)
    whole = after.let(reduction.finish(rule, inner, "total", count), "whole")
    after.preset(node.output, i, whole)
    after.store(i, after.load(builder.root, i))
    builder.function("put", f"i: u32, total: {inner.compute}", "", after)
    groups = grid(node.output.size, builder.features.grid)
    combined = reduction.combine(rule, inner, "shared_part[t]", "shared_part[t + s]")
    main = f"""var<workgroup> shared_part: array<{inner.compute}, {threads}>;
@compute @workgroup_size({threads})
fn main(@builtin(workgroup_id) g: vec3<u32>, @builtin(local_invocation_index) t: u32) {{
  let i = {place_in(groups)};
  shared_part[t] = partial(min(i, {node.output.size - 1}u), t);
  workgroupBarrier();
  for (var s = {threads // 2}u; s > 0u; s = s >> 1u) {{
    if (t < s) {{ shared_part[t] = {combined}; }}
    workgroupBarrier();
  }}
  if (t == 0u && i < {node.output.size}u) {{ put(i, shared_part[0]); }}
}}"""
    return builder.finish(node.op, main, groups)

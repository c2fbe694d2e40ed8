"""The place of the best of many elements: a workgroup for each result."""

from __future__ import annotations

from webnn_py.engines.webgpu.compiler.index import symbol
from webnn_py.engines.webgpu.compiler.kernel_builder import (
    Body,
    Kernel,
    KernelBuilder,
    grid,
    place_in,
)
from webnn_py.engines.webgpu.compiler.kernels.reduce_kernel import FEWEST, MOST_RESULTS
from webnn_py.engines.webgpu.compiler.lower import scan
from webnn_py.ir import Node


def emit(emission: KernelBuilder, anchor: Node) -> Kernel | None:
    """Threads stride over a line, then halve their candidates; the first of equals wins."""
    kind = emission.features.kind
    if anchor.op not in scan.BETTER or emission.storage(emission.root).per_word != 1:
        return None
    operand = next(anchor.operands)
    count = operand.shape[anchor.attrs["axis"]]
    if count < FEWEST[kind] or anchor.output.size > MOST_RESULTS[kind]:
        return None
    compute = emission.storage(operand).compute
    threads = min(256 if count >= 256 else 64, emission.features.invocations)
    body = Body(emission)
    i, t, r = symbol("i"), symbol("t", threads), symbol("r", count)
    base, step = scan.line_of(body, operand, anchor.attrs["axis"], i)
    first = body.load(operand, base + t * step)
    body.line(f"var best = Best({first}, t);")
    with body.block(f"for (var r = t + {threads}u; r < {count}u; r += {threads}u)"):
        element = body.load(operand, base + r * step)
        with body.block(f"if ({scan.is_better(body, anchor, element, 'best.value')})"):
            body.line(f"best = Best({element}, r);")
    body.line("return best;")
    emission.function("candidate", "i: u32, t: u32", "Best", body)
    tests = Body(emission)
    tests.line(f"if ({scan.is_better(tests, anchor, 'a.value', 'b.value')}) {{ return a; }}")
    tests.line(f"if ({scan.is_better(tests, anchor, 'b.value', 'a.value')}) {{ return b; }}")
    tests.line("if (a.place < b.place) { return a; }")
    tests.line("return b;")
    emission.function("better", "a: Best, b: Best", "Best", tests)
    after = Body(emission)
    after.preset(anchor.output, i, after.let(scan.as_position(after, anchor, "place"), "whole"))
    after.store(i, after.load(emission.root, i))
    emission.function("put", "i: u32, place: u32", "", after)
    groups = grid(anchor.output.size, emission.features.grid)
    main = f"""struct Best {{ value: {compute}, place: u32 }}
var<workgroup> shared_best: array<Best, {threads}>;
@compute @workgroup_size({threads})
fn main(@builtin(workgroup_id) g: vec3<u32>, @builtin(local_invocation_index) t: u32) {{
  let i = {place_in(groups)};
  shared_best[t] = candidate(min(i, {anchor.output.size - 1}u), t);
  workgroupBarrier();
  for (var s = {threads // 2}u; s > 0u; s = s >> 1u) {{
    if (t < s) {{ shared_best[t] = better(shared_best[t], shared_best[t + s]); }}
    workgroupBarrier();
  }}
  if (t == 0u && i < {anchor.output.size}u) {{ put(i, shared_best[0].place); }}
}}"""
    return emission.finish(anchor.op, main, groups)

"""Running sums (scan): a workgroup per line, a run of adjacent elements per thread."""

from __future__ import annotations

from webnn_py.core.traced_queries import sampled
from webnn_py.engines.webgpu.compiler.code.expressions import express
from webnn_py.engines.webgpu.compiler.code.index import symbol
from webnn_py.engines.webgpu.compiler.kernel import (
    BY_WORKGROUP,
    EntryPoint,
    Kernel,
    WorkgroupArray,
    grid,
    place_in,
)
from webnn_py.engines.webgpu.compiler.kernel_builder import Body, KernelBuilder
from webnn_py.engines.webgpu.compiler.loop_bounds import doublings
from webnn_py.engines.webgpu.compiler.lower.scan import line_of
from webnn_py.engines.webgpu.program.pieces import END_LOOP, declared, loop, u32
from webnn_py.engines.webgpu.program.storage import Storage
from webnn_py.ir import Node

_PLACE = declared("place")
_ELEMENT = declared("element")
_PUT = declared("put")
_SUMS = declared("sums")

MIN_LINE_ELEMENTS = 64
"""Elements of a line from which a workgroup pays; below, each element sums by itself."""


def emit(builder: KernelBuilder, node: Node) -> Kernel | None:
    """Sum the runs, scan the sums of runs, and add them while scanning each run."""
    if node.op != "cumulative_sum" or builder.storage(builder.root).per_word != 1:
        return None
    operand = next(node.operands)
    count = operand.shape[node.attrs["axis"]]
    if sampled(count) < MIN_LINE_ELEMENTS:
        return None
    _declare_functions(builder, node, count)
    threads = 64 if sampled(count) < 1024 else min(256, builder.features.invocations)
    lines = operand.size // count
    groups = grid(lines, builder.features.grid)
    line = str(place_in(groups).min(lines - 1))
    main = _main(builder.storage(operand), line, count, threads, node.attrs["exclusive"])
    return builder.finish(node.op, main, groups)


def _declare_functions(builder: KernelBuilder, node: Node, count: int) -> None:
    """Add functions for index and value of element `r` of line `i`, and for the store of a sum."""
    operand = next(node.operands)
    compute = builder.storage(operand).compute
    body = Body(builder)
    r, at = symbol("r", count), symbol("at")
    base, step = line_of(body, operand, node.attrs["axis"], symbol("i"))
    place = count - 1 - r if node.attrs["reversed"] else r
    body.line(f"return {base + place * step};")
    builder.function("place", "i: u32, r: u32", "u32", body)
    load = Body(builder)
    load.line(f"return {load.load(operand, at)};")
    builder.function("element", "at: u32", compute, load)
    put = Body(builder)
    put.preset(node.output, at, "total")
    put.store(at, put.load(builder.root, at))
    builder.function("put", f"at: u32, total: {compute}", "", put)


def _main(storage: Storage, line: str, count: int, threads: int, exclusive: bool) -> EntryPoint:
    """Emit the scan of a line by a workgroup of `threads`."""

    def plus(a: str, b: str) -> str:
        return express("{a} + {b}", storage, a=a, b=b)

    run = -(-count // threads)
    zero = storage.literal(0)
    through = loop("for (var r = first; r < last; r++)", run)
    more = f"total = {plus('total', f'{_ELEMENT}(at)')};"
    put = f"{_PUT}(at, total);"
    steps = [put, more] if exclusive else [more, put]
    body = f"""  let i = {line};
  let first = min(t * {u32(run)}, {u32(count)});
  let last = min(first + {u32(run)}, {u32(count)});
  var total = {zero};
  {through}
    let at = {_PLACE}(i, r);
    {more}
  {END_LOOP}
  {_SUMS}[t] = total;
  workgroupBarrier();
  {loop(f"for (var s = 1u; s < {u32(threads)}; s = s << 1u)", doublings(threads))}
    var before = {zero};
    if (t >= s) {{ before = {_SUMS}[t - s]; }}
    workgroupBarrier();
    {_SUMS}[t] = {plus(f"{_SUMS}[t]", "before")};
    workgroupBarrier();
  {END_LOOP}
  total = {zero};
  if (t > 0u) {{ total = {_SUMS}[t - 1u]; }}
  {through}
    let at = {_PLACE}(i, r);
    {" ".join(steps)}
  {END_LOOP}"""
    sums = WorkgroupArray("sums", storage.compute, (threads,))
    return EntryPoint.of(threads, BY_WORKGROUP, body.split("\n"), (sums,))

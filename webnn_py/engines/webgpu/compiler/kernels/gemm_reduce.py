"""GEMM with few rows (vector times matrix): the invocations of a workgroup split k.

Reading B once bounds the time. Each invocation sums a slice of k for one column, or four, of every
row. A tree reduction in shared memory adds the slices.
"""

from __future__ import annotations

from dataclasses import dataclass

from webnn_py.engines.webgpu.compiler.code.index import constant, symbol
from webnn_py.engines.webgpu.compiler.kernel import WorkgroupArray
from webnn_py.engines.webgpu.compiler.kernels.gemm_types import GemmProblem, Limits, TileKernel
from webnn_py.engines.webgpu.compiler.kernels.gemm_wgsl import (
    Guards,
    add_product,
    entry_point,
    fold_grid,
    load_functions,
    multiply_add,
    name_batch,
    store_functions,
    store_values,
)
from webnn_py.engines.webgpu.program.pieces import END_LOOP, declared, loop, u32

_GEMM_PARTIAL, _GEMM_A, _GEMM_A4 = declared("gemm_partial"), declared("gemm_a"), declared("gemm_a4")


@dataclass(frozen=True, slots=True)
class ReduceTile:
    """Division of a workgroup: `columns` groups of columns times `slices` of k.

    Both are powers of two. Each invocation unrolls its loop `unroll` times.
    """

    columns: int
    slices: int
    unroll: int = 4


def emit_reduce(problem: GemmProblem, tile: ReduceTile, limits: Limits) -> TileKernel:
    """Return the kernel for a product with few rows."""
    wide = problem.b_major == "n" and problem.b4 is not None
    along_k = problem.b_major == "k" and problem.b4 is not None
    step = 4 if along_k else 1
    width = 4 if wide else 1
    chunk = tile.slices * step * tile.unroll
    guards = Guards.of(problem, 1, tile.columns * width, chunk)
    grid = fold_grid(-(-problem.n // (tile.columns * width)), 1, problem.batch, limits)
    lid = symbol("lid", tile.columns * tile.slices)
    # Consecutive invocations read consecutive elements of B.
    if problem.b_major == "k":
        stride, slice_, column = 1, lid % tile.slices, lid // tile.slices
    else:
        stride, slice_, column = tile.columns, lid // tile.columns, lid % tile.columns
    place = [f"let slice = {slice_};", f"let column = {column};"]
    col = (symbol("gemm_col") * tile.columns + symbol("column")) * width
    place.append(f"let col = {col};")
    a_wide = along_k and problem.a_major == "k" and problem.a4 is not None
    sums = _sums(problem, tile, wide=wide, along_k=along_k, a_wide=a_wide)
    result = problem.total4 if wide else problem.total
    invocations, prologue = tile.columns * tile.slices, problem.prologue
    own = prologue.arrays(invocations) if prologue is not None else ()
    free = limits.max_workgroup_storage - sum(array.bytes for array in own)
    fits = free // (invocations * problem.total_bytes)
    rows_at_once = max(1, min(problem.m, fits // width))
    partial = WorkgroupArray("gemm_partial", result, (rows_at_once, invocations))
    functions = [
        *load_functions(problem, guards, 4 if a_wide else 1, 4 if wide or along_k else 1),
        *store_functions(problem, wide=wide),
    ]
    filling = prologue.fill(invocations) if prologue is not None else ()
    body = [*grid.prologue, *name_batch(problem), *place, *filling, *sums]
    for first in range(0, problem.m, rows_at_once):
        rows = range(first, min(first + rows_at_once, problem.m))
        body += _tree_reduction(tile, rows, stride)
        stores = [
            line
            for i in rows
            for line in store_values(
                problem,
                constant(i),
                symbol("col"),
                f"{_GEMM_PARTIAL}[{i - first}][lid]",
                wide=wide,
                guard=guards.n,
            )
        ]
        body += ["if (slice == 0u) {", *stores, "}"]
        if rows.stop < problem.m:
            body.append("workgroupBarrier();")
    entry = entry_point(invocations, body, functions, [partial, *own])
    return TileKernel(entry, grid.workgroups)


def _sums(
    problem: GemmProblem, tile: ReduceTile, *, wide: bool, along_k: bool, a_wide: bool
) -> list[str]:
    """Emit one invocation's partial sum of each row, in `sum0`, `sum1` and so on."""
    step = 4 if along_k else 1
    type_ = problem.total4 if wide or along_k else problem.total
    suffix = "4" if wide or along_k else ""
    chunk = tile.slices * step * tile.unroll
    lines = [f"var acc{i} = {type_}();" for i in range(problem.m)]
    head = f"for (var first = 0u; first < {u32(problem.k)}; first += {u32(chunk)})"
    lines.append(loop(head, -(-problem.k // chunk)))
    for u in range(tile.unroll):
        k = symbol("first") + (symbol("slice") + u * tile.slices) * step
        lines.append(f"  let k{u} = {k};")
        lines.append(f"  let b{u} = {declared(f'gemm_b{suffix}')}(batch, k{u}, col);")
    for u in range(tile.unroll):
        for i in range(problem.m):
            acc, row = f"acc{i}", f"{u32(i)}"
            if not along_k:
                value = f"{_GEMM_A}(batch, {row}, k{u})"
                width = 4 if wide else 1
                lines.append("  " + multiply_add(problem, acc, value, f"b{u}", width))
                continue
            if a_wide:
                value = f"{_GEMM_A4}(batch, {row}, k{u})"
            else:
                parts = ", ".join(
                    f"{_GEMM_A}(batch, {row}, {symbol(f'k{u}') + s})" for s in range(4)
                )
                value = f"{problem.vec4}({parts})"
            lines.append("  " + add_product(problem, acc, value, f"b{u}", 4))
    lines.append(END_LOOP)
    if along_k:
        lines += [
            f"let sum{i} = (acc{i}.x + acc{i}.y) + (acc{i}.z + acc{i}.w);" for i in range(problem.m)
        ]
    else:
        lines += [f"let sum{i} = acc{i};" for i in range(problem.m)]
    return lines


def _tree_reduction(tile: ReduceTile, rows: range, stride: int) -> list[str]:
    """Emit a tree reduction of the slices of some rows; the totals end up in slice 0."""
    lines = [f"{_GEMM_PARTIAL}[{i - rows.start}][lid] = sum{i};" for i in rows]
    lines.append("workgroupBarrier();")
    half = tile.slices // 2
    while half:
        lines.append(f"if (slice < {u32(half)}) {{")
        lines += [
            f"  {_GEMM_PARTIAL}[{i}][lid] += {_GEMM_PARTIAL}[{i}][lid + {u32(half * stride)}];"
            for i in range(len(rows))
        ]
        lines += ["}", "workgroupBarrier();"]
        half //= 2
    return lines

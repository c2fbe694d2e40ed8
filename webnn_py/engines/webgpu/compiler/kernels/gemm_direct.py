"""GEMM without shared memory: each invocation keeps a register tile.

There are no barriers, which are slow on software adapters, and many tiny products fit into one
workgroup.
"""

from __future__ import annotations

from dataclasses import dataclass

from webnn_py.core.traced_queries import divides
from webnn_py.engines.webgpu.compiler.code.index import Index, symbol
from webnn_py.engines.webgpu.compiler.kernels.gemm_types import GemmProblem, Limits, TileKernel
from webnn_py.engines.webgpu.compiler.kernels.gemm_wgsl import (
    Guards,
    entry_point,
    fold_grid,
    load_functions,
    loops_stores,
    multiply_add,
    name_batch,
    store_functions,
    store_loop,
    store_values,
)
from webnn_py.engines.webgpu.compiler.loop_bounds import MAX_LOOP_ELEMENTS
from webnn_py.engines.webgpu.program.pieces import END_LOOP, declared, loop, u32

_GEMM_A, _GEMM_A4, _GEMM_B4 = declared("gemm_a"), declared("gemm_a4"), declared("gemm_b4")

MAX_UNROLLED_STEPS = 16
"""Steps along k that are unrolled in one iteration of a long loop."""


@dataclass(frozen=True, slots=True)
class DirectTile:
    """The register tile of an invocation, and how invocations divide the product.

    Attributes:
        rows: Rows of the tile.
        cols: Columns of the tile.
        lanes: Invocations of a workgroup.
        spread: "columns": the invocations of a workgroup share their rows, so their loads of A are
            equal. "blocks": they take consecutive tiles of the whole batch.
    """

    rows: int
    cols: int
    lanes: int
    spread: str = "columns"


def emit_direct(problem: GemmProblem, tile: DirectTile, limits: Limits) -> TileKernel:
    """Return the kernel that multiplies register tiles directly from the operands."""
    wide_cols = problem.b_major == "n" and problem.b4 is not None and tile.cols % 4 == 0
    width = 4 if wide_cols else 1
    # Steps of four k pay if they use vec4 loads; loads of A are cheap where they are shared.
    along_k = problem.b_major == "k" and problem.b4 is not None
    a_along_k = problem.a_major == "k" and problem.a4 is not None and tile.spread == "blocks"
    step = 4 if divides(4, problem.k) and (along_k or a_along_k) else 1
    plan = _Plan(problem, tile, width, step, a_along_k, along_k)
    span = tile.cols * (tile.lanes if tile.spread == "columns" else 1)
    guards = Guards.of(problem, tile.rows, span, 1)
    lid = symbol("lid", tile.lanes)
    if tile.spread == "columns":
        grid = fold_grid(-(-problem.n // span), -(-problem.m // tile.rows), problem.batch, limits)
        row, first = symbol("gemm_row") * tile.rows, symbol("gemm_col") * span
        place = [*grid.prologue, *name_batch(problem), f"let row = {row};"]
        for j in range(tile.cols // width):
            place.append(f"let col{j} = {first + (lid + j * tile.lanes) * width};")
    else:
        across, down = -(-problem.n // tile.cols), -(-problem.m // tile.rows)
        total = across * down * problem.batch
        if total > 0xFFFFFFFF - tile.lanes:
            raise ValueError(f"{total} blocks cannot be counted in 32 bits")
        grid = fold_grid(-(-total // tile.lanes), 1, 1, limits)
        block, col = symbol("block", total), symbol("first_col")
        place = [
            *grid.prologue,
            f"let block = {symbol('gemm_col') * tile.lanes + lid};",
            f"if (block >= {u32(total)}) {{ return; }}",
            f"let batch = {block // (across * down)};"
            if problem.batch > 1
            else "const batch = 0u;",
            f"let row = {block // across % down * tile.rows};",
            f"let first_col = {block % across * tile.cols};",
        ]
        place += [f"let col{j} = {col + j * width};" for j in range(tile.cols // width)]
    a_width, b_width = 4 if a_along_k else 1, 4 if along_k or wide_cols else 1
    functions = load_functions(problem, guards, a_width, b_width)
    functions += store_functions(problem, wide=wide_cols)
    body = [*place, *plan.product(), *plan.stores(guards)]
    return TileKernel(entry_point(tile.lanes, body, functions), grid.workgroups)


@dataclass(frozen=True, slots=True)
class _Plan:
    """Emitter of one invocation's code."""

    problem: GemmProblem
    tile: DirectTile
    width: int
    step: int
    a_along_k: bool
    b_along_k: bool

    def product(self) -> list[str]:
        """Emit the accumulators and the loop over k."""
        problem, rows, groups = self.problem, self.tile.rows, self.tile.cols // self.width
        type_ = problem.total4 if self.width == 4 else problem.total
        lines = [f"var acc{i}_{j} = {type_}();" for i in range(rows) for j in range(groups)]
        # Unroll where the loop would exceed the limit of iterations.
        iterations = problem.k // self.step
        steps = min(-(-iterations // MAX_LOOP_ELEMENTS), MAX_UNROLLED_STEPS)
        if steps == 1:
            lines.append(
                loop(f"for (var k = 0u; k < {u32(problem.k)}; k += {u32(self.step)})", iterations)
            )
            return [*lines, *self._one_step(), END_LOOP]
        stride = steps * self.step
        head = f"for (var first = 0u; first < {u32(problem.k)}; first += {u32(stride)})"
        lines.append(loop(head, -(-problem.k // stride)))
        for n in range(steps):
            k = symbol("first") + n * self.step
            guard = f"if ({k} < {u32(problem.k)})" if iterations % steps else ""
            lines += [f"  {guard} {{", f"  let k = {k};", *self._one_step(), "  }"]
        return [*lines, END_LOOP]

    def _one_step(self) -> list[str]:
        """Emit the products of one iteration: one value of k, or four."""
        rows, groups = self.tile.rows, self.tile.cols // self.width
        lines: list[str] = []
        for i in range(rows):
            if self.a_along_k and self.step == 4:
                lines.append(f"  let a{i} = {_GEMM_A4}(batch, {symbol('row') + i}, k);")
        for j in range(groups):
            if self.b_along_k and self.step == 4:
                lines.append(f"  let b{j} = {_GEMM_B4}(batch, k, col{j});")
        for s in range(self.step):
            lines += [f"  {line}" for line in self._one_k(s)]
        return lines

    def _one_k(self, s: int) -> list[str]:
        """Emit the products of one value of k."""
        rows, groups = self.tile.rows, self.tile.cols // self.width
        row, k, lane = symbol("row"), symbol("k") + s, "xyzw"[s]
        lines, left, right = [], [], []
        for i in range(rows):
            if self.a_along_k and self.step == 4:
                left.append(f"a{i}.{lane}")
            else:
                lines.append(f"let a{i}_{s} = {_GEMM_A}(batch, {row + i}, {k});")
                left.append(f"a{i}_{s}")
        for j in range(groups):
            if self.b_along_k and self.step == 4:
                right.append(f"b{j}.{lane}")
            else:
                suffix = "4" if self.width == 4 else ""
                lines.append(f"let b{j}_{s} = {declared(f'gemm_b{suffix}')}(batch, {k}, col{j});")
                right.append(f"b{j}_{s}")
        for i in range(rows):
            for j in range(groups):
                lines.append(
                    multiply_add(self.problem, f"acc{i}_{j}", left[i], right[j], self.width)
                )
        return lines

    def stores(self, guards: Guards) -> list[str]:
        """Emit the stores of the tile."""
        groups = self.tile.cols // self.width
        if loops_stores(self.problem, self.tile.rows * groups):
            names = [f"acc{i}_{j}" for i in range(self.tile.rows) for j in range(groups)]
            type_ = self.problem.total4 if self.width == 4 else self.problem.total
            return store_loop(
                names, type_, "row >> 31u", lambda *at: self._store(guards, groups, *at)
            )
        lines = []
        for i in range(self.tile.rows):
            row = symbol("row") + i
            block = []
            for j in range(self.tile.cols // self.width):
                block += store_values(
                    self.problem,
                    row,
                    symbol(f"col{j}"),
                    f"acc{i}_{j}",
                    wide=self.width == 4,
                    guard=guards.n,
                )
            if guards.m and i:
                block = [f"if ({row} < {u32(self.problem.m)}) {{", *block, "}"]
            lines += block
        return lines

    def _store(self, guards: Guards, groups: int, value: str, number: Index) -> list[str]:
        """Emit the store of one of the tile's values."""
        column_step = self.tile.lanes if self.tile.spread == "columns" else 1
        row = symbol("row") + number // groups
        col = symbol("col0") + number % groups * (column_step * self.width)
        lines = store_values(self.problem, row, col, value, wide=self.width == 4, guard=guards.n)
        return [f"if ({row} < {u32(self.problem.m)}) {{", *lines, "}"] if guards.m else lines

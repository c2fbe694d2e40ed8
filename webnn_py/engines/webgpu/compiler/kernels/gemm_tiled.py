"""GEMM through workgroup tiles in shared memory, for GPUs.

A workgroup multiplies a `rows` by `depth` tile of A by a `depth` by `cols` tile of B, step by step
along k. Shared memory holds both with k as the outer index. An invocation reads vec4s of both and
adds their outer product to its register tile of C. The tile is unrolled into named vec4s, because
register arrays with loop indices spill.

float16 is multiplied in pairs, at twice the rate of float32, if both halves of a register hold
operands. To splat one element costs as much as a multiplication, unless it is stored twice. So a
pair is two steps of k, adjacent in shared memory, of A and of B. Each half of a register then sums
every other product, which takes twice the registers. Large register tiles have none left: for them
shared memory holds A twice, and a pair is two columns. At most `MAX_F16_RUN` products are summed in
float16, then added in float32, so long products lose no more precision than short ones.

Shared arrays are nested with constant outer indices. The bounds checks that WebGPU adds to the one
variable index are then equal for every read, and fold into one.
"""

from __future__ import annotations

from collections.abc import Mapping

from webnn_py.core.traced_queries import divides, is_zero
from webnn_py.engines.webgpu.compiler.code.index import Index, constant, symbol
from webnn_py.engines.webgpu.compiler.kernel import WorkgroupArray
from webnn_py.engines.webgpu.compiler.kernels.gemm_types import (
    GemmProblem,
    Limits,
    SharedTile,
    TileKernel,
)
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
    store_together,
    store_values,
)
from webnn_py.engines.webgpu.compiler.kernels.tile_loading import Side, TileLoading
from webnn_py.engines.webgpu.program.pieces import END_LOOP, declared, divisor, loop, u32
from webnn_py.engines.webgpu.program.plan import COUNTED_LOOP_MARK

_GEMM_PARTIAL = declared("gemm_partial")

WARP_COLUMNS = 8
"""Columns of 32 consecutive invocations, in 4 rows: they read the fewest distinct vec4s so."""

UNROLLED_STEPS = 4
"""Steps of k that are unrolled where they form a loop; not for float16.

Drivers compile networks of convolutions in half the time, to code that is up to 7 % faster.
"""

MAX_LOOPED_MULTIPLICATIONS = 400_000_000
"""Multiplications of a product up to which the steps of k form a loop.

Larger products are bound by arithmetic and 7 to 15 % slower with it, except small tiles of
convolutions.
"""

SMALL_TILE = 64
"""Invocations of a small tile at most; its register tile has fewer elements than this."""

MAX_F16_RUN = 128
"""Products that are summed in float16."""


def emit_tiled(problem: GemmProblem, tile: SharedTile, limits: Limits) -> TileKernel:
    """Return the kernel that multiplies through shared tiles."""
    writer = _TileWriter(problem, tile, limits)
    guards = Guards.of(problem, tile.rows, tile.cols, tile.depth)
    across, down = -(-problem.n // tile.cols), -(-problem.m // tile.rows)
    grid = fold_grid(across, down, problem.batch, limits)
    functions = [
        *load_functions(problem, guards, *writer.loading.widths, writer.loading.run),
        *store_functions(problem, wide=True),
    ]
    body = [
        *grid.prologue,
        *name_batch(problem),
        *writer.loop_mark(),
        *writer.place(),
        *writer.accumulators(),
        *writer.loop(),
        *writer.add_slices(),
        *writer.stores(guards),
    ]
    entry = entry_point(tile.invocations, body, functions, writer.arrays())
    return TileKernel(entry, grid.workgroups)


def _tile_position(index: Index, across: int, pairs: bool) -> tuple[Index, Index]:
    """Return row and column of an invocation, with `across` invocations in a row.

    With `pairs`, invocations 2n and 2n + 1 are in the same column. Shared memory serves neighbours,
    or those two apart, at once if they read the same: pairs do for B, the latter for A.
    """
    if not pairs:
        return index // across, index % across
    return index // (2 * across) * 2 + index % 2, index // 2 % across


class _TileWriter:
    """Emitter of one tiled kernel."""

    def __init__(self, problem: GemmProblem, tile: SharedTile, limits: Limits) -> None:
        self.problem = problem
        self.tile = tile
        self.loading = TileLoading(problem, tile)
        self.sides = self.loading.sides
        self.steps = self.loading.steps
        most = min(limits.max_workgroup_storage, Limits().max_workgroup_storage)
        self.exchanged = tile.exchanged(problem, most)
        own = tile.depth // tile.slices
        self.steps_of_run = max(1, MAX_F16_RUN // own) if problem.total != problem.compute else 0

    def arrays(self) -> list[WorkgroupArray]:
        """Return the workgroup arrays."""
        tile = self.tile
        arrays = self.loading.arrays()
        if tile.slices > 1:
            lengths = self.exchanged, tile.invocations
            arrays.append(WorkgroupArray("gemm_partial", self.problem.total4, lengths))
        return arrays

    def loop_mark(self) -> list[str]:
        """Emit the mark that lets wgpu-native count the loop's iterations."""
        return [] if self.problem.looped or self._is_short else [COUNTED_LOOP_MARK]

    @property
    def _is_short(self) -> bool:
        """Whether the product is small enough to loop over the steps of k."""
        near = self.problem.sampled()
        return near.batch * near.m * near.n * near.k <= MAX_LOOPED_MULTIPLICATIONS

    def place(self) -> list[str]:
        """Emit this invocation's place in the workgroup and the tile."""
        tile = self.tile
        lines = []
        lid = symbol("lid", tile.invocations)
        if tile.slices > 1:
            lines += [f"let slice = {lid // tile.team};", f"let member = {lid % tile.team};"]
            lid = symbol("member", tile.team)
        pairs = tile.copies(self.problem) == 1  # 20 % slower where A is stored twice
        high = 32 // WARP_COLUMNS
        if tile.across % WARP_COLUMNS == 0 and tile.down % high == 0:
            warps = tile.across // WARP_COLUMNS
            row, col = _tile_position(lid % 32, WARP_COLUMNS, pairs)
            row, col = lid // (32 * warps) * high + row, lid // 32 % warps * WARP_COLUMNS + col
        else:
            row, col = _tile_position(lid, tile.across, pairs)
        return [
            *lines,
            f"let lane_col = {col};",
            f"let lane_row = {row};",
            f"let row0 = {symbol('gemm_row') * tile.rows};",
            f"let col0 = {symbol('gemm_col') * tile.cols};",
        ]

    def accumulators(self) -> list[str]:
        """Emit the register tile of C, that of a float16 run, and the registers for loads."""
        runs = self._runs() if self.steps_of_run else []
        return [
            *(f"var {name} = {self.problem.total4}();" for name in self._block()),
            *(f"var {name} = {self.problem.vec4}();" for name in runs),
            *self.loading.variables(),
        ]

    def _block(self) -> list[str]:
        """Names of the vec4s of C."""
        tile = self.tile
        return [f"acc{i}_{j}" for i in range(tile.block_rows) for j in range(tile.block_cols // 4)]

    def _runs(self) -> list[str]:
        """Names of the float16 sums: of four columns, or of two with even and odd k apart."""
        return [f"{total}_{part}" for total in self._block() for part in range(self.steps)]

    def multiply(self) -> list[str]:
        """Emit the products of this slice's part of the shared tiles."""
        tile = self.tile
        steps = tile.depth // tile.slices // self.steps
        problem = self.problem
        is_small = tile.invocations <= SMALL_TILE and tile.block_rows * tile.block_cols < SMALL_TILE
        is_loop = problem.compute != "f16" and (self._is_short or (is_small and problem.looped))
        if not is_loop or steps <= UNROLLED_STEPS or steps % UNROLLED_STEPS:
            return [line for k in range(steps) for line in self._step(str(k))]
        unrolled = (self._step(str(symbol("k") + k)) for k in range(UNROLLED_STEPS))
        head = f"for (var k = 0u; k < {u32(steps)}; k += {u32(UNROLLED_STEPS)})"
        return [
            loop(head, -(-steps // UNROLLED_STEPS)),
            *(line for lines in unrolled for line in lines),
            END_LOOP,
        ]

    def _step(self, k: str) -> list[str]:
        """Emit the products of one step of k, or of a pair of steps."""
        tile = self.tile
        outer = "slice" if tile.slices > 1 else "0"
        lines = ["{"]
        for side in self.sides:
            for unit in range(side.block // side.unit):
                at = symbol(side.lane) + unit * side.threads
                place = f"[{outer}]{self.loading.step(side, k)}[{at}]"
                array = declared(f"gemm_tile_{side.name}")
                lines += [
                    f"let {side.name}{unit}_{part} = {array}{place}[{part}];"
                    for part in range(self.loading.parts(side))
                ]
        for i in range(tile.block_rows):
            for j in range(tile.block_cols // 4):
                lines += self._multiply_add(i, j)
        return [*lines, "}"]

    def _multiply_add(self, i: int, j: int) -> list[str]:
        """Emit the products of row i and the columns from 4 * j on."""
        if not self.steps_of_run:
            left = f"a{i // 4}_0.{'xyzw'[i % 4]}"
            return [multiply_add(self.problem, f"acc{i}_{j}", left, f"b{j}_0", 4)]
        left = f"a{i // 4}_{i % 4 // 2}.{('xyxy', 'zwzw')[i % 2]}"
        lines = []
        for part in range(self.steps):
            run, unit = f"acc{i}_{j}_{part}", divmod(4 * j, self.sides[1].unit)
            right = f"b{unit[0]}_{unit[1] // 4 + part}"
            lines.append(f"{run} = fma({left}, {right}, {run});")
        return lines

    def _add_run(self) -> list[str]:
        """Emit the addition of the float16 sums to C."""
        wide, vec4 = self.problem.total4, self.problem.vec4
        lines = []
        for total in self._block():
            if self.steps == 1:
                lines.append(f"{total} += {wide}({total}_0);")
                continue
            even, odd = (f"{vec4}({total}_0.{of}, {total}_1.{of})" for of in ("xz", "yw"))
            lines.append(f"{total} += {wide}({even}) + {wide}({odd});")
        return lines

    def _begin_run(self) -> list[str]:
        """Emit the reset of the float16 sums."""
        return [f"{run} = {self.problem.vec4}();" for run in self._runs()]

    def loop(self) -> list[str]:
        """Emit the loop along k; it loads the next tiles while it multiplies these."""
        k, depth = self.problem.k, self.tile.depth
        lines = [
            *self.loading.load(constant(0)),
            loop(f"for (var k0 = 0u; k0 < {u32(k)}; k0 += {u32(depth)})", -(-k // depth)),
            *self.loading.share(),
            "workgroupBarrier();",
            *self._load_next(),
            *self.multiply(),
        ]
        every = self.steps_of_run * depth
        if every and k > every - depth:
            lines += [
                f"if (k0 % {divisor(every)} == {u32(every - depth)}) {{",
                *self._add_run(),
                *self._begin_run(),
                "}",
            ]
        lines += ["workgroupBarrier();", END_LOOP]
        if every and not divides(every, -(-k // depth) * depth):
            lines += self._add_run()
        return lines

    def _load_next(self) -> list[str]:
        """Emit the loads of the next tiles, if there are any.

        With few free registers, they are between the products, without a branch that would hold
        them together; the last tiles are then loaded twice.
        """
        k, depth = self.problem.k, self.tile.depth
        following, last = symbol("k0") + depth, (k - 1) // depth * depth
        if is_zero(last):
            return []
        if self.tile.fills_registers and self.loading.run == 1:
            next_k = symbol("next_k", last + 1)
            return [f"let next_k = {following.min(last)};", *self.loading.load(next_k)]
        return [f"if ({following} < {u32(k)}) {{", *self.loading.load(following), "}"]

    # After the loop

    def add_slices(self) -> list[str]:
        """Emit the sum over all slices; each adds its share of the tile, as `sum0` and so on."""
        tile, member = self.tile, symbol("member", self.tile.team)
        if tile.slices == 1:
            return []
        lines = [f"var sum{i}: {self.problem.total4};" for i in range(tile.share)]
        for first in range(0, tile.block, self.exchanged):
            names = self._block()[first : first + self.exchanged]
            lines += [f"{_GEMM_PARTIAL}[{i}][lid] = {name};" for i, name in enumerate(names)]
            lines.append("workgroupBarrier();")
            begin, end = first // tile.share, -(-(first + len(names)) // tile.share)
            some = begin > 0 or end < tile.slices
            lines.append(f"if (slice >= {u32(begin)} && slice < {u32(end)}) {{" if some else "{")
            for i in range(tile.share):
                place = symbol("slice", tile.slices) * tile.share + (i - first)
                parts = [
                    f"{_GEMM_PARTIAL}[{place}][{member + s * tile.team}]"
                    for s in range(tile.slices)
                ]
                lines.append(f"  sum{i} = {' + '.join(parts)};")
            lines.append("}")
            if first + self.exchanged < tile.block:
                lines.append("workgroupBarrier();")
        return lines

    def stores(self, guards: Guards) -> list[str]:
        """Emit the stores of the register tile, or of this slice's share of it."""
        tile = self.tile
        if tile.slices == 1:
            return self._store_block(guards, constant(0), self._block())
        first = symbol("slice", tile.slices) * tile.share
        lines = self._store_block(guards, first, [f"sum{i}" for i in range(tile.share)])
        owners = -(-tile.block // tile.share)
        return [f"if (slice < {u32(owners)}) {{", *lines, "}"] if owners < tile.slices else lines

    def _store_block(self, guards: Guards, first: Index, values: list[str]) -> list[str]:
        """Emit the stores of vec4s at consecutive places of the tile."""
        if loops_stores(self.problem, len(values)):
            return store_loop(
                values,
                self.problem.total4,
                "row0 >> 31u",
                lambda value, number: self._store_vectors(guards, {value: first + number}),
            )
        return self._store_vectors(guards, {value: first + i for i, value in enumerate(values)})

    def _store_vectors(self, guards: Guards, places: Mapping[str, Index]) -> list[str]:
        """Emit the stores of vec4s, by variable name, at places of the tile."""
        across = self.tile.block_cols // 4
        indices = {
            value: (
                symbol("row0") + self._offset(self.sides[0], place // across),
                symbol("col0") + self._offset(self.sides[1], place % across * 4),
            )
            for value, place in places.items()
        }
        if self.problem.result4 is not None:
            return store_together(self.problem, guards, indices)
        rows: dict[str, list[str]] = {}
        for value, (row, col) in indices.items():
            store = store_values(self.problem, row, col, value, wide=True, guard=guards.n)
            rows.setdefault(str(row), []).extend(store)
        if not guards.m:
            return [line for stores in rows.values() for line in stores]
        return [
            line
            for row_text, stores in rows.items()
            for line in (f"if ({row_text} < {u32(self.problem.m)}) {{", *stores, "}")
        ]

    def _offset(self, side: Side, index: Index) -> Index:
        """Return where an element of the register tile lies along the workgroup tile."""
        # Not multiplied out: NVIDIA's compiler uses registers better so, by 1.7 %.
        shift = index // side.unit * side.threads
        place = symbol(f"({side.lane} + {shift})" if shift.terms or shift.offset else side.lane)
        return place * side.unit + index % side.unit

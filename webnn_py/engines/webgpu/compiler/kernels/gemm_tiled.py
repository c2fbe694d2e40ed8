"""Matrix multiplication through tiles in shared memory, for graphics hardware.

A workgroup multiplies a `rows` by `depth` tile of A with a `depth` by `cols` tile of B, again and
again along k. Both tiles lie in shared memory with k as the outer index; an invocation reads vec4s
of both and adds their outer product to its block of C in registers. Everything is unrolled into
named vec4s: arrays in registers that are indexed in loops spill.

Halves are multiplied in pairs, at twice the rate of float32, if both halves of a register hold the
operands: repeating one of them takes as long as a multiplication, unless it comes so from memory.
A pair is two steps of k, which lie together in shared memory, of A and of B. Each half of a
register then adds up every other product, which takes twice the registers; large blocks have none
left, and for them A lies twice in shared memory, and a pair is two columns. `RUN` products are
added up so at most; float32 adds up these sums, so that a long product loses no more than a short
one.

Shared arrays are nested, with constant outer indices, so that the bounds checks a WebGPU
implementation adds to the one variable index are the same for every read, and fold into one.
"""

from __future__ import annotations

from collections.abc import Mapping

from webnn_py.core.traced_queries import divides, is_zero
from webnn_py.engines.webgpu.compiler.code.index import Index, constant, symbol
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
    multiply_add,
    name_batch,
    one_by_one,
    stands_once,
    store_functions,
    store_values,
)
from webnn_py.engines.webgpu.compiler.kernels.tile_loading import Side, TileLoading
from webnn_py.engines.webgpu.program.plan import COUNTED_LOOP_MARK

LANES = 8
"""How many of 32 consecutive invocations lie side by side, in 4 rows.

So they read the fewest different vec4s.
"""

WRITTEN = 4
"""Steps of k that are written out where they are a loop: drivers compile networks of convolutions
in half the time, and up to 7 % faster code. Not of halves."""

LONGEST = 400_000_000
"""Multiplications of products whose steps are a loop. Larger ones are bound by arithmetic, and 7 to
15 % slower so, but for convolutions' small tiles."""

SMALL = 64
"""Invocations of such a tile, and elements that the block of each has less of."""

RUN = 128
"""How many products of halves are added up as halves."""


def emit_tiled(problem: GemmProblem, tile: SharedTile, limits: Limits) -> TileKernel:
    """Emits the kernel that multiplies through shared tiles."""
    writer = _TileWriter(problem, tile, limits)
    guards = Guards.of(problem, tile.rows, tile.cols, tile.depth)
    across, down = -(-problem.n // tile.cols), -(-problem.m // tile.rows)
    grid = fold_grid(across, down, problem.batch, limits)
    lines = [
        *writer.declarations(),
        *load_functions(problem, guards, *writer.loading.widths, writer.loading.run),
        *store_functions(problem, wide=True),
    ]
    body = [
        *grid.prologue,
        *name_batch(problem),
        *writer.counted(),
        *writer.place(),
        *writer.accumulators(),
        *writer.loop(),
        *writer.add_slices(),
        *writer.stores(guards),
    ]
    lines += entry_point(tile.invocations, body)
    return TileKernel("\n".join(lines) + "\n", grid.workgroups)


def _placed(index: Index, across: int, pairs: bool) -> tuple[Index, Index]:
    """Row and column, `across` side by side; of pairs, that lie below one another, if asked for.

    Shared memory serves invocations at once whose neighbours, or those two further on, read the
    same: of pairs the former hold for B, and the latter for A.
    """
    if not pairs:
        return index // across, index % across
    return index // (2 * across) * 2 + index % 2, index // 2 % across


class _TileWriter:
    """Writes the parts of one tiled kernel."""

    def __init__(self, problem: GemmProblem, tile: SharedTile, limits: Limits) -> None:
        self.problem = problem
        self.tile = tile
        self.loading = TileLoading(problem, tile)
        self.sides = self.loading.sides
        self.steps = self.loading.steps
        most = min(limits.max_workgroup_storage, Limits().max_workgroup_storage)
        self.exchanged = tile.exchanged(problem, most)
        own = tile.depth // tile.slices
        self.steps_of_run = max(1, RUN // own) if problem.total != problem.compute else 0

    def declarations(self) -> list[str]:
        """The shared arrays."""
        tile = self.tile
        lines = self.loading.declarations()
        if tile.slices > 1:
            partial = f"array<array<{self.problem.total4}, {tile.invocations}>, {self.exchanged}>"
            lines.append(f"var<workgroup> gemm_partial: {partial};")
        return lines

    def counted(self) -> list[str]:
        """What says that its loop shall count its rounds."""
        return [] if self.problem.looped or self._is_short else [COUNTED_LOOP_MARK]

    @property
    def _is_short(self) -> bool:
        near = self.problem.sampled()
        return near.batch * near.m * near.n * near.k <= LONGEST

    def place(self) -> list[str]:
        """This invocation's place in the workgroup and the tile."""
        tile = self.tile
        lines = []
        lid = symbol("lid", tile.invocations)
        if tile.slices > 1:
            lines += [f"let slice = {lid // tile.team};", f"let member = {lid % tile.team};"]
            lid = symbol("member", tile.team)
        pairs = tile.copies(self.problem) == 1  # where A lies twice they are a fifth slower
        high = 32 // LANES
        if tile.across % LANES == 0 and tile.down % high == 0:
            warps = tile.across // LANES
            row, col = _placed(lid % 32, LANES, pairs)
            row, col = lid // (32 * warps) * high + row, lid // 32 % warps * LANES + col
        else:
            row, col = _placed(lid, tile.across, pairs)
        return [
            *lines,
            f"let lane_col = {col};",
            f"let lane_row = {row};",
            f"let row0 = {symbol('gemm_row') * tile.rows};",
            f"let col0 = {symbol('gemm_col') * tile.cols};",
        ]

    def accumulators(self) -> list[str]:
        """The block of C, that of a run if there are any, and the registers for loading."""
        runs = self._runs() if self.steps_of_run else []
        return [
            *(f"var {name} = {self.problem.total4}();" for name in self._block()),
            *(f"var {name} = {self.problem.vec4}();" for name in runs),
            *self.loading.variables(),
        ]

    def _block(self) -> list[str]:
        tile = self.tile
        return [f"acc{i}_{j}" for i in range(tile.block_rows) for j in range(tile.block_cols // 4)]

    def _runs(self) -> list[str]:
        """Sums of halves: of four columns, or of two the even products and the odd ones."""
        return [f"{total}_{part}" for total in self._block() for part in range(self.steps)]

    def multiply(self) -> list[str]:
        """Statements that add this slice's part of the shared tiles' product."""
        tile = self.tile
        steps = tile.depth // tile.slices // self.steps
        problem = self.problem
        is_small = tile.invocations <= SMALL and tile.block_rows * tile.block_cols < SMALL
        is_loop = problem.compute != "f16" and (self._is_short or (is_small and problem.looped))
        if not is_loop or steps <= WRITTEN or steps % WRITTEN:
            return [line for k in range(steps) for line in self._step(str(k))]
        written = (self._step(str(symbol("k") + k)) for k in range(WRITTEN))
        return [
            f"for (var k = 0u; k < {steps}u; k += {WRITTEN}u) {{",
            *(line for lines in written for line in lines),
            "}",
        ]

    def _step(self, k: str) -> list[str]:
        """Statements that add the products of one step of k, or of those multiplied together."""
        tile = self.tile
        outer = "slice" if tile.slices > 1 else "0"
        lines = ["{"]
        for side in self.sides:
            for unit in range(side.block // side.unit):
                at = symbol(side.lane) + unit * side.threads
                step = self.loading.step(side, k)
                lines += [
                    f"let {side.name}{unit}_{part} = "
                    f"gemm_tile_{side.name}[{outer}]{step}[{at}][{part}];"
                    for part in range(self.loading.parts(side))
                ]
        for i in range(tile.block_rows):
            for j in range(tile.block_cols // 4):
                lines += self._multiply_add(i, j)
        return [*lines, "}"]

    def _multiply_add(self, i: int, j: int) -> list[str]:
        """Adds the products of row i and the columns from 4 * j on."""
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
        """Adds the sums of halves to C."""
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
        """Begins the sums of halves anew."""
        return [f"{run} = {self.problem.vec4}();" for run in self._runs()]

    def loop(self) -> list[str]:
        """The walk along k; the next tiles travel while these are multiplied."""
        k, depth = self.problem.k, self.tile.depth
        lines = [
            *self.loading.load(constant(0)),
            f"for (var k0 = 0u; k0 < {k}u; k0 += {depth}u) {{",
            *self.loading.share(),
            "workgroupBarrier();",
            *self._load_next(),
            *self.multiply(),
        ]
        every = self.steps_of_run * depth
        if every and k > every - depth:
            lines += [
                f"if (k0 % {every}u == {every - depth}u) {{",
                *self._add_run(),
                *self._begin_run(),
                "}",
            ]
        lines += ["workgroupBarrier();", "}"]
        if every and not divides(every, -(-k // depth) * depth):
            lines += self._add_run()
        return lines

    def _load_next(self) -> list[str]:
        """The loads of the next tiles, if there are any.

        Where registers are few they lie between the products, without a branch that would keep them
        together; the last tiles are loaded twice then.
        """
        k, depth = self.problem.k, self.tile.depth
        following, last = symbol("k0") + depth, (k - 1) // depth * depth
        if is_zero(last):
            return []
        if self.tile.fills_registers and self.loading.run == 1:
            next_k = symbol("next_k", last + 1)
            return [f"let next_k = {following.min(last)};", *self.loading.load(next_k)]
        return [f"if ({following} < {k}u) {{", *self.loading.load(following), "}"]

    # Finishing

    def add_slices(self) -> list[str]:
        """Each slice adds up its share of the block over all slices, as `sum0` and so on."""
        tile, member = self.tile, symbol("member", self.tile.team)
        if tile.slices == 1:
            return []
        lines = [f"var sum{i}: {self.problem.total4};" for i in range(tile.share)]
        for first in range(0, tile.block, self.exchanged):
            names = self._block()[first : first + self.exchanged]
            lines += [f"gemm_partial[{i}][lid] = {name};" for i, name in enumerate(names)]
            lines.append("workgroupBarrier();")
            begin, end = first // tile.share, -(-(first + len(names)) // tile.share)
            some = begin > 0 or end < tile.slices
            lines.append(f"if (slice >= {begin}u && slice < {end}u) {{" if some else "{")
            for i in range(tile.share):
                place = symbol("slice", tile.slices) * tile.share + (i - first)
                parts = [
                    f"gemm_partial[{place}][{member + s * tile.team}]" for s in range(tile.slices)
                ]
                lines.append(f"  sum{i} = {' + '.join(parts)};")
            lines.append("}")
            if first + self.exchanged < tile.block:
                lines.append("workgroupBarrier();")
        return lines

    def stores(self, guards: Guards) -> list[str]:
        """The writes of the block, or of this slice's share of it."""
        tile = self.tile
        if tile.slices == 1:
            return self._stores(guards, constant(0), self._block())
        first = symbol("slice", tile.slices) * tile.share
        lines = self._stores(guards, first, [f"sum{i}" for i in range(tile.share)])
        owners = -(-tile.block // tile.share)
        return [f"if (slice < {owners}u) {{", *lines, "}"] if owners < tile.slices else lines

    def _stores(self, guards: Guards, first: Index, values: list[str]) -> list[str]:
        """The writes of vec4s at places of the block, from one on."""
        if stands_once(self.problem, len(values)):
            return one_by_one(
                values,
                self.problem.total4,
                "row0 >> 31u",
                lambda value, number: self._written(guards, {value: first + number}),
            )
        return self._written(guards, {value: first + i for i, value in enumerate(values)})

    def _written(self, guards: Guards, places: Mapping[str, Index]) -> list[str]:
        """The writes of vec4s, by what they are, at places of the block."""
        rows: dict[str, list[str]] = {}
        across = self.tile.block_cols // 4
        for value, place in places.items():
            row = symbol("row0") + self._offset(self.sides[0], place // across)
            col = symbol("col0") + self._offset(self.sides[1], place % across * 4)
            store = store_values(self.problem, row, col, value, wide=True, guard=guards.n)
            rows.setdefault(str(row), []).extend(store)
        if not guards.m:
            return [line for stores in rows.values() for line in stores]
        return [
            line
            for row, stores in rows.items()
            for line in (f"if ({row} < {self.problem.m}u) {{", *stores, "}")
        ]

    def _offset(self, side: Side, index: Index) -> Index:
        """Where an element of an invocation's block lies along the tile's extent."""
        # Not multiplied out: NVIDIA's compiler makes better use of registers so, by 1.7 %.
        shift = index // side.unit * side.threads
        place = symbol(f"({side.lane} + {shift})" if shift.terms or shift.offset else side.lane)
        return place * side.unit + index % side.unit

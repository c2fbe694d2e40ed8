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

from dataclasses import dataclass

from webnn_py.engines.webgpu.compiler.index import Index, constant, symbol
from webnn_py.engines.webgpu.compiler.kernels.gemm_parts import (
    Guards,
    entry_point,
    fold_grid,
    load_functions,
    multiply_add,
    name_batch,
    store_functions,
    store_values,
)
from webnn_py.engines.webgpu.compiler.kernels.gemm_types import GemmProblem, Limits, TileKernel
from webnn_py.engines.webgpu.compiler.kernels.shared_tile import SharedTile

LANES = 8
"""How many of 32 consecutive invocations lie side by side; the other 4 rows of them lie below.

So they read the fewest different vec4s, and each read is one access to shared memory.
"""

RUN = 128
"""How many products of halves are added up as halves."""


def emit_tiled(problem: GemmProblem, tile: SharedTile, limits: Limits) -> TileKernel:
    """Emits the kernel that multiplies through shared tiles."""
    writer = _TileWriter(problem, tile, limits)
    guards = Guards(
        bool(problem.m % tile.rows), bool(problem.n % tile.cols), bool(problem.k % tile.depth)
    )
    across, down = -(-problem.n // tile.cols), -(-problem.m // tile.rows)
    grid = fold_grid(across, down, problem.batch, limits)
    lines = [
        *writer.declarations(),
        *load_functions(problem, guards, a_wide=True, b_wide=True, run=writer.run),
        *store_functions(problem, wide=True),
    ]
    body = [
        *grid.prologue,
        *name_batch(problem),
        *writer.place(),
        *writer.accumulators(),
        *writer.loop(),
        *writer.add_slices(),
        *writer.stores(guards),
    ]
    lines += entry_point(tile.invocations, body)
    return TileKernel("\n".join(lines) + "\n", grid.workgroups)


@dataclass(frozen=True, slots=True)
class _Side:
    """One operand's tile: how it is loaded and read.

    Attributes:
        name: "a" or "b".
        extent: Rows of A's, columns of B's tile.
        block: Rows or columns of one invocation.
        threads: Invocations along the extent.
        copies: How often each element is stored.
        unit: Consecutive elements that an invocation reads together.
        turned: Whether memory is contiguous along k, so that vec4s must be transposed.
        first: The first invocation that loads.
        loaders: How many invocations load.
    """

    name: str
    extent: int
    block: int
    threads: int
    copies: int
    unit: int
    turned: bool
    first: int
    loaders: int

    @property
    def lane(self) -> str:
        """The name of an invocation's place along the extent."""
        return "lane_row" if self.name == "a" else "lane_col"


class _TileWriter:
    """Writes the parts of one tiled kernel."""

    def __init__(self, problem: GemmProblem, tile: SharedTile, limits: Limits) -> None:
        self.problem = problem
        self.tile = tile
        most = min(limits.max_workgroup_storage, Limits().max_workgroup_storage)
        self.exchanged = tile.exchanged(problem, most)
        a_turned, b_turned = problem.a_major == "k", problem.b_major == "k"
        n = tile.invocations
        # Transposing takes 4x4 elements an invocation. Where one part of the workgroup can load
        # all of A and another all of B, none idles.
        shares = [tile.rows * tile.depth // 16, tile.cols * tile.depth // 16]
        self.split = sum(shares) <= n and (a_turned or b_turned)
        ranges = [(0, shares[0]), (shares[0], shares[1])] if self.split else [(0, n), (0, n)]
        self.steps = tile.steps(problem)
        own = tile.depth // tile.slices
        self.run = problem.k_run if problem.k_run % tile.depth == 0 else 1
        self.steps_of_run = max(1, RUN // own) if problem.total != problem.compute else 0
        copies = tile.copies(problem)
        wide = 8 if copies == 2 else 4  # 16 bytes are read at once
        self.sides = (
            _Side("a", tile.rows, tile.block_rows, tile.down, copies, 4, a_turned, *ranges[0]),
            _Side("b", tile.cols, tile.block_cols, tile.across, 1, wide, b_turned, *ranges[1]),
        )

    def declarations(self) -> list[str]:
        """The shared arrays: [slice][steps of k][unit along the extent][vec4 of the unit]."""
        tile, vec4 = self.tile, self.problem.vec4
        lines = []
        for side in self.sides:
            row = f"array<array<{vec4}, {self._parts(side)}>, {side.extent // side.unit}>"
            slices = (
                f"array<array<{row}, {tile.depth // tile.slices // self.steps}>, {tile.slices}>"
            )
            lines.append(f"var<workgroup> gemm_tile_{side.name}: {slices};")
        if tile.slices > 1:
            partial = f"array<array<{self.problem.total4}, {tile.invocations}>, {self.exchanged}>"
            lines.append(f"var<workgroup> gemm_partial: {partial};")
        return lines

    def _parts(self, side: _Side) -> int:
        """Vec4s of a unit, for the steps that are multiplied together."""
        return self.steps * side.copies * side.unit // 4

    def place(self) -> list[str]:
        """This invocation's place in the workgroup and the tile."""
        tile = self.tile
        lines = []
        lid = symbol("lid", tile.invocations)
        if tile.slices > 1:
            lines += [f"let slice = {lid // tile.team};", f"let member = {lid % tile.team};"]
            lid = symbol("member", tile.team)
        high = 32 // LANES
        if tile.across % LANES == 0 and tile.down % high == 0:
            warps = tile.across // LANES
            col = lid // 32 % warps * LANES + lid % LANES
            row = lid // (32 * warps) * high + lid % 32 // LANES
        else:
            row, col = lid // tile.across, lid % tile.across
        return [
            *lines,
            f"let lane_col = {col};",
            f"let lane_row = {row};",
            f"let row0 = {symbol('gemm_row') * tile.rows};",
            f"let col0 = {symbol('gemm_col') * tile.cols};",
        ]

    # Loading

    def _registers(self, side: _Side) -> list[list[str]]:
        """Names of the vec4s an invocation loads, a list for each of its tasks.

        A task is a block of 4x4 elements that is transposed, or where none need be a vec4 for each
        of the steps that are multiplied together.
        """
        prefix = "load" if self.split else f"load_{side.name}"
        each = self._each(side)
        tasks = -(-self._tasks(side) // side.loaders)
        return [[f"{prefix}{t * each + i}" for i in range(each)] for t in range(tasks)]

    def _tasks(self, side: _Side) -> int:
        return side.extent * self.tile.depth // (4 * self._each(side))

    def _each(self, side: _Side) -> int:
        return 4 if side.turned else self.steps

    def _task(self, side: _Side, task: int) -> tuple[Index, Index, str]:
        """A task's vec4 along the extent, its k, and a condition if not all have the task."""
        at = (symbol("lid") - side.first).below(side.loaders) + task * side.loaders
        ragged = (task + 1) * side.loaders > self._tasks(side)
        guard = f"{at} < {self._tasks(side)}u" if ragged else ""
        at = at.below(self._tasks(side))
        if side.turned:
            quads = self.tile.depth // 4
            return at // quads, at % quads * 4, guard
        across = side.extent // 4
        return at % across, at // across * self.steps, guard

    def _divide(self, phases: list[list[str]]) -> list[str]:
        """The two sides' code, one after the other or each for its part of the workgroup."""
        if not self.split:
            return [*phases[0], *phases[1]]
        first, second = self.sides
        rest = second.first + second.loaders
        condition = f"if (lid < {rest}u) " if rest < self.tile.invocations else ""
        return [
            f"if (lid < {first.loaders}u) {{",
            *phases[0],
            f"}} else {condition}{{",
            *phases[1],
            "}",
        ]

    def load(self, k: Index) -> list[str]:
        """Statements that load this invocation's share of the tiles at `k` into registers."""
        phases = []
        advance = []
        if self.run > 1 and k.terms:
            advance = [
                f"within += {self.tile.depth}u;",
                f"if (within == {self.run}u) {{ within = 0u; run++; }}",
            ]
        for side in self.sides:
            lines: list[str] = []
            for task, names in enumerate(self._registers(side)):
                free, depth, guard = self._task(side, task)
                block = []
                for i, name in enumerate(names):
                    along, at = (free * 4 + i, depth) if side.turned else (free * 4, depth + i)
                    if side.name == "a":
                        call = f"gemm_a4(batch, {symbol('row0') + along}, {k + at})"
                    elif self.run > 1:
                        place = symbol("within") + at
                        call = f"gemm_b4(batch, run, {place}, {symbol('col0') + along})"
                    else:
                        call = f"gemm_b4(batch, {k + at}, {symbol('col0') + along})"
                    block.append(f"{name} = {call};")
                lines += [f"if ({guard}) {{", *block, "}"] if guard else block
            phases.append(lines)
        return [*advance, *self._divide(phases)]

    def share(self) -> list[str]:
        """Statements that write the loaded registers into shared memory."""
        phases = []
        for side in self.sides:
            lines: list[str] = []
            for task, names in enumerate(self._registers(side)):
                free, depth, guard = self._task(side, task)
                block = [f"let to = {free};", f"let to_k = {depth};"]
                for i in range(0, len(names), self.steps):
                    values = self._values(side, names, i)
                    block += self._write(side, symbol("to_k", self.tile.depth) + i, values)
                lines += [f"if ({guard}) {{" if guard else "{", *block, "}"]
            phases.append(lines)
        return self._divide(phases)

    def _values(self, side: _Side, names: list[str], i: int) -> list[str]:
        """The vec4s to write for the i-th k of a task and those multiplied together with it."""
        each = 4 // (self.steps * side.copies)
        if each == 4 and not side.turned:
            return names
        if side.turned:
            lanes = "xyzw"[i : i + self.steps] * side.copies
            columns = [f"{name}.{lanes}" for name in names]
        else:
            columns = [
                ", ".join(f"{name}.{lane * side.copies}" for name in names) for lane in "xyzw"
            ]
        return [
            f"{self.problem.vec4}({', '.join(columns[first : first + each])})"
            for first in range(0, 4, each)
        ]

    def _write(self, side: _Side, k: Index, values: list[str]) -> list[str]:
        """Writes four elements along the extent, `to`, for steps of k, to shared memory."""
        own = self.tile.depth // self.tile.slices
        slice_ = k // own if self.tile.slices > 1 else constant(0)
        array = f"gemm_tile_{side.name}[{slice_}][{k % own // self.steps}]"
        if side.unit == 8:
            to = symbol("to")
            return [f"{array}[{to // 2}][{to % 2}] = {values[0]};"]
        return [f"{array}[to][{part}] = {value};" for part, value in enumerate(values)]

    # Multiplying

    def accumulators(self) -> list[str]:
        """The block of C, that of a run if there are any, and the registers for loading."""
        vec4 = self.problem.vec4
        names = {n: None for side in self.sides for task in self._registers(side) for n in task}
        runs = self._runs() if self.steps_of_run else []
        return [
            *(f"var {name} = {self.problem.total4}();" for name in self._block()),
            *(f"var {name} = {vec4}();" for name in runs),
            *(f"var {name}: {vec4};" for name in names),
            *(f"var {name} = 0u;" for name in ("run", "within") if self.run > 1),
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
        outer = "slice" if tile.slices > 1 else "0"
        lines = []
        for k in range(tile.depth // tile.slices // self.steps):
            lines.append("{")
            for side in self.sides:
                for unit in range(side.block // side.unit):
                    at = symbol(side.lane) + unit * side.threads
                    lines += [
                        f"let {side.name}{unit}_{part} = "
                        f"gemm_tile_{side.name}[{outer}][{k}][{at}][{part}];"
                        for part in range(self._parts(side))
                    ]
            for i in range(tile.block_rows):
                for j in range(tile.block_cols // 4):
                    lines += self._multiply_add(i, j)
            lines.append("}")
        return lines

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
        following = symbol("k0") + depth
        lines = [*self.load(constant(0)), f"for (var k0 = 0u; k0 < {k}u; k0 += {depth}u) {{"]
        lines += [*self.share(), "workgroupBarrier();"]
        if k > depth:
            lines += [f"if ({following} < {k}u) {{", *self.load(following), "}"]
        lines += self.multiply()
        every = self.steps_of_run * depth
        if every and k > every - depth:
            lines += [
                f"if (k0 % {every}u == {every - depth}u) {{",
                *self._add_run(),
                *self._begin_run(),
                "}",
            ]
        lines += ["workgroupBarrier();", "}"]
        if every and -(-k // depth) * depth % every:
            lines += self._add_run()
        return lines

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
            places = [constant(i) for i in range(tile.block)]
            return self._stores(guards, places, self._block())
        slice_ = symbol("slice", tile.slices)
        places = [slice_ * tile.share + i for i in range(tile.share)]
        lines = self._stores(guards, places, [f"sum{i}" for i in range(tile.share)])
        owners = -(-tile.block // tile.share)
        return [f"if (slice < {owners}u) {{", *lines, "}"] if owners < tile.slices else lines

    def _stores(self, guards: Guards, places: list[Index], values: list[str]) -> list[str]:
        """The writes of vec4s at places of the block."""
        rows: dict[str, list[str]] = {}
        across = self.tile.block_cols // 4
        for place, value in zip(places, values, strict=True):
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

    def _offset(self, side: _Side, index: Index) -> Index:
        """Where an element of an invocation's block lies along the tile's extent."""
        # Not multiplied out: NVIDIA's compiler makes better use of registers so, by 1.7 %.
        shift = index // side.unit * side.threads
        place = symbol(f"({side.lane} + {shift})" if shift.terms or shift.offset else side.lane)
        return place * side.unit + index % side.unit

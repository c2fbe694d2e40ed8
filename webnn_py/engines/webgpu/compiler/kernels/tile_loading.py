"""Loads of both operands' tiles into shared memory by the invocations of a workgroup.

Each invocation loads its share of the next tiles into registers. After a barrier, once all have
read the current tiles, it writes them to shared memory.
"""

from __future__ import annotations

from dataclasses import dataclass

from webnn_py.core.traced_queries import divides
from webnn_py.engines.webgpu.compiler.code.index import Index, constant, symbol
from webnn_py.engines.webgpu.compiler.kernel import WorkgroupArray
from webnn_py.engines.webgpu.compiler.kernel_builder import F16X8
from webnn_py.engines.webgpu.compiler.kernels.gemm_types import GemmProblem, SharedTile
from webnn_py.engines.webgpu.program.pieces import declared, u32

ADJACENT_VECTORS = 4
"""Adjacent vec4s along the extent that are written together, where operands are transposed."""


@dataclass(frozen=True, slots=True)
class Side:
    """One operand's tile: how it is loaded and read.

    Attributes:
        name: "a" or "b".
        extent: Rows of A's tile, columns of B's.
        block: Rows or columns of one invocation.
        threads: Invocations along the extent.
        copies: How often each element is stored.
        unit: Consecutive elements that an invocation reads together.
        transposed: Whether memory is contiguous along k, so that vec4s must be transposed.
        first: The first invocation that loads.
        loaders: Number of invocations that load.
        width: Elements per load: eight f16 along k, or four.
        nested: Whether steps of k are stored by eights: the four pairs of one have constant
            indices, which need no bounds check.
    """

    name: str
    extent: int
    block: int
    threads: int
    copies: int
    unit: int
    transposed: bool
    first: int
    loaders: int
    width: int
    nested: bool

    @property
    def is_vec8(self) -> bool:
        """Whether loads take eight f16, which shared memory holds in pairs."""
        return self.width == 8

    @property
    def lane(self) -> str:
        """The name of an invocation's place along the extent."""
        return "lane_row" if self.name == "a" else "lane_col"


class TileLoading:
    """Emitter of the loads of one tiled kernel.

    Attributes:
        sides: A and B.
        steps: Steps of k whose products are computed together.
        run: The run of k that contains each tile, or 1.
    """

    def __init__(self, problem: GemmProblem, tile: SharedTile) -> None:
        self._problem = problem
        self._tile = tile
        a_turned, b_turned = problem.a_major == "k", problem.b_major == "k"
        n = tile.invocations
        # A transposing task has 4x4 elements. If one part of the workgroup can load all of A and
        # another all of B, none idles.
        shares = [tile.rows * tile.depth // 16, tile.cols * tile.depth // 16]
        self._split = sum(shares) <= n and (a_turned or b_turned)
        ranges = [(0, shares[0]), (shares[0], shares[1])] if self._split else [(0, n), (0, n)]
        self.steps = tile.steps(problem)
        self.run = problem.k_run if divides(tile.depth, problem.k_run) else 1
        copies = tile.copies(problem)
        wide = 8 if copies == 2 else 4  # a read takes 16 bytes
        pairs = self.steps == 2 and tile.depth % 8 == 0
        eights = (problem.a8, a_turned), (problem.b8, b_turned)
        a, b = (8 if pairs and hook and along_k else 4 for hook, along_k in eights)
        rows = tile.rows, tile.block_rows, tile.down, copies, 4
        cols = tile.cols, tile.block_cols, tile.across, 1, wide
        self._own = tile.depth // tile.slices
        nested = tile.block == 4 and self._own % 8 == 0
        self.sides = (
            Side("a", *rows, a_turned, *ranges[0], a, nested and a == 8),
            Side("b", *cols, b_turned, *ranges[1], b, nested and b == 8),
        )

    @property
    def widths(self) -> tuple[int, int]:
        """Elements per load of A and of B."""
        a, b = self.sides
        return a.width, b.width

    def arrays(self) -> list[WorkgroupArray]:
        """Return the arrays: [slice][steps of k][unit along the extent][vec4 of the unit]."""
        tile = self._tile
        arrays = []
        for side in self.sides:
            units = side.extent // side.unit + tile.padding(side.transposed)
            steps = (self._own // 8, 4) if side.nested else (self._own // self.steps,)
            lengths = (tile.slices, *steps, units, self.parts(side))
            arrays.append(WorkgroupArray(f"gemm_tile_{side.name}", self._problem.vec4, lengths))
        return arrays

    def parts(self, side: Side) -> int:
        """Return the vec4s of a unit, for the steps that are multiplied together."""
        return self.steps * side.copies * side.unit // 4

    def step(self, side: Side, k: str) -> str:
        """Emit the indices of a step of k, or of a pair of steps, in its slice."""
        return f"[{int(k) // 4}][{int(k) % 4}]" if side.nested else f"[{k}]"

    def variables(self) -> list[str]:
        """Emit the registers for loads."""
        names = {n: side for side in self.sides for task in self._registers(side) for n in task}
        kinds = {4: self._problem.vec4, 8: F16X8}
        return [
            *(f"var {name}: {kinds[side.width]};" for name, side in names.items()),
            *(f"var {name} = 0u;" for name in ("run", "within") if self.run > 1),
        ]

    def _registers(self, side: Side) -> list[list[str]]:
        """Return the names of the vectors that an invocation loads, a list for each of its tasks.

        A task is a block of 4x4 elements to transpose, or of eight f16 by two. Without
        transposition it is a vec4 for each of the steps that are multiplied together.
        """
        widths = {side.width for side in self.sides}
        prefix = "load" if self._split and len(widths) == 1 else f"load_{side.name}"
        each = self._vectors_per_task(side)
        tasks = -(-self._task_count(side) // side.loaders)
        return [[f"{prefix}{t * each + i}" for i in range(each)] for t in range(tasks)]

    def _task_count(self, side: Side) -> int:
        """Return the tasks of all invocations."""
        return side.extent * self._tile.depth // (side.width * self._vectors_per_task(side))

    def _vectors_per_task(self, side: Side) -> int:
        """Return the vectors of a task."""
        if side.is_vec8:
            return 2
        return 4 if side.transposed else self.steps

    def _task(self, side: Side, task: int) -> tuple[Index, Index, str]:
        """Return a task's place along the extent, its k, and its guard if it needs one."""
        at = (symbol("lid") - side.first).below(side.loaders) + task * side.loaders
        ragged = (task + 1) * side.loaders > self._task_count(side)
        guard = f"{at} < {u32(self._task_count(side))}" if ragged else ""
        at = at.below(self._task_count(side))
        if side.transposed:
            along, width = self._tile.depth // side.width, side.width
            if not self._tile.fills_registers:
                return at // along, at % along * width, guard
            # Invocations that write together write several rows of one k: different banks.
            some, within = at // (ADJACENT_VECTORS * along), at % (ADJACENT_VECTORS * along)
            return (
                some * ADJACENT_VECTORS + within % ADJACENT_VECTORS,
                within // ADJACENT_VECTORS * width,
                guard,
            )
        across = side.extent // 4
        return at % across, at // across * self.steps, guard

    def _divide(self, phases: list[list[str]]) -> list[str]:
        """Emit the code of both sides, in sequence or each for its part of the workgroup."""
        if not self._split:
            return [*phases[0], *phases[1]]
        first, second = self.sides
        rest = second.first + second.loaders
        condition = f"if (lid < {u32(rest)}) " if rest < self._tile.invocations else ""
        return [
            f"if (lid < {u32(first.loaders)}) {{",
            *phases[0],
            f"}} else {condition}{{",
            *phases[1],
            "}",
        ]

    def load(self, k: Index) -> list[str]:
        """Emit the loads of this invocation's share of the tiles at `k` into registers."""
        phases = []
        advance = []
        if self.run > 1 and k.terms:
            advance = [
                f"within += {u32(self._tile.depth)};",
                f"if (within == {u32(self.run)}) {{ within = 0u; run++; }}",
            ]
        for side in self.sides:
            lines: list[str] = []
            for task, names in enumerate(self._registers(side)):
                free, depth, guard = self._task(side, task)
                block = []
                for i, name in enumerate(names):
                    along, at = free * len(names) + i, depth
                    if not side.transposed:
                        along, at = free * 4, depth + i
                    function = declared(f"gemm_{side.name}{side.width}")
                    if side.name == "a":
                        call = f"{function}(batch, {symbol('row0') + along}, {k + at})"
                    elif self.run > 1:
                        place = symbol("within") + at
                        call = f"{function}(batch, run, {place}, {symbol('col0') + along})"
                    else:
                        call = f"{function}(batch, {k + at}, {symbol('col0') + along})"
                    block.append(f"{name} = {call};")
                lines += [f"if ({guard}) {{", *block, "}"] if guard else block
            phases.append(lines)
        return [*advance, *self._divide(phases)]

    def share(self) -> list[str]:
        """Emit the writes of the loaded registers to shared memory."""
        phases = []
        for side in self.sides:
            lines: list[str] = []
            for task, names in enumerate(self._registers(side)):
                free, depth, guard = self._task(side, task)
                block = [f"let to = {free};"]
                if side.nested:
                    block.append(f"let to_eight = {depth // 8};")
                else:
                    block.append(f"let to_k = {depth};")
                to_k = symbol("to_k", self._tile.depth)
                if side.is_vec8:
                    block += self._write_pairs(side, to_k, names)
                else:
                    for i in range(0, len(names), self.steps):
                        block += self._write(side, to_k + i, self._values(side, names, i))
                lines += [f"if ({guard}) {{" if guard else "{", *block, "}"]
            phases.append(lines)
        return self._divide(phases)

    def _values(self, side: Side, names: list[str], i: int) -> list[str]:
        """Return the vec4s to write for the i-th k of a task and its partner."""
        each = 4 // (self.steps * side.copies)
        if each == 4 and not side.transposed:
            return names
        if side.transposed:
            lanes = "xyzw"[i : i + self.steps] * side.copies
            columns = [f"{name}.{lanes}" for name in names]
        else:
            columns = [
                ", ".join(f"{name}.{lane * side.copies}" for name in names) for lane in "xyzw"
            ]
        return [
            f"{self._problem.vec4}({', '.join(columns[first : first + each])})"
            for first in range(0, 4, each)
        ]

    def _write(self, side: Side, k: Index, values: list[str]) -> list[str]:
        """Emit the write of four elements along the extent, `to`, for steps of k."""
        array = self._shared(side, k)
        if side.unit == 8:
            to = symbol("to")
            return [f"{array}[{to // 2}][{to % 2}] = {values[0]};"]
        return [f"{array}[to][{part}] = {value};" for part, value in enumerate(values)]

    def _write_pairs(self, side: Side, k: Index, names: list[str]) -> list[str]:
        """Emit the writes of eight steps of k of the row or column pair `to`."""
        to = symbol("to")
        lines = []
        for pair, word in enumerate("xyzw"):
            halves = ", ".join(f"unpack2x16float({name}.{word})" for name in names)
            array = self._shared(side, k + 2 * pair)
            if side.nested:
                array = f"{self._eight(side)}[{pair}]"
            place = f"{array}[{to // 2}][{to % 2}]"
            lines.append(f"{place} = {self._problem.vec4}(vec4<f32>({halves}));")
        return lines

    def _eight(self, side: Side) -> str:
        """Return the part of a shared array for the eight steps of k of a task."""
        eight = symbol("to_eight", self._tile.depth // 8)
        array = declared(f"gemm_tile_{side.name}")
        return f"{array}[{eight // (self._own // 8)}][{eight % (self._own // 8)}]"

    def _shared(self, side: Side, k: Index) -> str:
        """Return the part of a shared array for a step of k."""
        own = self._own
        slice_ = k // own if self._tile.slices > 1 else constant(0)
        array = declared(f"gemm_tile_{side.name}")
        return f"{array}[{slice_}][{k % own // self.steps}]"

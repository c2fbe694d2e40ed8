"""GEMM by subgroup matrices, the tensor cores of a GPU.

A workgroup multiplies a `rows` by `depth` tile of A by a `depth` by `cols` tile of B, step by step
along k. Shared memory holds both as they lie in memory, so loads are never transposed. A subgroup
loads matrices from both and adds their products to its part of C, which it holds in matrices of
float32; of int32 where it multiplies bytes. While it multiplies, its invocations load the next
tiles into registers.

The elements of a result matrix have no place that WGSL can name. So a subgroup stores its results
to shared memory, one matrix at a time, from where its invocations pass them to the epilogue. Bytes
go where a tile was: what shared memory that saves leaves room for more workgroups.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from webnn_py.core.traced_queries import is_zero
from webnn_py.engines.webgpu.compiler.code.index import Index, constant, symbol
from webnn_py.engines.webgpu.compiler.kernel import WorkgroupArray
from webnn_py.engines.webgpu.compiler.kernel_builder import F16X8
from webnn_py.engines.webgpu.compiler.kernels.gemm_types import (
    GemmProblem,
    Limits,
    SubgroupTile,
    TileKernel,
)
from webnn_py.engines.webgpu.compiler.kernels.gemm_wgsl import (
    Guards,
    entry_point,
    fold_grid,
    load_functions,
    loops_stores,
    name_batch,
    store_functions,
    store_values,
)
from webnn_py.engines.webgpu.program.pieces import END_LOOP, declared, loop, u32
from webnn_py.engines.webgpu.program.storage import MatrixShape


def emit_subgroup(problem: GemmProblem, tile: SubgroupTile, limits: Limits) -> TileKernel:
    """Return the kernel that multiplies by subgroup matrices.

    Args:
        problem: A product of float16 or of bytes.
        tile: A tile that fits the problem and the device.
        limits: The device's limits, with its matrices.
    """
    matrix = limits.matrix_of(problem.compute)
    assert matrix is not None
    writer = _Writer(problem, tile, matrix)
    guards = Guards.of(problem, tile.rows, tile.cols, tile.depth)
    across, down = -(-problem.n // tile.cols), -(-problem.m // tile.rows)
    grid = fold_grid(across, down, problem.batch, limits)
    a, b = writer.sides
    functions = [
        *load_functions(problem, guards, a.width, b.width),
        *store_functions(problem, wide=True),
    ]
    body = [
        *grid.prologue,
        *name_batch(problem),
        *writer.place(),
        *writer.loop(),
        *writer.stores(guards),
    ]
    entry = entry_point(
        tile.invocations,
        body,
        functions,
        writer.arrays(),
        frozenset({"chromium-experimental-subgroup-matrix"}),
    )
    return TileKernel(entry, grid.workgroups)


@dataclass(frozen=True, slots=True)
class _Side:
    """One operand's tile in shared memory.

    Attributes:
        name: "a" or "b".
        extent: Rows of A's tile, columns of B's.
        depth: Extent along k.
        along_k: Whether memory is contiguous along k.
        width: Elements per load.
        element: "f16" or "i8".
    """

    name: str
    extent: int
    depth: int
    along_k: bool
    width: int
    element: str

    @property
    def unit(self) -> int:
        """Elements of the tile in one element of its array: one load of bytes, or four."""
        return self.width if self.element == "i8" else 4

    @property
    def array_element(self) -> str:
        """The WGSL type of an element of the tile's array."""
        if self.element == "f16":
            return "vec4<f16>"
        return "i32" if self.unit == 4 else "vec4<i32>"

    @property
    def array_length(self) -> int:
        """Length of the tile's array."""
        return self.lines * self.stride // self.unit

    @property
    def line(self) -> int:
        """Contiguous elements of the tile."""
        return self.depth if self.along_k else self.extent

    @property
    def stride(self) -> int:
        """Elements from one line to the next, padded so that lines begin in different banks."""
        return self.line + SubgroupTile.PADDING_BYTES // (2 if self.element == "f16" else 1)

    @property
    def lines(self) -> int:
        """Lines of the tile."""
        return self.extent if self.along_k else self.depth

    @property
    def vectors(self) -> int:
        """Loads of all invocations."""
        return self.line * self.lines // self.width

    @property
    def type(self) -> str:
        """The WGSL type of one load."""
        return self.array_element if self.width == 4 else F16X8

    def matrix(self, free: Index, k: Index, shape: MatrixShape) -> str:
        """Emit the load of a matrix whose first element is at row or column `free` and at `k`."""
        size = f"{shape.k}, {shape.m}" if self.name == "a" else f"{shape.n}, {shape.k}"
        side = "left" if self.name == "a" else "right"
        # The left operand's rows and the right operand's columns lie along k.
        by_row = self.along_k == (self.name == "a")
        order = "row_major" if by_row else "col_major"
        at = free * self.stride + k if self.along_k else k * self.stride + free
        type_ = f"subgroup_matrix_{side}<{self.element}, {size}>"
        array = declared(f"gemm_tile_{self.name}")
        # Offset and stride count elements of the array.
        place = f"{at // self.unit}, {u32(self.stride // self.unit)}"
        return f"subgroupMatrixLoad<{type_}, {order}>(&{array}, {place})"


class _Writer:
    """Emitter of one kernel."""

    def __init__(self, problem: GemmProblem, tile: SubgroupTile, shape: MatrixShape) -> None:
        self.problem = problem
        self.tile = tile
        self.shape = shape
        self.invocations = tile.invocations
        a, b = (4 if hook is None else problem.wide for hook in (problem.a8, problem.b8))
        self.sides = (
            _Side("a", tile.rows, tile.depth, problem.a_major == "k", a, problem.compute),
            _Side("b", tile.cols, tile.depth, problem.b_major == "k", b, problem.compute),
        )
        self.own_rows, self.own_cols = tile.rows // tile.down, tile.cols // tile.across
        self.result = f"subgroup_matrix_result<{problem.total}, {shape.n}, {shape.m}>"

    @property
    def results(self) -> list[tuple[int, int]]:
        """Row and column of each result matrix among those of a subgroup."""
        down, across = self.own_rows // self.shape.m, self.own_cols // self.shape.n
        return [(i, j) for i in range(down) for j in range(across)]

    @property
    def result_size(self) -> int:
        """Vec4s of a result matrix of each subgroup."""
        return self.tile.subgroups * self.shape.m * self.shape.n // 4

    @property
    def shared_results(self) -> str:
        """The array for results: that of a tile if its elements and its length allow it."""
        side = max(self.sides, key=lambda side: side.array_length)
        fits = side.array_length >= self.result_size
        if fits and side.array_element == self.problem.total4:
            return f"gemm_tile_{side.name}"
        return "gemm_result"

    def arrays(self) -> list[WorkgroupArray]:
        """Return the workgroup arrays: both tiles, and one for results unless a tile serves."""
        arrays = [
            WorkgroupArray(f"gemm_tile_{side.name}", side.array_element, (side.array_length,))
            for side in self.sides
        ]
        if self.shared_results == "gemm_result":
            size = (self.result_size,)
            arrays.append(WorkgroupArray("gemm_result", self.problem.total4, size))
        return arrays

    def place(self) -> list[str]:
        """Emit the place of this subgroup, its result matrices, and the registers for loads."""
        tile, lid = self.tile, symbol("lid", self.invocations)
        subgroup = symbol("subgroup", tile.subgroups)
        return [
            f"let subgroup = {lid // self.shape.invocations};",
            f"let lane = {lid % self.shape.invocations};",
            f"let own_row = {subgroup // tile.across * self.own_rows};",
            f"let own_col = {subgroup % tile.across * self.own_cols};",
            f"let row0 = {symbol('gemm_row') * tile.rows};",
            f"let col0 = {symbol('gemm_col') * tile.cols};",
            *(f"var sum{i}_{j}: {self.result};" for i, j in self.results),
            *(f"var {name}: {side.type};" for side in self.sides for name, _ in self._tasks(side)),
        ]

    def _tasks(self, side: _Side) -> Iterator[tuple[str, Index]]:
        """Yield the register and the number of each load of this invocation."""
        for task in range(-(-side.vectors // self.invocations)):
            number = symbol("lid", self.invocations) + task * self.invocations
            yield f"load_{side.name}{task}", number

    def _guarded(self, side: _Side, number: Index, lines: list[str]) -> list[str]:
        """Emit statements for the loads that exist: the last ones of some invocations do not."""
        if side.vectors % self.invocations == 0 or number.high < side.vectors:
            return lines
        return [f"if ({number} < {u32(side.vectors)}) {{", *lines, "}"]

    def _split(self, side: _Side, number: Index) -> tuple[Index, Index]:
        """Return the line and the place along it of a load."""
        number = number.below(side.vectors)
        across = side.line // side.width
        return number // across, number % across * side.width

    def load(self, k0: Index) -> list[str]:
        """Emit this invocation's loads of the tiles at `k0` into registers."""
        lines = []
        for side in self.sides:
            for name, number in self._tasks(side):
                line, along = self._split(side, number)
                free, k = (line, along) if side.along_k else (along, line)
                if side.name == "a":
                    at = f"{symbol('row0') + free}, {k0 + k}"
                else:
                    at = f"{k0 + k}, {symbol('col0') + free}"
                function = declared(f"gemm_{side.name}{side.width}")
                value = f"{function}(batch, {at})"
                if side.type == "i32":
                    value = f"bitcast<i32>({value})"
                lines += self._guarded(side, number, [f"{name} = {value};"])
        return lines

    def share(self) -> list[str]:
        """Emit the writes of the loaded registers to shared memory."""
        lines = []
        for side in self.sides:
            for name, number in self._tasks(side):
                line, along = self._split(side, number)
                to = (line * side.stride + along) // side.unit
                array = declared(f"gemm_tile_{side.name}")
                if side.width == 16:
                    puts = [f"{array}[{to}] = bitcast<vec4<i32>>({name});"]
                elif side.width == 8:
                    halves = (f"bitcast<vec4<f16>>({name}.{words})" for words in ("xy", "zw"))
                    puts = [f"{array}[{to + i}] = {half};" for i, half in enumerate(halves)]
                else:
                    puts = [f"{array}[{to}] = {name};"]
                lines += self._guarded(side, number, puts)
        return lines

    def multiply(self) -> list[str]:
        """Emit the products of the shared tiles."""
        a, b = self.sides
        shape = self.shape
        down, across = self.own_rows // shape.m, self.own_cols // shape.n
        lines = []
        for step in range(self.tile.depth // shape.k):
            k = constant(step * shape.k)
            lines.append("{")
            for i in range(down):
                left = a.matrix(symbol("own_row", self.tile.rows) + i * shape.m, k, shape)
                lines.append(f"let left{i} = {left};")
            for j in range(across):
                right = b.matrix(symbol("own_col", self.tile.cols) + j * shape.n, k, shape)
                lines.append(f"let right{j} = {right};")
                for i in range(down):
                    total = f"sum{i}_{j}"
                    call = f"subgroupMatrixMultiplyAccumulate(left{i}, right{j}, {total})"
                    lines.append(f"{total} = {call};")
            lines.append("}")
        return lines

    def loop(self) -> list[str]:
        """Emit the loop along k; it loads the next tiles while it multiplies these."""
        k, depth = self.problem.k, self.tile.depth
        following = symbol("k0") + depth
        lines = [
            *self.load(constant(0)),
            loop(f"for (var k0 = 0u; k0 < {u32(k)}; k0 += {u32(depth)})", -(-k // depth)),
            *self.share(),
            "workgroupBarrier();",
        ]
        if not is_zero((k - 1) // depth):
            lines += [f"if ({following} < {u32(k)}) {{", *self.load(following), "}"]
        return [*lines, *self.multiply(), "workgroupBarrier();", END_LOOP]

    def stores(self, guards: Guards) -> list[str]:
        """Emit the stores of all result matrices, through shared memory."""
        if loops_stores(self.problem, len(self.results)):
            return self._store_loop(guards)
        lines = []
        for i, j in self.results:
            lines += [*self._share_result(i, j), "workgroupBarrier();"]
            row, col = constant(i * self.shape.m), constant(j * self.shape.n)
            lines += [*self._store(guards, row, col), "workgroupBarrier();"]
        return lines

    def _store_loop(self, guards: Guards) -> list[str]:
        """Emit the stores in a loop, so that a long epilogue's code appears once."""
        count, across = len(self.results), self.own_cols // self.shape.n
        cases = " ".join(
            f"case {number}u: {{ {' '.join(self._share_result(i, j))} }}"
            for number, (i, j) in enumerate(self.results)
        )
        number = symbol("s", count)
        row, col = number // across * self.shape.m, number % across * self.shape.n
        return [
            loop(f"for (var s = 0u; s < {u32(count)} + (row0 >> 31u); s++)", count + 1),
            f"switch s {{ {cases} default: {{}} }}",
            "workgroupBarrier();",
            *self._store(guards, row, col),
            "workgroupBarrier();",
            END_LOOP,
        ]

    def _share_result(self, i: int, j: int) -> list[str]:
        """Emit the store of one result matrix to shared memory."""
        size = self.shape.m * self.shape.n // 4
        first = symbol("subgroup", self.tile.subgroups) * size
        place = f"{first}, sum{i}_{j}, {u32(self.shape.n // 4)}"
        array = declared(self.shared_results)
        return [f"subgroupMatrixStore<row_major>(&{array}, {place});"]

    def _store(self, guards: Guards, row: Index, col: Index) -> list[str]:
        """Emit the stores of the shared result matrix, whose first element is `row`, `col`."""
        shape, across = self.shape, self.shape.n // 4
        size = shape.m * across
        first = symbol("subgroup", self.tile.subgroups) * size
        lines = []
        for task in range(-(-size // shape.invocations)):
            number = symbol("lane", shape.invocations) + task * shape.invocations
            at = number.below(size)
            block = [
                f"let row = row0 + own_row + {row + at // across};",
                f"let col = col0 + own_col + {col + at % across * 4};",
                f"let value = {declared(self.shared_results)}[{first + at}];",
            ]
            puts = store_values(
                self.problem, symbol("row"), symbol("col"), "value", wide=True, guard=guards.n
            )
            if guards.m:
                puts = [f"if (row < {u32(self.problem.m)}) {{", *puts, "}"]
            ragged = (task + 1) * shape.invocations > size
            lines += [f"if ({number} < {u32(size)}) {{" if ragged else "{", *block, *puts, "}"]
        return lines

"""GEMM by subgroup matrices, the tensor cores of a GPU.

A workgroup multiplies a `rows` by `depth` tile of A by a `depth` by `cols` tile of B, step by step
along k. Shared memory holds both as they lie in memory, so loads are never transposed. A subgroup
loads matrices from both and adds their products to its part of C, which it holds in matrices of
float32; of int32 where it multiplies bytes. While it multiplies, its invocations load the next
tiles into registers.

float32 is split on its way to shared memory. An element, scaled so that the largest one of its row
lies at the top of float16's range, is rounded to 11 bits, its high half; the rest, rounded, is its
low half. Three products of halves are precise to 21 bits (Markidis et al., 2018). As tensor cores
truncate their sums, these leave for the output after every `MAX_SPLIT_DEPTH` steps of k, where
float32 adds them up.

The elements of a result matrix have no place that WGSL can name. So a subgroup stores its results
to shared memory, one matrix at a time, from where its invocations pass them to the epilogue. Bytes
go where a tile was: what shared memory that saves leaves room for more workgroups.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from webnn_py.core.traced_queries import divides, is_zero, sampled
from webnn_py.engines.webgpu.compiler.code.index import Index, constant, symbol
from webnn_py.engines.webgpu.compiler.kernel import Feature, WorkgroupArray
from webnn_py.engines.webgpu.compiler.kernel_builder import F16X8
from webnn_py.engines.webgpu.compiler.kernels.gemm_types import (
    GemmProblem,
    Limits,
    SubgroupTile,
    TileKernel,
)
from webnn_py.engines.webgpu.compiler.kernels.gemm_wgsl import (
    VECTORS_AT_ONCE,
    Guards,
    entry_point,
    fold_grid,
    load_functions,
    loops_stores,
    name_batch,
    store_functions,
    store_together,
    store_values,
    top_functions,
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
        *(top_functions(problem, guards) if writer.is_split else ()),
    ]
    body = [
        *grid.prologue,
        *name_batch(problem),
        *writer.place(),
        *writer.compute(guards),
    ]
    entry = entry_point(
        tile.invocations,
        body,
        functions,
        writer.arrays(),
        writer.features,
    )
    return TileKernel(entry, grid.workgroups)


MAX_SPLIT_DEPTH = 1024
"""Steps of k whose products of halves one result matrix adds up.

At a depth of 4,096 the error is 2^-19.1 of the sum of magnitudes without such limit, 2^-21.1 with
this one. Twice and half the depth cost 11 % less and 19 % more time, and one bit.
"""


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
        parts: Names of the arrays, after the operand's; one for each half of an element.
    """

    name: str
    extent: int
    depth: int
    along_k: bool
    width: int
    element: str
    parts: tuple[str, ...] = ("",)

    @property
    def is_split(self) -> bool:
        """Whether loads are of float32, which invocations split."""
        return len(self.parts) > 1 and self.width == 4

    @property
    def arrays(self) -> list[WorkgroupArray]:
        """The tile's arrays, one for each half of an element."""
        names = (f"gemm_tile_{self.name}{part}" for part in self.parts)
        return [WorkgroupArray(name, self.array_element, (self.array_length,)) for name in names]

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
        if self.is_split:
            return "vec4<f32>"
        return self.array_element if self.width == 4 else F16X8

    def matrix(self, free: Index, k: Index, shape: MatrixShape, part: str = "") -> str:
        """Emit the load of a matrix whose first element is at row or column `free` and at `k`."""
        size = f"{shape.k}, {shape.m}" if self.name == "a" else f"{shape.n}, {shape.k}"
        side = "left" if self.name == "a" else "right"
        # The left operand's rows and the right operand's columns lie along k.
        by_row = self.along_k == (self.name == "a")
        order = "row_major" if by_row else "col_major"
        at = free * self.stride + k if self.along_k else k * self.stride + free
        type_ = f"subgroup_matrix_{side}<{self.element}, {size}>"
        array = declared(f"gemm_tile_{self.name}{part}")
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
        self.is_split = problem.compute == "split"
        kind = problem.multiplied, ("", "_low") if self.is_split else ("",)
        self.sides = (
            _Side("a", tile.rows, tile.depth, problem.a_major == "k", a, *kind),
            _Side("b", tile.cols, tile.depth, problem.b_major == "k", b, *kind),
        )
        is_deep = self.is_split and problem.partial is not None
        self.run = MAX_SPLIT_DEPTH if is_deep and sampled(problem.k) > MAX_SPLIT_DEPTH else 0
        self.own_rows, self.own_cols = tile.rows // tile.down, tile.cols // tile.across
        self.result = f"subgroup_matrix_result<{problem.total}, {shape.n}, {shape.m}>"

    @property
    def features(self) -> frozenset[Feature]:
        """The features of the device that the kernel needs."""
        features: set[Feature] = {"chromium-experimental-subgroup-matrix"}
        return frozenset(features | {"shader-f16"} if self.is_split else features)

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
    def vectors(self) -> int:
        """Vec4s of a result matrix for each invocation; 0 if that is no whole number."""
        count, rest = divmod(self.shape.m * self.shape.n // 4, self.shape.invocations)
        return 0 if rest else count

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
        arrays = [array for side in self.sides for array in side.arrays]
        if self.is_split:
            arrays.append(WorkgroupArray("gemm_units", "f32", (self.tile.units,)))
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
            *(
                f"var {name}{part}: {side.type};"
                for side in self.sides
                for name, _ in self._tasks(side)
                for part in self._loaded(side)
            ),
            *(self._units() if self.is_split else ()),
        ]

    def _loaded(self, side: _Side) -> tuple[str, ...]:
        """Return the parts of an operand that are loaded; float32 is split later."""
        return ("",) if side.is_split else side.parts

    def _units(self) -> list[str]:
        """Emit the units of rows and columns, and the scales of this invocation's loads."""
        lines, units = [], declared("gemm_units")
        for name, first, offset, extent in (
            ("a", "row0", 0, self.tile.rows),
            ("b", "col0", self.tile.rows, self.tile.cols),
        ):
            for start in range(0, extent, self.invocations):
                place = symbol("lid", self.invocations) + start
                top = f"{declared(f'gemm_{name}_top')}(batch, {symbol(first) + place})"
                line = f"{units}[{place + offset}] = {declared('gemm_unit')}({top});"
                is_ragged = start + self.invocations > extent
                lines.append(f"if ({place} < {u32(extent)}) {{ {line} }}" if is_ragged else line)
        lines.append("workgroupBarrier();")
        for side in self.sides:
            offset = self.tile.rows if side.name == "b" else 0
            for name, number in self._tasks(side) if side.is_split else ():
                row, along = self._split(side, number)
                at = (row if side.along_k else along) + offset
                unit = f"vec4<f32>({units}[{at}])" if side.along_k else _four(units, at)
                # The reciprocal of a power of 2, by its exponent.
                bits = f"vec4<u32>(0x7f000000u) - bitcast<vec4<u32>>({unit})"
                lines.append(f"let scale_{name} = bitcast<vec4<f32>>({bits});")
        return lines

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
                loads = []
                for part in self._loaded(side):
                    function = declared(f"gemm_{side.name}{part}{side.width}")
                    value = f"{function}(batch, {at})"
                    if side.type == "i32":
                        value = f"bitcast<i32>({value})"
                    loads.append(f"{name}{part} = {value};")
                lines += self._guarded(side, number, loads)
        return lines

    def share(self) -> list[str]:
        """Emit the writes of the loaded registers to shared memory."""
        lines = []
        for side in self.sides:
            for name, number in self._tasks(side):
                line, along = self._split(side, number)
                to = (line * side.stride + along) // side.unit
                if side.is_split:
                    puts = _puts_of_halves(side, to, name)
                else:
                    puts = [put for part in side.parts for put in _puts(side, part, to, name)]
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
            for part in a.parts:
                for i in range(down):
                    row = symbol("own_row", self.tile.rows) + i * shape.m
                    lines.append(f"let left{part}{i} = {a.matrix(row, k, shape, part)};")
            pairs = [("", ""), ("_low", ""), ("", "_low")] if self.is_split else [("", "")]
            for j in range(across):
                for part in b.parts:
                    col = symbol("own_col", self.tile.cols) + j * shape.n
                    lines.append(f"let right{part}{j} = {b.matrix(col, k, shape, part)};")
                for left, right in pairs:
                    for i in range(down):
                        factors = f"left{left}{i}, right{right}{j}"
                        call = f"subgroupMatrixMultiplyAccumulate({factors}, sum{i}_{j})"
                        lines.append(f"sum{i}_{j} = {call};")
            lines.append("}")
        return lines

    def compute(self, guards: Guards) -> list[str]:
        """Emit the loop along k and the stores of its sums, or of those of each run of k."""
        k, run = self.problem.k, self.run
        first, end = self.load(constant(0)), f"run0 + {u32(run)}"
        if not run:
            return [*first, *self.loop("0u", u32(k)), *self.stores(guards)]
        return [
            *first,
            loop(f"for (var run0 = 0u; run0 < {u32(k)}; run0 += {u32(run)})", -(-k // run)),
            *self.loop("run0", end if divides(run, k) else f"min({end}, {u32(k)})"),
            *self.stores(guards),
            *(f"sum{i}_{j} = {self.result}();" for i, j in self.results),
            END_LOOP,
        ]

    def loop(self, start: str, end: str) -> list[str]:
        """Emit the loop along k; it loads the next tiles while it multiplies these."""
        k, depth = self.problem.k, self.tile.depth
        following = symbol("k0") + depth
        head = f"for (var k0 = {start}; k0 < {end}; k0 += {u32(depth)})"
        lines = [
            loop(head, -(-(self.run or k) // depth)),
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
        if self.vectors and self.problem.result4 is not None and not self.is_split:
            count = VECTORS_AT_ONCE // self.vectors
            groups = (self.results[i : i + count] for i in range(0, len(self.results), count))
            return [line for group in groups for line in self._store_group(guards, group)]
        lines = []
        for i, j in self.results:
            lines += [*self._share_result(i, j), "workgroupBarrier();"]
            row, col = constant(i * self.shape.m), constant(j * self.shape.n)
            lines += [*self._store(guards, row, col), "workgroupBarrier();"]
        return lines

    def _store_group(self, guards: Guards, group: Sequence[tuple[int, int]]) -> list[str]:
        """Emit the stores of some result matrices, of whole vec4s for each invocation."""
        shape, across = self.shape, self.shape.n // 4
        size = shape.m * across
        first = symbol("subgroup", self.tile.subgroups) * size
        lines, places = [], {}
        for number, (i, j) in enumerate(group):
            lines += [*self._share_result(i, j), "workgroupBarrier();"]
            for task in range(self.vectors):
                at = symbol("lane", shape.invocations) + task * shape.invocations
                value = f"value{number}_{task}"
                row = symbol("row0") + symbol("own_row") + at // across + i * shape.m
                col = symbol("col0") + symbol("own_col") + at % across * 4 + j * shape.n
                places[value] = row, col
                lines.append(f"let {value} = {declared(self.shared_results)}[{first + at}];")
            lines.append("workgroupBarrier();")
        return ["{", *lines, *store_together(self.problem, guards, places), "}"]

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
        kind = "var" if self.is_split else "let"
        lines = []
        for task in range(-(-size // shape.invocations)):
            number = symbol("lane", shape.invocations) + task * shape.invocations
            at = number.below(size)
            block = [
                f"let row = row0 + own_row + {row + at // across};",
                f"let col = col0 + own_col + {col + at % across * 4};",
                f"{kind} value = {declared(self.shared_results)}[{first + at}];",
            ]
            puts = store_values(
                self.problem, symbol("row"), symbol("col"), "value", wide=True, guard=guards.n
            )
            if self.is_split:
                puts = self._finish(guards, puts, row + at // across, col + at % across * 4)
            if guards.m:
                puts = [f"if (row < {u32(self.problem.m)}) {{", *puts, "}"]
            ragged = (task + 1) * shape.invocations > size
            lines += [f"if ({number} < {u32(size)}) {{" if ragged else "{", *block, *puts, "}"]
        return lines

    def _finish(self, guards: Guards, puts: list[str], row: Index, col: Index) -> list[str]:
        """Emit the stores of a scaled `value`, or with runs of k, of its sum over all runs.

        Args:
            guards: The guards of rows and columns.
            puts: The stores of the value without scales.
            row: The value's row in the subgroup's part of C.
            col: The column of its first element.
        """
        units = declared("gemm_units")
        of_row = f"{units}[{symbol('own_row', self.tile.rows) + row}]"
        of_col = symbol("own_col", self.tile.cols) + col + self.tile.rows
        whole = [
            f"let unit_row = vec4<f32>({of_row});",
            f"let unit_col = {_four(units, of_col)};",
            # The smaller one first: the larger one alone may overflow.
            "value = value * min(unit_row, unit_col) * max(unit_row, unit_col);",
            *puts,
        ]
        if not self.run:
            return whole
        problem, later = self.problem, f"run0 + {u32(self.run)} < {u32(self.problem.k)}"
        assert problem.partial is not None
        waits = []
        for i, lane in enumerate([""] if problem.store4 is not None else [".x", ".y", ".z", ".w"]):
            place = symbol("col") + i
            kept = problem.partial(
                symbol("batch", problem.batch), symbol("row", problem.m), place.below(problem.n)
            )
            lines = [
                f"if (run0 > 0u) {{ value{lane} += {kept}; }}",
                f"if ({later}) {{ {kept} = value{lane}; }}",
            ]
            waits += [f"if ({place} < {u32(problem.n)}) {{", *lines, "}"] if guards.n else lines
        return [*waits, f"if (!({later})) {{", *whole, "}"]


def _four(array: str, first: Index) -> str:
    """Emit a vec4 of four neighboring elements of an array of floats."""
    return f"vec4<f32>({', '.join(f'{array}[{first + i}]' for i in range(4))})"


def _puts(side: _Side, part: str, to: Index, name: str) -> list[str]:
    """Emit the writes of a loaded register to shared memory, from index `to` on."""
    array, name = declared(f"gemm_tile_{side.name}{part}"), f"{name}{part}"
    if side.width == 16:
        return [f"{array}[{to}] = bitcast<vec4<i32>>({name});"]
    if side.width == 8:
        halves = (f"bitcast<vec4<f16>>({name}.{words})" for words in ("xy", "zw"))
        return [f"{array}[{to + i}] = {half};" for i, half in enumerate(halves)]
    return [f"{array}[{to}] = {name};"]


def _puts_of_halves(side: _Side, to: Index, name: str) -> list[str]:
    """Emit the writes of the halves of four loaded float32.

    Bits are cut off for the high half, as compilers take a conversion to f16 and back for nothing.
    """
    high, low = (declared(f"gemm_tile_{side.name}{part}") for part in side.parts)
    rounded = f"(bitcast<vec4<u32>>(scaled_{name}) + 0x1000u) & vec4<u32>(0xffffe000u)"
    return [
        f"let scaled_{name} = {name} * scale_{name};",
        f"let high_{name} = bitcast<vec4<f32>>({rounded});",
        f"{high}[{to}] = vec4<f16>(high_{name});",
        f"{low}[{to}] = vec4<f16>(scaled_{name} - high_{name});",
    ]

"""Attention by subgroup matrices: flash attention on the tensor cores of a GPU.

A subgroup takes some rows of queries, which it holds in matrices, through all keys. For each tile
of keys it multiplies queries by keys, and stores the scores to workgroup memory. There each
invocation finds the maximum of its row and writes the softmax weights as float16. The subgroup
multiplies these by the values and adds to its sums, which stay in matrices.

Elements of a matrix have no place that WGSL can name, so to rescale the sums they must pass through
workgroup memory. That is rare: a row keeps its maximum until a score exceeds it by
`MAX_SCORE_RISE`, as weights may exceed 1 (compare FlashAttention-4).
"""

from __future__ import annotations

from collections.abc import Iterator

from webnn_py.core.traced_queries import sampled
from webnn_py.engines.webgpu.compiler.code.index import Index, symbol
from webnn_py.engines.webgpu.compiler.kernel import (
    BY_WORKGROUP,
    EntryPoint,
    Kernel,
    WorkgroupArray,
    grid,
    place_in,
)
from webnn_py.engines.webgpu.compiler.kernel_builder import KernelBuilder
from webnn_py.engines.webgpu.compiler.kernels.attention_operands import (
    LOWEST_F32,
    NEVER,
    AttentionOperands,
)
from webnn_py.engines.webgpu.compiler.kernels.epilogue import PUT, PUT4, emit_epilogue
from webnn_py.engines.webgpu.program.pieces import END_LOOP, declared, divisor, loop, u32
from webnn_py.engines.webgpu.program.storage import Features, MatrixShape
from webnn_py.ir import Node

_QUERY4 = declared("query4")
_WEIGHTS = declared("weights")
_SCORES = declared("scores")
_TOTALS = declared("totals")
_GROWN = declared("grown")
_SCORE = declared("score")

MAX_SCORE_RISE = 5.5
"""How far a score may exceed its row's maximum before the sums are rescaled.

Weights reach e^5.5 = 245, which float16 holds as precisely as 1.
"""

KEYS = 16
"""Keys of a tile; more leave too few registers for two workgroups a processor."""

MAX_SIZE = 128
"""Depth of queries and keys, and width of values, that fit into registers."""

MAX_SIZE_OF_TWO_BLOCKS = 64
"""Depth and width up to which a subgroup holds two matrices of rows."""

PADDING = 8
"""Elements between two rows in workgroup memory, so that they begin in different banks."""

MIN_WORKGROUPS = 132
"""Workgroups of the larger size that are enough to occupy a large GPU."""


class SubgroupAttention:
    """Emitter of one kernel.

    Args:
        builder: The kernel's builder.
        node: A node of ATTENTION in float16.
        shape: Shape of the device's matrices.
    """

    def __init__(self, builder: KernelBuilder, node: Node, shape: MatrixShape) -> None:
        self.builder, self.node, self.shape = builder, node, shape
        self.operands = operands = AttentionOperands(builder, node)
        self.rows, self.width, self.batches = operands.rows, operands.width, operands.batches
        self.depth, self.columns = operands.depth, operands.columns
        self.deep = _up(self.depth, shape.k)
        self.wide = _up(self.width, shape.n)
        is_small = max(self.deep, self.wide) <= MAX_SIZE_OF_TWO_BLOCKS
        self.blocks = 2 if is_small and 2 * shape.m <= shape.invocations else 1
        self.own_rows = self.blocks * shape.m
        self.lanes = shape.invocations // self.own_rows
        self.subgroups = self._choose_subgroups()
        self.invocations = self.subgroups * shape.invocations
        self.tile_rows = self.subgroups * self.own_rows
        self.may_end_early = operands.may_end_early(KEYS)

    def _choose_subgroups(self) -> int:
        """Return the subgroups of a workgroup: fewer where there are few rows."""
        large = 4 * self.own_rows
        workgroups = sampled(self.batches * -(-self.rows // large))
        return 4 if workgroups >= MIN_WORKGROUPS else 2

    @property
    def _arrays(self) -> dict[str, WorkgroupArray]:
        rows = self.tile_rows
        arrays = (
            WorkgroupArray("held_keys", "vec4<f16>", (KEYS * (self.deep + PADDING) // 4,)),
            WorkgroupArray("held_values", "vec4<f16>", (KEYS * (self.wide + PADDING) // 4,)),
            WorkgroupArray("scores", "vec4<f32>", (rows * self._score_stride,)),
            WorkgroupArray("weights", "vec4<f16>", (rows * self._weight_stride,)),
            WorkgroupArray("totals", "f32", (rows * self.lanes,)),
            # All sizes are multiples of 16 bytes: NVIDIA places arrays one behind the other, and
            # reads matrices from the wrong place where one begins elsewhere.
            WorkgroupArray("grown", "vec4<u32>", ()),
        )
        return {array.name: array for array in arrays}

    _score_stride = (KEYS + PADDING // 2) // 4
    _weight_stride = (KEYS + PADDING) // 4

    def fits(self, features: Features) -> bool:
        """Whether the device has the memory and invocations, and the sizes suit the kernel."""
        shape = self.shape
        needed = sum(array.bytes for array in self._arrays.values())
        is_even = KEYS % shape.n == 0 and KEYS % shape.k == 0 and shape.invocations % shape.m == 0
        return (
            is_even
            and max(self.deep, self.wide) <= MAX_SIZE
            and needed <= features.workgroup_bytes
            and self.invocations <= features.invocations
        )

    def kernel(self) -> Kernel:
        """Return the kernel with its fused epilogue."""
        builder = self.builder
        builder.vector_out = builder.writes_vectors(self.width)
        emit_epilogue(builder, self.node)
        self.operands.add_loads("f16")
        self.operands.add_score()
        tiles = -(-self.rows // self.tile_rows)
        groups = grid(self.batches * tiles, builder.features.grid)
        place = place_in(groups).min(self.batches * tiles - 1)
        steps = -(-self.columns // KEYS)
        last_row = f"min(first_row + {u32(self.tile_rows)}, {u32(self.rows)}) - {u32(1)}"
        lane = symbol("lane", self.shape.invocations)
        lines = [
            f"let place = {place};",
            f"let batch = place / {divisor(tiles)};",
            f"let first_row = place % {divisor(tiles)} * {u32(self.tile_rows)};",
            f"let key_batch = {self.operands.key_batch};",
            *self.operands.load_length("batch"),
            f"let end = {self.operands.end_key(last_row)};",
            f"let first_tile = {self.operands.first_key('first_row')} / {divisor(KEYS)};",
            f"let end_tile = (end + {u32(KEYS - 1)}) / {divisor(KEYS)};",
            f"let subgroup = t / {divisor(self.shape.invocations)};",
            f"let lane = t % {divisor(self.shape.invocations)};",
            f"let own = subgroup * {u32(self.own_rows)} + {lane // self.lanes};",
            f"let part = {lane % self.lanes};",
            f"let row = min(first_row + own, {u32(self.rows - 1)});",
            *self._bounds(),
            f"var top = {LOWEST_F32};",
            "var total = 0.0;",
            *(f"var sum{i}_{j}: {self._result};" for i, j in self._sums),
            *self._load_queries(),
            *(f"var {name}: vec4<f16>;" for name, _ in self._loads()),
            *self._load_tile(symbol("first_tile", steps) * KEYS),
            loop("for (var tile = first_tile; tile < end_tile; tile++)", steps),
            *self._tile(steps),
            END_LOOP,
            *self._finish(),
        ]
        entry = EntryPoint.of(
            self.invocations,
            BY_WORKGROUP,
            [f"  {line}" for line in lines],
            tuple(self._arrays.values()),
            features=frozenset({"chromium-experimental-subgroup-matrix"}),
        )
        return builder.finish(self.node.op, entry, groups)

    def _bounds(self) -> list[str]:
        """Emit the first and the last key that this invocation's query sees."""
        if not self.may_end_early:
            return []
        return [
            f"let low = vec4<u32>({self.operands.first_key('row')});",
            f"let high = vec4<u32>({self.operands.end_key('row')});",
            f"let never = vec4<f32>({NEVER});",
        ]

    # Matrices

    @property
    def _result(self) -> str:
        return f"subgroup_matrix_result<f32, {self.shape.n}, {self.shape.m}>"

    @property
    def _sums(self) -> list[tuple[int, int]]:
        """Row and column of each matrix of sums."""
        columns = range(self.wide // self.shape.n)
        return [(i, j) for i in range(self.blocks) for j in columns]

    def _left(self, array: str, block: int, at: int, stride: int) -> str:
        """Emit the load of a left matrix from rows of this subgroup, from column `at` on."""
        type_ = f"subgroup_matrix_left<f16, {self.shape.k}, {self.shape.m}>"
        row = symbol("subgroup", self.subgroups) * self.own_rows + block * self.shape.m
        place = row * stride + at // 4
        return f"subgroupMatrixLoad<{type_}, row_major>(&{declared(array)}, {place}, {u32(stride)})"

    def _right(self, array: str, key: int, at: int, size: int, order: str) -> str:
        """Emit the load of a right matrix from a tile of keys or values."""
        type_ = f"subgroup_matrix_right<f16, {self.shape.n}, {self.shape.k}>"
        stride = (size + PADDING) // 4
        place = u32(key * stride + at // 4)
        return f"subgroupMatrixLoad<{type_}, {order}>(&{declared(array)}, {place}, {u32(stride)})"

    def _score_place(self, block: int, column: int) -> str:
        """Return where a result matrix lies in `scores`."""
        row = symbol("subgroup", self.subgroups) * self.own_rows + block * self.shape.m
        return f"{row * self._score_stride + column // 4}"

    # Loads

    def _load_queries(self) -> list[str]:
        """Emit the loads of this subgroup's queries into matrices, through `weights`."""
        lines = []
        fours = -(-self.depth // 4)
        for first in range(0, self.deep, KEYS):
            part = min(KEYS, self.deep - first) // 4
            for number, guard in self._tasks(self.tile_rows * part):
                item, four = number // part, number % part + first // 4
                row = f"min(first_row + {item}, {u32(self.rows - 1)})"
                value = _padded(f"{_QUERY4}(batch, {row}, {{}})", four, fours)
                place = item * self._weight_stride + number % part
                lines.append(f"{guard}{{ {_WEIGHTS}[{place}] = {value}; }}")
            lines.append("workgroupBarrier();")
            for step in range(part * 4 // self.shape.k):
                k = first // self.shape.k + step
                for i in range(self.blocks):
                    left = self._left("weights", i, step * self.shape.k, self._weight_stride)
                    lines.append(f"let query{i}_{k} = {left};")
            lines.append("workgroupBarrier();")
        return lines

    def _tasks(self, count: int) -> Iterator[tuple[Index, str]]:
        """Yield the number of each task of this invocation, and its condition if it needs one."""
        for first in range(0, count, self.invocations):
            number = symbol("t", self.invocations) + first
            ragged = first + self.invocations > count
            yield number.below(count), f"if ({number} < {u32(count)}) " if ragged else ""

    def _loads(self) -> Iterator[tuple[str, tuple[bool, Index, str]]]:
        """Yield the register of each load of a tile: of keys or values, number, condition."""
        for is_keys, size in ((True, self.deep), (False, self.wide)):
            for i, (number, guard) in enumerate(self._tasks(KEYS * size // 4)):
                yield f"next_{'key' if is_keys else 'value'}{i}", (is_keys, number, guard)

    def _load_tile(self, first: Index) -> list[str]:
        """Emit the loads of the tile from key `first` on into registers."""
        lines = []
        for name, (is_keys, number, guard) in self._loads():
            size, whole = (self.deep, self.depth) if is_keys else (self.wide, self.width)
            key, four = first + number // (size // 4), number % (size // 4)
            function = "key4" if is_keys else "value4"
            at = f"min({key}, {u32(self.columns - 1)})" if self.may_end_early else str(key)
            value = _padded(f"{declared(function)}(key_batch, {at}, {{}})", four, -(-whole // 4))
            if not is_keys and self.may_end_early:
                # Infinite values beyond the end would give NaN at weight 0.
                value = f"select(vec4<f16>(), {value}, {key} < end)"
            lines.append(f"{guard}{{ {name} = {value}; }}")
        return lines

    def _share_tile(self) -> list[str]:
        """Emit the writes of the loaded tile to workgroup memory."""
        lines = []
        for name, (is_keys, number, guard) in self._loads():
            array, size = ("held_keys", self.deep) if is_keys else ("held_values", self.wide)
            fours = size // 4
            place = number // fours * (fours + PADDING // 4) + number % fours
            lines.append(f"{guard}{{ {declared(array)}[{place}] = {name}; }}")
        return lines

    # One tile of keys

    def _tile(self, steps: int) -> list[str]:
        following = (symbol("tile", steps) + 1) * KEYS
        return [
            *self._share_tile(),
            "workgroupBarrier();",
            f"if (tile + {u32(1)} < end_tile) {{",
            *self._load_tile(following),
            "}",
            *self._score_products(),
            "workgroupBarrier();",
            *self._softmax_weights(),
            "workgroupBarrier();",
            *self._add_values(),
            "workgroupBarrier();",
        ]

    def _score_products(self) -> list[str]:
        """Emit the products of queries and keys, stored as scores."""
        shape = self.shape
        lines = []
        for j in range(KEYS // shape.n):
            lines.append("{")
            # Without an initial value, naga keeps what the iteration before left.
            lines += [f"var score{i} = {self._result}();" for i in range(self.blocks)]
            for k in range(self.deep // shape.k):
                right = self._right("held_keys", j * shape.n, k * shape.k, self.deep, "col_major")
                lines.append(f"let key{k} = {right};")
                for i in range(self.blocks):
                    call = f"subgroupMatrixMultiplyAccumulate(query{i}_{k}, key{k}, score{i})"
                    lines.append(f"score{i} = {call};")
            for i in range(self.blocks):
                lines.append(self._store_scores(i, j * shape.n, f"score{i}"))
            lines.append("}")
        return lines

    def _store_scores(self, block: int, column: int, matrix: str) -> str:
        place = f"{self._score_place(block, column)}, {matrix}, {u32(self._score_stride)}"
        return f"subgroupMatrixStore<row_major>(&{_SCORES}, {place});"

    def _softmax_weights(self) -> list[str]:
        """Emit the softmax weights of this invocation's part of its row."""
        lines = [f"let first = tile * {u32(KEYS)};", f"let here = own * {u32(self._score_stride)};"]
        fours = KEYS // 4
        for four in range(fours):
            each = []
            for n in range(4):
                at = f"first + {u32(4 * four + n)}"
                if self.may_end_early:
                    at = f"min({at}, {u32(self.columns - 1)})"
                each.append(f"{_SCORE}(batch, row, {at}, s{four}.{'xyzw'[n]})")
            value = f"vec4<f32>({', '.join(each)})"
            if self.may_end_early:
                columns = ", ".join(f"first + {u32(4 * four + n)}" for n in range(4))
                inside = self.operands.sees(f"vec4<u32>({columns})", "low", "high")
                value = f"select(never, {value}, {inside})"
            lines += [f"let s{four} = {_SCORES}[here + {u32(four)}];", f"let c{four} = {value};"]
        greatest = "c0"
        for four in range(1, fours):
            greatest = f"max({greatest}, c{four})"
        lines += [
            f"let most4 = {greatest};",
            "let most = max(max(most4.x, most4.y), max(most4.z, most4.w));",
            f"if (most > top + {MAX_SCORE_RISE}) {{ {_GROWN}.x = tile + 1u; }}",
            f"if (workgroupUniformLoad(&{_GROWN}).x == tile + 1u) {{",
            "let higher = max(top, most);",
            "let less = exp(top - higher);",
            "top = higher;",
            "total *= less;",
            *self._rescale(),
            "}",
        ]
        own = fours // self.lanes
        for four in range(own):
            value = f"c{four}"
            for part in range(1, self.lanes):
                value = f"select({value}, c{four + part * own}, part == {u32(part)})"
            weight = f"exp({value} - top)"
            # The sum is of the rounded weights, which multiply the values.
            lines += [
                f"let w{four} = vec4<f16>({weight});",
                f"{_WEIGHTS}[own * {u32(self._weight_stride)} + part * {u32(own)} + {u32(four)}]"
                f" = w{four};",
            ]
        added = " + ".join(f"vec4<f32>(w{four})" for four in range(own))
        return [*lines, f"let added = {added};", "total += added.x + added.y + added.z + added.w;"]

    def _chunks(self) -> Iterator[list[tuple[int, int]]]:
        """Yield the matrices of sums, as many columns at a time as `scores` has."""
        across = KEYS // self.shape.n
        columns = self.wide // self.shape.n
        for first in range(0, columns, across):
            yield [(i, j) for i, j in self._sums if first <= j < first + across]

    def _store_chunk(self, chunk: list[tuple[int, int]]) -> list[str]:
        """Emit the stores of some sums to `scores`."""
        first = chunk[0][1]
        return [self._store_scores(i, (j - first) * self.shape.n, f"sum{i}_{j}") for i, j in chunk]

    def _rescale(self) -> list[str]:
        """Emit the multiplication of the sums of each row by its `less`."""
        lines = []
        own = KEYS // 4 // self.lanes
        for chunk in self._chunks():
            first = chunk[0][1]
            lines += [
                *self._store_chunk(chunk),
                "workgroupBarrier();",
                *(f"{_SCORES}[here + part * {u32(own)} + {u32(n)}] *= less;" for n in range(own)),
                "workgroupBarrier();",
            ]
            for i, j in chunk:
                place = self._score_place(i, (j - first) * self.shape.n)
                load = f"(&{_SCORES}, {place}, {u32(self._score_stride)})"
                lines.append(f"sum{i}_{j} = subgroupMatrixLoad<{self._result}, row_major>{load};")
            lines.append("workgroupBarrier();")
        return lines

    def _add_values(self) -> list[str]:
        """Emit the products of weights and values, added to the sums."""
        shape = self.shape
        lines = []
        for k in range(KEYS // shape.k):
            lines.append("{")
            for i in range(self.blocks):
                left = self._left("weights", i, k * shape.k, self._weight_stride)
                lines.append(f"let weight{i} = {left};")
            for j in range(self.wide // shape.n):
                at = j * shape.n
                right = self._right("held_values", k * shape.k, at, self.wide, "row_major")
                lines.append(f"let value{j} = {right};")
                for i in range(self.blocks):
                    call = f"subgroupMatrixMultiplyAccumulate(weight{i}, value{j}, sum{i}_{j})"
                    lines.append(f"sum{i}_{j} = {call};")
            lines.append("}")
        return lines

    # After the last tile

    def _finish(self) -> list[str]:
        """Emit the division by the sums of weights, and the stores."""
        lines = [f"{_TOTALS}[own * {u32(self.lanes)} + part] = total;"]
        fours = KEYS // 4
        for chunk in self._chunks():
            first = chunk[0][1] * self.shape.n
            lines += [*self._store_chunk(chunk), "workgroupBarrier();"]
            for task, guard in self._tasks(self.tile_rows * fours):
                item, four = task // fours, task % fours
                parts = (f"{_TOTALS}[{item * self.lanes + n}]" for n in range(self.lanes))
                total = f"({' + '.join(parts)})"
                value = self.operands.quotient("sum", total)
                here = symbol("here_row", self.rows)
                at = four * 4 + first
                base = (symbol("batch", self.batches) * self.rows + here) * self.width
                inside = f"here_row < {u32(self.rows)}"
                if at.high + 3 >= self.width:
                    inside += f" && {at} < {u32(self.width)}"
                lines += [
                    f"{guard}{{",
                    f"let here_row = first_row + {item};",
                    f"if ({inside}) {{",
                    f"let sum = {_SCORES}[{item * self._score_stride + four}];",
                    f"let value = {value};",
                    *self._put(base + at, at),
                    "}",
                    "}",
                ]
            lines.append("workgroupBarrier();")
        return lines

    def _put(self, place: Index, column: Index) -> list[str]:
        """Emit the store of four elements of a row, `value`."""
        if self.builder.vector_out:
            return [f"{PUT4}({place}, value);"]
        return [
            f"if ({column + n} < {u32(self.width)}) {{ {PUT}({place + n}, value.{'xyzw'[n]}); }}"
            for n in range(4)
        ]


def _up(size: int, unit: int) -> int:
    """Return the least multiple of `unit` that is at least `size`."""
    return -(-size // unit) * unit


def _padded(load: str, four: Index, fours: int) -> str:
    """Emit a load of four elements of a row of `fours` vec4s; zeros beyond its end.

    Args:
        load: The load, with {} in the place of the vec4's index.
        four: The index.
        fours: Vec4s of the row.
    """
    value = load.format(four.min(fours - 1))
    return value if four.high < fours else f"select(vec4<f16>(), {value}, {four} < {u32(fours)})"

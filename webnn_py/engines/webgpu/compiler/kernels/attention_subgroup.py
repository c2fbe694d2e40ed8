"""Attention by subgroup matrices: flash attention on the tensor cores of a GPU.

A subgroup takes the rows of queries of one matrix, which it holds, through all keys. For each tile
of keys it multiplies queries by keys, and stores the scores to workgroup memory. There each
invocation writes the softmax weights of its row as float16. The subgroup multiplies these by the
values and adds to its sums, which stay in matrices.

Elements of a matrix have no place that WGSL can name, so to rescale the sums they must pass through
workgroup memory. That is rare: a row keeps its maximum until a score exceeds it by
`MAX_SCORE_RISE`, as weights may exceed 1 (compare FlashAttention-4). Weights are computed by the
maximum of earlier tiles, in one pass over the scores, and computed again where it was too low.

Barriers take most of the time that products do not, so a tile has three: the next keys and the
values of this tile are written while weights are computed, when nobody reads either.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

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
from webnn_py.engines.webgpu.program.storage import Features, MatrixShape, literal
from webnn_py.ir import Node

_QUERY4 = declared("query4")
_WEIGHTS = declared("weights")
_SCORES = declared("scores")
_GROWN = declared("grown")
_SCORE = declared("score")

MAX_SCORE_RISE = 8.0
"""How far the binary logarithm of a weight may exceed that of its row's maximum.

Weights reach 2^8, which float16 holds as precisely as 1.
"""

LOG2_E = math.log2(math.e)

MAX_SIZE = 160
"""Depth of queries and keys, and width of values, that fit into registers."""

SIZES_OF_MORE_KEYS = range(65, 129)
"""Depths and widths whose tiles are faster with more keys: less is faster with less memory, and of
more, registers would spill."""

PADDING = 8
"""Elements between two rows in workgroup memory, so that they begin in different banks.

With it, neither stores of matrices nor loads of vec4s by adjacent invocations meet in a bank, if
invocations of a row take turns.
"""

MIN_WORKGROUPS = 100
"""Workgroups of the larger size that are enough to occupy a large GPU."""


@dataclass(frozen=True, slots=True)
class SubgroupTile:
    """Sizes of a workgroup's work.

    Attributes:
        keys: Keys of a tile.
        subgroups: Subgroups, of one matrix of rows each.
    """

    keys: int
    subgroups: int


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
        self.tile = tile = self._choose_tile()
        self.lanes = shape.invocations // shape.m
        self.invocations = tile.subgroups * shape.invocations
        self.tile_rows = tile.subgroups * shape.m
        self.score_stride = (tile.keys + PADDING) // 4
        self.weight_stride = (tile.keys + PADDING) // 4
        self.may_end_early = operands.may_end_early(tile.keys)

    def _choose_tile(self) -> SubgroupTile:
        """Return the tile: fewer subgroups where there are few or large rows."""
        size = max(self.deep, self.wide)
        workgroups = sampled(self.batches * -(-self.rows // (8 * self.shape.m)))
        is_many = workgroups >= MIN_WORKGROUPS and size < SIZES_OF_MORE_KEYS.stop
        return SubgroupTile(32 if size in SIZES_OF_MORE_KEYS else 16, 8 if is_many else 4)

    @property
    def _arrays(self) -> dict[str, WorkgroupArray]:
        rows, keys = self.tile_rows, self.tile.keys
        arrays = (
            WorkgroupArray("held_keys", "vec4<f16>", (keys * (self.deep + PADDING) // 4,)),
            WorkgroupArray("held_values", "vec4<f16>", (keys * (self.wide + PADDING) // 4,)),
            WorkgroupArray("scores", "vec4<f32>", (rows * self.score_stride,)),
            WorkgroupArray("weights", "vec4<f16>", (rows * self.weight_stride,)),
            # All sizes are multiples of 16 bytes: NVIDIA places arrays one behind the other, and
            # reads matrices from the wrong place where one begins elsewhere.
            WorkgroupArray("grown", "vec4<u32>", ()),
        )
        return {array.name: array for array in arrays}

    def fits(self, features: Features) -> bool:
        """Whether the device has the memory and invocations, and the sizes suit the kernel."""
        shape, keys = self.shape, self.tile.keys
        needed = sum(array.bytes for array in self._arrays.values())
        is_even = keys % shape.n == 0 and keys % shape.k == 0 and shape.invocations % shape.m == 0
        has_room = self.lanes <= PADDING // 4 and keys // 4 % self.lanes == 0
        return (
            is_even
            and has_room
            and max(self.deep, self.wide) <= MAX_SIZE
            and needed <= features.workgroup_bytes
            and self.invocations <= features.invocations
        )

    def kernel(self) -> Kernel:
        """Return the kernel with its fused epilogue."""
        builder, operands, keys = self.builder, self.operands, self.tile.keys
        builder.vector_out = builder.writes_vectors(self.width)
        emit_epilogue(builder, self.node)
        operands.add_loads("f16")
        operands.add_score()
        tiles = -(-self.rows // self.tile_rows)
        groups = grid(self.batches * tiles, builder.features.grid)
        place = place_in(groups).min(self.batches * tiles - 1)
        steps = -(-self.columns // keys)
        last_row = f"min(first_row + {u32(self.tile_rows)}, {u32(self.rows)}) - {u32(1)}"
        lane = symbol("lane", self.shape.invocations)
        lines = [
            f"let place = {place};",
            f"let batch = place / {divisor(tiles)};",
            f"let first_row = place % {divisor(tiles)} * {u32(self.tile_rows)};",
            f"let last_row = {last_row};",
            f"let key_batch = {operands.key_batch};",
            *operands.load_length("batch"),
            f"let end = {operands.end_key('last_row')};",
            f"let first_tile = {operands.first_key('first_row')} / {divisor(keys)};",
            f"let end_tile = (end + {u32(keys - 1)}) / {divisor(keys)};",
            f"let subgroup = t / {divisor(self.shape.invocations)};",
            f"let lane = t % {divisor(self.shape.invocations)};",
            f"let own = subgroup * {u32(self.shape.m)} + {lane // self.lanes};",
            f"let part = {lane % self.lanes};",
            f"let row = min(first_row + own, {u32(self.rows - 1)});",
            f"let here = own * {u32(self.score_stride)};",
            *self._bounds(),
            f"var top = {LOWEST_F32};",
            "var total = 0.0;",
            *(f"var sum{j}: {self._result};" for j in self._columns),
            *self._load_queries(),
            *(
                f"var {name}: vec4<f16>;"
                for keys in (True, False)
                for name, *_ in self._loads(keys)
            ),
            *self._load_tile(symbol("first_tile", steps), is_keys=True),
            *self._share_tile(is_keys=True),
            *self._load_tile(symbol("first_tile", steps) + 1, is_keys=True),
            *self._load_tile(symbol("first_tile", steps), is_keys=False),
            "workgroupBarrier();",
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
        """Emit the first and the last key that this query sees, and that all of them see."""
        if not self.may_end_early:
            return []
        operands = self.operands
        return [
            f"let low = vec4<u32>({operands.first_key('row')});",
            f"let high = vec4<u32>({operands.end_key('row')});",
            f"let whole_begin = {operands.first_key('last_row')};",
            f"let whole_end = {operands.end_key('first_row')};",
            f"let never = vec4<f32>({NEVER});",
        ]

    # Matrices

    @property
    def _result(self) -> str:
        return f"subgroup_matrix_result<f32, {self.shape.n}, {self.shape.m}>"

    @property
    def _columns(self) -> range:
        """The columns of matrices of sums."""
        return range(self.wide // self.shape.n)

    def _left(self, at: int) -> str:
        """Emit the load of a left matrix from this subgroup's weights, from column `at` on."""
        type_ = f"subgroup_matrix_left<f16, {self.shape.k}, {self.shape.m}>"
        place = f"{self._row * self.weight_stride + at // 4}, {u32(self.weight_stride)}"
        return f"subgroupMatrixLoad<{type_}, row_major>(&{_WEIGHTS}, {place})"

    def _right(self, array: str, key: int, at: int, size: int, order: str) -> str:
        """Emit the load of a right matrix from a tile of keys or values."""
        type_ = f"subgroup_matrix_right<f16, {self.shape.n}, {self.shape.k}>"
        stride = (size + PADDING) // 4
        place = u32(key * stride + at // 4)
        return f"subgroupMatrixLoad<{type_}, {order}>(&{declared(array)}, {place}, {u32(stride)})"

    @property
    def _row(self) -> Index:
        """This subgroup's first row."""
        return symbol("subgroup", self.tile.subgroups) * self.shape.m

    def _score_place(self, column: int) -> str:
        """Return where a result matrix lies in `scores`, and the stride."""
        return f"{self._row * self.score_stride + column // 4}, {u32(self.score_stride)}"

    # Loads

    def _load_queries(self) -> list[str]:
        """Emit the loads of this subgroup's queries into matrices, through `weights`."""
        lines = []
        fours = -(-self.depth // 4)
        for first in range(0, self.deep, self.tile.keys):
            part = min(self.tile.keys, self.deep - first) // 4
            for number, guard in self._tasks(self.tile_rows * part):
                item, four = number // part, number % part + first // 4
                row = f"min(first_row + {item}, {u32(self.rows - 1)})"
                value = _padded(f"{_QUERY4}(batch, {row}, {{}})", four, fours)
                place = item * self.weight_stride + number % part
                lines.append(f"{guard}{{ {_WEIGHTS}[{place}] = {value}; }}")
            lines.append("workgroupBarrier();")
            for step in range(part * 4 // self.shape.k):
                k = first // self.shape.k + step
                lines.append(f"let held_query{k} = {self._left(step * self.shape.k)};")
            lines.append("workgroupBarrier();")
        return lines

    def _tasks(self, count: int) -> Iterator[tuple[Index, str]]:
        """Yield the number of each task of this invocation, and its condition if it needs one."""
        for first in range(0, count, self.invocations):
            number = symbol("t", self.invocations) + first
            ragged = first + self.invocations > count
            yield number.below(count), f"if ({number} < {u32(count)}) " if ragged else ""

    def _loads(self, is_keys: bool) -> Iterator[tuple[str, Index, str]]:
        """Yield the register of each load of a tile of keys or values, its number and condition."""
        size = self.deep if is_keys else self.wide
        for i, (number, guard) in enumerate(self._tasks(self.tile.keys * size // 4)):
            yield f"next_{'key' if is_keys else 'value'}{i}", number, guard

    def _load_tile(self, tile: Index, is_keys: bool) -> list[str]:
        """Emit the loads of a tile of keys or values into registers."""
        lines = []
        size, whole = (self.deep, self.depth) if is_keys else (self.wide, self.width)
        for name, number, guard in self._loads(is_keys):
            key, four = tile * self.tile.keys + number // (size // 4), number % (size // 4)
            function = declared("key4" if is_keys else "value4")
            at = f"min({key}, {u32(self.columns - 1)})"
            value = _padded(f"{function}(key_batch, {at}, {{}})", four, -(-whole // 4))
            if not is_keys and self.may_end_early:
                # Infinite values beyond the end would give NaN at weight 0.
                value = f"select(vec4<f16>(), {value}, {key} < end)"
            lines.append(f"{guard}{{ {name} = {value}; }}")
        return lines

    def _share_tile(self, is_keys: bool) -> list[str]:
        """Emit the writes of the loaded keys or values to workgroup memory."""
        lines = []
        array, size = ("held_keys", self.deep) if is_keys else ("held_values", self.wide)
        for name, number, guard in self._loads(is_keys):
            fours = size // 4
            place = number // fours * (fours + PADDING // 4) + number % fours
            lines.append(f"{guard}{{ {declared(array)}[{place}] = {name}; }}")
        return lines

    # One tile of keys

    def _tile(self, steps: int) -> list[str]:
        tile = symbol("tile", steps)
        return [
            *self._score_products(),
            "workgroupBarrier();",
            *self._share_tile(is_keys=True),
            *self._share_tile(is_keys=False),
            *self._softmax_weights(),
            f"if (workgroupUniformLoad(&{_GROWN}).x == tile + {u32(1)}) {{",
            *self._raise_maximum(),
            "}",
            *self._load_tile(tile + 2, is_keys=True),
            *self._load_tile(tile + 1, is_keys=False),
            *self._add_values(),
        ]

    def _score_products(self) -> list[str]:
        """Emit the products of queries and keys, stored as scores."""
        shape = self.shape
        lines = []
        for j in range(self.tile.keys // shape.n):
            # Without an initial value, naga keeps what the iteration before left.
            lines += ["{", f"var products = {self._result}();"]
            for k in range(self.deep // shape.k):
                key = self._right("held_keys", j * shape.n, k * shape.k, self.deep, "col_major")
                lines.append(
                    f"products = subgroupMatrixMultiplyAccumulate(held_query{k}, {key}, products);"
                )
            lines += [self._store_scores(j * shape.n, "products"), "}"]
        return lines

    def _store_scores(self, column: int, matrix: str) -> str:
        place, stride = self._score_place(column).split(", ")
        return f"subgroupMatrixStore<row_major>(&{_SCORES}, {place}, {matrix}, {stride});"

    def _softmax_weights(self) -> list[str]:
        """Emit the weights of this invocation's part of its row, by the maximum so far."""
        lines = [
            f"let first = tile * {u32(self.tile.keys)};",
            "var most = vec4<f32>();",
            "var added = vec4<f32>();",
        ]
        if self.may_end_early:
            within = f"first >= whole_begin && first + {u32(self.tile.keys)} <= whole_end"
            lines += [f"if ({within}) {{", *self._weights(False), "} else {"]
            lines += [*self._weights(True), "}"]
        else:
            lines += self._weights(False)
        return [
            *lines,
            f"if (max(max(most.x, most.y), max(most.z, most.w)) > {MAX_SCORE_RISE}) {{"
            f" {_GROWN}.x = tile + {u32(1)}; }}",
            "let before = total;",
            "total += added.x + added.y + added.z + added.w;",
        ]

    def _weights(self, masked: bool) -> list[str]:
        """Emit the weights of this invocation's keys, their sum and the greatest logarithm."""
        lines = []
        own = self.tile.keys // 4 // self.lanes
        for n in range(own):
            four = self._four(n)
            lines += [
                f"let s{n} = {_SCORES}[here + {four}];",
                f"let y{n} = {self._logarithms(f's{n}', four, masked, '-top')};",
                f"let w{n} = exp2(y{n});",
                f"{_WEIGHTS}[own * {u32(self.weight_stride)} + {four}] = vec4<f16>(w{n});",
                f"most = max(most, y{n});",
                f"added += w{n};",
            ]
        return lines

    def _four(self, n: int) -> str:
        """Return the place of this invocation's n-th vec4 of scores among those of its row."""
        return str(symbol("part", self.lanes) + n * self.lanes)

    def _logarithms(self, scores: str, four: str, masked: bool, plus: str) -> str:
        """Emit the binary logarithms of four weights, with a number added to them.

        Args:
            scores: The four products of the query and the keys.
            four: The place of the four among the tile's keys.
            masked: Whether the query may not see all of them.
            plus: The number.
        """
        changes = self.operands.what.changes
        columns = [f"first + ({four}) * {u32(4)} + {u32(n)}" for n in range(4)]
        factor = LOG2_E
        if all(change.kind == "scale" for change in changes):
            factor *= math.prod(change.number for change in changes)
        else:
            at = (f"min({column}, {u32(self.columns - 1)})" for column in columns)
            each = (
                f"{_SCORE}(batch, row, {column}, {scores}.{lane})"
                for column, lane in zip(at, "xyzw", strict=True)
            )
            scores = f"vec4<f32>({', '.join(each)})"
        value = f"fma({scores}, vec4<f32>({literal(factor, 'f32')}), vec4<f32>({plus}))"
        if not masked:
            return value
        inside = self.operands.sees(f"vec4<u32>({', '.join(columns)})", "low", "high")
        return f"select(never, {value}, {inside})"

    def _raise_maximum(self) -> list[str]:
        """Emit weights by a higher maximum of each row, and the sums rescaled to it."""
        fours = self.tile.keys // 4
        score = self._logarithms("s", "n", self.may_end_early, "0.0")
        return [
            "var higher = vec4<f32>(top);",
            loop(f"for (var n = 0u; n < {u32(fours)}; n++)", fours),
            f"let s = {_SCORES}[here + n];",
            f"higher = max(higher, {score});",
            END_LOOP,
            "let highest = max(max(higher.x, higher.y), max(higher.z, higher.w));",
            "let less = exp2(top - highest);",
            "top = highest;",
            "added = vec4<f32>();",
            *self._weights(self.may_end_early),
            "total = before * less + added.x + added.y + added.z + added.w;",
            "workgroupBarrier();",
            *self._rescale(),
        ]

    def _chunks(self) -> Iterator[range]:
        """Yield the columns of matrices of sums, as many at a time as `scores` has."""
        across = self.tile.keys // self.shape.n
        for first in range(0, len(self._columns), across):
            yield self._columns[first : first + across]

    def _store_chunk(self, chunk: range) -> list[str]:
        """Emit the stores of some sums to `scores`."""
        return [self._store_scores(i * self.shape.n, f"sum{j}") for i, j in enumerate(chunk)]

    def _rescale(self) -> list[str]:
        """Emit the multiplication of the sums of each row by its `less`."""
        lines = []
        own = self.tile.keys // 4 // self.lanes
        for chunk in self._chunks():
            lines += [
                *self._store_chunk(chunk),
                "workgroupBarrier();",
                *(f"{_SCORES}[here + part * {u32(own)} + {u32(n)}] *= less;" for n in range(own)),
                "workgroupBarrier();",
            ]
            for i, j in enumerate(chunk):
                load = f"(&{_SCORES}, {self._score_place(i * self.shape.n)})"
                lines.append(f"sum{j} = subgroupMatrixLoad<{self._result}, row_major>{load};")
            lines.append("workgroupBarrier();")
        return lines

    def _add_values(self) -> list[str]:
        """Emit the products of weights and values, added to the sums."""
        shape = self.shape
        lines = []
        for k in range(self.tile.keys // shape.k):
            lines += ["{", f"let weight = {self._left(k * shape.k)};"]
            for j in self._columns:
                at = j * shape.n
                value = self._right("held_values", k * shape.k, at, self.wide, "row_major")
                lines.append(f"sum{j} = subgroupMatrixMultiplyAccumulate(weight, {value}, sum{j});")
            lines.append("}")
        return lines

    # After the last tile

    def _finish(self) -> list[str]:
        """Emit the division by the sums of weights, and the stores."""
        fours = self.tile.keys // 4
        # Behind each row's scores.
        lines = [f"{_SCORES}[here + {u32(fours)} + part] = vec4<f32>(total);"]
        for chunk in self._chunks():
            first = chunk[0] * self.shape.n
            lines += [*self._store_chunk(chunk), "workgroupBarrier();"]
            for task, guard in self._tasks(self.tile_rows * fours):
                item, four = task // fours, task % fours
                places = (item * self.score_stride + fours + n for n in range(self.lanes))
                total = f"({' + '.join(f'{_SCORES}[{place}].x' for place in places)})"
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
                    f"let sum = {_SCORES}[{item * self.score_stride + four}];",
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

"""Attention of few queries and many keys, as a decoder computes for each token.

The keys are divided among workgroups (flash decoding). A workgroup reads its keys and values once
for all queries of a group of heads, and keeps their sums. Where several workgroups have keys of one
query, a second kernel combines their sums. Keys that no query sees are not read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

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
from webnn_py.engines.webgpu.compiler.kernel_builder import OUT, KernelBuilder, Make
from webnn_py.engines.webgpu.compiler.kernels.attention_operands import (
    LOWEST_F32,
    NEVER,
    AttentionOperands,
    tree,
)
from webnn_py.engines.webgpu.compiler.kernels.epilogue import PUT, PUT4, emit_epilogue
from webnn_py.engines.webgpu.program.pieces import END_LOOP, declared, divisor, loop, u32
from webnn_py.ir import Node, Value

_QUERY4, _KEY4, _VALUE4 = declared("query4"), declared("key4"), declared("value4")
_SCORE = declared("score")
_QUERIES, _PARTIALS = declared("queries"), declared("partials")
_WEIGHTS, _EXCHANGED, _FACTORS = declared("weights"), declared("exchanged"), declared("factors")

MAX_QUERIES = 8
"""Queries of a workgroup; their sums lie in registers."""

MAX_DEPTH_OF_ALL = 128
"""Depth from which workgroup memory has no place for as many queries."""

INVOCATIONS = 128
"""Invocations of a workgroup; every device has 256."""

LANES = 4
"""Invocations that share the depth of one key: they read 16 adjacent elements at a time."""

KEYS = 64
"""Keys of a tile."""

COMBINERS = 128
"""Invocations that combine the parts of one query."""

MAXIMA = 32
"""Invocations that look for the greatest score of one query; each reads what all have found."""

MAX_WORKGROUPS = 1024
"""Workgroups that occupy a large GPU; more keys make parts of several tiles."""

MAX_EARLY_LOADS = 16
"""Vec4s of values that an invocation loads before it needs them, to wait for memory once."""

MAX_ROW_LANES = 16
"""Invocations that share the keys of a query; each reads the maxima of all of them."""

MAX_UNROLLED_STEPS = 4
"""Steps along the depth that are written out."""


def emit(make: Make, node: Node) -> list[Kernel] | None:
    """Return the kernels of a node of ATTENTION with few rows; None if a binding is too small."""
    builder = make()
    plan = _Plan(AttentionOperands(builder, node))
    if plan.parts == 1:
        return [_PartKernel(builder, node, plan, final=True).kernel()]
    sums = Value("float32", (plan.parts, plan.all_queries, plan.sums_vectors * 4), "sums")
    if not builder.is_whole(sums):
        return None
    part = _PartKernel(make(sums), node, plan, final=False)
    return [part.kernel(), _combine(builder, node, plan, sums)]


class _Plan:
    """How queries, keys and invocations are divided.

    Args:
        operands: Operands of the node.

    Attributes:
        queries: Queries that share a matrix of keys.
        all_queries: Queries of all batches.
        own: Queries of a workgroup.
        chunks: Workgroups for the queries that share keys.
        room: Vec4s of each invocation that fit into workgroup memory at the end.
        part_keys: Keys of a workgroup.
        parts: Workgroups for the keys of a query.
    """

    def __init__(self, operands: AttentionOperands) -> None:
        self.group, self.rows = operands.what.group, operands.rows
        self.queries = self.group * self.rows
        self.all_queries = operands.batches * self.rows
        self.key_batches = operands.batches // self.group
        self.fours = -(-operands.depth // 4)
        self.steps = -(-self.fours // LANES)
        most = MAX_QUERIES if operands.depth <= MAX_DEPTH_OF_ALL else MAX_QUERIES // 2
        self.chunks = -(-self.queries // most)
        self.own = most if self.queries >= most else self.queries
        self.value_vectors = -(-operands.width // 4)
        self.across = min(32, max(INVOCATIONS // KEYS, _power(self.value_vectors)))
        self.width_vectors = -(-self.value_vectors // self.across)
        self.value_groups = INVOCATIONS // self.across
        workgroups = sampled(self.key_batches * self.chunks * -(-operands.columns // KEYS))
        self.part_keys = KEYS * _power(-(-workgroups // MAX_WORKGROUPS))
        self.parts = -(-operands.columns // self.part_keys)
        self.room = min(LANES * KEYS // INVOCATIONS * -(-self.own // 4), self.value_groups)
        # Each part of a query has its sums, then its maximum and its sum of weights.
        self.sums_vectors = self.value_vectors + 1
        self.row_lanes = min(MAX_ROW_LANES, INVOCATIONS // _power(self.own))

    @property
    def arrays(self) -> tuple[WorkgroupArray, ...]:
        """The workgroup arrays, of less than 16 KiB."""
        fours = -(-self.own // 4)
        return (
            WorkgroupArray("queries", "vec4<f32>", (self.own * self.fours,)),
            WorkgroupArray("partials", "vec4<f32>", (KEYS * LANES * fours,)),
            WorkgroupArray("weights", "f32", (KEYS * self.own,)),
            WorkgroupArray("exchanged", "f32", (INVOCATIONS,)),
            WorkgroupArray("factors", "f32", (self.own,)),
        )


class _PartKernel:
    """Emitter of the kernel that computes the sums of some queries over a part of the keys.

    First, an invocation is one of `LANES` along the depth of some keys, for all queries. Then it
    has some keys of one query, to compute their weights. At last it has some columns of the values
    of some keys, for all queries.

    Args:
        builder: The kernel's builder.
        node: A node of ATTENTION.
        plan: The division.
        final: Whether the part has all keys.
    """

    def __init__(self, builder: KernelBuilder, node: Node, plan: _Plan, final: bool) -> None:
        self.builder, self.node, self.plan, self.final = builder, node, plan, final
        self.operands = AttentionOperands(builder, node)
        self.tiles = plan.part_keys // KEYS
        self.may_end_early = self.operands.may_end_early(plan.part_keys)

    def kernel(self) -> Kernel:
        """Return the kernel, with the fused epilogue if it is the only one."""
        builder, plan, operands = self.builder, self.plan, self.operands
        if self.final:
            builder.vector_out = builder.writes_vectors(operands.width)
            emit_epilogue(builder, self.node)
        else:
            builder.vector_out = True
        operands.add_loads("f32")
        operands.add_score()
        count = plan.key_batches * plan.chunks * plan.parts
        groups = grid(count, builder.features.grid)
        lines = [
            f"let place = {place_in(groups).min(count - 1)};",
            f"let part = place % {divisor(plan.parts)};",
            f"let chunk = place / {divisor(plan.parts)} % {divisor(plan.chunks)};",
            f"let key_batch = place / {divisor(plan.parts * plan.chunks)};",
            *self._range(),
            f"let slot = t / {divisor(LANES)};",
            f"let lane = t % {divisor(LANES)};",
            f"let own = t / {divisor(plan.row_lanes)};",
            f"let own_lane = t % {divisor(plan.row_lanes)};",
            f"let value_lane = t % {divisor(plan.across)};",
            f"let value_group = t / {divisor(plan.across)};",
            *self._own_query(),
            *self._load_queries(),
            f"var top = {LOWEST_F32};",
            "var total = 0.0;",
            *(f"var sum{h}_{n} = vec4<f32>();" for h, n in self._sums),
            *self._tiles(),
            *self._finish(),
        ]
        entry = EntryPoint.of(
            INVOCATIONS, BY_WORKGROUP, [f"  {line}" for line in lines], plan.arrays
        )
        return builder.finish(self.node.op, entry, groups)

    @property
    def _sums(self) -> list[tuple[int, int]]:
        """Index pairs of an invocation's sums: query, vec4 of the width."""
        return [(h, n) for h in range(self.plan.own) for n in range(self.plan.width_vectors)]

    def _query(self, own: str) -> str:
        """Return the number of a workgroup's query among those that share the keys."""
        plan = self.plan
        if plan.chunks == 1:
            return own
        return f"min(chunk * {u32(plan.own)} + {own}, {u32(plan.queries - 1)})"

    def _range(self) -> list[str]:
        """Emit the keys of this part that some query sees; parts without any have no work."""
        plan, operands = self.plan, self.operands
        begin, end = operands.first_key(f"{u32(0)}"), operands.end_key(f"{u32(plan.rows - 1)}")
        part = f"part * {u32(plan.part_keys)}"
        lines = [f"let first_batch = {_product('key_batch', plan.group)};"]
        lines += operands.load_length("first_batch")
        lines.append(f"let end = min({end}, {part} + {u32(plan.part_keys)});")
        lines.append(f"let begin = max({begin}, {part}) / {divisor(KEYS)} * {u32(KEYS)};")
        if not self.final and operands.what.is_bounded:
            lines.append("if (begin >= end) { return; }")
        return lines

    def _own_query(self) -> list[str]:
        """Emit the place of the query whose weights this invocation computes, and its bounds."""
        plan, operands = self.plan, self.operands
        query = self._query(f"min(own, {u32(plan.own - 1)})")
        return [
            f"let query = {query};",
            f"let row = query % {divisor(plan.rows)};",
            f"let batch = first_batch + query / {divisor(plan.rows)};",
            f"let low = {operands.first_key('row')};",
            f"let high = {operands.end_key('row')};",
        ]

    def _load_queries(self) -> list[str]:
        """Emit the loads of the workgroup's queries."""
        plan = self.plan
        lines = []
        for task, guard in self._tasks(plan.own * plan.fours):
            query = self._query(f"{task // plan.fours}")
            lines += [
                f"{guard}{{",
                f"let loaded = {query};",
                f"let of_batch = first_batch + loaded / {divisor(plan.rows)};",
                f"{_QUERIES}[{task}] ="
                f" {_QUERY4}(of_batch, loaded % {divisor(plan.rows)}, {task % plan.fours});",
                "}",
            ]
        return lines

    def _tasks(self, count: int) -> Iterator[tuple[Index, str]]:
        """Yield the number of each task of this invocation, and its condition if it needs one."""
        for first in range(0, count, INVOCATIONS):
            number = symbol("t", INVOCATIONS) + first
            ragged = first + INVOCATIONS > count
            yield number.below(count), f"if ({number} < {u32(count)}) " if ragged else ""

    # One tile of keys

    def _tiles(self) -> list[str]:
        if self.tiles == 1 and not self.operands.what.is_bounded:
            return ["let first = begin;", *self._tile()]
        head = f"for (var first = begin; first < end; first += {u32(KEYS)})"
        return [loop(head, self.tiles), *self._tile(), END_LOOP]

    def _tile(self) -> list[str]:
        keys = range(KEYS // self.plan.value_groups)
        loads = [
            f"let value{n}_{j} = {self._value(n, j)};"
            for j in keys
            for n in range(self.plan.width_vectors)
        ]
        early = len(loads) <= MAX_EARLY_LOADS
        return [
            "workgroupBarrier();",
            *self._products(),
            *(loads if early else []),
            "workgroupBarrier();",
            *self._softmax_weights(),
            *([] if early else loads),
            *self._add_values(),
        ]

    def _key(self, key: str) -> str:
        """Return the number of a key, or of the last one instead of those behind it."""
        columns = self.operands.columns
        return f"min({key}, {u32(columns - 1)})" if self.may_end_early else key

    def _value(self, vector: int, step: int) -> str:
        plan = self.plan
        key = f"first + value_group + {u32(step * plan.value_groups)}"
        four = symbol("value_lane", plan.across) + vector * plan.across
        value = f"{_VALUE4}(key_batch, {self._key(key)}, {four.min(plan.value_vectors - 1)})"
        if self.may_end_early:  # what lies behind the end may be infinite
            value = f"select(vec4<f32>(), {value}, {key} < end)"
        return value

    def _products(self) -> list[str]:
        """Emit the products of all queries with this invocation's parts of keys."""
        plan = self.plan
        slots = INVOCATIONS // LANES
        keys, fours = range(KEYS // slots), -(-plan.own // 4)
        lines = [f"var part{h}_{k} = 0.0;" for h in range(plan.own) for k in keys]
        lines += [f"let key{k} = {self._key(f'first + slot + {u32(k * slots)}')};" for k in keys]
        copies = min(plan.steps, MAX_UNROLLED_STEPS)
        rounds = -(-plan.steps // copies)
        if rounds > 1:
            head = f"for (var step = 0u; step < {u32(rounds * copies)}; step += {u32(copies)})"
            lines.append(loop(head, rounds))
        at = symbol("step", plan.steps) if rounds > 1 else symbol("step", 1) * 0
        whole = plan.fours == rounds * copies * LANES
        for copy in range(copies):
            own_four = (at + copy) * LANES + symbol("lane", LANES)
            placed = own_four if whole else own_four.min(plan.fours - 1)
            lines.append(f"let four{copy} = {placed};")
            for k in keys:
                value = f"{_KEY4}(key_batch, key{k}, four{copy})"
                if not whole:
                    value = f"select(vec4<f32>(), {value}, {own_four} < {u32(plan.fours)})"
                lines.append(f"let k{copy}_{k} = {value};")
        for copy in range(copies):
            for h in range(plan.own):
                query = f"{_QUERIES}[{u32(h * plan.fours)} + four{copy}]"
                lines.append(f"let q{copy}_{h} = {query};")
                lines += [f"part{h}_{k} += dot(q{copy}_{h}, k{copy}_{k});" for k in keys]
        if rounds > 1:
            lines.append(END_LOOP)
        for k in keys:
            place = f"((slot + {u32(k * slots)}) * {u32(LANES)} + lane) * {u32(fours)}"
            for vector in range(fours):
                parts = [
                    f"part{h}_{k}" if h < plan.own else "0.0"
                    for h in range(4 * vector, 4 * vector + 4)
                ]
                value = f"vec4<f32>({', '.join(parts)})"
                lines.append(f"{_PARTIALS}[{place} + {u32(vector)}] = {value};")
        return lines

    def _softmax_weights(self) -> list[str]:
        """Emit the weights of this invocation's keys for its query."""
        plan = self.plan
        fours, count = -(-plan.own // 4), KEYS // plan.row_lanes
        lines = [f"let known = min(own, {u32(plan.own - 1)});"]
        for j in range(count):
            key = f"own_lane + {u32(j * plan.row_lanes)}"
            terms = [
                f"{_PARTIALS}[(({key}) * {u32(LANES)} + {u32(lane)}) * {u32(fours)} + known / 4u]"
                "[known % 4u]"
                for lane in range(LANES)
            ]
            score = f"{_SCORE}(batch, row, {self._key(f'first + {key}')}, {' + '.join(terms)})"
            if self.may_end_early:
                inside = self.operands.sees(f"(first + {key})", "low", "high")
                score = f"select({NEVER}, {score}, {inside})"
            lines.append(f"let score{j} = {score};")
        others = [f"{_EXCHANGED}[t - own_lane + {u32(n)}]" for n in range(plan.row_lanes)]
        lines += [
            f"{_EXCHANGED}[t] = {tree('max', [f'score{j}' for j in range(count)])};",
            "workgroupBarrier();",
            f"let greatest = max(top, {tree('max', others)});",
            "let less = exp(top - greatest);",
            "top = greatest;",
            *(f"let weight{j} = exp(score{j} - greatest);" for j in range(count)),
            f"total = total * less + {tree('+', [f'weight{j}' for j in range(count)])};",
            f"if (own < {u32(plan.own)}) {{",
            *(
                f"{_WEIGHTS}[(own_lane + {u32(j * plan.row_lanes)}) * {u32(plan.own)} + own]"
                f" = weight{j};"
                for j in range(count)
            ),
            f"{_FACTORS}[own] = less;",
            "}",
            "workgroupBarrier();",
        ]
        return lines

    def _add_values(self) -> list[str]:
        """Emit the products of weights with this invocation's columns of values."""
        plan = self.plan
        lines = []
        if self.tiles > 1:
            lines += [f"sum{h}_{n} *= {_FACTORS}[{u32(h)}];" for h, n in self._sums]
        for j in range(KEYS // plan.value_groups):
            key = f"(value_group + {u32(j * plan.value_groups)})"
            for h in range(plan.own):
                weight = f"{_WEIGHTS}[{key} * {u32(plan.own)} + {u32(h)}]"
                lines.append(f"let w{h}_{j} = vec4<f32>({weight});")
            lines += [
                f"sum{h}_{n} = fma(w{h}_{j}, value{n}_{j}, sum{h}_{n});" for h, n in self._sums
            ]
        return lines

    # After the last tile

    def _finish(self) -> list[str]:
        """Emit the sums over the invocations that had different keys, and the stores."""
        plan = self.plan
        lanes = [
            f"{_EXCHANGED}[own * {u32(plan.row_lanes)} + {u32(n)}]" for n in range(plan.row_lanes)
        ]
        lines = [
            "workgroupBarrier();",
            f"{_EXCHANGED}[t] = total;",
            "workgroupBarrier();",
            f"if (own < {u32(plan.own)} && own_lane == 0u) {{",
            f"let whole = {tree('+', lanes)};",
            f"{_FACTORS}[own] = whole;",
            *([] if self.final else self._store_maximum()),
            "}",
        ]
        for begin in range(0, len(self._sums), plan.room):
            pairs = self._sums[begin : begin + plan.room]
            lines.append("workgroupBarrier();")
            lines += [
                f"{_PARTIALS}[{u32(n * INVOCATIONS)} + t] = sum{h}_{v};"
                for n, (h, v) in enumerate(pairs)
            ]
            lines += ["workgroupBarrier();", *self._whole_sums(begin, len(pairs))]
        return lines

    def _store_maximum(self) -> list[str]:
        """Emit the store of a query's maximum and sum of weights behind its sums."""
        plan = self.plan
        place = f"{self._sums_place('query')} + {u32(plan.value_vectors)}"
        store = f"{OUT}[{place}] = vec4<f32>(top, whole, 0.0, 0.0);"
        return [self._if_query("own", store)]

    def _if_query(self, own: str, statement: str) -> str:
        """Emit a statement for a query of the workgroup, if there is one."""
        plan = self.plan
        if plan.queries == plan.chunks * plan.own:
            return statement
        return f"if (chunk * {u32(plan.own)} + {own} < {u32(plan.queries)}) {{ {statement} }}"

    def _sums_place(self, query: str) -> str:
        """Return where the sums of a query begin, in vec4s."""
        plan = self.plan
        number = f"part * {u32(plan.all_queries)} + key_batch * {u32(plan.queries)} + {query}"
        return f"({number}) * {u32(plan.sums_vectors)}"

    def _whole_sums(self, begin: int, count: int) -> list[str]:
        """Emit the sums of vec4s over all invocations, and their stores: a vec4 for each group."""
        plan, width = self.plan, self.operands.width
        pair = symbol("value_group", count) + begin
        four = pair % plan.width_vectors * plan.across + symbol("value_lane", plan.across)
        own = (pair // plan.width_vectors).enclosed
        query = self._query(own)
        first = f"{_PARTIALS}[value_group * {u32(INVOCATIONS)} + value_lane"
        if self.final:
            place = f"(key_batch * {u32(plan.queries)} + {query}) * {u32(width)}"
            quotient = self.operands.quotient("whole", f"{_FACTORS}[{own}]")
            put = [f"let result = {quotient};", *put_four(self.builder, place, four, width)]
        else:
            put = [f"{OUT}[{self._sums_place(query)} + {four}] = whole;"]
        if four.high >= plan.value_vectors:
            put = [f"if ({four} < {u32(plan.value_vectors)}) {{", *put, "}"]
        return [
            f"if (value_group < {u32(count)}) {{",
            "var whole = vec4<f32>();",
            loop(
                f"for (var group = 0u; group < {u32(plan.value_groups)}; group++)",
                plan.value_groups,
            ),
            f"whole += {first} + group * {u32(plan.across)}];",
            END_LOOP,
            self._if_query(own, "\n".join(put)),
            "}",
        ]


def _combine(builder: KernelBuilder, node: Node, plan: _Plan, sums: Value) -> Kernel:
    """Return the kernel that combines the parts' sums of each query, with the fused epilogue."""
    operands = AttentionOperands(builder, node)
    builder.vector_out = builder.writes_vectors(operands.width)
    emit_epilogue(builder, node)
    load = builder.vector(sums)
    assert load is not None
    count = plan.all_queries
    groups = grid(count, builder.features.grid)
    lines = [
        f"let query = {place_in(groups).min(count - 1)};",
        f"let batch = query / {divisor(plan.rows)};",
        f"let row = query % {divisor(plan.rows)};",
        *operands.load_length("batch"),
        f"let begin = {operands.first_key('row')} / {divisor(plan.part_keys)};",
        f"let end = ({operands.end_key('row')} + {u32(plan.part_keys - 1)})"
        f" / {divisor(plan.part_keys)};",
        f"let first = query * {u32(plan.sums_vectors)};",
        *_find_greatest(plan, load),
        *_add_parts(plan, load),
        *_put_sums(builder, plan, operands),
    ]
    arrays = (
        WorkgroupArray("exchanged", "f32", (COMBINERS,)),
        WorkgroupArray("partials", "vec4<f32>", (COMBINERS,)),
    )
    entry = EntryPoint.of(COMBINERS, BY_WORKGROUP, [f"  {line}" for line in lines], arrays)
    return builder.finish(node.op, entry, groups)


def _find_greatest(plan: _Plan, load: Callable[[str], str]) -> list[str]:
    """Emit the search for `greatest`, the greatest score of all parts."""
    stride = plan.all_queries * plan.sums_vectors
    extremes = [f"{_EXCHANGED}[{u32(n)}]" for n in range(MAXIMA)]
    return [
        f"var top = {LOWEST_F32};",
        f"let own = select(end, begin + t, t < {u32(MAXIMA)});",
        loop(f"for (var part = own; part < end; part += {u32(MAXIMA)})", -(-plan.parts // MAXIMA)),
        f"top = max(top, {load(f'part * {u32(stride)} + first + {u32(plan.value_vectors)}')}.x);",
        END_LOOP,
        f"{_EXCHANGED}[t] = top;",
        "workgroupBarrier();",
        f"let greatest = {tree('max', extremes)};",
    ]


def _add_parts(plan: _Plan, load: Callable[[str], str]) -> list[str]:
    """Emit the sums of every `around`-th part: `total` of the weights, and `sum0`... of values."""
    around = COMBINERS // plan.across
    lines = [
        f"let lane = t % {divisor(plan.across)};",
        f"let group = t / {divisor(plan.across)};",
        "var total = 0.0;",
        *(f"var sum{n} = vec4<f32>();" for n in range(plan.width_vectors)),
        loop(
            f"for (var part = begin + group; part < end; part += {u32(around)})",
            -(-plan.parts // around),
        ),
        f"let place = part * {u32(plan.all_queries * plan.sums_vectors)} + first;",
        f"let weights = {load(f'place + {u32(plan.value_vectors)}')};",
        "let factor = exp(weights.x - greatest);",
        "total += weights.y * factor;",
    ]
    for n in range(plan.width_vectors):
        four = symbol("lane", plan.across) + n * plan.across
        lines.append(f"sum{n} += {load(f'place + {four.min(plan.value_vectors - 1)}')} * factor;")
    return [*lines, END_LOOP]


def _put_sums(builder: KernelBuilder, plan: _Plan, operands: AttentionOperands) -> list[str]:
    """Emit the sums over a workgroup, and the store of the quotients."""
    around = COMBINERS // plan.across
    totals = [f"{_EXCHANGED}[{u32(group * plan.across)}]" for group in range(around)]
    lines = ["workgroupBarrier();", f"{_EXCHANGED}[t] = total;", "workgroupBarrier();"]
    lines.append(f"let whole = {tree('+', totals)};")
    for n in range(plan.width_vectors):
        four = symbol("lane", plan.across) + n * plan.across
        terms = [f"{_PARTIALS}[{u32(group * plan.across)} + lane]" for group in range(around)]
        inside = "group == 0u"
        if four.high >= plan.value_vectors:
            inside += f" && {four} < {u32(plan.value_vectors)}"
        lines += [
            "workgroupBarrier();",
            f"{_PARTIALS}[t] = sum{n};",
            "workgroupBarrier();",
            f"if ({inside}) {{",
            f"let sum = {tree('+', terms)};",
            f"let result = {operands.quotient('sum', 'whole')};",
            *put_four(builder, f"query * {u32(operands.width)}", four, operands.width),
            "}",
        ]
    return lines


def put_four(builder: KernelBuilder, first: str, four: Index, width: int) -> list[str]:
    """Emit the store of a vec4, `result`, of the row that begins at an index."""
    if builder.vector_out:
        return [f"{PUT4}({first} + {four * 4}, result);"]
    lines = []
    for n, lane in enumerate("xyzw"):
        column = four * 4 + n
        put = f"{PUT}({first} + {column}, result.{lane});"
        lines.append(put if column.high < width else f"if ({column} < {u32(width)}) {{ {put} }}")
    return lines


def _power(number: int) -> int:
    """Return the least power of two that is at least `number`."""
    return 1 << max(0, number - 1).bit_length()


def _product(name: str, factor: int) -> str:
    """Emit a name times a number."""
    return name if factor == 1 else f"{name} * {u32(factor)}"

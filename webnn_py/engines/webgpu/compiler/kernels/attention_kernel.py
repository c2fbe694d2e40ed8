"""Attention in one kernel: a workgroup takes some queries of one batch through all keys.

Tiles of keys pass through workgroup memory. An online softmax keeps the maximum score and the sum
of exponentials, and rescales the sums of values when the maximum grows. The matrix of scores never
reaches memory.
"""

from __future__ import annotations

import math

from webnn_py.core.traced_queries import require_below, sampled
from webnn_py.engines.webgpu.compiler.attention_tile import (
    ACROSS,
    DEPTH,
    DOWN,
    TEAM,
    tile_for,
)
from webnn_py.engines.webgpu.compiler.code.index import Index, constant, symbol
from webnn_py.engines.webgpu.compiler.kernel import (
    BY_WORKGROUP,
    EntryPoint,
    Kernel,
    WorkgroupArray,
    grid,
    place_in,
)
from webnn_py.engines.webgpu.compiler.kernel_builder import KernelBuilder, Make
from webnn_py.engines.webgpu.compiler.kernels import attention_few_rows
from webnn_py.engines.webgpu.compiler.kernels.attention_operands import (
    LOWEST_F32,
    NEVER,
    AttentionOperands,
    Reduction,
    tree,
)
from webnn_py.engines.webgpu.compiler.kernels.attention_subgroup import SubgroupAttention
from webnn_py.engines.webgpu.compiler.kernels.epilogue import PUT, PUT4, emit_epilogue
from webnn_py.engines.webgpu.compiler.kernels.matmul_kernel import product_type
from webnn_py.engines.webgpu.compiler.legalize.attention import MIN_QUERY_ROWS
from webnn_py.engines.webgpu.program.pieces import END_LOOP, declared, divisor, loop, u32
from webnn_py.ir import Node

MAX_KEYS_IN_LOOPS = 1 << 14
"""Keys up to which no loop needs to be written out; with `MAX_KEYS`, those below suffice."""

MAX_COPIES = 8
"""Copies of the code for the values of one key."""

_QUERIES = declared("queries")
_HELD = declared("held")
_WEIGHTS = declared("weights")
_EXCHANGED = declared("exchanged")
_SCORE = declared("score")
_VALUE4 = declared("value4")


def emit(make: Make, node: Node) -> list[Kernel]:
    """Return the kernels of a node of ATTENTION."""
    builder = make()
    features = builder.features
    rows = node.output.shape[-2]
    # The other kernels serve few rows too, until those for them are compiled.
    if sampled(rows) < MIN_QUERY_ROWS:
        require_below(rows, MIN_QUERY_ROWS)
        kernels = attention_few_rows.emit(make, node)
        if kernels is not None:
            return kernels
    if (
        features.f16_matrix is not None
        and product_type(builder, node, *tuple(node.operands)[:3]) == "f16"
    ):
        by_matrices = SubgroupAttention(builder, node, features.f16_matrix)
        if by_matrices.fits(features):
            return [by_matrices.kernel()]
    return [_AttentionKernel(builder, node).kernel()]


class _AttentionKernel:
    """Emitter of one attention kernel.

    Invocations of a workgroup form teams. A team is a grid of `DOWN` groups of queries by `ACROSS`
    groups of keys. Each team takes a tile of keys of its own; the teams' results are merged at the
    end.
    """

    def __init__(self, builder: KernelBuilder, node: Node) -> None:
        self.builder, self.node = builder, node
        self.operands = operands = AttentionOperands(builder, node)
        self.rows, self.width, self.batches = operands.rows, operands.width, operands.batches
        self.depth, self.columns = operands.depth, operands.columns
        self.compute = product_type(builder, node, operands.queries, operands.keys, operands.values)
        self.tile = tile = tile_for(node, self.compute, builder.features)
        # The depth in vec4s, in equal parts.
        fours = -(-self.depth // 4)
        self.parts = -(-fours // DEPTH)
        self.part_vectors = -(-fours // self.parts)
        self.stride = (
            self.part_vectors + 1 - self.part_vectors % 2
        )  # odd, so that adjacent keys lie in different memory banks
        # Vec4s of the values' width; where they are few, invocations split the keys between them.
        self.value_vectors = -(-self.width // 4)
        self.shares = 1
        while self.shares * 2 * self.value_vectors <= ACROSS:
            self.shares *= 2
        self.across = ACROSS // self.shares
        self.width_vectors = -(-self.value_vectors // self.across)
        self.held_vectors = tile.columns * self.stride
        self.chunk = tile.columns
        while self.chunk * self.value_vectors > self.held_vectors and self.chunk > self.shares:
            self.chunk //= 2
        self.held_vectors = max(self.held_vectors, self.chunk * self.value_vectors)
        # The iterations of an invocation are bounded, so for many keys loops are written out.
        self.is_long = bool(self.columns > MAX_KEYS_IN_LOOPS)
        self.may_end_early = operands.may_end_early(tile.columns * tile.teams)

    @property
    def vec4(self) -> str:
        """The WGSL type of four elements that are multiplied."""
        return f"vec4<{self.compute}>"

    def kernel(self) -> Kernel:
        """Return the kernel with its fused epilogue."""
        builder, tile = self.builder, self.tile
        builder.vector_out = builder.writes_vectors(self.width)
        emit_epilogue(builder, self.node)
        self.operands.add_loads(self.compute)
        self.operands.add_score()
        tiles = -(-self.rows // tile.rows)
        groups = grid(self.batches * tiles, builder.features.grid)
        place = place_in(groups).min(self.batches * tiles - 1)
        keys_per_iteration = tile.columns * tile.teams
        steps = -(-self.columns // keys_per_iteration)
        first = f"tile * {u32(keys_per_iteration)}"
        if tile.teams > 1:
            first += f" + team * {u32(tile.columns)}"
        last_row = f"min(first_row + {u32(tile.rows)}, {u32(self.rows)}) - {u32(1)}"
        lines = [
            f"  let place = {place};",
            f"  let batch = place / {divisor(tiles)};",
            f"  let key_batch = {self.operands.key_batch};",
            f"  let first_row = place % {divisor(tiles)} * {u32(tile.rows)};",
            *("  " + line for line in self.operands.load_length("batch")),
            f"  let end = {self.operands.end_key(last_row)};",
            f"  let team = t / {divisor(TEAM)};",
            f"  let u = t % {divisor(TEAM)};",
            f"  let down = u / {divisor(ACROSS)};",
            f"  let across = u % {divisor(ACROSS)};",
            f"  let share = across / {divisor(self.across)};",
            f"  let lane = across % {divisor(self.across)};",
            *("  " + line for line in self._bounds()),
            *(f"  var top{q} = vec4<f32>({LOWEST_F32});" for q in self._query_vectors),
            *(f"  var total{q} = vec4<f32>();" for q in self._query_vectors),
            *(f"  var sum{r}_{n} = vec4<f32>();" for r, n in self._sums()),
            "  " + loop(self._tiles_head(steps, keys_per_iteration), steps),
            f"    let first = {first};",
            *("    " + line for line in self._tile()),
            f"  {END_LOOP}",
            *("  " + line for line in self._finish()),
        ]
        weights = tile.columns * DOWN * tile.fours * tile.teams
        arrays = (
            WorkgroupArray("queries", self.vec4, (self.part_vectors * tile.rows,)),
            WorkgroupArray("held", self.vec4, (self.held_vectors * tile.teams,)),
            WorkgroupArray("weights", self.vec4, (weights,)),
            WorkgroupArray("exchanged", "vec4<f32>", (tile.invocations * tile.fours,)),
        )
        entry = EntryPoint.of(tile.invocations, BY_WORKGROUP, lines, arrays)
        return builder.finish(self.node.op, entry, groups)

    def _tiles_head(self, steps: int, keys: int) -> str:
        """Return the head of the loop over tiles of keys, without those that no query sees."""
        if not self.operands.what.is_bounded:
            return f"for (var tile = 0u; tile < {u32(steps)}; tile++)"
        begin = self.operands.first_key("first_row")
        return f"for (var tile = {begin} / {divisor(keys)}; tile * {u32(keys)} < end; tile++)"

    def _bounds(self) -> list[str]:
        """Emit the rows of an invocation's queries, and their first and last keys as vec4s."""
        each = u32(self.tile.each)
        lines = [
            f"let row{r} = min(first_row + down * {each} + {u32(r)}, {u32(self.rows - 1)});"
            for r in range(self.tile.each)
        ]
        if self.may_end_early:
            for q in self._query_vectors:
                rows = [f"row{r}" for r in range(4 * q, 4 * q + 4)]
                for name, bound in (("low", "first_key"), ("high", "end_key")):
                    bounds = ", ".join(getattr(self.operands, bound)(row) for row in rows)
                    lines.append(f"let {name}{q} = vec4<u32>({bounds});")
            lines.append(f"let never = vec4<f32>({NEVER});")
        return lines

    @property
    def _query_vectors(self) -> range:
        """Indices of an invocation's vec4s of queries."""
        return range(self.tile.fours)

    def _slot(self, across: str = "across", team: str = "team") -> list[str]:
        """Return where an invocation's vec4s of queries lie in `exchanged`."""
        fours = self.tile.fours
        base = f"(({team} * {u32(ACROSS)} + {across}) * {u32(DOWN)} + down) * {u32(fours)}"
        return [f"{base} + {u32(q)}" for q in self._query_vectors]

    def _exchange(self, names: list[str]) -> list[str]:
        """Share a vec4 of queries of each invocation with the workgroup."""
        puts = zip(self._slot(), names, strict=True)
        return [
            "workgroupBarrier();",
            *(f"{_EXCHANGED}[{slot}] = {name};" for slot, name in puts),
            "workgroupBarrier();",
        ]

    def _over_row(self, operator: Reduction, q: int) -> str:
        """Combine the exchanged values of the invocations of a row."""
        return tree(
            operator, [f"{_EXCHANGED}[{self._slot(f'{u32(n)}')[q]}]" for n in range(ACROSS)]
        )

    def _over_teams(self, operator: Reduction, q: int) -> str:
        """Combine the exchanged values of the teams."""
        teams = range(self.tile.teams)
        return tree(operator, [f"{_EXCHANGED}[{self._slot(team=f'{u32(n)}')[q]}]" for n in teams])

    def _sums(self) -> list[tuple[int, int]]:
        """Index pairs of an invocation's sums: query, vec4 of the width."""
        return [(r, n) for r in range(self.tile.each) for n in range(self.width_vectors)]

    # One tile of keys

    def _tile(self) -> list[str]:
        """Process one tile of keys: scores, softmax weights, sums of values."""
        lines = [f"var s{r}_{k} = 0.0;" for r, k in self._pairs]
        if self.parts == 1:
            lines += self._score_products(constant(0))
        else:
            lines.append(loop(f"for (var part = 0u; part < {u32(self.parts)}; part++)", self.parts))
            lines += self._score_products(symbol("part", self.parts))
            lines.append(END_LOOP)
        lines += self._changed_scores()
        lines += ["workgroupBarrier();", *self._load_values(constant(0)), *self._softmax_weights()]
        chunks = self.tile.columns // self.chunk
        if chunks == 1:
            return [*lines, *self._add_values(constant(0))]
        chunk = symbol("chunk", chunks)
        return [
            *lines,
            loop(f"for (var chunk = 0u; chunk < {u32(chunks)}; chunk++)", chunks),
            "if (chunk > 0u) {",
            "workgroupBarrier();",
            *self._load_values(chunk),
            "workgroupBarrier();",
            "}",
            *self._add_values(chunk),
            END_LOOP,
        ]

    @property
    def _pairs(self) -> list[tuple[int, int]]:
        """Index pairs of an invocation's scores: query, key."""
        return [(r, k) for r in range(self.tile.each) for k in range(self.tile.keys)]

    def _score_products(self, part: Index) -> list[str]:
        """Add q · k over one part of the depth."""
        tile, pairs = self.tile, self._pairs
        fours = -(-self.depth // 4)
        lines = ["workgroupBarrier();"]

        def load(source: str, threads: str, count: int, at: str, target: str) -> None:
            matrix = "batch" if source == "query4" else "key_batch"
            size = TEAM if threads == "u" else tile.invocations
            for begin in range(0, count * self.part_vectors, size):
                here = symbol(threads, size) + begin
                item, four = here // self.part_vectors, here % self.part_vectors
                wanted = part * self.part_vectors + four
                value = f"{declared(source)}({matrix}, {at.format(item)}, {wanted.min(fours - 1)})"
                if self.parts * self.part_vectors > fours:
                    value = f"select({self.vec4}(), {value}, {wanted} < {u32(fours)})"
                place = target.format(item=item.enclosed, four=four.enclosed)
                put = f"{place} = {value};"
                if begin + size > count * self.part_vectors:
                    put = f"if ({here} < {u32(count * self.part_vectors)}) {{ {put} }}"
                lines.append(put)

        row = f"min(first_row + {{}}, {u32(self.rows - 1)})"
        load("query4", "t", tile.rows, row, f"{_QUERIES}[{{four}} * {u32(tile.rows)} + {{item}}]")
        key = f"{_HELD}[team * {u32(self.held_vectors)} + {{item}} * {u32(self.stride)} + {{four}}]"
        load("key4", "u", tile.columns, f"min(first + {{}}, {u32(self.columns - 1)})", key)
        lines.append("workgroupBarrier();")
        is_f16 = self.compute == "f16"
        if is_f16:
            lines += [f"var h{r}_{k} = {self.vec4}();" for r, k in pairs]
        products = [
            f"let q{r} = {_QUERIES}[d * {u32(tile.rows)} + down * {u32(tile.each)} + {u32(r)}];"
            for r in range(tile.each)
        ]
        products += [
            f"let k{k} = {_HELD}[team * {u32(self.held_vectors)} + (across + {u32(k * ACROSS)})"
            f" * {u32(self.stride)} + d];"
            for k in range(tile.keys)
        ]
        for r, k in pairs:
            if is_f16:
                products.append(f"h{r}_{k} = fma(q{r}, k{k}, h{r}_{k});")
            else:
                products += [f"s{r}_{k} = fma(q{r}.{x}, k{k}.{x}, s{r}_{k});" for x in "xyzw"]
        lines += self._repeated("d", self.part_vectors, self.part_vectors, products)
        if is_f16:
            lines += [
                f"s{r}_{k} += f32(h{r}_{k}.x + h{r}_{k}.y) + f32(h{r}_{k}.z + h{r}_{k}.w);"
                for r, k in pairs
            ]
        return lines

    def _repeated(self, name: str, count: int, copies: int, body: list[str]) -> list[str]:
        """Emit a loop, or for many keys several copies of its body in each iteration."""
        if not self.is_long:
            head = f"for (var {name} = 0u; {name} < {u32(count)}; {name}++)"
            return [loop(head, count), *body, END_LOOP]
        head = f"for (var at = 0u; at < {u32(count)}; at += {u32(copies)})"
        lines = [loop(head, count // copies)]
        for copy in range(copies):
            lines += ["{", f"let {name} = at + {u32(copy)};", *body, "}"]
        return [*lines, END_LOOP]

    def _changed_scores(self) -> list[str]:
        """Apply the changes to the scores, as vec4s over queries, and share each key's maximum."""
        tile = self.tile
        lines: list[str] = []
        for k in range(tile.keys):
            lines.append(f"let column{k} = first + across + {u32(k * ACROSS)};")
            column = f"column{k}"
            if self.may_end_early:
                column = f"min(column{k}, {u32(self.columns - 1)})"
            for q in self._query_vectors:
                four = range(4 * q, 4 * q + 4)
                each = ", ".join(f"{_SCORE}(batch, row{r}, {column}, s{r}_{k})" for r in four)
                value = f"vec4<f32>({each})"
                if self.may_end_early:
                    at = f"vec4<u32>(column{k})"
                    inside = self.operands.sees(at, f"low{q}", f"high{q}")
                    value = f"select(never, {value}, {inside})"
                lines.append(f"let c{k}_{q} = {value};")
        for q, slot in enumerate(self._slot()):
            greatest = tree("max", [f"c{k}_{q}" for k in range(tile.keys)])
            lines.append(f"{_EXCHANGED}[{slot}] = {greatest};")
        return lines

    def _softmax_weights(self) -> list[str]:
        """Compute the softmax weights; rescale the sums to the new maximum."""
        tile = self.tile
        lines = ["workgroupBarrier();"]
        for q in self._query_vectors:
            lines += [
                f"let greatest{q} = max(top{q}, {self._over_row('max', q)});",
                f"let less{q} = exp(top{q} - greatest{q});",
                f"top{q} = greatest{q};",
            ]
            for k in range(tile.keys):
                lines.append(f"let w{k}_{q} = exp(c{k}_{q} - greatest{q});")
                stored = f"w{k}_{q}" if self.compute == "f32" else f"{self.vec4}(w{k}_{q})"
                place = self._weight_index(f"across + {u32(k * ACROSS)}", q)
                lines.append(f"{_WEIGHTS}[{place}] = {stored};")
            added = " + ".join(f"w{k}_{q}" for k in range(tile.keys))
            lines.append(f"total{q} = total{q} * less{q} + ({added});")
        lines += [f"sum{r}_{n} *= less{r // 4}.{'xyzw'[r % 4]};" for r, n in self._sums()]
        lines.append("workgroupBarrier();")
        return lines

    def _weight_index(self, key: str, q: int) -> str:
        """Return where the weights of four queries lie, for a key of the team's tile."""
        fours = self.tile.fours
        row = f"(team * {u32(self.tile.columns)} + {key})"
        return f"({row} * {u32(DOWN)} + down) * {u32(fours)} + {u32(q)}"

    def _load_values(self, chunk: Index) -> list[str]:
        """Load the values of a chunk of keys over the shared keys."""
        lines = []
        count = self.chunk * self.value_vectors
        for begin in range(0, count, TEAM):
            here = symbol("u", TEAM) + begin
            item, four = (
                here // self.value_vectors,
                (here % self.value_vectors).min(self.value_vectors - 1),
            )
            column = f"first + {chunk * self.chunk + item}"
            value = f"{_VALUE4}(key_batch, min({column}, {u32(self.columns - 1)}), {four})"
            if self.may_end_early:  # infinite values beyond the end would give NaN at weight 0
                value = f"select({self.vec4}(), {value}, {column} < end)"
            put = f"{_HELD}[team * {u32(self.held_vectors)} + {here}] = {value};"
            if begin + TEAM > count:
                put = f"if ({here} < {u32(count)}) {{ {put} }}"
            lines.append(put)
        return lines

    def _add_values(self, chunk: Index) -> list[str]:
        """Add the values of a chunk of keys, times their weights."""
        is_f16, shares = self.compute == "f16", self.shares
        lines = []
        if is_f16:
            lines += [f"var g{r}_{n} = {self.vec4}();" for r, n in self._sums()]
        keys = self.chunk // shares
        products = [f"let key = j * {u32(shares)} + share;" if shares > 1 else "let key = j;"]
        place = chunk * self.chunk + symbol("key", self.chunk)
        products += [
            f"let w{q} = {_WEIGHTS}[{self._weight_index(str(place), q)}];"
            for q in self._query_vectors
        ]
        for n in range(self.width_vectors):
            four = (symbol("lane", self.across) + n * self.across).min(self.value_vectors - 1)
            products.append(
                f"let v{n} = {_HELD}[team * {u32(self.held_vectors)}"
                f" + key * {u32(self.value_vectors)} + {four}];"
            )
        into = "g" if is_f16 else "sum"
        for r, n in self._sums():
            weight = f"{self.vec4}(w{r // 4}.{'xyzw'[r % 4]})"
            products.append(f"{into}{r}_{n} = fma({weight}, v{n}, {into}{r}_{n});")
        lines += self._repeated("j", keys, math.gcd(keys, MAX_COPIES), products)
        if is_f16:
            lines += [f"sum{r}_{n} += vec4<f32>(g{r}_{n});" for r, n in self._sums()]
        return lines

    # After the last tile

    def _finish(self) -> list[str]:
        """Merge the teams' sums, divide by the softmax denominator, and store."""
        tile = self.tile
        lines = self._exchange([f"total{q}" for q in self._query_vectors])
        lines += [f"var whole{q} = {self._over_row('+', q)};" for q in self._query_vectors]
        if tile.teams > 1:
            lines += self._exchange([f"top{q}" for q in self._query_vectors])
            for q in self._query_vectors:
                lines.append(f"let less{q} = exp(top{q} - {self._over_teams('max', q)});")
                lines.append(f"whole{q} *= less{q};")
            lines += self._exchange([f"whole{q}" for q in self._query_vectors])
            lines += [f"whole{q} = {self._over_teams('+', q)};" for q in self._query_vectors]
            lines += [f"sum{r}_{n} *= less{r // 4}.{'xyzw'[r % 4]};" for r, n in self._sums()]
        helpers = [(team, share) for team in range(tile.teams) for share in range(self.shares)][1:]
        if helpers:
            others = [f"{_EXCHANGED}[t + {u32(m * TEAM + n * self.across)}]" for m, n in helpers]
            for r, n in self._sums():
                lines += [
                    "workgroupBarrier();",
                    f"{_EXCHANGED}[t] = sum{r}_{n};",
                    "workgroupBarrier();",
                    f"if (team + share == 0u) {{ sum{r}_{n} += {tree('+', others)}; }}",
                ]
            lines.append("if (team + share > 0u) { return; }")
        batch, row = symbol("batch", self.batches), symbol("row", self.rows)
        for r in range(tile.each):
            here = f"first_row + down * {u32(tile.each)} + {u32(r)}"
            lines.append(f"if ({here} < {u32(self.rows)}) {{")
            lines.append(f"let row = {here};")
            for n in range(self.width_vectors):
                four = symbol("lane", self.across) + n * self.across
                quotient = self.operands.quotient(f"sum{r}_{n}", f"whole{r // 4}.{'xyzw'[r % 4]}")
                lines.append(f"let result{n} = {quotient};")
                lines += self._store_vector(
                    (batch * self.rows + row) * self.width, four, f"result{n}"
                )
            lines.append("}")
        return lines

    def _store_vector(self, first: Index, four: Index, value: str) -> list[str]:
        """Store four elements of a row."""
        place = first + four * 4
        if self.builder.vector_out:
            put = f"{PUT4}({place}, {value});"
            return [
                put
                if four.high < self.value_vectors
                else f"if ({four} < {u32(self.value_vectors)}) {{ {put} }}"
            ]
        return [
            f"if ({four * 4 + n} < {u32(self.width)}) {{ {PUT}({place + n}, {value}.{lane}); }}"
            for n, lane in enumerate("xyzw")
        ]

"""Attention in one kernel: a workgroup takes some queries of one batch through all keys.

Keys pass by in tiles, by way of workgroup memory. The greatest score so far and the sum of the
exponentials are corrected as greater scores appear (online softmax), and so are the sums of
values; the matrix of scores is never in memory.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

from webnn_py.core.traced_queries import may_leave_remainder
from webnn_py.engines.webgpu.compiler.attention_tile import (
    ACROSS,
    DEPTH,
    DOWN,
    TEAM,
    tile_for,
)
from webnn_py.engines.webgpu.compiler.code.affine import broadcast_map
from webnn_py.engines.webgpu.compiler.code.index import Index, constant, symbol
from webnn_py.engines.webgpu.compiler.kernel import Kernel, grid, place_in
from webnn_py.engines.webgpu.compiler.kernel_builder import Body, KernelBuilder, Make
from webnn_py.engines.webgpu.compiler.kernels.epilogue import emit_epilogue
from webnn_py.engines.webgpu.compiler.kernels.matmul_kernel import Operand, product_type
from webnn_py.engines.webgpu.compiler.legalize.attention import Attention
from webnn_py.engines.webgpu.program.storage import literal
from webnn_py.ir import Node, Value

LOWEST = "-3.4028234663852886e38"
"""Below which no finite score is. Infinite ones weigh nothing beside it."""


def emit(make: Make, node: Node) -> list[Kernel]:
    """The kernel of a node of ATTENTION."""
    return [_AttentionKernel(make(), node).kernel()]


class _AttentionKernel:
    """The kernel of one node."""

    def __init__(self, builder: KernelBuilder, node: Node) -> None:
        self.builder, self.node = builder, node
        self.queries, self.keys, self.values, *_ = node.operands
        *self.batch, self.rows, self.width = node.output.shape
        self.depth, self.columns = self.keys.shape[-2:]
        self.batches = math.prod(self.batch)
        self.compute = product_type(builder, node, self.queries, self.keys, self.values)
        self.tile = tile = tile_for(node, self.compute, builder.features)
        # The depth, in equal parts of vec4s.
        fours = -(-self.depth // 4)
        self.parts = -(-fours // DEPTH)
        self.part = -(-fours // self.parts)
        self.stride = self.part | 1  # odd, so that keys side by side lie in different banks
        # Values, by vec4s of their width; where these are few, invocations share keys out.
        self.groups = -(-self.width // 4)
        self.shares = 1
        while self.shares * 2 * self.groups <= ACROSS:
            self.shares *= 2
        self.across = ACROSS // self.shares
        self.fours = -(-self.groups // self.across)
        self.held = tile.columns * self.stride
        self.chunk = tile.columns
        while self.chunk * self.groups > self.held and self.chunk > self.shares:
            self.chunk //= 2
        self.held = max(self.held, self.chunk * self.groups)
        self.whole_tiles = not may_leave_remainder(self.columns, tile.columns * tile.teams)

    @property
    def vec4(self) -> str:
        """Four elements as they are multiplied."""
        return f"vec4<{self.compute}>"

    def kernel(self) -> Kernel:
        """The kernel, with what is fused behind it."""
        builder, tile = self.builder, self.tile
        builder.vector_out = builder.writes_vectors(self.width)
        emit_epilogue(builder, self.node)
        add_load4(builder, "query4", self.queries, self.batch, self.compute)
        add_load4(builder, "key4", self.keys, self.batch, self.compute, turned=True)
        add_load4(builder, "value4", self.values, self.batch, self.compute)
        add_score(builder, self.node)
        tiles = -(-self.rows // tile.rows)
        groups = grid(self.batches * tiles, builder.features.grid)
        place = place_in(groups).min(self.batches * tiles - 1)
        at_once = tile.columns * tile.teams
        first = f"tile * {at_once}u"
        if tile.teams > 1:
            first += f" + team * {tile.columns}u"
        lines = [
            f"  let place = {place};",
            f"  let batch = place / {tiles}u;",
            f"  let first_row = place % {tiles}u * {tile.rows}u;",
            f"  let team = t / {TEAM}u;",
            f"  let u = t % {TEAM}u;",
            f"  let down = u / {ACROSS}u;",
            f"  let across = u % {ACROSS}u;",
            f"  let share = across / {self.across}u;",
            f"  let lane = across % {self.across}u;",
            *(f"  var top{q} = vec4<f32>({LOWEST});" for q in self._fours),
            *(f"  var total{q} = vec4<f32>();" for q in self._fours),
            *(f"  var sum{r}_{n} = vec4<f32>();" for r, n in self._sums()),
            f"  for (var tile = 0u; tile < {-(-self.columns // at_once)}u; tile++) {{",
            f"    let first = {first};",
            *("    " + line for line in self._tile()),
            "  }",
            *("  " + line for line in self._end()),
        ]
        shared = {
            "queries": (self.vec4, self.part * tile.rows),
            "held": (self.vec4, self.held * tile.teams),
            "weights": (self.vec4, tile.columns * DOWN * tile.fours * tile.teams),
            "exchanged": ("vec4<f32>", tile.invocations * tile.fours),
        }
        main = "\n".join(
            [
                *(
                    f"var<workgroup> {n}: array<{kind}, {size}>;"
                    for n, (kind, size) in shared.items()
                ),
                f"@compute @workgroup_size({tile.invocations})",
                "fn main(@builtin(workgroup_id) g: vec3<u32>,"
                " @builtin(local_invocation_index) t: u32) {",
                *lines,
                "}",
            ]
        )
        return builder.finish(self.node.op, main, groups)

    @property
    def _fours(self) -> range:
        """The numbers of an invocation's vec4s of queries."""
        return range(self.tile.fours)

    def _slot(self, across: str = "across", team: str = "team") -> list[str]:
        """The places of an invocation's vec4s of queries, as exchanged."""
        fours = self.tile.fours
        base = f"(({team} * {ACROSS}u + {across}) * {DOWN}u + down) * {fours}u"
        return [f"{base} + {q}u" for q in self._fours]

    def _exchange(self, names: list[str]) -> list[str]:
        """A vec4 of queries of each invocation made known to all."""
        puts = zip(self._slot(), names, strict=True)
        return [
            "workgroupBarrier();",
            *(f"exchanged[{slot}] = {name};" for slot, name in puts),
            "workgroupBarrier();",
        ]

    def _over_row(self, operator: str, q: int) -> str:
        """What the invocations of a row have exchanged, together."""
        return _tree(operator, [f"exchanged[{self._slot(f'{n}u')[q]}]" for n in range(ACROSS)])

    def _over_teams(self, operator: str, q: int) -> str:
        """What the teams have exchanged, together."""
        teams = range(self.tile.teams)
        return _tree(operator, [f"exchanged[{self._slot(team=f'{n}u')[q]}]" for n in teams])

    def _sums(self) -> list[tuple[int, int]]:
        """The numbers of an invocation's sums: queries, and vec4s of the width."""
        return [(r, n) for r in range(self.tile.each) for n in range(self.fours)]

    # A tile of keys

    def _tile(self) -> list[str]:
        """From the queries and the keys to the sums of values."""
        lines = [f"var s{r}_{k} = 0.0;" for r, k in self._pairs]
        if self.parts == 1:
            lines += self._products(constant(0))
        else:
            lines.append(f"for (var part = 0u; part < {self.parts}u; part++) {{")
            lines += self._products(symbol("part", self.parts))
            lines.append("}")
        lines += self._scored()
        lines += ["workgroupBarrier();", *self._loads_values(constant(0)), *self._weighted()]
        chunks = self.tile.columns // self.chunk
        if chunks == 1:
            return [*lines, *self._added(constant(0))]
        chunk = symbol("chunk", chunks)
        return [
            *lines,
            f"for (var chunk = 0u; chunk < {chunks}u; chunk++) {{",
            "if (chunk > 0u) {",
            "workgroupBarrier();",
            *self._loads_values(chunk),
            "workgroupBarrier();",
            "}",
            *self._added(chunk),
            "}",
        ]

    @property
    def _pairs(self) -> list[tuple[int, int]]:
        """The numbers of an invocation's scores: queries and keys."""
        return [(r, k) for r in range(self.tile.each) for k in range(self.tile.keys)]

    def _products(self, part: Index) -> list[str]:
        """The scores' products, over a part of the depth."""
        tile, pairs = self.tile, self._pairs
        fours = -(-self.depth // 4)
        lines = ["workgroupBarrier();"]

        def load(source: str, threads: str, count: int, at: str, target: str) -> None:
            size = TEAM if threads == "u" else tile.invocations
            for begin in range(0, count * self.part, size):
                here = symbol(threads, size) + begin
                item, four = here // self.part, here % self.part
                wanted = part * self.part + four
                value = f"{source}(batch, {at.format(item)}, {wanted.min(fours - 1)})"
                if self.parts * self.part > fours:
                    value = f"select({self.vec4}(), {value}, {wanted} < {fours}u)"
                place = target.format(item=item.enclosed, four=four.enclosed)
                put = f"{place} = {value};"
                if begin + size > count * self.part:
                    put = f"if ({here} < {count * self.part}u) {{ {put} }}"
                lines.append(put)

        row = f"min(first_row + {{}}, {self.rows - 1}u)"
        load("query4", "t", tile.rows, row, f"queries[{{four}} * {tile.rows}u + {{item}}]")
        key = f"held[team * {self.held}u + {{item}} * {self.stride}u + {{four}}]"
        load("key4", "u", tile.columns, f"min(first + {{}}, {self.columns - 1}u)", key)
        lines.append("workgroupBarrier();")
        halves = self.compute == "f16"
        if halves:
            lines += [f"var h{r}_{k} = {self.vec4}();" for r, k in pairs]
        lines.append(f"for (var d = 0u; d < {self.part}u; d++) {{")
        lines += [
            f"let q{r} = queries[d * {tile.rows}u + down * {tile.each}u + {r}u];"
            for r in range(tile.each)
        ]
        lines += [
            f"let k{k} = held[team * {self.held}u + (across + {k * ACROSS}u) * {self.stride}u + d];"
            for k in range(tile.keys)
        ]
        for r, k in pairs:
            if halves:
                lines.append(f"h{r}_{k} = fma(q{r}, k{k}, h{r}_{k});")
            else:
                lines += [f"s{r}_{k} = fma(q{r}.{x}, k{k}.{x}, s{r}_{k});" for x in "xyzw"]
        lines.append("}")
        if halves:
            lines += [
                f"s{r}_{k} += f32(h{r}_{k}.x + h{r}_{k}.y) + f32(h{r}_{k}.z + h{r}_{k}.w);"
                for r, k in pairs
            ]
        return lines

    def _scored(self) -> list[str]:
        """The scores changed, by key as vec4s over the queries, and the greatest ones exchanged."""
        tile = self.tile
        lines = [
            f"let row{r} = min(first_row + down * {tile.each}u + {r}u, {self.rows - 1}u);"
            for r in range(tile.each)
        ]
        for k in range(tile.keys):
            lines.append(f"let column{k} = first + across + {k * ACROSS}u;")
            column = f"min(column{k}, {self.columns - 1}u)"
            column = f"column{k}" if self.whole_tiles else column
            for q in self._fours:
                four = range(4 * q, 4 * q + 4)
                each = ", ".join(f"score(batch, row{r}, {column}, s{r}_{k})" for r in four)
                value = f"vec4<f32>({each})"
                if not self.whole_tiles:
                    inside = f"column{k} < {self.columns}u"
                    value = f"select(vec4<f32>({LOWEST}), {value}, {inside})"
                lines.append(f"let c{k}_{q} = {value};")
        for q, slot in enumerate(self._slot()):
            greatest = _tree("max", [f"c{k}_{q}" for k in range(tile.keys)])
            lines.append(f"exchanged[{slot}] = {greatest};")
        return lines

    def _weighted(self) -> list[str]:
        """Exponentials of the scores, and what was summed before corrected."""
        tile = self.tile
        lines = ["workgroupBarrier();"]
        for q in self._fours:
            lines += [
                f"let greatest{q} = max(top{q}, {self._over_row('max', q)});",
                f"let less{q} = exp(top{q} - greatest{q});",
                f"top{q} = greatest{q};",
            ]
            for k in range(tile.keys):
                value = f"exp(c{k}_{q} - greatest{q})"
                if not self.whole_tiles:
                    value = f"select(vec4<f32>(), {value}, column{k} < {self.columns}u)"
                lines.append(f"let w{k}_{q} = {value};")
                kept = f"w{k}_{q}" if self.compute == "f32" else f"{self.vec4}(w{k}_{q})"
                place = self._weight(f"across + {k * ACROSS}u", q)
                lines.append(f"weights[{place}] = {kept};")
            added = " + ".join(f"w{k}_{q}" for k in range(tile.keys))
            lines.append(f"total{q} = total{q} * less{q} + ({added});")
        lines += [f"sum{r}_{n} *= less{r // 4}.{'xyzw'[r % 4]};" for r, n in self._sums()]
        lines.append("workgroupBarrier();")
        return lines

    def _weight(self, key: str, q: int) -> str:
        """The place of the weights of four queries for a key of the team's tile."""
        fours = self.tile.fours
        return f"((team * {self.tile.columns}u + {key}) * {DOWN}u + down) * {fours}u + {q}u"

    def _loads_values(self, chunk: Index) -> list[str]:
        """Values of a chunk of the tile's keys in the place of the keys."""
        lines = []
        count = self.chunk * self.groups
        for begin in range(0, count, TEAM):
            here = symbol("u", TEAM) + begin
            item, four = here // self.groups, (here % self.groups).min(self.groups - 1)
            column = f"first + {chunk * self.chunk + item}"
            value = f"value4(batch, min({column}, {self.columns - 1}u), {four})"
            if not self.whole_tiles:  # what is infinite there would not weigh nothing
                value = f"select({self.vec4}(), {value}, {column} < {self.columns}u)"
            put = f"held[team * {self.held}u + {here}] = {value};"
            if begin + TEAM > count:
                put = f"if ({here} < {count}u) {{ {put} }}"
            lines.append(put)
        return lines

    def _added(self, chunk: Index) -> list[str]:
        """The values of a chunk of keys, times their weights, added to the sums."""
        halves, shares = self.compute == "f16", self.shares
        lines = []
        if halves:
            lines += [f"var g{r}_{n} = {self.vec4}();" for r, n in self._sums()]
        lines.append(f"for (var j = 0u; j < {self.chunk // shares}u; j++) {{")
        lines.append(f"let key = j * {shares}u + share;" if shares > 1 else "let key = j;")
        place = chunk * self.chunk + symbol("key", self.chunk)
        lines += [f"let w{q} = weights[{self._weight(str(place), q)}];" for q in self._fours]
        for n in range(self.fours):
            four = (symbol("lane", self.across) + n * self.across).min(self.groups - 1)
            lines.append(f"let v{n} = held[team * {self.held}u + key * {self.groups}u + {four}];")
        into = "g" if halves else "sum"
        for r, n in self._sums():
            weight = f"{self.vec4}(w{r // 4}.{'xyzw'[r % 4]})"
            lines.append(f"{into}{r}_{n} = fma({weight}, v{n}, {into}{r}_{n});")
        lines.append("}")
        if halves:
            lines += [f"sum{r}_{n} += vec4<f32>(g{r}_{n});" for r, n in self._sums()]
        return lines

    # The end

    def _end(self) -> list[str]:
        """What invocations have, added up and written."""
        tile = self.tile
        lines = self._exchange([f"total{q}" for q in self._fours])
        lines += [f"var whole{q} = {self._over_row('+', q)};" for q in self._fours]
        if tile.teams > 1:
            lines += self._exchange([f"top{q}" for q in self._fours])
            for q in self._fours:
                lines.append(f"let less{q} = exp(top{q} - {self._over_teams('max', q)});")
                lines.append(f"whole{q} *= less{q};")
            lines += self._exchange([f"whole{q}" for q in self._fours])
            lines += [f"whole{q} = {self._over_teams('+', q)};" for q in self._fours]
            lines += [f"sum{r}_{n} *= less{r // 4}.{'xyzw'[r % 4]};" for r, n in self._sums()]
        helpers = [(team, share) for team in range(tile.teams) for share in range(self.shares)][1:]
        if helpers:
            others = [f"exchanged[t + {m * TEAM + n * self.across}u]" for m, n in helpers]
            for r, n in self._sums():
                lines += [
                    "workgroupBarrier();",
                    f"exchanged[t] = sum{r}_{n};",
                    "workgroupBarrier();",
                    f"if (team + share == 0u) {{ sum{r}_{n} += {_tree('+', others)}; }}",
                ]
            lines.append("if (team + share > 0u) { return; }")
        batch, row = symbol("batch", self.batches), symbol("row", self.rows)
        for r in range(tile.each):
            here = f"first_row + down * {tile.each}u + {r}u"
            lines.append(f"if ({here} < {self.rows}u) {{")
            lines.append(f"let row = {here};")
            for n in range(self.fours):
                four = symbol("lane", self.across) + n * self.across
                lines.append(f"let result{n} = sum{r}_{n} / whole{r // 4}.{'xyzw'[r % 4]};")
                lines += self._puts((batch * self.rows + row) * self.width, four, f"result{n}")
            lines.append("}")
        return lines

    def _puts(self, first: Index, four: Index, value: str) -> list[str]:
        """Four elements of a row written."""
        place = first + four * 4
        if self.builder.vector_out:
            put = f"put4({place}, {value});"
            return [put if four.high < self.groups else f"if ({four} < {self.groups}u) {{ {put} }}"]
        return [
            f"if ({four * 4 + n} < {self.width}u) {{ put({place + n}, {value}.{'xyzw'[n]}); }}"
            for n in range(4)
        ]


def _tree(operator: str, terms: list[str]) -> str:
    """All terms together, in few steps that wait for each other."""
    while len(terms) > 1:
        pairs = zip(terms[::2], terms[1::2], strict=False)
        odd = terms[-1:] if len(terms) % 2 else []
        joined = [f"max({a}, {b})" if operator == "max" else f"({a} + {b})" for a, b in pairs]
        terms = [*joined, *odd]
    return terms[0]


def add_load4(
    builder: KernelBuilder,
    name: str,
    value: Value,
    batch: Sequence[int],
    compute: Literal["f32", "f16"],
    turned: bool = False,
) -> None:
    """A function of a batch, a row and the number of four elements of it, zeros beyond the end.

    Args:
        builder: Of the kernel.
        name: Of the function.
        value: A matrix operand [..., rows, columns].
        batch: The product's batch dimensions.
        compute: The type of the elements.
        turned: The function is one of a column, and of four of its elements.
    """
    operand = Operand(builder, value, f"{name}_one", tuple(batch), compute)
    other, along = value.shape[-2:][:: -1 if turned else 1]
    at_batch, at = symbol("batch", math.prod(batch)), symbol("at", other)
    four = symbol("four", -(-along // 4))

    def place(element: Index) -> tuple[Index, Index, Index]:
        return (at_batch, element, at) if turned else (at_batch, at, element)

    vectors = operand.vectors(4)
    if vectors is not None and vectors[1] == ("row" if turned else "column"):
        text = vectors[0](*place(four * 4))
    else:
        parts = []
        for n in range(4):
            element = four * 4 + n
            one = operand.load(*place(element.min(along - 1)))
            inside = element.high < along
            parts.append(one if inside else f"select({compute}(0.0), {one}, {element} < {along}u)")
        text = f"vec4<{compute}>({', '.join(parts)})"
    builder.functions.append(
        f"fn {name}(batch: u32, at: u32, four: u32) -> vec4<{compute}> {{ return {text}; }}"
    )


def add_score(builder: KernelBuilder, node: Node) -> None:
    """A function `score`: one with all its changes, by its batch, row and column."""
    what: Attention = node.attrs["what"]
    _, keys, _, *others = node.operands
    *batch, rows, _ = node.output.shape
    shape = (*batch, rows, keys.shape[-1])
    body = Body(builder)
    row = symbol("batch", math.prod(batch)) * rows + symbol("row", rows)
    place = row * shape[-1] + symbol("column", shape[-1])
    score, operands = "total", iter(others)
    for change in what.changes:
        number = literal(change.number, "f32")
        if change.kind == "scale":
            score = body.let(f"{score} * {number}", "score")
            continue
        value = next(operands)
        operand = body.load(value, broadcast_map(value.shape, shape).at(place))
        if change.kind == "add":
            score = body.let(f"{score} + {operand}", "score")
            continue
        number = body.let(number, "c")
        false, true = (number, score) if change.kind == "keep" else (score, number)
        score = body.let(f"select({false}, {true}, {operand} != 0u)", "score")
    body.line(f"return {score};")
    builder.function("score", "batch: u32, row: u32, column: u32, total: f32", "f32", body)

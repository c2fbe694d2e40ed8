"""Attention in one kernel: a workgroup takes some queries of one batch through all keys.

Keys pass by in tiles, by way of workgroup memory. The greatest score so far and the sum of the
exponentials are corrected as greater scores appear (online softmax), and so are the sums of
values; the matrix of scores is never in memory.
"""

from __future__ import annotations

import math

from webnn_py.engines.webgpu.compiler.affine import broadcast_map
from webnn_py.engines.webgpu.compiler.attention import Attention
from webnn_py.engines.webgpu.compiler.index import Index, constant, symbol
from webnn_py.engines.webgpu.compiler.kernel import Kernel, grid, place_in
from webnn_py.engines.webgpu.compiler.kernel_builder import Body, KernelBuilder, Make
from webnn_py.engines.webgpu.compiler.kernels.epilogue import emit_epilogue
from webnn_py.engines.webgpu.compiler.kernels.matmul_kernel import Operand, product_type
from webnn_py.ir import Node, Value

DOWN, ACROSS = 4, 16
"""Invocations of a workgroup by the queries and by the keys that they take."""

WORKGROUP = DOWN * ACROSS
EACH = 4
"""Queries, and keys of a tile, of one invocation."""

ROWS, COLUMNS = DOWN * EACH, ACROSS * EACH
"""Queries of a workgroup, and keys of a tile."""

DEPTH = 8
"""Vec4s along the depth that are in workgroup memory at once, at most."""

LOWEST = "-3.4028234663852886e38"
"""Below which no finite score is. Infinite ones weigh nothing beside it."""


def emit(make: Make, node: Node) -> list[Kernel]:
    """The kernel of a node of ATTENTION."""
    return [_AttentionKernel(make(), node).kernel()]


class _AttentionKernel:
    """The kernel of one node."""

    def __init__(self, builder: KernelBuilder, node: Node) -> None:
        self.builder, self.node = builder, node
        self.what: Attention = node.attrs["what"]
        queries, keys, values, *self.others = node.operands
        *batch, self.rows, self.width = node.output.shape
        self.depth, self.columns = keys.shape[-2:]
        self.batches = math.prod(batch)
        self.scores = (*batch, self.rows, self.columns)
        self.compute = product_type(builder, node, queries, keys, values)
        self.queries = Operand(builder, queries, "load_q", tuple(batch), self.compute)
        self.keys = Operand(builder, keys, "load_k", tuple(batch), self.compute)
        self.values = Operand(builder, values, "load_v", tuple(batch), self.compute)
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
        self.held = COLUMNS * self.stride
        self.chunk = COLUMNS
        while self.chunk * self.groups > self.held:
            self.chunk //= 2

    @property
    def vec4(self) -> str:
        """Four elements as they are multiplied."""
        return f"vec4<{self.compute}>"

    def kernel(self) -> Kernel:
        """The kernel, with what is fused behind it."""
        builder = self.builder
        builder.vector_out = builder.writes_vectors(self.width)
        emit_epilogue(builder, self.node)
        self._loader("query4", self.queries, (self.rows, self.depth))
        self._loader("key4", self.keys, (self.depth, self.columns))
        self._loader("value4", self.values, (self.columns, self.width))
        self._score()
        tiles = -(-self.rows // ROWS)
        groups = grid(self.batches * tiles, builder.features.grid)
        place = place_in(groups).min(self.batches * tiles - 1)
        lines = [
            f"  let place = {place};",
            f"  let batch = place / {tiles}u;",
            f"  let first_row = place % {tiles}u * {ROWS}u;",
            f"  let down = t / {ACROSS}u;",
            f"  let across = t % {ACROSS}u;",
            f"  let share = across / {self.across}u;",
            f"  let lane = across % {self.across}u;",
            f"  var top = vec4<f32>({LOWEST});",
            "  var total = vec4<f32>();",
            *(f"  var sum{r}_{n} = vec4<f32>();" for r, n in self._sums()),
            f"  for (var tile = 0u; tile < {-(-self.columns // COLUMNS)}u; tile++) {{",
            f"    let first = tile * {COLUMNS}u;",
            *("    " + line for line in self._tile()),
            "  }",
            *("  " + line for line in self._end()),
        ]
        shared = {
            "queries": f"array<{self.vec4}, {self.part * ROWS}>",
            "held": f"array<{self.vec4}, {self.held}>",
            "weights": f"array<{self.vec4}, {COLUMNS * DOWN}>",
            "exchanged": f"array<vec4<f32>, {WORKGROUP}>",
        }
        main = "\n".join(
            [
                *(f"var<workgroup> {name}: {kind};" for name, kind in shared.items()),
                f"@compute @workgroup_size({WORKGROUP})",
                "fn main(@builtin(workgroup_id) g: vec3<u32>,"
                " @builtin(local_invocation_index) t: u32) {",
                *lines,
                "}",
            ]
        )
        return builder.finish(self.node.op, main, groups)

    def _sums(self) -> list[tuple[int, int]]:
        """The numbers of an invocation's sums: queries, and vec4s of the width."""
        return [(r, n) for r in range(EACH) for n in range(self.fours)]

    # Functions

    def _loader(self, name: str, operand: Operand, sizes: tuple[int, int]) -> None:
        """A function: four elements along the depth or the width, zeros beyond the end.

        Its parameters are the other dimension's coordinate, in range, and the number of the four.
        """
        by_rows = name != "key4"
        along, other = (sizes[1], sizes[0]) if by_rows else sizes
        batch, at = symbol("batch", self.batches), symbol("at", other)
        four = symbol("four", -(-along // 4))
        vectors = operand.vectors(4)
        if vectors is not None and vectors[1] == ("column" if by_rows else "row"):
            first = four * 4
            text = vectors[0](batch, at, first) if by_rows else vectors[0](batch, first, at)
        else:
            parts = []
            for n in range(4):
                place = (four * 4 + n).min(along - 1)
                one = operand.load(batch, at, place) if by_rows else operand.load(batch, place, at)
                inside = (four.high * 4 + n) < along
                zero = f"{self.compute}(0.0)"
                parts.append(one if inside else f"select({zero}, {one}, {four * 4 + n} < {along}u)")
            text = f"{self.vec4}({', '.join(parts)})"
        self.builder.functions.append(
            f"fn {name}(batch: u32, at: u32, four: u32) -> {self.vec4} {{ return {text}; }}"
        )

    def _score(self) -> None:
        """A function: a score with all its changes."""
        body = Body(self.builder)
        batch, row = symbol("batch", self.batches), symbol("row", self.rows)
        place = (batch * self.rows + row) * self.columns + symbol("column", self.columns)
        score, others = "total", iter(self.others)
        for change in self.what.changes:
            if change.kind == "scale":
                score = body.let(f"{score} * {_literal(change.number)}", "score")
                continue
            operand = self._element(body, next(others), place)
            if change.kind == "add":
                score = body.let(f"{score} + {operand}", "score")
            else:
                number = body.let(_literal(change.number), "c")
                pair = (number, score) if change.kind == "keep" else (score, number)
                score = body.let(f"select({pair[0]}, {pair[1]}, {operand} != 0u)", "score")
        body.line(f"return {score};")
        self.builder.function("score", "batch: u32, row: u32, column: u32, total: f32", "f32", body)

    def _element(self, body: Body, value: Value, place: Index) -> str:
        """An operand's element for the score at a flat index."""
        return body.load(value, broadcast_map(value.shape, self.scores).at(place))

    # A tile of keys

    def _tile(self) -> list[str]:
        """From the queries and the keys to the sums of values."""
        scores = [f"s{r}_{k}" for r in range(EACH) for k in range(EACH)]
        lines = [f"var {name} = 0.0;" for name in scores]
        if self.parts == 1:
            lines += self._products(constant(0))
        else:
            lines.append(f"for (var part = 0u; part < {self.parts}u; part++) {{")
            lines += self._products(symbol("part", self.parts))
            lines.append("}")
        lines += self._scored()
        lines += ["workgroupBarrier();", *self._loads_values(constant(0))]
        lines += self._weighted()
        chunks = COLUMNS // self.chunk
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

    def _products(self, part: Index) -> list[str]:
        """The scores' products, over a part of the depth."""
        fours = -(-self.depth // 4)
        lines = ["workgroupBarrier();"]
        for name, count, source in (("queries", ROWS, "query4"), ("held", COLUMNS, "key4")):
            extent, first = (
                (self.rows, "first_row") if name == "queries" else (self.columns, "first")
            )
            for begin in range(0, count * self.part, WORKGROUP):
                here = symbol("t", WORKGROUP) + begin
                item, four = here // self.part, here % self.part
                place = four * ROWS + item if name == "queries" else item * self.stride + four
                at = f"min({first} + {item}, {extent - 1}u)"
                wanted = part * self.part + four
                value = f"{source}(batch, {at}, {wanted.min(fours - 1)})"
                if self.parts * self.part > fours:
                    value = f"select({self.vec4}(), {value}, {wanted} < {fours}u)"
                put = f"{name}[{place}] = {value};"
                if begin + WORKGROUP > count * self.part:
                    put = f"if (t < {count * self.part - begin}u) {{ {put} }}"
                lines.append(put)
        lines.append("workgroupBarrier();")
        if self.compute == "f16":
            lines += [f"var h{r}_{k} = {self.vec4}();" for r in range(EACH) for k in range(EACH)]
        lines.append(f"for (var d = 0u; d < {self.part}u; d++) {{")
        lines += [f"let q{r} = queries[d * {ROWS}u + down * {EACH}u + {r}u];" for r in range(EACH)]
        lines += [
            f"let k{k} = held[(across + {k * ACROSS}u) * {self.stride}u + d];" for k in range(EACH)
        ]
        for r in range(EACH):
            for k in range(EACH):
                if self.compute == "f16":
                    lines.append(f"h{r}_{k} = fma(q{r}, k{k}, h{r}_{k});")
                else:
                    lines += [f"s{r}_{k} = fma(q{r}.{x}, k{k}.{x}, s{r}_{k});" for x in "xyzw"]
        lines.append("}")
        if self.compute == "f16":
            lines += [
                f"s{r}_{k} += f32(h{r}_{k}.x + h{r}_{k}.y) + f32(h{r}_{k}.z + h{r}_{k}.w);"
                for r in range(EACH)
                for k in range(EACH)
            ]
        return lines

    def _scored(self) -> list[str]:
        """The scores changed, by key as vec4s over the queries, and the greatest ones exchanged."""
        lines = [f"let row = first_row + down * {EACH}u;"]
        rows = [f"min(row + {r}u, {self.rows - 1}u)" if r else "row" for r in range(EACH)]
        rows[0] = f"min(row, {self.rows - 1}u)"
        whole = self.columns % COLUMNS == 0
        for k in range(EACH):
            lines.append(f"let column{k} = first + across + {k * ACROSS}u;")
            column = f"column{k}" if whole else f"min(column{k}, {self.columns - 1}u)"
            each = ", ".join(f"score(batch, {rows[r]}, {column}, s{r}_{k})" for r in range(EACH))
            lines.append(f"var c{k} = vec4<f32>({each});")
            if not whole:
                lines.append(
                    f"c{k} = select(vec4<f32>({LOWEST}), c{k}, column{k} < {self.columns}u);"
                )
        lines.append(
            f"exchanged[across * {DOWN}u + down] = {_tree('max', [f'c{k}' for k in range(EACH)])};"
        )
        return lines

    def _weighted(self) -> list[str]:
        """Exponentials of the scores, and what was summed before corrected."""
        parts = [f"exchanged[{n * DOWN}u + down]" for n in range(ACROSS)]
        lines = [
            "workgroupBarrier();",
            f"let greatest = max(top, {_tree('max', parts)});",
            "let less = exponential(top - greatest);",
            "top = greatest;",
        ]
        whole = self.columns % COLUMNS == 0
        for k in range(EACH):
            lines.append(f"var w{k} = exponential(c{k} - greatest);")
            if not whole:
                lines.append(f"w{k} = select(vec4<f32>(), w{k}, column{k} < {self.columns}u);")
            kept = f"w{k}" if self.compute == "f32" else f"{self.vec4}(w{k})"
            lines.append(f"weights[(across + {k * ACROSS}u) * {DOWN}u + down] = {kept};")
        lines.append(f"total = total * less + ({' + '.join(f'w{k}' for k in range(EACH))});")
        lines += [f"sum{r}_{n} *= less.{'xyzw'[r]};" for r, n in self._sums()]
        lines.append("workgroupBarrier();")
        self.builder.functions.append(
            "fn exponential(x: vec4<f32>) -> vec4<f32> {"
            " return vec4<f32>(wn_exp(x.x), wn_exp(x.y), wn_exp(x.z), wn_exp(x.w)); }"
        )
        return lines

    def _loads_values(self, chunk: Index) -> list[str]:
        """Values of a chunk of the tile's keys in the place of the keys."""
        lines = []
        count = self.chunk * self.groups
        for begin in range(0, count, WORKGROUP):
            here = symbol("t", WORKGROUP) + begin
            item, four = here // self.groups, here % self.groups
            column = f"first + {chunk * self.chunk + item}"
            value = (
                f"value4(batch, min({column}, {self.columns - 1}u), {four.min(self.groups - 1)})"
            )
            if self.columns % COLUMNS:  # what is infinite there would not weigh nothing
                value = f"select({self.vec4}(), {value}, {column} < {self.columns}u)"
            put = f"held[{here}] = {value};"
            if begin + WORKGROUP > count:
                put = f"if (t < {count - begin}u) {{ {put} }}"
            lines.append(put)
        return lines

    def _added(self, chunk: Index) -> list[str]:
        """The values of a chunk of keys, times their weights, added to the sums."""
        halves = self.compute == "f16"
        lines = []
        if halves:
            lines += [f"var g{r}_{n} = {self.vec4}();" for r, n in self._sums()]
        shares = self.shares
        lines.append(f"for (var j = 0u; j < {self.chunk // shares}u; j++) {{")
        lines.append(f"let key = j * {shares}u + share;" if shares > 1 else "let key = j;")
        place = chunk * self.chunk + symbol("key", self.chunk)
        lines.append(f"let w = weights[({place}) * {DOWN}u + down];")
        for n in range(self.fours):
            four = symbol("lane", self.across) + n * self.across
            lines.append(f"let v{n} = held[key * {self.groups}u + {four.min(self.groups - 1)}];")
        into = "g" if halves else "sum"
        lines += [
            f"{into}{r}_{n} = fma({self.vec4}(w.{'xyzw'[r]}), v{n}, {into}{r}_{n});"
            for r, n in self._sums()
        ]
        lines.append("}")
        if halves:
            lines += [f"sum{r}_{n} += vec4<f32>(g{r}_{n});" for r, n in self._sums()]
        return lines

    # The end

    def _end(self) -> list[str]:
        """What invocations have, added up and written."""
        parts = [f"exchanged[{n * DOWN}u + down]" for n in range(ACROSS)]
        lines = [
            "workgroupBarrier();",
            f"exchanged[across * {DOWN}u + down] = total;",
            "workgroupBarrier();",
            f"let whole = {_tree('+', parts)};",
        ]
        if self.shares > 1:
            for r in range(EACH):
                others = [f"exchanged[t + {n * self.across}u]" for n in range(1, self.shares)]
                lines += [
                    "workgroupBarrier();",
                    f"exchanged[t] = sum{r}_0;",
                    "workgroupBarrier();",
                    f"if (share == 0u) {{ sum{r}_0 += {_tree('+', others)}; }}",
                ]
            lines.append("if (share > 0u) { return; }")
        batch, row = symbol("batch", self.batches), symbol("row", self.rows)
        for r in range(EACH):
            lines.append(f"if (first_row + down * {EACH}u + {r}u < {self.rows}u) {{")
            lines.append(f"let row = first_row + down * {EACH}u + {r}u;")
            for n in range(self.fours):
                four = symbol("lane", self.across) + n * self.across
                lines.append(f"let result{n} = sum{r}_{n} / whole.{'xyzw'[r]};")
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


def _literal(number: float) -> str:
    """A float32."""
    if math.isinf(number):
        return f"wn_bits({'0xff800000u' if number < 0 else '0x7f800000u'})"
    return f"f32({number!r})"


def _tree(operator: str, terms: list[str]) -> str:
    """All terms together, in few steps that wait for each other."""
    while len(terms) > 1:
        pairs = zip(terms[::2], terms[1::2], strict=False)
        odd = terms[-1:] if len(terms) % 2 else []
        joined = [f"max({a}, {b})" if operator == "max" else f"({a} + {b})" for a, b in pairs]
        terms = [*joined, *odd]
    return terms[0]

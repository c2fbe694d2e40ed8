"""Rows that are reduced and then computed: a workgroup for each."""

from __future__ import annotations

import math
from collections.abc import Sequence

from webnn_py.engines.webgpu.compiler.affine import broadcast_map
from webnn_py.engines.webgpu.compiler.index import Index, symbol
from webnn_py.engines.webgpu.compiler.kernel_builder import (
    Body,
    Kernel,
    KernelBuilder,
    grid,
    place_in,
)
from webnn_py.engines.webgpu.compiler.lower import reduction
from webnn_py.engines.webgpu.compiler.rows import Stage


def emit(builder: KernelBuilder, stages: Sequence[Stage]) -> Kernel:
    """The stages in order, and then the row's elements."""
    rows = _Rows(builder, stages)
    for number in range(len(stages)):
        rows.reduction(number)
    rows.elements()
    groups = grid(rows.count, builder.features.grid)
    name = builder.producers[builder.root].op
    return builder.finish(name, rows.main(groups), groups)


class _Rows:
    """The functions of one kernel."""

    def __init__(self, builder: KernelBuilder, stages: Sequence[Stage]) -> None:
        self.builder = builder
        self.stages = stages
        shape = builder.root.shape
        self.count = stages[0].value.size
        self.length = math.prod(shape) // self.count
        wanted = 256 if self.length >= 1024 else 128 if self.length >= 256 else 64
        self.threads = min(wanted, builder.features.invocations)
        self._known = [f"v{number}" for number in range(len(stages))]
        self._row = symbol("row", self.count)

    def _body(self, known: int) -> Body:
        """The body of a function that is given the results of the first stages."""
        body = Body(self.builder)
        for stage, name in zip(self.stages[:known], self._known, strict=False):
            body.preset(stage.value, self._row, name)
        return body

    def _function(self, name: str, given: str, known: int, result: str, body: Body) -> None:
        values = "".join(f", {value}: f32" for value in self._known[:known])
        self.builder.function(name, f"row: u32, {given}{values}", result, body)

    def _element(self, body: Body) -> Index:
        """The place of the row's element c."""
        place = body.let(self._row * self.length + symbol("c", self.length), "i")
        for stage in self.stages:
            body.name(broadcast_map(stage.value.shape, self.builder.root.shape).at(place), "row")
        return place

    def _walk(self, body: Body) -> str:
        """The head of an invocation's loop over its elements."""
        return f"for (var c = t; c < {self.length}u; c += {self.threads}u)"

    def reduction(self, number: int) -> None:
        """`partial0(row, t, …)`, an invocation's share, and `whole0(row, total, …)`."""
        stage = self.stages[number]
        rule = reduction.rule_of(stage.node)
        storage = self.builder.storage(stage.node.output)
        body = self._body(number)
        total = body.var("f32", reduction.initial(rule, storage))
        with body.block(self._walk(body)):
            element = body.load(next(stage.node.operands), self._element(body))
            body.line(f"{total} = {reduction.step(rule, storage, total, element)};")
        body.line(f"return {total};")
        self._function(f"partial{number}", "t: u32", number, "f32", body)
        after = self._body(number)
        whole = after.let(reduction.finish(rule, storage, "total", self.length), "whole")
        after.preset(stage.node.output, self._row, whole)
        after.line(f"return {after.load(stage.value, self._row)};")
        self._function(f"whole{number}", "total: f32", number, "f32", after)

    def elements(self) -> None:
        """`compute(row, t, …)` writes an invocation's elements."""
        body = self._body(len(self.stages))
        with body.block(self._walk(body)):
            place = self._element(body)
            body.store(place, body.load(self.builder.root, place))
        self._function("compute", "t: u32", len(self.stages), "", body)

    def main(self, groups: tuple[int, int, int]) -> str:
        """The entry point."""
        lines = [
            f"var<workgroup> row_part: array<f32, {self.threads}>;",
            f"@compute @workgroup_size({self.threads})",
            "fn main(@builtin(workgroup_id) g: vec3<u32>,"
            " @builtin(local_invocation_index) t: u32) {",
            f"  let place = {place_in(groups)};",
            f"  let row = min(place, {self.count - 1}u);",
        ]
        for number, stage in enumerate(self.stages):
            given = "".join(f", {value}" for value in self._known[:number])
            rule = reduction.rule_of(stage.node)
            storage = self.builder.storage(stage.node.output)
            combined = reduction.combine(rule, storage, "row_part[t]", "row_part[t + s]")
            lines += [
                f"  row_part[t] = partial{number}(row, t{given});",
                "  workgroupBarrier();",
                f"  for (var s = {self.threads // 2}u; s > 0u; s = s >> 1u) {{",
                f"    if (t < s) {{ row_part[t] = {combined}; }}",
                "    workgroupBarrier();",
                "  }",
                f"  let v{number} = whole{number}(row, row_part[0]{given});",
                "  workgroupBarrier();",
            ]
        given = "".join(f", {value}" for value in self._known)
        lines += [f"  if (place < {self.count}u) {{ compute(row, t{given}); }}", "}"]
        return "\n".join(lines)

"""The steps of a recurrent network: one kernel, dispatched repeatedly over one buffer of states.

A unit is one element of the hidden state of one sequence. A dispatch takes every unit through one
step: it reads the previous hidden state and writes its part of the next. Dispatches depend on each
other, units do not. Each unit counts the dispatches in the buffer.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from webnn_py.core.traced_queries import divides
from webnn_py.engines.webgpu.compiler.code.expressions import express
from webnn_py.engines.webgpu.compiler.code.functions import Function
from webnn_py.engines.webgpu.compiler.code.index import symbol
from webnn_py.engines.webgpu.compiler.kernel import (
    BY_WORKGROUP,
    EntryPoint,
    Kernel,
    WorkgroupArray,
    grid,
)
from webnn_py.engines.webgpu.compiler.kernel_builder import OUT, Body, KernelBuilder, Make
from webnn_py.engines.webgpu.compiler.legalize.sequences import Steps
from webnn_py.engines.webgpu.program.pieces import END_LOOP, declared, divisor, loop, u32
from webnn_py.engines.webgpu.program.storage import storage_of
from webnn_py.ir import Node
from webnn_py.ops.declare import REGISTRY

_BEGIN = declared("begin")
_BEFORE = declared("before")
_SLOT_OF = declared("slot_of")
_SHARED_SUMS = declared("shared_sums")

WORKGROUP_SIZE = 64
"""Invocations of a workgroup."""
LANES = {"gpu": 16, "cpu": 1}
"""Invocations that share the sums of a unit, by kind of device."""


def emit(make: Make, node: Node) -> list[Kernel]:
    """Return the kernels of a recurrent layer: the initial state, and a step, dispatched often."""
    return [_initial(make(), node), _Step(make(), node).kernel()]


def _initial(builder: KernelBuilder, node: Node) -> Kernel:
    """Return the kernel that writes each unit's state before the first step."""
    what: Steps = node.attrs["what"]
    units = node.output.size // node.output.shape[0]
    *_, hidden, cell = node.inputs
    given = {"initial": hidden, "cell": cell}
    body = Body(builder)
    for name, slot in what.slots.items():
        value = given.get(name)
        element = "0.0" if value is None else body.load(value, symbol("i"))
        body.line(f"{OUT}[{u32(slot * units)} + i] = {element};")
    builder.function("begin", "i: u32", "", body)
    groups = grid(-(-units // WORKGROUP_SIZE), builder.features.grid)
    lines = [
        f"  let i = (g.x + g.y * {u32(groups[0])}) * {u32(WORKGROUP_SIZE)} + t;",
        f"  if (i < {u32(units)}) {{ {_BEGIN}(i); }}",
    ]
    return builder.finish(what.name, EntryPoint.of(WORKGROUP_SIZE, BY_WORKGROUP, lines), groups)


class _Step:
    """Emitter of the kernel that takes all units through one step."""

    def __init__(self, builder: KernelBuilder, node: Node) -> None:
        self.builder = builder
        self.what: Steps = node.attrs["what"]
        self.projected, self.recurrent, self.recurrent_bias, self.peephole, *_ = node.inputs
        _, _, self.batches, self.hidden = node.output.shape
        self.units = node.output.size // node.output.shape[0]
        self.gates = len(self.what.layout)
        self.unit = symbol("unit", self.hidden)
        self.direction = symbol("direction", len(self.what.backward))

    def kernel(self) -> Kernel:
        """Return the kernel; each phase of a step sums, then updates the units."""
        what, hidden, before = self.what, self.hidden, f"{_BEFORE}(i, step)"
        phases: list[tuple[str, str, Callable[[Body], None]]] = [
            (before, what.layout, self._lstm if what.has_cell else self._gru)
        ]
        if what.resets_before:
            reset = (
                f"{u32(what.slots['reset'] * self.units)} + i / {divisor(hidden)} * {u32(hidden)}"
            )
            phases = [(before, "zr", self._reset), (reset, "n", self._new)]
        self._places()
        for number, (source, letters, after) in enumerate(phases):
            self._sums(f"sums{number}", source, letters)
            body = Body(self.builder)
            body.line(f"let s = {_SLOT_OF}(i, step);")
            body.line(f"let direction = i / {divisor(self.batches * hidden)};")
            body.line(f"let unit = i % {divisor(hidden)};")
            after(body)
            self.builder.function(f"after{number}", "i: u32, step: u32, sums: vec4<f32>", "", body)
        kernel = self._main(len(phases))
        return dataclasses.replace(kernel, times=what.steps * len(phases))

    def _place(self, slot: str) -> str:
        """Return the unit's state in a slot."""
        return f"{OUT}[{u32(self.what.slots[slot] * self.units)} + i]"

    def _places(self) -> None:
        """Add functions for the slot of a step, and the start of its sequence's previous states."""
        last = f"{u32(self.what.steps - 1)} - step"
        directions = {
            (False,): "step",
            (True,): last,
            (False, True): f"select(step, {last}, i >= {u32(self.units // 2)})",
        }
        initial = self.what.slots["initial"]
        slot = directions[self.what.backward]
        self.builder.functions += [
            Function.of("slot_of", "i: u32, step: u32", "u32", f" return {slot}; "),
            Function.of(
                "before",
                "i: u32, step: u32",
                "u32",
                f"""
  let slot = select({_SLOT_OF}(i, step - 1u), {u32(initial)}, step == 0u);
  return slot * {u32(self.units)} + i / {divisor(self.hidden)} * {u32(self.hidden)};
""",
            ),
        ]

    def _sums(self, name: str, source: str, letters: str) -> None:
        """Add a function: the states from `source` on times the rows of a unit's gates."""
        assert self.recurrent is not None
        builder, hidden = self.builder, self.hidden
        lanes = LANES[builder.features.kind]
        body = Body(builder)
        base = body.let(source, "base")
        i = symbol("i", self.units)
        first = i // (self.batches * hidden) * (self.gates * hidden) + i % hidden
        first = body.let(first * hidden, "row")
        rows = [
            body.let(first + self.what.layout.index(letter) * hidden * hidden, "row")
            for letter in letters
        ]
        vectors = builder.vector(self.recurrent) if builder.is_stored(self.recurrent) else None
        width = 4 if vectors is not None and divides(4, hidden) else 1
        kind = "vec4<f32>" if width == 4 else "f32"
        totals = [body.var(kind, f"{kind}()", "total") for _ in rows]
        count = hidden // width
        head = f"for (var k = lane; k < {u32(count)}; k += {u32(lanes)})"
        with body.block(head, -(-count // lanes)):
            if vectors is not None and width == 4:
                at = ", ".join(f"{OUT}[{base} + k * 4u + {u32(n)}]" for n in range(4))
                state = body.let(f"vec4<f32>({at})", "state")
                rows = [builder.places.at(self.recurrent, row) for row in rows]
                for total, row in zip(totals, rows, strict=True):
                    weights = vectors(f"({row} >> 2u) + k")
                    body.line(f"{total} += {state} * vec4<f32>({weights});")
            else:
                state = body.let(f"{OUT}[{base} + k]", "state")
                for total, row in zip(totals, rows, strict=True):
                    body.line(
                        f"{total} += {state} * {body.load(self.recurrent, row + symbol('k'))};"
                    )
        parts = [f"dot({total}, vec4<f32>(1.0))" if width == 4 else total for total in totals]
        parts += ["0.0"] * (4 - len(parts))
        body.line(f"return vec4<f32>({', '.join(parts)});")
        builder.function(name, "i: u32, step: u32, lane: u32", "vec4<f32>", body)

    def _main(self, phases: int) -> Kernel:
        """Emit the entry point."""
        lanes = LANES[self.builder.features.kind]
        per_group = WORKGROUP_SIZE // lanes
        groups = grid(-(-self.units // per_group), self.builder.features.grid)
        lines = [
            f"  let u = (g.x + g.y * {u32(groups[0])}) * {u32(per_group)} + t / {divisor(lanes)};",
            f"  let i = min(u, {u32(self.units - 1)});",
            f"  let run = u32({self._place('counter')});",
            f"  let step = run / {divisor(phases)};",
            f"  let lane = t % {divisor(lanes)};",
        ]
        if phases == 1:
            lines.append(f"  var sums = {declared('sums0')}(i, step, lane);")
        else:
            lines += [
                "  var sums: vec4<f32>;",
                f"  if (run % 2u == 0u) {{ sums = {declared('sums0')}(i, step, lane); }}",
                f"  else {{ sums = {declared('sums1')}(i, step, lane); }}",
            ]
        arrays: tuple[WorkgroupArray, ...] = ()
        if lanes > 1:
            arrays = (WorkgroupArray("shared_sums", "vec4<f32>", (WORKGROUP_SIZE,)),)
            lines += [
                f"  {_SHARED_SUMS}[t] = sums;",
                "  workgroupBarrier();",
                "  " + loop(f"for (var other = 1u; other < {u32(lanes)}; other++)", lanes - 1),
                f"    sums += {_SHARED_SUMS}[t - lane + (lane + other) % {divisor(lanes)}];",
                f"  {END_LOOP}",
            ]
        lines.append(f"  if (u >= {u32(self.units)} || lane != 0u) {{ return; }}")
        if phases == 1:
            lines.append(f"  {declared('after0')}(i, step, sums);")
        else:
            lines.append(
                f"  if (run % 2u == 0u) {{ {declared('after0')}(i, step, sums); }}"
                f" else {{ {declared('after1')}(i, step, sums); }}"
            )
        lines.append(f"  {self._place('counter')} = f32(run + 1u);")
        entry = EntryPoint.of(WORKGROUP_SIZE, BY_WORKGROUP, lines, arrays)
        return self.builder.finish(self.what.name, entry, groups)

    # After the sums

    def _input(self, body: Body, letter: str) -> str:
        """Load a gate's part of the projected input of the step."""
        assert self.projected is not None
        width = self.gates * self.hidden
        batch = symbol("i", self.units) // self.hidden % self.batches
        row = (self.direction * self.what.steps + symbol("s")) * self.batches + batch
        first = self.what.layout.index(letter) * self.hidden
        return body.load(self.projected, row * width + first + self.unit)

    def _recurrent_term(self, body: Body, letter: str, number: int) -> str:
        """Return a gate's sum plus its recurrent bias."""
        total = f"sums[{number}]"
        if self.recurrent_bias is None:
            return total
        first = self.what.layout.index(letter) * self.hidden
        place = self.direction * (self.gates * self.hidden) + first + self.unit
        return f"{total} + {body.load(self.recurrent_bias, place)}"

    def _activated(self, body: Body, number: int, value: str) -> str:
        """Apply an activation function."""
        wgsl = REGISTRY[self.what.activations[number]].wgsl
        assert wgsl is not None
        storage = storage_of("float32", self.builder.features)
        return body.let(express(wgsl, storage, input=body.let(value, "sum")))

    def _hidden(self, body: Body) -> str:
        """Load the unit's hidden state before the step."""
        return body.let(f"{OUT}[{_BEFORE}(i, step) + unit]", "hidden")

    def _lstm(self, body: Body) -> None:
        """Update cell and hidden state of an lstm."""
        cell = body.let(self._place("cell"), "cell")
        gates: dict[str, str] = {}
        for number, letter in enumerate(self.what.layout):
            value = f"{self._input(body, letter)} + {self._recurrent_term(body, letter, number)}"
            if letter != "g" and self.peephole is not None:
                first = "iof".index(letter) * self.hidden
                place = self.direction * (3 * self.hidden) + first + self.unit
                value += f" + {cell} * {body.load(self.peephole, place)}"
            gates[letter] = self._activated(body, 1 if letter == "g" else 0, value)
        cell = body.let(f"{gates['f']} * {cell} + {gates['i']} * {gates['g']}", "cell")
        body.line(f"{self._place('cell')} = {cell};")
        body.line(
            f"{OUT}[s * {u32(self.units)} + i] = {gates['o']} * {self._activated(body, 2, cell)};"
        )

    def _gate(self, body: Body, letter: str, number: int) -> str:
        """Return an activated gate of a gru."""
        value = f"{self._input(body, letter)} + {self._recurrent_term(body, letter, number)}"
        return self._activated(body, 0, value)

    def _gru(self, body: Body) -> None:
        """Update the hidden state of a gru that resets after the product."""
        z, r = (self._gate(body, letter, self.what.layout.index(letter)) for letter in "zr")
        remembered = self._recurrent_term(body, "n", self.what.layout.index("n"))
        new = self._activated(body, 1, f"{self._input(body, 'n')} + {r} * ({remembered})")
        self._mix(body, z, new)

    def _reset(self, body: Body) -> None:
        """Emit the first of two phases: the update gate, and the reset state."""
        z, r = (self._gate(body, letter, number) for number, letter in enumerate("zr"))
        body.line(f"{self._place('z')} = {z};")
        body.line(f"{self._place('reset')} = {r} * {self._hidden(body)};")

    def _new(self, body: Body) -> None:
        """Emit the second of two phases: the new state from the product of the reset state."""
        new = f"{self._input(body, 'n')} + {self._recurrent_term(body, 'n', 0)}"
        self._mix(body, body.let(self._place("z")), self._activated(body, 1, new))

    def _mix(self, body: Body, z: str, new: str) -> None:
        """Store the mean of old and new state, weighted by the update gate."""
        hidden = self._hidden(body)
        body.line(f"{OUT}[s * {u32(self.units)} + i] = {z} * {hidden} + {new} * (1.0 - {z});")

"""Recurrent networks in terms of other operators.

The inputs of all steps are multiplied by the weight at once, and each step multiplies the hidden
state by the recurrent weight once for all gates. Products are made in the operands' data type; what
follows, and the cell state between steps, in float32.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from webnn_py.ops.decompositions.casts import narrow, wide
from webnn_py.ops.decompositions.registry import decomposition
from webnn_py.ops.graph_builder import GraphBuilder
from webnn_py.ops.movement import MAX_TENSORS
from webnn_py.ops.operand import MLOperand


class _Cell:
    """What the steps of one direction share.

    Attributes:
        hidden: The hidden state, of the operands' data type.
    """

    def __init__(
        self,
        g: GraphBuilder,
        recurrent_weight: MLOperand,
        recurrent_bias: MLOperand | None,
        hidden: MLOperand,
        layout: str,
        activations: Sequence[str],
    ) -> None:
        self.g = g
        self.hidden = hidden
        self.recurrent_bias = recurrent_bias
        self.layout = layout
        self.activations = activations
        self._recurrent_weight = recurrent_weight
        self._transposed: dict[tuple[int, int], MLOperand] = {}

    def projected(
        self, x: MLOperand, weight: MLOperand, biases: Sequence[MLOperand | None]
    ) -> MLOperand:
        """X [rows, k] by weight [n, k] transposed, plus biases [n], in float32."""
        product = self.g.matmul(x, self.g.transpose(weight))
        return self.plus(wide(self.g, product), *biases)

    def plus(self, value: MLOperand, *biases: MLOperand | None) -> MLOperand:
        """Biases that are there, added."""
        for bias in biases:
            if bias is not None:
                value = self.g.add(value, wide(self.g, bias))
        return value

    def recurrent(self, state: MLOperand, first: int, gates: int) -> MLOperand:
        """The state [batch, hidden] by the recurrent weight of some gates, plus their bias."""
        size = self.hidden.shape[1]
        key = first, gates
        if key not in self._transposed:
            rows = self._part(self._recurrent_weight, first * size, gates * size)
            self._transposed[key] = self.g.transpose(rows)
        product = wide(self.g, self.g.matmul(state, self._transposed[key]))
        if self.recurrent_bias is None:
            return product
        return self.plus(product, self._part(self.recurrent_bias, first * size, gates * size))

    def _part(self, operand: MLOperand, start: int, length: int) -> MLOperand:
        if length == operand.shape[0]:
            return operand
        rest = operand.shape[1:]
        return self.g.slice(operand, [start, *[0] * len(rest)], [length, *rest])

    def gates(self, value: MLOperand) -> dict[str, MLOperand]:
        """The parts of [batch, gates * hidden] by the letters of the layout."""
        count = value.shape[1] // self.hidden.shape[1]
        return dict(zip(self.layout, self.g.split(value, count, axis=1), strict=False))

    def activate(self, number: int, value: MLOperand) -> MLOperand:
        """An activation function applied."""
        method: Any = getattr(self.g, self.activations[number])
        activated: MLOperand = method(value)
        return activated

    def step(self, projected: MLOperand) -> None:
        """Take the projected input of one step [batch, gates * hidden] into the state."""
        raise NotImplementedError


class _GruCell(_Cell):
    def __init__(self, *args: Any, reset_after: bool) -> None:
        super().__init__(*args)
        self.reset_after = reset_after

    def step(self, projected: MLOperand) -> None:
        g = self.g
        data_type = self.hidden.data_type
        before = wide(self.g, self.hidden)
        inputs = self.gates(projected)
        # The new gate is the last one in both layouts.
        states = self.gates(self.recurrent(self.hidden, 0, 3 if self.reset_after else 2))
        z = self.activate(0, g.add(inputs["z"], states["z"]))
        r = self.activate(0, g.add(inputs["r"], states["r"]))
        if self.reset_after:
            remembered = g.mul(r, states["n"])
        else:
            reset = narrow(self.g, g.mul(r, before), data_type)
            remembered = self.recurrent(reset, 2, 1)
        n = self.activate(1, g.add(inputs["n"], remembered))
        kept = g.sub(self.g.constant_of(1.0, z), z)
        self.hidden = narrow(self.g, g.add(g.mul(z, before), g.mul(n, kept)), data_type)


class _LstmCell(_Cell):
    """Keeps the cell state in float32."""

    def __init__(self, *args: Any, cell: MLOperand, peephole: MLOperand | None) -> None:
        super().__init__(*args)
        self.cell = wide(self.g, cell)
        parts = [] if peephole is None else self.g.split(wide(self.g, peephole), 3)
        self.peepholes = dict(zip("iof", parts, strict=False))

    def step(self, projected: MLOperand) -> None:
        g = self.g
        total = self.gates(g.add(projected, self.recurrent(self.hidden, 0, 4)))
        i, o, f = (self._gate(total[letter], letter) for letter in "iof")
        new = self.activate(1, total["g"])
        self.cell = g.add(g.mul(f, self.cell), g.mul(i, new))
        hidden = g.mul(o, self.activate(2, self.cell))
        self.hidden = narrow(self.g, hidden, self.hidden.data_type)

    def _gate(self, value: MLOperand, letter: str) -> MLOperand:
        if letter in self.peepholes:
            value = self.g.add(value, self.g.mul(self.cell, self.peepholes[letter]))
        return self.activate(0, value)


@decomposition
def gru_cell(
    g: GraphBuilder,
    input: MLOperand,
    weight: MLOperand,
    recurrent_weight: MLOperand,
    hidden_state: MLOperand,
    bias: MLOperand | None,
    recurrent_bias: MLOperand | None,
    hidden_size: int,
    reset_after: bool,
    layout: str,
    activations: Sequence[str],
) -> MLOperand:
    """One step."""
    shared = (recurrent_weight, recurrent_bias, hidden_state, layout, activations)
    cell = _GruCell(g, *shared, reset_after=reset_after)
    cell.step(cell.projected(input, weight, [bias]))
    return cell.hidden


@decomposition
def lstm_cell(
    g: GraphBuilder,
    input: MLOperand,
    weight: MLOperand,
    recurrent_weight: MLOperand,
    hidden_state: MLOperand,
    cell_state: MLOperand,
    bias: MLOperand | None,
    recurrent_bias: MLOperand | None,
    peephole_weight: MLOperand | None,
    hidden_size: int,
    layout: str,
    activations: Sequence[str],
) -> list[MLOperand]:
    """One step."""
    shared = (recurrent_weight, recurrent_bias, hidden_state, layout, activations)
    cell = _LstmCell(g, *shared, cell=cell_state, peephole=peephole_weight)
    cell.step(cell.projected(input, weight, [bias]))
    return [cell.hidden, narrow(g, cell.cell, input.data_type)]


@decomposition
def gru(
    g: GraphBuilder,
    input: MLOperand,
    weight: MLOperand,
    recurrent_weight: MLOperand,
    bias: MLOperand | None,
    recurrent_bias: MLOperand | None,
    initial_hidden_state: MLOperand | None,
    steps: int,
    hidden_size: int,
    reset_after: bool,
    return_sequence: bool,
    direction: str,
    layout: str,
    activations: Sequence[str],
) -> list[MLOperand]:
    """All steps of each direction."""
    cells: list[_Cell] = []
    sequences = []
    for number, backward in enumerate(_directions(direction)):
        hidden = _initial(g, initial_hidden_state, number, input, hidden_size)
        shared = (_at(g, recurrent_weight, number), _maybe(g, recurrent_bias, number))
        cell = _GruCell(g, *shared, hidden, layout, activations, reset_after=reset_after)
        projected = _all_projected(cell, input, weight, bias, number)
        sequences.append(_run(cell, projected, backward))
        cells.append(cell)
    last = _stacked(g, [cell.hidden for cell in cells], 0, 3)
    return [last, *_sequence(g, sequences, return_sequence)]


@decomposition
def lstm(
    g: GraphBuilder,
    input: MLOperand,
    weight: MLOperand,
    recurrent_weight: MLOperand,
    bias: MLOperand | None,
    recurrent_bias: MLOperand | None,
    peephole_weight: MLOperand | None,
    initial_hidden_state: MLOperand | None,
    initial_cell_state: MLOperand | None,
    steps: int,
    hidden_size: int,
    return_sequence: bool,
    direction: str,
    layout: str,
    activations: Sequence[str],
) -> list[MLOperand]:
    """All steps of each direction."""
    cells: list[_LstmCell] = []
    sequences = []
    for number, backward in enumerate(_directions(direction)):
        hidden = _initial(g, initial_hidden_state, number, input, hidden_size)
        state = _initial(g, initial_cell_state, number, input, hidden_size)
        shared = (_at(g, recurrent_weight, number), _maybe(g, recurrent_bias, number))
        peephole = _maybe(g, peephole_weight, number)
        cell = _LstmCell(g, *shared, hidden, layout, activations, cell=state, peephole=peephole)
        projected = _all_projected(cell, input, weight, bias, number)
        sequences.append(_run(cell, projected, backward))
        cells.append(cell)
    hidden = _stacked(g, [cell.hidden for cell in cells], 0, 3)
    states = [narrow(g, cell.cell, input.data_type) for cell in cells]
    last = [hidden, _stacked(g, states, 0, 3)]
    return [*last, *_sequence(g, sequences, return_sequence)]


def _directions(direction: str) -> list[bool]:
    """For each direction, whether it runs from the last step."""
    return {"forward": [False], "backward": [True], "both": [False, True]}[direction]


def _at(g: GraphBuilder, operand: MLOperand, number: int) -> MLOperand:
    """operand[number]."""
    rest = operand.shape[1:]
    if operand.shape[0] > 1:
        operand = g.slice(operand, [number, *[0] * len(rest)], [1, *rest])
    return g.reshape(operand, rest)


def _maybe(g: GraphBuilder, operand: MLOperand | None, number: int) -> MLOperand | None:
    return None if operand is None else _at(g, operand, number)


def _initial(
    g: GraphBuilder, given: MLOperand | None, number: int, input: MLOperand, hidden_size: int
) -> MLOperand:
    if given is not None:
        return _at(g, given, number)
    zero = g.constant_of(0.0, input)
    return g.expand(zero, [input.shape[1], hidden_size])


def _all_projected(
    cell: _Cell, input: MLOperand, weight: MLOperand, bias: MLOperand | None, number: int
) -> list[MLOperand]:
    """For each step, its input by the weight of a direction, plus the bias."""
    steps, batches, features = input.shape
    flat = cell.g.reshape(input, [steps * batches, features])
    bias_here = _maybe(cell.g, bias, number)
    projected = cell.projected(flat, _at(cell.g, weight, number), [bias_here])
    width = projected.shape[1]
    return [cell.g.slice(projected, [step * batches, 0], [batches, width]) for step in range(steps)]


def _run(cell: _Cell, projected: Sequence[MLOperand], backward: bool) -> list[MLOperand]:
    """The hidden state of each step, in the order of the input."""
    states = []
    for step in reversed(projected) if backward else projected:
        cell.step(step)
        states.append(cell.hidden)
    return states[::-1] if backward else states


def _stacked(g: GraphBuilder, parts: Sequence[MLOperand], axis: int, rank: int) -> MLOperand:
    """[batch, hidden] each, with dimensions put in front and joined along one of them."""
    ones = [1] * (rank - 2)
    return joined(g, [g.reshape(part, [*ones, *part.shape]) for part in parts], axis)


def joined(g: GraphBuilder, parts: Sequence[MLOperand], axis: int) -> MLOperand:
    """A concatenation of any number of operands."""
    while len(parts) > 1:
        groups = [parts[i : i + MAX_TENSORS] for i in range(0, len(parts), MAX_TENSORS)]
        parts = [g.concat(group, axis) for group in groups]
    return parts[0]


def _sequence(
    g: GraphBuilder, sequences: Sequence[Sequence[MLOperand]], wanted: bool
) -> list[MLOperand]:
    """[steps, directions, batch, hidden], if asked for."""
    if not wanted:
        return []
    return [joined(g, [_stacked(g, states, 0, 4) for states in sequences], 1)]

"""Decompositions of recurrent networks.

One matrix product multiplies the inputs of all steps by the weight. Each step multiplies the hidden
state by the recurrent weight, once for all gates. Products use the operands' data type; all other
operators, and the cell state between steps, use float32.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from webnn_py.ops.decompositions.casts import narrow, wide
from webnn_py.ops.decompositions.registry import decomposition
from webnn_py.ops.graph_builder import GraphBuilder
from webnn_py.ops.movement import MAX_TENSORS
from webnn_py.ops.operand import MLOperand
from webnn_py.ops.recurrent import Activation, Direction, LstmLayout


class _Cell:
    """The cell of one direction: weights and state that its steps share.

    Attributes:
        hidden: The hidden state [batch, hidden], of the operands' data type.
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

    def project(
        self, x: MLOperand, weight: MLOperand, biases: Sequence[MLOperand | None]
    ) -> MLOperand:
        """Multiply x [rows, k] by the transposed weight [n, k], add biases [n]; in float32."""
        product = self.g.matmul(x, self.g.transpose(weight))
        return self.add_biases(wide(self.g, product), *biases)

    def add_biases(self, value: MLOperand, *biases: MLOperand | None) -> MLOperand:
        """Add the biases that are not None."""
        for bias in biases:
            if bias is not None:
                value = self.g.add(value, wide(self.g, bias))
        return value

    def project_state(self, state: MLOperand, first: int, gates: int) -> MLOperand:
        """Multiply the state [batch, hidden] by the recurrent weight of some gates, add its bias.

        Args:
            state: The hidden state.
            first: Index of the first gate.
            gates: Number of gates.
        """
        size = self.hidden.shape[1]
        key = first, gates
        if key not in self._transposed:
            rows = self._part(self._recurrent_weight, first * size, gates * size)
            self._transposed[key] = self.g.transpose(rows)
        product = wide(self.g, self.g.matmul(state, self._transposed[key]))
        if self.recurrent_bias is None:
            return product
        return self.add_biases(product, self._part(self.recurrent_bias, first * size, gates * size))

    def _part(self, operand: MLOperand, start: int, length: int) -> MLOperand:
        if length == operand.shape[0]:
            return operand
        rest = operand.shape[1:]
        return self.g.slice(operand, [start, *[0] * len(rest)], [length, *rest])

    def gates(self, value: MLOperand) -> dict[str, MLOperand]:
        """Split [batch, gates * hidden] into the gates, by the letters of the layout."""
        count = value.shape[1] // self.hidden.shape[1]
        return dict(zip(self.layout, self.g.split(value, count, axis=1), strict=False))

    def activate(self, number: int, value: MLOperand) -> MLOperand:
        """Apply the activation function of this number."""
        method: Any = getattr(self.g, self.activations[number])
        activated: MLOperand = method(value)
        return activated

    def step(self, projected: MLOperand) -> None:
        """Update the state with the projected input of one step [batch, gates * hidden]."""
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
        # The new gate n is the last one in both layouts.
        states = self.gates(self.project_state(self.hidden, 0, 3 if self.reset_after else 2))
        z = self.activate(0, g.add(inputs["z"], states["z"]))
        r = self.activate(0, g.add(inputs["r"], states["r"]))
        if self.reset_after:
            remembered = g.mul(r, states["n"])
        else:
            reset = narrow(self.g, g.mul(r, before), data_type)
            remembered = self.project_state(reset, 2, 1)
        n = self.activate(1, g.add(inputs["n"], remembered))
        complement = g.sub(self.g.constant_of(1.0, z), z)
        self.hidden = narrow(self.g, g.add(g.mul(z, before), g.mul(n, complement)), data_type)


class _LstmCell(_Cell):
    """The cell of an LSTM, whose cell state is float32."""

    def __init__(self, *args: Any, cell: MLOperand, peephole: MLOperand | None) -> None:
        super().__init__(*args)
        self.cell = wide(self.g, cell)
        parts = [] if peephole is None else self.g.split(wide(self.g, peephole), 3)
        self.peepholes = dict(zip("iof", parts, strict=False))

    def step(self, projected: MLOperand) -> None:
        g = self.g
        total = self.gates(g.add(projected, self.project_state(self.hidden, 0, 4)))
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
    """Compute one step."""
    shared = (recurrent_weight, recurrent_bias, hidden_state, layout, activations)
    cell = _GruCell(g, *shared, reset_after=reset_after)
    cell.step(cell.project(input, weight, [bias]))
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
    """Compute one step."""
    shared = (recurrent_weight, recurrent_bias, hidden_state, layout, activations)
    cell = _LstmCell(g, *shared, cell=cell_state, peephole=peephole_weight)
    cell.step(cell.project(input, weight, [bias]))
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
    """Unroll all steps of each direction."""
    cells: list[_Cell] = []
    sequences = []
    for number, backward in enumerate(_directions(direction)):
        hidden = _initial_state(g, initial_hidden_state, number, input, hidden_size)
        shared = (_at(g, recurrent_weight, number), _optional_at(g, recurrent_bias, number))
        cell = _GruCell(g, *shared, hidden, layout, activations, reset_after=reset_after)
        projected = _project_inputs(cell, input, weight, bias, number)
        sequences.append(_run(cell, projected, backward))
        cells.append(cell)
    last = _stack(g, [cell.hidden for cell in cells], 0, 3)
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
    """Unroll all steps of each direction."""
    cells: list[_LstmCell] = []
    sequences = []
    for number, backward in enumerate(_directions(direction)):
        hidden = _initial_state(g, initial_hidden_state, number, input, hidden_size)
        state = _initial_state(g, initial_cell_state, number, input, hidden_size)
        shared = (_at(g, recurrent_weight, number), _optional_at(g, recurrent_bias, number))
        peephole = _optional_at(g, peephole_weight, number)
        cell = _LstmCell(g, *shared, hidden, layout, activations, cell=state, peephole=peephole)
        projected = _project_inputs(cell, input, weight, bias, number)
        sequences.append(_run(cell, projected, backward))
        cells.append(cell)
    hidden = _stack(g, [cell.hidden for cell in cells], 0, 3)
    states = [narrow(g, cell.cell, input.data_type) for cell in cells]
    last = [hidden, _stack(g, states, 0, 3)]
    return [*last, *_sequence(g, sequences, return_sequence)]


def _directions(direction: str) -> list[bool]:
    """Return for each direction whether it starts at the last step."""
    return {"forward": [False], "backward": [True], "both": [False, True]}[direction]


def _at(g: GraphBuilder, operand: MLOperand, number: int) -> MLOperand:
    """Return operand[number], without its first dimension."""
    rest = operand.shape[1:]
    if operand.shape[0] > 1:
        operand = g.slice(operand, [number, *[0] * len(rest)], [1, *rest])
    return g.reshape(operand, rest)


def _optional_at(g: GraphBuilder, operand: MLOperand | None, number: int) -> MLOperand | None:
    return None if operand is None else _at(g, operand, number)


def _initial_state(
    g: GraphBuilder, state: MLOperand | None, number: int, input: MLOperand, hidden_size: int
) -> MLOperand:
    if state is not None:
        return _at(g, state, number)
    zero = g.constant_of(0.0, input)
    return g.expand(zero, [input.shape[1], hidden_size])


def _project_inputs(
    cell: _Cell, input: MLOperand, weight: MLOperand, bias: MLOperand | None, number: int
) -> list[MLOperand]:
    """Multiply each step's input by the weight of a direction, and add the bias."""
    steps, batches, features = input.shape
    flat = cell.g.reshape(input, [steps * batches, features])
    bias_here = _optional_at(cell.g, bias, number)
    projected = cell.project(flat, _at(cell.g, weight, number), [bias_here])
    width = projected.shape[1]
    return [cell.g.slice(projected, [step * batches, 0], [batches, width]) for step in range(steps)]


def _run(cell: _Cell, projected: Sequence[MLOperand], backward: bool) -> list[MLOperand]:
    """Run all steps and return the hidden state of each, in the order of the input."""
    states = []
    for step in reversed(projected) if backward else projected:
        cell.step(step)
        states.append(cell.hidden)
    return states[::-1] if backward else states


def _stack(g: GraphBuilder, parts: Sequence[MLOperand], axis: int, rank: int) -> MLOperand:
    """Add leading dimensions to each [batch, hidden] and join them along one of these."""
    ones = [1] * (rank - 2)
    return concat_all(g, [g.reshape(part, [*ones, *part.shape]) for part in parts], axis)


def concat_all(g: GraphBuilder, parts: Sequence[MLOperand], axis: int) -> MLOperand:
    """Concatenate any number of operands; one `concat` takes at most MAX_TENSORS."""
    while len(parts) > 1:
        groups = [parts[i : i + MAX_TENSORS] for i in range(0, len(parts), MAX_TENSORS)]
        parts = [g.concat(group, axis) for group in groups]
    return parts[0]


def _sequence(
    g: GraphBuilder, sequences: Sequence[Sequence[MLOperand]], return_sequence: bool
) -> list[MLOperand]:
    """Return [[steps, directions, batch, hidden]] if `return_sequence`, else no output."""
    if not return_sequence:
        return []
    return [concat_all(g, [_stack(g, states, 0, 4) for states in sequences], 1)]


@decomposition
def lstm_packed(
    g: GraphBuilder,
    input: MLOperand,
    weight: MLOperand,
    recurrent_weight: MLOperand,
    weight_scale: MLOperand,
    recurrent_scale: MLOperand,
    weight_zero_point: MLOperand | None,
    recurrent_zero_point: MLOperand | None,
    bias: MLOperand | None,
    recurrent_bias: MLOperand | None,
    initial_hidden_state: MLOperand | None,
    initial_cell_state: MLOperand | None,
    direction: Direction,
    layout: LstmLayout,
    activations: Sequence[Activation],
) -> list[MLOperand]:
    """Dequantize the weights, then run."""
    return g.lstm(
        input,
        _dequantized(g, weight, weight_scale, weight_zero_point),
        _dequantized(g, recurrent_weight, recurrent_scale, recurrent_zero_point),
        input.shape[0],
        recurrent_weight.shape[1],
        return_sequence=True,
        bias=bias,
        recurrent_bias=recurrent_bias,
        initial_hidden_state=initial_hidden_state,
        initial_cell_state=initial_cell_state,
        direction=direction,
        layout=layout,
        activations=activations,
    )


def _dequantized(
    g: GraphBuilder, weight: MLOperand, scale: MLOperand, zero: MLOperand | None
) -> MLOperand:
    """Return the float weight [directions, 4 * hidden, features]."""
    shape = [scale.shape[0], 1, scale.shape[1]]
    codes = wide(g, weight)
    if zero is not None:
        codes = g.sub(codes, g.reshape(wide(g, zero), shape))
    return g.transpose(g.mul(codes, g.reshape(scale, shape)), permutation=[0, 2, 1])

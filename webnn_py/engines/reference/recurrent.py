"""Recurrent networks in NumPy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]

_ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "relu": lambda x: np.maximum(x, 0.0),
    "sigmoid": lambda x: 1.0 / (1.0 + np.exp(-x)),
    "tanh": np.tanh,
}


def _wide(operand: Array | None) -> Array:
    """Convert to float64; None becomes zero."""
    return np.zeros(()) if operand is None else operand.astype(np.float64, order="C")


def _gates(values: Array, layout: str) -> dict[str, Array]:
    """Split the last dimension into gates, by the letters of the layout."""
    return dict(zip(layout, np.split(values, len(layout), axis=-1), strict=True))


def gru_cell(
    input: Array,
    weight: Array,
    recurrent_weight: Array,
    hidden_state: Array,
    bias: Array | None,
    recurrent_bias: Array | None,
    hidden_size: int,
    reset_after: bool,
    layout: str,
    activations: Sequence[str],
) -> Array:
    """Compute one step."""
    gate, candidate = (_ACTIVATIONS[name] for name in activations)
    hidden = _wide(hidden_state)
    recurrent = _wide(recurrent_weight).T
    inputs = _gates(_wide(input) @ _wide(weight).T + _wide(bias), layout)
    states = _gates(hidden @ recurrent + _wide(recurrent_bias), layout)
    z = gate(inputs["z"] + states["z"])
    r = gate(inputs["r"] + states["r"])
    if reset_after:
        remembered = r * states["n"]
    else:
        remembered = _gates((r * hidden) @ recurrent + _wide(recurrent_bias), layout)["n"]
    n = candidate(inputs["n"] + remembered)
    return z * hidden + n * (1.0 - z)


def lstm_cell(
    input: Array,
    weight: Array,
    recurrent_weight: Array,
    hidden_state: Array,
    cell_state: Array,
    bias: Array | None,
    recurrent_bias: Array | None,
    peephole_weight: Array | None,
    hidden_size: int,
    layout: str,
    activations: Sequence[str],
) -> list[Array]:
    """Compute one step."""
    gate, candidate, filtered = (_ACTIVATIONS[name] for name in activations)
    cell = _wide(cell_state)
    inputs = _wide(input) @ _wide(weight).T + _wide(bias)
    states = _wide(hidden_state) @ _wide(recurrent_weight).T + _wide(recurrent_bias)
    total = _gates(inputs + states, layout)
    if peephole_weight is not None:
        for letter, peephole in _gates(_wide(peephole_weight), "iof").items():
            total[letter] = total[letter] + cell * peephole
    i, o, f = (gate(total[letter]) for letter in "iof")
    cell = f * cell + i * candidate(total["g"])
    return [o * filtered(cell), cell]


def _run(
    input: Array,
    direction: str,
    states: Sequence[Array],
    return_sequence: bool,
    cell: Callable[..., list[Array]],
) -> list[Array]:
    """Run a cell over all steps of each direction.

    Args:
        input: [steps, batch, features].
        direction: "forward", "backward" or "both".
        states: The initial states, each [directions, batch, hidden], the hidden state first.
        return_sequence: Also return the hidden states of all steps.
        cell: Function of the direction's index, a step's input and the states.
    """
    last, sequences = [], []
    for number, backward in enumerate(
        {"forward": [False], "backward": [True], "both": [False, True]}[direction]
    ):
        current = [state[number] for state in states]
        hidden = []
        for x in input[::-1] if backward else input:
            current = cell(number, x, *current)
            hidden.append(current[0])
        sequences.append(np.stack(hidden[::-1] if backward else hidden))
        last.append(current)
    outputs = [np.stack(state) for state in zip(*last, strict=True)]
    return [*outputs, np.stack(sequences, axis=1)] if return_sequence else outputs


def _initial(state: Array | None, weight: Array, input: Array, hidden_size: int) -> Array:
    shape = (weight.shape[0], input.shape[1], hidden_size)
    return np.broadcast_to(_wide(state), shape)


def _at(operand: Array | None, number: int) -> Array | None:
    return None if operand is None else operand[number]


def gru(
    input: Array,
    weight: Array,
    recurrent_weight: Array,
    bias: Array | None,
    recurrent_bias: Array | None,
    initial_hidden_state: Array | None,
    steps: int,
    hidden_size: int,
    return_sequence: bool,
    direction: str,
    **options: Any,
) -> list[Array]:
    """Run all steps of each direction."""

    def cell(number: int, x: Array, hidden: Array) -> list[Array]:
        weights = weight[number], recurrent_weight[number]
        biases = _at(bias, number), _at(recurrent_bias, number)
        return [gru_cell(x, *weights, hidden, *biases, hidden_size, **options)]

    states = [_initial(initial_hidden_state, weight, input, hidden_size)]
    return _run(input, direction, states, return_sequence, cell)


def lstm(
    input: Array,
    weight: Array,
    recurrent_weight: Array,
    bias: Array | None,
    recurrent_bias: Array | None,
    peephole_weight: Array | None,
    initial_hidden_state: Array | None,
    initial_cell_state: Array | None,
    steps: int,
    hidden_size: int,
    return_sequence: bool,
    direction: str,
    **options: Any,
) -> list[Array]:
    """Run all steps of each direction."""

    def cell(number: int, x: Array, hidden: Array, state: Array) -> list[Array]:
        weights = weight[number], recurrent_weight[number]
        biases = _at(bias, number), _at(recurrent_bias, number), _at(peephole_weight, number)
        return lstm_cell(x, *weights, hidden, state, *biases, hidden_size, **options)

    states = [
        _initial(initial_hidden_state, weight, input, hidden_size),
        _initial(initial_cell_state, weight, input, hidden_size),
    ]
    return _run(input, direction, states, return_sequence, cell)


def lstm_packed(
    input: Array,
    weight: Array,
    recurrent_weight: Array,
    weight_scale: Array,
    recurrent_scale: Array,
    weight_zero_point: Array | None,
    recurrent_zero_point: Array | None,
    bias: Array | None,
    recurrent_bias: Array | None,
    initial_hidden_state: Array | None,
    initial_cell_state: Array | None,
    **options: Any,
) -> list[Array]:
    """Dequantize the weights, then run."""

    def weights(codes: Array, scale: Array, zero: Array | None) -> Array:
        shifted = codes.astype(np.float64)
        if zero is not None:
            shifted = shifted - zero[:, None]
        return (shifted * scale[:, None]).swapaxes(1, 2)

    return lstm(
        input,
        weights(weight, weight_scale, weight_zero_point),
        weights(recurrent_weight, recurrent_scale, recurrent_zero_point),
        bias,
        recurrent_bias,
        None,
        initial_hidden_state,
        initial_cell_state,
        len(input),
        recurrent_weight.shape[1],
        return_sequence=True,
        **options,
    )

"""Recurrent networks: LSTM and GRU by WebNN's operators, simple RNNs as GRUs."""

from __future__ import annotations

from typing import Any

import numpy as np

from webnn_py.core.dimensions import is_dimension
from webnn_py.onnx.emitter import Emitter
from webnn_py.onnx.handlers.sequence_lengths import HOLDING, Lengths, row, shorter
from webnn_py.onnx.registry import OWN, handles
from webnn_py.onnx.tensor import BrokenModelError, Tensor, check_rank, choice, refuse

MAX_STEPS = 10_000
"""Maximum number of steps of an unrolled LSTM."""

DIRECTIONS = {"forward": "forward", "reverse": "backward", "bidirectional": "both"}


def _activations(given: list[str] | None, count: int, alpha: Any, beta: Any) -> list[str] | None:
    if not given:
        return None
    names = [name.lower() for name in given]
    if set(names) - {"relu", "sigmoid", "tanh"} or alpha or beta:
        refuse(f"WebNN has no recurrent networks with the activations {given}")
    if len(names) > count and names[:count] != names[count:]:
        refuse("WebNN has the same activations for both directions")
    return names[:count]


def _check(clip: float | None) -> None:
    if clip is not None:
        refuse("WebNN has no recurrent networks that clip")


def _check_operands(
    x: Tensor,
    w: Tensor,
    r: Tensor,
    b: Tensor | None,
    sequence_lens: Tensor | None,
    *states: Tensor | None,
    direction: str,
) -> None:
    choice("direction", direction, *DIRECTIONS)
    check_rank(3, x=x, w=w, r=r, **{f"initial state {i}": one for i, one in enumerate(states)})
    check_rank(2, b=b)
    check_rank(1, sequence_lens=sequence_lens)
    ways = 2 if direction == "bidirectional" else 1
    for name, one in {"w": w, "r": r, "b": b}.items():
        if one is not None and one.shape[0] != ways:
            raise BrokenModelError(
                f"{name} has shape {list(one.shape)}, expected {ways} directions ({direction!r})"
            )


def _laid(g: Emitter, x: Any, layout: int) -> Any:
    return g.transpose(x, permutation=[1, 0, 2]) if layout and x is not None else x


def _ordered(g: Emitter, sequence: Any, lasts: list[Any], layout: int) -> list[Any]:
    if not layout:
        return [sequence, *lasts]
    return [g.transpose(sequence, permutation=[2, 0, 1, 3]), *(_laid(g, x, 1) for x in lasts)]


def _biases(g: Emitter, b: Any, size: int) -> list[Any]:
    rows = b.shape[0]
    return [g.slice(b, [0, start], [rows, size]) for start in (0, size)]


def _options(
    g: Emitter,
    b: Any,
    rows: int,
    initial_h: Any,
    activations: list[str] | None,
    direction: str,
    layout: int,
) -> dict[str, Any]:
    """Return the options of WebNN's operators that LSTM and GRU share."""
    options: dict[str, Any] = {"return_sequence": True, "direction": DIRECTIONS[direction]}
    if b is not None:
        options["bias"], options["recurrent_bias"] = _biases(g, b, rows)
    if initial_h is not None:
        options["initial_hidden_state"] = _laid(g, initial_h, layout)
    if activations:
        options["activations"] = activations
    return options


@handles("LSTM")
def lstm(
    g: Emitter,
    x: Tensor,
    w: Tensor,
    r: Tensor,
    b: Tensor | None = None,
    sequence_lens: Tensor | None = None,
    initial_h: Tensor | None = None,
    initial_c: Tensor | None = None,
    p: Tensor | None = None,
    *,
    activation_alpha: list[float] | None = None,
    activation_beta: list[float] | None = None,
    activations: list[str] | None = None,
    clip: float | None = None,
    direction: str = "forward",
    hidden_size: int | None = None,
    input_forget: int = 0,
    layout: int = 0,
    output_sequence: int = 0,
) -> Any:
    """Compute a long short-term memory network (LSTM)."""
    states = initial_h, initial_c
    _check_operands(x, w, r, b, sequence_lens, *states, direction=direction)
    check_rank(2, p=p)
    x = _laid(g, x, layout)
    _check(clip)
    if input_forget:
        refuse("WebNN has no LSTM whose input and forget gates are coupled")
    size = r.shape[2]
    if p is not None and (activations or direction != "forward"):
        refuse("peepholes with other activations or directions than the default ones")
    first = [_laid(g, one, layout) for one in (initial_h, initial_c)]
    if p is not None:
        known = [] if sequence_lens is None else sequence_lens.dimensions("sequence_lens")
        if any(length != x.shape[0] for length in known):
            refuse("peepholes with sequences of different lengths")
        return _ordered(g, *_with_peepholes(g, x, w, r, b, first, p), layout)
    names = _activations(activations, 3, activation_alpha, activation_beta)
    ends = shorter(x, sequence_lens)
    if ends is not None:
        if names and names[0] != "sigmoid":
            refuse("sequences of different lengths with gates by other functions than sigmoid")

        def one_way(x: Any, own: list[Any], _: int) -> Any:
            w, r, b, *states = own
            return lstm(g, x, w, r, b, None, *states, activations=names)

        lengths = Lengths(g, x, ends)
        x, w = lengths.with_holding(w, size)
        made = lengths.run(x, [w, r, b, *first], direction, one_way)
        return _ordered(g, made[0], made[1:], layout)
    options = _options(g, b, 4 * size, initial_h, names, direction, layout)
    if initial_c is not None:
        options["initial_cell_state"] = _laid(g, initial_c, layout)
    last, cell, sequence = g.lstm(x, w, r, x.shape[0], size, **options)
    return _ordered(g, sequence, [last, cell], layout)


def _with_peepholes(
    g: Emitter, x: Any, w: Any, r: Any, b: Any, first: list[Any], p: Any
) -> tuple[Any, list[Any]]:
    """Unroll an LSTM with peepholes into its steps.

    ONNX's output gate reads the new cell, WebNN's the old one.
    """
    size, (steps, batch, _) = r.shape[2], x.shape
    if not is_dimension(steps) and steps > MAX_STEPS:
        refuse(f"{steps} steps of an LSTM with peepholes, expected at most {MAX_STEPS}")
    weight, recurrent = (g.transpose(g.reshape(m, m.shape[1:])) for m in (w, r))
    hidden, cell = (
        g.expand(g.constant(0, x), [batch, size]) if one is None else g.reshape(one, [batch, size])
        for one in first
    )
    bias = None if b is None else g.add(*_biases(g, b, 4 * size))
    look = dict(zip("iof", g.split(p, 3, axis=1), strict=True))
    made = []
    for t in range(steps):
        now = g.reshape(g.slice(x, [t, 0, 0], [1, *x.shape[1:]]), list(x.shape[1:]))
        total = g.add(g.matmul(now, weight), g.matmul(hidden, recurrent))
        total = total if bias is None else g.add(total, bias)
        gates = dict(zip("iofc", g.split(total, 4, axis=1), strict=True))
        i, f = (g.sigmoid(g.add(gates[k], g.mul(look[k], cell))) for k in "if")
        cell = g.add(g.mul(f, cell), g.mul(i, g.tanh(gates["c"])))
        o = g.sigmoid(g.add(gates["o"], g.mul(look["o"], cell)))
        hidden = g.mul(o, g.tanh(cell))
        made.append(g.reshape(hidden, [1, 1, batch, size]))
    sequence = g.concat(made, 0) if steps > 1 else made[0]
    return sequence, [g.reshape(one, [1, batch, size]) for one in (hidden, cell)]


@handles("GRU")
def gru(
    g: Emitter,
    x: Tensor,
    w: Tensor,
    r: Tensor,
    b: Tensor | None = None,
    sequence_lens: Tensor | None = None,
    initial_h: Tensor | None = None,
    *,
    activation_alpha: list[float] | None = None,
    activation_beta: list[float] | None = None,
    activations: list[str] | None = None,
    clip: float | None = None,
    direction: str = "forward",
    hidden_size: int | None = None,
    layout: int = 0,
    linear_before_reset: int = 0,
    output_sequence: int = 0,
) -> Any:
    """Compute a network of gated recurrent units (GRU)."""
    _check_operands(x, w, r, b, sequence_lens, initial_h, direction=direction)
    x = _laid(g, x, layout)
    _check(clip)
    size = r.shape[2]
    names = _activations(activations, 2, activation_alpha, activation_beta)
    ends = shorter(x, sequence_lens)
    if ends is not None:

        def one_way(x: Any, own: list[Any], _: int) -> Any:
            w, r, b, first = own
            after = linear_before_reset
            return gru(g, x, w, r, b, None, first, activations=names, linear_before_reset=after)

        own = [w, r, b, _laid(g, initial_h, layout)]
        made = Lengths(g, x, ends)
        sequence, last = made.run(made.x, own, direction, one_way)
        return _ordered(g, sequence, [last], layout)
    options = _options(g, b, 3 * size, initial_h, names, direction, layout)
    after = bool(linear_before_reset)
    last, sequence = g.gru(x, w, r, x.shape[0], size, reset_after=after, **options)
    return _ordered(g, sequence, [last], layout)


@handles("RNN")
def rnn(
    g: Emitter,
    x: Tensor,
    w: Tensor,
    r: Tensor,
    b: Tensor | None = None,
    sequence_lens: Tensor | None = None,
    initial_h: Tensor | None = None,
    *,
    activation_alpha: list[float] | None = None,
    activation_beta: list[float] | None = None,
    activations: list[str] | None = None,
    clip: float | None = None,
    direction: str = "forward",
    hidden_size: int | None = None,
    layout: int = 0,
    output: int = 0,
    output_sequence: int = 0,
) -> Any:
    """Compute a simple recurrent network (RNN)."""
    _check_operands(x, w, r, b, sequence_lens, initial_h, direction=direction)
    x = _laid(g, x, layout)
    _check(clip)
    names = _activations(activations, len(activations or []), activation_alpha, activation_beta)
    first = None if initial_h is None else _laid(g, initial_h, layout)
    ways = ["forward", "reverse"] if direction == "bidirectional" else [direction]
    names = (names or ["tanh"] * 2)[: len(ways)]
    ends = shorter(x, sequence_lens)
    if ends is not None:

        def one_way(x: Any, own: list[Any], i: int) -> Any:
            w, r, b, first = own
            return rnn(g, x, w, r, b, None, first, activations=names[i : i + 1])

        made = Lengths(g, x, ends)
        sequence, last = made.run(made.x, [w, r, b, first], direction, one_way)
        return _ordered(g, sequence, [last], layout)
    if len({*names}) == 1:
        last, sequence = _without_gates(
            g, x, w, r, b, first, activation=names[0], direction=direction
        )
        return _ordered(g, sequence, [last], layout)
    lasts: list[Any] = []
    sequences: list[Any] = []
    for i, (way, name) in enumerate(zip(ways, names, strict=True)):
        own = [None if one is None else row(g, one, i) for one in (w, r, b, first)]
        last, sequence = _without_gates(g, x, *own, activation=name, direction=way)
        lasts.append(last)
        sequences.append(sequence)
    return _ordered(g, g.concat(sequences, 1), [g.concat(lasts, 0)], layout)


def _without_gates(
    g: Emitter, x: Any, w: Any, r: Any, b: Any, first: Any, *, activation: str, direction: str
) -> Any:
    """Compute an RNN as a GRU whose biases fix the gates: 0 for update, 1 for reset."""
    ways, size = w.shape[0], r.shape[2]
    g.afford(4 * ways * size, f"the gates of {size} states")
    held = g.constant(np.repeat([-HOLDING, HOLDING], size)[None].repeat(ways, 0), x)
    ends = [0, 2 * size, 0], [0, 0, 0]
    own = [g.constant(np.zeros((ways, size)), x)] * 2 if b is None else _biases(g, b, size)
    options = {
        "bias": g.concat([held, own[0]], 1),
        "recurrent_bias": g.pad(own[1], [0, 2 * size], [0, 0]),
    } | ({} if first is None else {"initial_hidden_state": first})
    return g.gru(
        x,
        g.pad(w, *ends),
        g.pad(r, *ends),
        x.shape[0],
        size,
        return_sequence=True,
        direction=DIRECTIONS[direction],
        activations=["sigmoid", activation],
        **options,
    )


@handles("DynamicQuantizeLSTM", domain=OWN)
def dynamic_quantize_lstm(
    g: Emitter,
    x: Tensor,
    w: Tensor,
    r: Tensor,
    b: Tensor | None = None,
    sequence_lens: Tensor | None = None,
    initial_h: Tensor | None = None,
    initial_c: Tensor | None = None,
    p: Tensor | None = None,
    w_scale: Tensor | None = None,
    w_zero_point: Tensor | None = None,
    r_scale: Tensor | None = None,
    r_zero_point: Tensor | None = None,
    *,
    activation_alpha: list[float] | None = None,
    activation_beta: list[float] | None = None,
    activations: list[str] | None = None,
    clip: float | None = None,
    direction: str = "forward",
    hidden_size: int | None = None,
    input_forget: int = 0,
) -> Any:
    """Compute an LSTM with 8-bit weights; an engine may quantize its inputs and states.

    Source: ONNX Runtime, "com.microsoft.DynamicQuantizeLSTM".
    """
    first = initial_h, initial_c
    _check_operands(x, w, r, b, sequence_lens, *first, direction=direction)
    for part in (w_scale, w_zero_point, r_scale, r_zero_point):
        if part is None:
            refuse("weights without a scale or zero point")
    if p is not None or shorter(x, sequence_lens) is not None:
        return lstm(
            g,
            x,
            _dequantized(g, w, w_scale, w_zero_point),
            _dequantized(g, r, r_scale, r_zero_point),
            b,
            sequence_lens,
            initial_h,
            initial_c,
            p,
            activation_alpha=activation_alpha,
            activation_beta=activation_beta,
            activations=activations,
            clip=clip,
            direction=direction,
            input_forget=input_forget,
        )
    _check(clip)
    if input_forget:
        refuse("WebNN has no LSTM whose input and forget gates are coupled")
    given: dict[str, Any] = {"direction": DIRECTIONS[direction]}
    scales = [_of_columns(g, scale) for scale in (w_scale, r_scale)]
    for name, zero in {"weight": w_zero_point, "recurrent": r_zero_point}.items():
        if zero is not None and (zero.array is None or zero.array.any()):
            given[f"{name}_zero_point"] = _of_columns(g, zero)
    if b is not None:
        given["bias"], given["recurrent_bias"] = _biases(g, b, 4 * r.shape[1])
    states = {"initial_hidden_state": initial_h, "initial_cell_state": initial_c}
    given |= {name: one for name, one in states.items() if one is not None}
    if names := _activations(activations, 3, activation_alpha, activation_beta):
        given["activations"] = names
    last, cell, sequence = g.lstm_packed(x, w, r, *scales, **given)
    return [sequence, last, cell]


def _of_columns(g: Emitter, part: Any) -> Any:
    """Reshape scales or zero points to [directions, columns]."""
    return g.moved(part, [part.shape[0], *(part.shape[1:] or [1])])


def _dequantized(g: Emitter, weight: Any, scale: Any, zero: Any) -> Any:
    """Return float weights [directions, 4 * hidden, features]."""
    parts = (_of_columns(g, one) for one in (scale, zero))
    shapes = (g.moved(one, [one.shape[0], 1, one.shape[1]]) for one in parts)
    return g.transpose(g.dequantize_linear(weight, *shapes), permutation=[0, 2, 1])

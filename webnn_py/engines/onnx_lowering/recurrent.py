"""Lowerings of lstm and gru; their cells are decomposed."""

from __future__ import annotations

from typing import Any

import numpy as np

from webnn_py.engines.onnx_lowering.emitter import (
    ONNX_RUNTIME_DOMAIN,
    Emitter,
    NotLowered,
    Tensor,
    lowering,
)
from webnn_py.ir import Node

_DIRECTIONS = {"forward": "forward", "backward": "reverse", "both": "bidirectional"}


def _gates(e: Emitter, x: Tensor, layout: str, order: str, axis: int = 1) -> Tensor:
    """Reorder the gates along an axis."""
    if layout == order:
        return x
    parts = e.ops("Split", [x], [x.data_type] * len(layout), axis=axis, num_outputs=len(layout))
    return e.op("Concat", *(parts[layout.index(gate)] for gate in order), axis=axis)


def _biases(
    e: Emitter, node: Node, order: str, bias: Tensor | None, recurrent: Tensor | None, size: int
) -> Tensor | None:
    """Join both biases, with zeros for an absent one; None if both are absent."""
    present = [x for x in (bias, recurrent) if x is not None]
    if not present:
        return None
    directions = 2 if node.attrs["direction"] == "both" else 1
    shape = e.constant([directions, len(order) * size])
    zeros = e.op("Expand", e.like(0, present[0]), shape) if len(present) == 1 else None
    both = [x or zeros for x in (bias, recurrent)]
    placed = [_gates(e, x, node.attrs["layout"], order) for x in both if x is not None]
    return e.op("Concat", *placed, axis=1)


def _options(node: Node, size: int) -> dict[str, Any]:
    directions = 2 if node.attrs["direction"] == "both" else 1
    return {
        "direction": _DIRECTIONS[node.attrs["direction"]],
        "hidden_size": size,
        "activations": [name.capitalize() for name in node.attrs["activations"]] * directions,
    }


def _results(made: list[Tensor | None]) -> list[Tensor]:
    """Reorder ONNX's outputs: the last states, then the sequence if it is present."""
    sequence, *last = made
    return [x for x in (*last, sequence) if x is not None]


@lowering
def gru(
    e: Emitter,
    node: Node,
    x: Tensor,
    weight: Tensor,
    recurrent_weight: Tensor,
    bias: Tensor | None,
    recurrent_bias: Tensor | None,
    initial: Tensor | None,
) -> list[Tensor]:
    """Write GRU, whose gates have the order z, r, n."""
    layout = node.attrs["layout"]
    weights = [_gates(e, w, layout, "zrn") for w in (weight, recurrent_weight)]
    both = _biases(e, node, "zrn", bias, recurrent_bias, node.attrs["hidden_size"])
    outputs = [x.data_type if node.attrs["return_sequence"] else None, x.data_type]
    after = int(node.attrs["reset_after"])
    operands = [x, *weights, both, None, initial]
    made = e.ops(
        "GRU",
        operands,
        outputs,
        linear_before_reset=after,
        **_options(node, node.attrs["hidden_size"]),
    )
    return _results(made)


@lowering
def lstm(
    e: Emitter,
    node: Node,
    x: Tensor,
    weight: Tensor,
    recurrent_weight: Tensor,
    bias: Tensor | None,
    recurrent_bias: Tensor | None,
    peephole: Tensor | None,
    hidden: Tensor | None,
    cell: Tensor | None,
) -> list[Tensor]:
    """Write LSTM, whose gates have the order i, o, f, g."""
    if peephole is not None:
        raise NotLowered("the output gate's peephole sees the new cell state in ONNX")
    layout = node.attrs["layout"]
    weights = [_gates(e, w, layout, "iofg") for w in (weight, recurrent_weight)]
    both = _biases(e, node, "iofg", bias, recurrent_bias, node.attrs["hidden_size"])
    types = x.data_type
    outputs = [types if node.attrs["return_sequence"] else None, types, types]
    operands = [x, *weights, both, None, hidden, cell]
    return _results(e.ops("LSTM", operands, outputs, **_options(node, node.attrs["hidden_size"])))


def dynamic_quantize_lstm(
    e: Emitter,
    node: Node,
    x: Tensor,
    weight: Tensor,
    recurrent_weight: Tensor,
    weight_scale: Tensor,
    recurrent_scale: Tensor,
    weight_zero_point: Tensor | None,
    recurrent_zero_point: Tensor | None,
    bias: Tensor | None,
    recurrent_bias: Tensor | None,
    hidden: Tensor | None,
    cell: Tensor | None,
) -> list[Tensor]:
    """Write `lstm_packed` as ONNX Runtime's DynamicQuantizeLSTM, for engines that have it."""
    layout = node.attrs["layout"]
    _, _, recurrent, *scales = node.operands
    size = recurrent.shape[1]
    sides = ((weight_scale, weight_zero_point), (recurrent_scale, recurrent_zero_point))
    quantization: list[Tensor | None] = []
    for value, (scale, zero) in zip(scales, sides, strict=False):
        directions, columns = value.shape
        if zero is not None and (directions, columns) != (1, 1):
            raise NotLowered("ONNX Runtime has zero points of columns or directions that are 0")
        zeros = zero or e.constant(np.zeros((directions, columns)), weight.data_type)
        for one in (scale, zeros):
            if columns == 1:
                quantization.append(e.reshape(one, [directions]))
            else:
                quantization.append(_gates(e, one, layout, "iofg"))
    weights = [_gates(e, w, layout, "iofg", 2) for w in (weight, recurrent_weight)]
    both = _biases(e, node, "iofg", bias, recurrent_bias, size)
    operands = [x, *weights, both, None, hidden, cell, None, *quantization]
    made = e.ops("DynamicQuantizeLSTM", operands, [x.data_type] * 3, **_options(node, size))
    e.nodes[-1].domain = ONNX_RUNTIME_DOMAIN
    return _results(made)

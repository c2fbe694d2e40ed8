"""Lowerings of lstm and gru; their cells are decomposed."""

from __future__ import annotations

from typing import Any

from webnn_py.engines.onnx_lowering.emitter import Emitter, NotLowered, Tensor, lowering
from webnn_py.ir import Node

_DIRECTIONS = {"forward": "forward", "backward": "reverse", "both": "bidirectional"}


def _gates(e: Emitter, x: Tensor, layout: str, order: str) -> Tensor:
    """Reorder the gates along the second dimension."""
    if layout == order:
        return x
    parts = e.ops("Split", [x], [x.data_type] * len(layout), axis=1, num_outputs=len(layout))
    return e.op("Concat", *(parts[layout.index(gate)] for gate in order), axis=1)


def _biases(
    e: Emitter, node: Node, order: str, bias: Tensor | None, recurrent: Tensor | None
) -> Tensor | None:
    """Join both biases, with zeros for an absent one; None if both are absent."""
    present = [x for x in (bias, recurrent) if x is not None]
    if not present:
        return None
    directions = 2 if node.attrs["direction"] == "both" else 1
    shape = e.constant([directions, len(order) * node.attrs["hidden_size"]])
    zeros = e.op("Expand", e.like(0, present[0]), shape) if len(present) == 1 else None
    both = [x or zeros for x in (bias, recurrent)]
    placed = [_gates(e, x, node.attrs["layout"], order) for x in both if x is not None]
    return e.op("Concat", *placed, axis=1)


def _options(node: Node) -> dict[str, Any]:
    directions = 2 if node.attrs["direction"] == "both" else 1
    return {
        "direction": _DIRECTIONS[node.attrs["direction"]],
        "hidden_size": node.attrs["hidden_size"],
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
    both = _biases(e, node, "zrn", bias, recurrent_bias)
    outputs = [x.data_type if node.attrs["return_sequence"] else None, x.data_type]
    after = int(node.attrs["reset_after"])
    operands = [x, *weights, both, None, initial]
    made = e.ops("GRU", operands, outputs, linear_before_reset=after, **_options(node))
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
    both = _biases(e, node, "iofg", bias, recurrent_bias)
    types = x.data_type
    outputs = [types if node.attrs["return_sequence"] else None, types, types]
    operands = [x, *weights, both, None, hidden, cell]
    return _results(e.ops("LSTM", operands, outputs, **_options(node)))

"""Recurrent networks (lstm, gru) as one input product and a kernel that runs once per step.

The operator `STEPS` has the output [slots, directions, batch, hidden] in float32. It has one slot
per step for the hidden state, in the order of the input, then those of `Steps.slots`. It exists
between `legalize` and the kernels only; `op_traits` tells fusion about it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from webnn_py.engines.webgpu.program.storage import Features
from webnn_py.ir import Node, Value
from webnn_py.ops.decompositions.casts import narrow, wide
from webnn_py.ops.operand import MLOperand, value_of
from webnn_py.passes.rewrite import Rewriter

STEPS = "recurrent_steps"
"""Operands: projected input [directions, steps * batch, gates * hidden] in float32, recurrent
weight, recurrent bias, peephole weight, initial hidden and cell state. Attributes: see `Steps`."""


@dataclass(frozen=True, slots=True)
class Steps:
    """The attributes of a node of STEPS.

    Attributes:
        steps: Number of steps.
        layout: Letters of the gates, in their order.
        activations: Names, as in the operator's option.
        backward: For each direction, whether it starts at the last step.
        resets_before: Whether a gru applies its reset gate before the recurrent product.
    """

    steps: int
    layout: str
    activations: tuple[str, ...]
    backward: tuple[bool, ...]
    resets_before: bool

    @property
    def has_cell(self) -> bool:
        """Whether there is a cell state, as in an lstm."""
        return "o" in self.layout

    @property
    def name(self) -> str:
        """The operator's name."""
        return "lstm" if self.has_cell else "gru"

    @property
    def slots(self) -> dict[str, int]:
        """Numbers of the state slots behind those of the steps.

        They hold the initial state, the scratch memory of one step, and the step counter.
        """
        scratch = ["cell"] if self.has_cell else ["z", "reset"] if self.resets_before else []
        names = ["initial", *scratch, "counter"]
        return {name: self.steps + number for number, name in enumerate(names)}


def is_sequence(node: Node, features: Features) -> bool:
    """Whether `expand_sequence` supports `node`: all its states must fit into one binding."""
    if node.op not in ("lstm", "gru"):
        return False
    steps, _, _ = next(node.operands).shape
    return (steps + 4) * node.outputs[0].size * 4 <= features.binding_bytes


def expand_sequence(rewriter: Rewriter, node: Node) -> list[MLOperand]:
    """Return the outputs of an lstm or gru."""
    arguments = rewriter.arguments(node)
    x, weight, recurrent = arguments["input"], arguments["weight"], arguments["recurrent_weight"]
    steps, batches, features = x.shape
    directions, rows, hidden = recurrent.shape
    flat = rewriter.reshape(x, [1, steps * batches, features])
    product = rewriter.matmul(flat, rewriter.transpose(weight, permutation=[0, 2, 1]))
    projected = wide(rewriter, product)
    if arguments["bias"] is not None:
        bias = rewriter.reshape(wide(rewriter, arguments["bias"]), [directions, 1, rows])
        projected = rewriter.add(projected, bias)
    what = Steps(
        steps,
        arguments["layout"],
        tuple(arguments["activations"]),
        {"forward": (False,), "backward": (True,), "both": (False, True)}[arguments["direction"]],
        not arguments.get("reset_after", True),
    )
    names = ("recurrent_bias", "peephole_weight", "initial_hidden_state", "initial_cell_state")
    operands = [projected, recurrent, *(arguments.get(name) for name in names)]
    inputs = tuple(None if o is None else value_of(o) for o in operands)
    shape = (max(what.slots.values()) + 1, directions, batches, hidden)
    output = Value("float32", shape)
    (states,) = rewriter.emit(Node(STEPS, inputs, {"what": what}, (output,), node.label))
    outputs = [_last(rewriter, states, what)]
    if what.has_cell:
        outputs.append(_slot(rewriter, states, what.slots["cell"]))
    if arguments["return_sequence"]:
        outputs.append(rewriter.slice(states, [0, 0, 0, 0], [steps, *shape[1:]]))
    return [narrow(rewriter, output, x.data_type) for output in outputs]


def _slot(rewriter: Rewriter, states: MLOperand, slot: int) -> MLOperand:
    """Return one slot of the states."""
    shape = states.shape[1:]
    return rewriter.reshape(rewriter.slice(states, [slot, 0, 0, 0], [1, *shape]), shape)


def _last(rewriter: Rewriter, states: MLOperand, what: Steps) -> MLOperand:
    """Return the hidden state after the last step of each direction."""
    slots = [0 if backward else what.steps - 1 for backward in what.backward]
    if len(slots) == 1:
        return _slot(rewriter, states, slots[0])
    sizes: Sequence[int] = (1, 1, *states.shape[2:])
    parts = [
        rewriter.slice(states, [slot, number, 0, 0], sizes) for number, slot in enumerate(slots)
    ]
    return rewriter.reshape(rewriter.concat(parts, 1), states.shape[1:])

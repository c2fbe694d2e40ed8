"""Recurrent networks and their cells; all are composites. Source: WebNN 2026, "gru" and "lstm".

The second last dimension of the weights contains the gates one after the other, in the order of
`layout`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from webnn_py.core.convert import Size
from webnn_py.core.dimensions import undecided
from webnn_py.core.dtypes import FLOATS
from webnn_py.core.errors import ValidationError
from webnn_py.core.messages import shown
from webnn_py.core.polynomials import MAX_DIMENSION
from webnn_py.core.shapes import is_over
from webnn_py.ir import Descriptor
from webnn_py.ops.declare import Inferred, Limits, multi_operator, operator, result
from webnn_py.ops.operand import MLOperand

GruLayout = Literal["zrn", "rzn"]
LstmLayout = Literal["iofg", "ifgo"]
Direction = Literal["forward", "backward", "both"]
Activation = Literal["relu", "sigmoid", "tanh"]


def _check_shapes(expected: dict[str, tuple[MLOperand | None, tuple[int, ...]]]) -> None:
    for name, (operand, shape) in expected.items():
        if operand is not None and operand.shape != shape:
            raise ValidationError(
                f"operand {name!r}: shape {list(operand.shape)}, expected {list(shape)}"
                f"{undecided(operand.shape, shape)}"
            )


def _scale_shape(scale: MLOperand, each: tuple[int, int]) -> tuple[int, int]:
    """Return the shape to expect of a scale: one for all, or that of one for each."""
    size = scale.shape[1]
    is_one = size == 1 or (size != each[1] and bool(undecided(size, 1)))
    return (each[0], 1) if is_one else each


def _check_options(gates: int, hidden_size: int, activations: Sequence[str], count: int) -> None:
    if not hidden_size > 0 or is_over(2 * gates * hidden_size, MAX_DIMENSION):
        raise ValidationError(
            f"hidden_size: got {hidden_size}, expected 1 to {MAX_DIMENSION // (2 * gates)}"
        )
    if len(activations) != count:
        raise ValidationError(
            f"option 'activations': got {shown(list(activations))}, expected {count} names"
        )


def _check_steps(input: MLOperand, steps: int) -> None:
    if input.shape[0] != steps:
        raise ValidationError(
            f"steps: got {steps}, expected the first dimension of the input {list(input.shape)}"
            f"{undecided(steps, input.shape[0])}"
        )


def _sequence_outputs(
    input: MLOperand, directions: int, hidden_size: int, states: int, return_sequence: bool
) -> tuple[Descriptor, ...]:
    """Return the last states, and the hidden states of all steps if `return_sequence`."""
    steps, batches, _ = input.shape
    last = Descriptor(input.data_type, (directions, batches, hidden_size))
    sequence = Descriptor(input.data_type, (steps, *last.shape))
    return (last,) * states + (sequence,) * return_sequence


class Recurrent:
    """Builder methods of recurrent networks."""

    @operator(
        input=Limits(FLOATS, 2),
        weight=Limits("input", 2),
        recurrent_weight=Limits("input", 2),
        hidden_state=Limits("input", 2),
        bias=Limits("input", 1),
        recurrent_bias=Limits("input", 1),
    )
    def gru_cell(
        self,
        input: MLOperand,
        weight: MLOperand,
        recurrent_weight: MLOperand,
        hidden_state: MLOperand,
        hidden_size: Size,
        *,
        bias: MLOperand | None = None,
        recurrent_bias: MLOperand | None = None,
        reset_after: bool = True,
        layout: GruLayout = "zrn",
        activations: Sequence[Activation] = ("sigmoid", "tanh"),
        label: str = "",
    ) -> Inferred:
        """Compute one step of a gated recurrent unit.

        Args:
            input: [batch, features].
            weight: [3 * hidden, features].
            recurrent_weight: [3 * hidden, hidden].
            hidden_state: [batch, hidden].
            hidden_size: Number of features in the hidden state.
            bias: [3 * hidden].
            recurrent_bias: [3 * hidden].
            reset_after: Apply the reset gate after the product with the recurrent weight.
            layout: Order of the gates: update z, reset r, new n.
            activations: Functions of the update and reset gates, and of the new gate.

        Returns:
            The new hidden state [batch, hidden].
        """
        batches, features = input.shape
        _check_options(3, hidden_size, activations, 2)
        _check_shapes(
            {
                "weight": (weight, (3 * hidden_size, features)),
                "recurrent_weight": (recurrent_weight, (3 * hidden_size, hidden_size)),
                "hidden_state": (hidden_state, (batches, hidden_size)),
                "bias": (bias, (3 * hidden_size,)),
                "recurrent_bias": (recurrent_bias, (3 * hidden_size,)),
            }
        )
        return result(Descriptor(input.data_type, (batches, hidden_size)))

    @multi_operator(
        input=Limits(FLOATS, 3),
        weight=Limits("input", 3),
        recurrent_weight=Limits("input", 3),
        bias=Limits("input", 2),
        recurrent_bias=Limits("input", 2),
        initial_hidden_state=Limits("input", 3),
        outputs={"output0": 3, "output1": 4},
    )
    def gru(
        self,
        input: MLOperand,
        weight: MLOperand,
        recurrent_weight: MLOperand,
        steps: Size,
        hidden_size: Size,
        *,
        bias: MLOperand | None = None,
        recurrent_bias: MLOperand | None = None,
        initial_hidden_state: MLOperand | None = None,
        reset_after: bool = True,
        return_sequence: bool = False,
        direction: Direction = "forward",
        layout: GruLayout = "zrn",
        activations: Sequence[Activation] = ("sigmoid", "tanh"),
        label: str = "",
    ) -> Inferred:
        """Run a gated recurrent unit over all steps.

        Args:
            input: [steps, batch, features].
            weight: [directions, 3 * hidden, features].
            recurrent_weight: [directions, 3 * hidden, hidden].
            steps: Number of steps, the input's first dimension.
            hidden_size: Number of features in the hidden state.
            bias: [directions, 3 * hidden].
            recurrent_bias: [directions, 3 * hidden].
            initial_hidden_state: [directions, batch, hidden]; default: zeros.
            reset_after: Apply the reset gate after the product with the recurrent weight.
            return_sequence: Also return the hidden states of all steps.
            direction: "forward", "backward" (starts at the last step), or "both".
            layout: Order of the gates: update z, reset r, new n.
            activations: Functions of the update and reset gates, and of the new gate.

        Returns:
            The last hidden state [directions, batch, hidden]. With `return_sequence` also the
            hidden states of all steps [steps, directions, batch, hidden].
        """
        directions = 2 if direction == "both" else 1
        _, batches, features = input.shape
        _check_steps(input, steps)
        _check_options(3, hidden_size, activations, 2)
        state = (directions, batches, hidden_size)
        _check_shapes(
            {
                "weight": (weight, (directions, 3 * hidden_size, features)),
                "recurrent_weight": (recurrent_weight, (directions, 3 * hidden_size, hidden_size)),
                "bias": (bias, (directions, 3 * hidden_size)),
                "recurrent_bias": (recurrent_bias, (directions, 3 * hidden_size)),
                "initial_hidden_state": (initial_hidden_state, state),
            }
        )
        return result(*_sequence_outputs(input, directions, hidden_size, 1, return_sequence))

    @multi_operator(
        input=Limits(FLOATS, 2),
        weight=Limits("input", 2),
        recurrent_weight=Limits("input", 2),
        hidden_state=Limits("input", 2),
        cell_state=Limits("input", 2),
        bias=Limits("input", 1),
        recurrent_bias=Limits("input", 1),
        peephole_weight=Limits("input", 1),
        outputs={"output0": 2, "output1": 2},
    )
    def lstm_cell(
        self,
        input: MLOperand,
        weight: MLOperand,
        recurrent_weight: MLOperand,
        hidden_state: MLOperand,
        cell_state: MLOperand,
        hidden_size: Size,
        *,
        bias: MLOperand | None = None,
        recurrent_bias: MLOperand | None = None,
        peephole_weight: MLOperand | None = None,
        layout: LstmLayout = "iofg",
        activations: Sequence[Activation] = ("sigmoid", "tanh", "tanh"),
        label: str = "",
    ) -> Inferred:
        """Compute one step of a long short-term memory.

        Args:
            input: [batch, features].
            weight: [4 * hidden, features].
            recurrent_weight: [4 * hidden, hidden].
            hidden_state: [batch, hidden].
            cell_state: [batch, hidden].
            hidden_size: Number of features in the states.
            bias: [4 * hidden].
            recurrent_bias: [4 * hidden].
            peephole_weight: [3 * hidden], for the input, output and forget gates in this order;
                all three use the cell state before the step.
            layout: Order of the gates: input i, output o, forget f, cell g.
            activations: Functions of the input, forget and output gates, of the cell gate, and of
                the new cell state.

        Returns:
            The new hidden state and the new cell state, each [batch, hidden].
        """
        batches, features = input.shape
        _check_options(4, hidden_size, activations, 3)
        _check_shapes(
            {
                "weight": (weight, (4 * hidden_size, features)),
                "recurrent_weight": (recurrent_weight, (4 * hidden_size, hidden_size)),
                "hidden_state": (hidden_state, (batches, hidden_size)),
                "cell_state": (cell_state, (batches, hidden_size)),
                "bias": (bias, (4 * hidden_size,)),
                "recurrent_bias": (recurrent_bias, (4 * hidden_size,)),
                "peephole_weight": (peephole_weight, (3 * hidden_size,)),
            }
        )
        state = Descriptor(input.data_type, (batches, hidden_size))
        return result(state, state)

    @multi_operator(
        input=Limits(FLOATS, 3),
        weight=Limits("input", 3),
        recurrent_weight=Limits("input", 3),
        bias=Limits("input", 2),
        recurrent_bias=Limits("input", 2),
        peephole_weight=Limits("input", 2),
        initial_hidden_state=Limits("input", 3),
        initial_cell_state=Limits("input", 3),
        outputs={"output0": 3, "output1": 3, "output2": 4},
    )
    def lstm(
        self,
        input: MLOperand,
        weight: MLOperand,
        recurrent_weight: MLOperand,
        steps: Size,
        hidden_size: Size,
        *,
        bias: MLOperand | None = None,
        recurrent_bias: MLOperand | None = None,
        peephole_weight: MLOperand | None = None,
        initial_hidden_state: MLOperand | None = None,
        initial_cell_state: MLOperand | None = None,
        return_sequence: bool = False,
        direction: Direction = "forward",
        layout: LstmLayout = "iofg",
        activations: Sequence[Activation] = ("sigmoid", "tanh", "tanh"),
        label: str = "",
    ) -> Inferred:
        """Run a long short-term memory over all steps.

        Args:
            input: [steps, batch, features].
            weight: [directions, 4 * hidden, features].
            recurrent_weight: [directions, 4 * hidden, hidden].
            steps: Number of steps, the input's first dimension.
            hidden_size: Number of features in the states.
            bias: [directions, 4 * hidden].
            recurrent_bias: [directions, 4 * hidden].
            peephole_weight: [directions, 3 * hidden], for the input, output and forget gates in
                this order; all three use the cell state before the step.
            initial_hidden_state: [directions, batch, hidden]; default: zeros.
            initial_cell_state: [directions, batch, hidden]; default: zeros.
            return_sequence: Also return the hidden states of all steps.
            direction: "forward", "backward" (starts at the last step), or "both".
            layout: Order of the gates: input i, output o, forget f, cell g.
            activations: Functions of the input, forget and output gates, of the cell gate, and of
                the new cell state.

        Returns:
            The last hidden state and the last cell state, each [directions, batch, hidden]. With
            `return_sequence` also the hidden states of all steps [steps, directions, batch,
            hidden].
        """
        directions = 2 if direction == "both" else 1
        _, batches, features = input.shape
        _check_steps(input, steps)
        _check_options(4, hidden_size, activations, 3)
        state = (directions, batches, hidden_size)
        _check_shapes(
            {
                "weight": (weight, (directions, 4 * hidden_size, features)),
                "recurrent_weight": (recurrent_weight, (directions, 4 * hidden_size, hidden_size)),
                "bias": (bias, (directions, 4 * hidden_size)),
                "recurrent_bias": (recurrent_bias, (directions, 4 * hidden_size)),
                "peephole_weight": (peephole_weight, (directions, 3 * hidden_size)),
                "initial_hidden_state": (initial_hidden_state, state),
                "initial_cell_state": (initial_cell_state, state),
            }
        )
        return result(*_sequence_outputs(input, directions, hidden_size, 2, return_sequence))

    @multi_operator(
        input=Limits(("float32",), 3),
        weight=Limits(("int8", "uint8"), 3),
        recurrent_weight=Limits("weight", 3),
        weight_scale=Limits("input", 2),
        recurrent_scale=Limits("input", 2),
        weight_zero_point=Limits("weight", 2),
        recurrent_zero_point=Limits("weight", 2),
        bias=Limits("input", 2),
        recurrent_bias=Limits("input", 2),
        initial_hidden_state=Limits("input", 3),
        initial_cell_state=Limits("input", 3),
        outputs={"output0": 3, "output1": 3, "output2": 4},
        extension=True,
    )
    def lstm_packed(
        self,
        input: MLOperand,
        weight: MLOperand,
        recurrent_weight: MLOperand,
        weight_scale: MLOperand,
        recurrent_scale: MLOperand,
        *,
        weight_zero_point: MLOperand | None = None,
        recurrent_zero_point: MLOperand | None = None,
        bias: MLOperand | None = None,
        recurrent_bias: MLOperand | None = None,
        initial_hidden_state: MLOperand | None = None,
        initial_cell_state: MLOperand | None = None,
        direction: Direction = "forward",
        layout: LstmLayout = "iofg",
        activations: Sequence[Activation] = ("sigmoid", "tanh", "tanh"),
        label: str = "",
    ) -> Inferred:
        """Run a long short-term memory with 8-bit weights over all steps.

        A weight is (code - zero point) * scale. An engine may quantize the input and the hidden
        states, too.

        Args:
            input: [steps, batch, features].
            weight: [directions, features, 4 * hidden].
            recurrent_weight: [directions, hidden, 4 * hidden].
            weight_scale: [directions, 4 * hidden], or [directions, 1] for one number for all.
            recurrent_scale: The same of the recurrent weight.
            weight_zero_point: A tensor of the shape of `weight_scale`; default: zeros.
            recurrent_zero_point: A tensor of the shape of `recurrent_scale`; default: zeros.
            bias: [directions, 4 * hidden].
            recurrent_bias: [directions, 4 * hidden].
            initial_hidden_state: [directions, batch, hidden]; default: zeros.
            initial_cell_state: [directions, batch, hidden]; default: zeros.
            direction: "forward", "backward" (starts at the last step), or "both".
            layout: Order of the gates: input i, output o, forget f, cell g.
            activations: Functions of the input, forget and output gates, of the cell gate, and of
                the new cell state.

        Returns:
            The last hidden state and the last cell state, each [directions, batch, hidden]; the
            hidden states of all steps [steps, directions, batch, hidden].
        """
        directions = 2 if direction == "both" else 1
        _, batches, features = input.shape
        hidden_size = recurrent_weight.shape[1]
        _check_options(4, hidden_size, activations, 3)
        state, gates = (directions, batches, hidden_size), 4 * hidden_size
        each = (directions, gates)
        _check_shapes(
            {
                "weight": (weight, (directions, features, gates)),
                "recurrent_weight": (recurrent_weight, (directions, hidden_size, gates)),
                "weight_scale": (weight_scale, _scale_shape(weight_scale, each)),
                "recurrent_scale": (recurrent_scale, _scale_shape(recurrent_scale, each)),
                "weight_zero_point": (weight_zero_point, weight_scale.shape),
                "recurrent_zero_point": (recurrent_zero_point, recurrent_scale.shape),
                "bias": (bias, each),
                "recurrent_bias": (recurrent_bias, each),
                "initial_hidden_state": (initial_hidden_state, state),
                "initial_cell_state": (initial_cell_state, state),
            }
        )
        return result(*_sequence_outputs(input, directions, hidden_size, 2, True))

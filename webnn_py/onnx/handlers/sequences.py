"""Sequences of tensors, which the import builds and takes apart."""

from __future__ import annotations

from typing import Any

import numpy as np

from webnn_py.onnx.emitter import Emitter
from webnn_py.onnx.handlers.movement import concat, parts, squeeze_1, unsqueeze_1
from webnn_py.onnx.registry import handles
from webnn_py.onnx.tensor import BrokenModelError, Tensor, Tensors, of_array, refuse

MAX_PARTS = 10_000
"""Maximum number of tensors that SplitToSequence makes of parts of one size."""


@handles("SequenceEmpty")
def sequence_empty(g: Emitter, *, dtype: int = 1) -> Any:
    """Return an empty sequence."""
    return Tensors(())


@handles("SequenceConstruct")
def sequence_construct(g: Emitter, *inputs: Tensor) -> Any:
    """Return a sequence of the operands."""
    return Tensors(inputs)


@handles("SplitToSequence")
def split_to_sequence(
    g: Emitter, x: Tensor, split: Tensor | None = None, *, axis: int = 0, keepdims: int = 1
) -> Any:
    """Split into parts of `split` sizes or of one size; the last part may be smaller."""
    at = x.axis(axis)
    if split is None or not split.shape:
        step = 1 if split is None else split.integer("split")
        if step < 1:
            raise BrokenModelError(f"its parts have {step} elements")
        (size,) = g.size(x.shape[at]).integers("the number of its parts")
        if size > MAX_PARTS * step:
            refuse(f"it makes more than {MAX_PARTS} tensors")
        sizes = [min(step, size - first) for first in range(0, size, step)]
    else:
        sizes = split.dimensions("split")
    if x.array is None:
        made = parts(g, x, sizes, at)
    else:
        made = map(of_array, np.split(x.array, np.cumsum(sizes)[:-1], at))
    if split is None and not keepdims:
        made = [squeeze_1(g, one, axes=[at]) for one in made]
    return Tensors(tuple(made))


@handles("SequenceLength")
def sequence_length(g: Emitter, sequence: Tensors) -> Any:
    """Return the number of tensors."""
    return of_array(np.asarray(len(sequence.members), np.int64))


def _place(sequence: Tensors, position: Tensor, count: int) -> int:
    place = position.integer("position")
    if not -len(sequence.members) <= place < count:
        raise BrokenModelError(f"its position is {place}, of {len(sequence.members)} tensors")
    return place


@handles("SequenceAt")
def sequence_at(g: Emitter, sequence: Tensors, position: Tensor) -> Any:
    """Return the tensor at a position; negative positions count from the end."""
    return sequence.members[_place(sequence, position, len(sequence.members))]


@handles("SequenceInsert")
def sequence_insert(
    g: Emitter, sequence: Tensors, x: Tensor, position: Tensor | None = None
) -> Any:
    """Insert a tensor before a position, or at the end."""
    made, count = list(sequence.members), len(sequence.members)
    made.insert(count if position is None else _place(sequence, position, count + 1), x)
    return Tensors(tuple(made))


@handles("SequenceErase")
def sequence_erase(g: Emitter, sequence: Tensors, position: Tensor | None = None) -> Any:
    """Remove the tensor at a position, or the last one."""
    made, count = list(sequence.members), len(sequence.members)
    at = of_array(np.asarray(-1)) if position is None else position
    del made[_place(sequence, at, count)]
    return Tensors(tuple(made))


@handles("ConcatFromSequence")
def concat_from_sequence(g: Emitter, sequence: Tensors, *, axis: int, new_axis: int = 0) -> Any:
    """Concatenate the tensors along an existing or new axis."""
    members = sequence.members
    if not members:
        raise BrokenModelError("its sequence has no tensors")
    if new_axis:
        at = axis % (members[0].rank + 1)
        members = tuple(unsqueeze_1(g, one, axes=[at]) for one in members)
    return concat(g, *members, axis=axis)

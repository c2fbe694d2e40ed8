"""Recurrent networks over sequences of different lengths, padded to the longest one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from webnn_py.onnx.emitter import Emitter
from webnn_py.onnx.tensor import Tensor

HOLDING = 100.0
"""Bias that saturates a sigmoid at 1; its negative saturates it at 0."""


def shorter(x: Tensor, lengths: Tensor | None) -> Tensor | None:
    """Return the lengths of sequences, or None if all are known to equal the input's steps."""
    if lengths is None or (lengths.array is None and lengths.sizes is None):
        return lengths
    known = lengths.dimensions("sequence_lens")
    return lengths if any(length != x.shape[0] for length in known) else None


class Lengths:
    """Padded sequences of a batch, each computed up to its own length.

    Inputs and outputs are 0 beyond the end of a sequence. The last states of an empty sequence
    are 0.

    Args:
        g: The emitter.
        x: The input, [steps, batch, size].
        lengths: Number of steps of each sequence, [batch].
    """

    def __init__(self, g: Emitter, x: Tensor, lengths: Tensor) -> None:
        self._g = g
        self._count = g.reshape(g.to(lengths, "int64"), [1, x.shape[1], 1])
        self._steps = g.places(x.shape[0], 0, 3)
        self._inside = g.lesser(self._steps, self._count)
        self._any = g.greater(self._count, self._one(0))
        self._last = g.sub(self._count, self._one(1))
        self.x = self._cut(x)

    def _one(self, number: int) -> Any:
        return self._g.array(np.asarray(number, np.int64))

    def _cut(self, x: Any) -> Any:
        return self._g.where(self._inside, x, self._g.constant(0, x))

    def _turned(self, x: Any) -> Any:
        """Reverse each sequence up to its own length."""
        g = self._g
        places = g.where(self._inside, g.sub(self._last, self._steps), self._steps)
        return g.gather_elements(x, g.expand(places, list(x.shape)), axis=0)

    def _ended(self, x: Any) -> Any:
        """Return the last step of each sequence, zeros for an empty one."""
        g = self._g
        last = g.max(self._last, self._one(0))
        ends = g.gather_elements(x, g.expand(last, [1, *x.shape[1:]]), axis=0)
        return g.where(self._any, ends, g.constant(0, x))

    def with_holding(self, w: Tensor, size: int) -> tuple[Any, Any]:
        """Return input and weights of an LSTM that keeps its cells beyond the end.

        One more input element is 1 beyond the end. Its weights open the forget gate there and close
        the input gate.
        """
        g = self._g
        ended = g.sub(g.constant(1, self.x), g.to(g.to(self._inside, "uint8"), self.x.data_type))
        held = np.repeat(np.asarray([-HOLDING, 0, HOLDING, 0]), size)[None, :, None]
        added = g.constant(held.repeat(w.shape[0], 0), w)
        return g.concat([self.x, ended], 2), g.concat([w, added], 2)

    def run(
        self,
        x: Any,
        own: Sequence[Any],
        direction: str,
        compute: Callable[..., Sequence[Any]],
    ) -> list[Any]:
        """Compute a recurrent network in one or both directions.

        Args:
            x: The input, [steps, batch, size].
            own: Weights and states with a row for each direction; None for those left out.
            direction: ONNX's `direction`.
            compute: Function that computes one direction from the input, the rows of `own` and the
                direction's index. It returns the outputs, [steps, 1, batch, size], the last output
                and any last cells.

        Returns:
            The sequence of outputs, the last outputs, and the last cells if the network has cells.
        """
        g = self._g
        ways = ["forward", "reverse"] if direction == "bidirectional" else [direction]
        made = []
        for i, way in enumerate(ways):
            rows = [None if one is None else row(g, one, i) for one in own]
            turned = self._turned(x) if way == "reverse" else x
            sequence, _, *cells = compute(turned, rows, i)
            steps, _, batch, size = sequence.shape
            flat = g.reshape(sequence, [steps, batch, size])
            whole = self._cut(self._turned(flat) if way == "reverse" else flat)
            lasts = [self._ended(flat), *(g.where(self._any, c, g.constant(0, c)) for c in cells)]
            made.append([g.reshape(whole, sequence.shape), *lasts])
        if len(made) == 1:
            return made[0]
        return [
            g.concat(list(both), 0 if i else 1) for i, both in enumerate(zip(*made, strict=True))
        ]


def row(g: Emitter, x: Any, i: int) -> Any:
    """Return the slice of one direction."""
    return g.slice(x, [i, *[0] * (x.rank - 1)], [1, *x.shape[1:]])

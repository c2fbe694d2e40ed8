"""Arguments: what an execution was given, checked, in the order of its graph."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from webnn_py.api.tensor import MLTensor
from webnn_py.api.tensor_memory import TensorMemory


@dataclass(slots=True)
class Arguments:
    """What an execution was given, checked, in the order of the graph.

    Attributes:
        inputs: Each an array, the memory of a tensor, or what the engine's device takes.
        outputs: The same, or None where the engine is to make an array.
        given: The outputs as the user gave them; None for those that were not.
        names: Of the outputs.
        reads: The tensors among the inputs.
        writes: The tensors among the outputs.
        on_tensors: Whether there are tensors, so that the run keeps the context's order.
        writes_given: Whether anything is written that others see.
    """

    inputs: Sequence[Any]
    outputs: Sequence[Any]
    given: Sequence[Any]
    names: Sequence[str]
    reads: Sequence[TensorMemory]
    writes: Sequence[TensorMemory]
    on_tensors: bool = field(init=False)
    writes_given: bool = field(init=False, default=False)
    _count: int = field(init=False)

    def __post_init__(self) -> None:
        self.on_tensors = bool(self.reads or self.writes)
        self._count = len(self.inputs)
        for value in self.given:  # any() takes twice as long
            if value is not None:
                self.writes_given = True
                break

    def hand_over(self) -> Sequence[Any]:
        """The inputs, which are not kept here any more: who has them lets them go when it can."""
        inputs, self.inputs = self.inputs, ()
        return inputs

    @property
    def only_tensors(self) -> bool:
        """Whether nothing else is given, and nothing comes back in host memory."""
        return len(self.reads) == self._count and len(self.writes) == len(self.outputs)

    def results(self, written: Sequence[Any]) -> dict[str, Any]:
        """What a run returns: what was given where it can be, else what was written."""
        if not self.writes_given:
            return dict(zip(self.names, written, strict=True))
        return {
            name: array
            if given is None or (isinstance(array, np.ndarray) and not _is_result(given))
            else given
            for name, given, array in zip(self.names, self.given, written, strict=True)
        }


def _is_result(given: object) -> bool:
    return isinstance(given, (np.ndarray, MLTensor))

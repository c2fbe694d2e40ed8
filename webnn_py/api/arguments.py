"""Arguments: the validated inputs and outputs of one execution."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from webnn_py.api.tensor import MLTensor
from webnn_py.api.tensor_memory import TensorMemory


@dataclass(slots=True)
class Arguments:
    """Validated inputs and outputs of one execution, in the order of the graph.

    Attributes:
        inputs: For each input an array, the memory of a tensor, or a resource of the device.
        outputs: For each output the same, or None if the engine allocates an array.
        given: For each output the user's object, or None if the user passed none.
        names: Names of the outputs.
        reads: The tensors among the inputs.
        writes: The tensors among the outputs.
        on_tensors: Whether there are tensors, so that the run keeps the context's order.
        writes_given: Whether the run writes to an object of the user's.
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
        """Return the inputs and drop the references here, so that the caller frees them early."""
        inputs, self.inputs = self.inputs, ()
        return inputs

    @property
    def only_tensors(self) -> bool:
        """Whether all inputs and outputs are tensors, so that nothing returns to host memory."""
        return len(self.reads) == self._count and len(self.writes) == len(self.outputs)

    def results(self, written: Sequence[Any]) -> dict[str, Any]:
        """Return a run's outputs by name: the user's array or tensor, else the array written."""
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

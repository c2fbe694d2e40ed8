"""Top-level scope of a model, which reads initializers lazily."""

from __future__ import annotations

from typing import Any

import onnx

from webnn_py.onnx.model import Affords, Model
from webnn_py.onnx.tensor import of_array


class Initializers(dict[str, Any]):
    """Values by name; an initializer is read from the model at its first lookup.

    Args:
        model: The model.
        affords: A function that tells whether the import may generate a number of elements, for
            sparse initializers.
        ahead: Whether threads read large weights in advance. The builder must then keep the same
            memory instead of a copy; without it, only one weight at a time exists twice.
    """

    def __init__(self, model: Model, affords: Affords, ahead: bool) -> None:
        super().__init__()
        self._affords = affords
        self._model = model
        self._unread = {tensor.name: tensor for tensor in model.graph.initializer}
        self._unread |= {sparse.values.name: sparse for sparse in model.graph.sparse_initializer}
        self._ahead = model.ahead if ahead else {}

    def __contains__(self, name: object) -> bool:
        return super().__contains__(name) or name in self._unread

    def __missing__(self, name: str) -> Any:
        self[name] = made = of_array(self._contents(self._unread.pop(name)), name)
        return made

    def check_unread(self) -> None:
        """Read all initializers that no node has used, to check them.

        Raises:
            DataError: The contents of one are missing, or do not fit its shape.
        """
        for tensor in self._unread.values():
            self._contents(tensor)

    def _contents(self, tensor: Any) -> Any:
        if isinstance(tensor, onnx.SparseTensorProto):
            return self._model.dense(tensor, self._affords)
        ahead = self._ahead.get(tensor.name)
        return self._model.contents(tensor) if ahead is None else ahead.result()

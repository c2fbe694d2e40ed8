"""The names of a model's tensors, with weights that are read once they are asked for."""

from __future__ import annotations

from typing import Any

from webnn_py.onnx.model import Model
from webnn_py.onnx.tensor import of_array


class Initializers(dict[str, Any]):
    """What names stand for: Tensors, of which initializers are read when a node first needs them.

    So that there is one weight at a time in memory besides those that a builder has.
    """

    def __init__(self, model: Model) -> None:
        super().__init__()
        self._model = model
        self._unread = {tensor.name: tensor for tensor in model.graph.initializer}

    def __contains__(self, name: object) -> bool:
        return super().__contains__(name) or name in self._unread

    def __missing__(self, name: str) -> Any:
        contents = self._model.contents(self._unread.pop(name))
        self[name] = made = of_array(contents, name)
        return made

    def check_unread(self) -> None:
        """Read those that nobody asked for.

        Raises:
            DataError: The contents of one are not there, or do not fit its shape.
        """
        for tensor in self._unread.values():
            self._model.contents(tensor)

"""ONNX models by pywebnn: it has no importer of its own, so ours tells it what to build."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import onnx
import webnn

import webnn_py.onnx
from webnn_py import ml
from webnn_py.ir import Graph, Value

Array = np.ndarray[Any, Any]
Options = Mapping[str, Any]


def _windows(options: Options) -> dict[str, Any]:
    """Paddings have another name, and sizes are always rounded down."""
    names = ("strides", "dilations", "groups", "window_dimensions")
    kept = {name: _listed(options[name]) for name in names if options.get(name) is not None}
    return kept | {"pads": list(options["padding"])}


def _listed(option: Any) -> Any:
    return list(option) if isinstance(option, tuple) else option


RENAMED: dict[str, Callable[[Options], dict[str, Any]]] = {
    "average_pool2d": _windows,
    "conv2d": _windows,
    "max_pool2d": _windows,
    "pad": lambda options: {
        "padding": [*options["beginning_padding"], *options["ending_padding"]],
        "value": float(options["value"]),
    },
}
"""Options of operators that have others there."""


class PywebnnModel:
    """A model on its CPU backend, which is ONNX Runtime.

    Raises:
        Exception: What pywebnn raises, of an operator that it lacks too.
    """

    def __init__(self, model: onnx.ModelProto) -> None:
        with ml.create_context_sync(engine="reference") as context:
            recipe = webnn_py.onnx.load(model, context)._compiled.recipe
        self._context = webnn.ML().create_context(device_type="cpu")
        self._graph = self._built(recipe)

    def _built(self, recipe: Graph) -> Any:
        builder = self._context.create_graph_builder()
        operands: dict[Value | None, Any] = {None: None}
        for value in recipe.inputs:
            operands[value] = builder.input(value.name, list(value.shape), value.data_type)
        for value, array in recipe.constants.items():
            operands[value] = builder.constant(np.asarray(array).reshape(value.shape))
        for node in recipe.nodes:
            renamed = RENAMED.get(node.op)
            options = {k: _listed(v) for k, v in node.given.items()}
            if renamed is not None:
                options = renamed(node.given)
            call = getattr(builder, node.op)
            given = [operands[value] for value in node.inputs]
            if node.op == "concat":
                given = [given]
            elif node.op == "conv2d":
                options["bias"] = given.pop()
            operands[node.output] = call(*given, **options)
        return builder.build({name: operands[value] for name, value in recipe.outputs})

    def __call__(self, inputs: Mapping[str, Array]) -> Array:
        """The first output."""
        return np.asarray(next(iter(self._context.compute(self._graph, inputs).values())))

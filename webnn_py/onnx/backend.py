"""Implementation of ONNX's backend interface, for its backend test suite.

Source: onnx, `onnx.backend.base.Backend`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import onnx
from onnx.backend.base import Backend, BackendRep

from webnn_py.api.builder import MLGraphBuilder
from webnn_py.api.context import MLContext
from webnn_py.api.execution import MLExecution
from webnn_py.api.graph import MLGraph
from webnn_py.api.ml import ml
from webnn_py.core.errors import MLError, NotSupportedError, ValidationError
from webnn_py.onnx.emitter import BOOL
from webnn_py.onnx.load_impl import Importer, Inputs, Model, outputs
from webnn_py.onnx.tensor import Array

DEVICES = {"CPU": "cpu", "GPU": "gpu"}
"""WebNN device types by ONNX's device names."""


class PreparedModel(BackendRep):  # type: ignore[misc]
    """An ONNX model with a cache of its compiled graphs.

    Some inputs determine shapes, such as the new shape of a Reshape. They become constants of the
    graph, and other contents need another graph. The same holds for inputs with an initializer
    that the caller overrides by name.

    Args:
        model: A path, the bytes of a file, or an onnx.ModelProto.
        context: The context that runs the graphs.
    """

    def __init__(self, model: Any, context: MLContext) -> None:
        self._model = Model(model)
        self._context = context
        self._names = [value.name for value in self._model.inputs]
        every = {value.name for value in self._model.graph.input}
        self._defaults = every.difference(self._names)
        self._built: dict[Any, tuple[MLGraph, set[str]]] = {}
        self._fixed: set[str] = set()

    def run(self, inputs: Any, **kwargs: Any) -> tuple[Any, ...]:
        """Run the model and return its outputs in the model's order.

        Args:
            inputs: A list of arrays, arrays by name, or one array.
            **kwargs: Ignored options of ONNX's interface.

        Raises:
            NotSupportedError: WebNN cannot express some nodes, or an input is no array.
            ValidationError: An input is missing, or there are more than the model has.
        """
        if isinstance(inputs, dict):
            given = dict(inputs)
        else:
            listed = inputs if isinstance(inputs, (list, tuple)) else [inputs]
            if len(listed) > len(self._names):
                raise ValidationError(f"onnx: got {len(listed)} inputs, expected {self._names}")
            given = dict(zip(self._names, listed, strict=False))
        missing = [name for name in self._names if name not in given]
        if missing:
            raise ValidationError(f"onnx: input {missing[0]!r} is missing; got {list(given)}")
        for name, value in given.items():
            if not isinstance(value, np.ndarray | np.generic):
                raise NotSupportedError(
                    f"onnx: input {name!r}: WebNN has no {type(value).__name__}; it has tensors"
                )
        arrays = {name: np.asarray(value) for name, value in given.items()}
        self._fixed |= self._defaults & arrays.keys()
        graph, elements = self._graph(arrays)
        undrawn = [name for name in graph.inputs if name not in arrays]
        if undrawn:
            raise NotSupportedError(
                f"onnx: input {undrawn[0]!r} is missing: random numbers are inputs; draw them, and"
                " give all inputs by name"
            )
        feeds = {
            name: np.ascontiguousarray(_as_uint8(arrays[name])).reshape(arrays[name].shape)
            for name in graph.inputs
        }
        results = _computed(self._context, graph, feeds)
        return tuple(
            results[v.name].astype(np.bool_) if v.name in elements else results[v.name]
            for v in self._model.graph.output
        )

    def _graph(self, arrays: dict[str, Array]) -> tuple[MLGraph, set[str]]:
        while True:
            fixed = {name: arrays[name] for name in self._fixed if name in arrays}
            key = (
                tuple((name, array.shape, array.dtype.str) for name, array in arrays.items()),
                tuple((name, array.tobytes()) for name, array in sorted(fixed.items())),
            )
            if key in self._built:
                return self._built[key]
            builder = MLGraphBuilder(self._context)
            importer = Importer(builder, self._model)
            shapes = {name: list(a.shape) for name, a in arrays.items() if name not in fixed}
            try:
                found = importer.run(fixed, Inputs(self._model.inputs, shapes))
            except NotSupportedError:
                more = (importer.needed & arrays.keys()) - self._fixed
                if not more:
                    raise
                self._fixed |= more
                continue
            bools = {name for name, tensor in found.items() if tensor.elem == BOOL}
            made = builder.build_sync(outputs(builder, found)), bools
            self._built[key] = made
            return made


def _computed(
    context: MLContext, graph: MLGraph, feeds: Mapping[str, Array]
) -> Mapping[str, Array]:
    """Compute the outputs of a graph on its CPU or GPU context, and wait for them."""
    if context.device_type == "cpu":
        return MLExecution(context, allow_blocking=True).compute(graph, feeds)
    made = context.create_tensor_sync
    given = {
        name: made(value.data_type, value.shape, writable=True)
        for name, value in graph.inputs.items()
    }
    for name, tensor in given.items():
        context.write_tensor(tensor, feeds[name])
    wanted = {
        name: made(value.data_type, value.shape, readable=True)
        for name, value in graph.outputs.items()
    }
    context.dispatch(graph, given, wanted)
    return {name: context.read_tensor_sync(tensor) for name, tensor in wanted.items()}


def _as_uint8(array: Array) -> Array:
    return array.view(np.uint8) if array.dtype == np.bool_ else array


class WebNNBackend(Backend):  # type: ignore[misc]
    """ONNX backend that runs models on a context of webnn_py."""

    _contexts: ClassVar[dict[str, MLContext]] = {}

    @classmethod
    def _context(cls, device: str) -> MLContext:
        name = device.partition(":")[0]
        if name not in DEVICES:
            raise ValidationError(f"onnx: device {device!r} is not one of {', '.join(DEVICES)}")
        if name not in cls._contexts:
            kind: Any = DEVICES[name]
            engine = "reference" if kind == "cpu" else "auto"
            cls._contexts[name] = ml.create_context_sync(device_type=kind, engine=engine)
        return cls._contexts[name]

    @classmethod
    def supports_device(cls, device: str) -> bool:
        """Return whether a device exists: "CPU" or "GPU", optionally with a number ("GPU:0")."""
        try:
            cls._context(device)
        except MLError:
            return False
        return True

    @classmethod
    def prepare(cls, model: Any, device: str = "CPU", **kwargs: Any) -> PreparedModel:
        """Return a model that is ready to run on a device.

        Raises:
            ValidationError: `device` is neither "CPU" nor "GPU".
            MLError: The model is damaged, or this machine has no GPU.
        """
        return PreparedModel(model, cls._context(device))

    @classmethod
    def run_model(cls, model: Any, inputs: Any, device: str = "CPU", **kwargs: Any) -> Any:
        """Run a model on a device and return its outputs."""
        return cls.prepare(model, device, **kwargs).run(inputs)

    @classmethod
    def run_node(
        cls,
        node: Any,
        inputs: Any,
        device: str = "CPU",
        outputs_info: Sequence[Any] | None = None,
        **kwargs: Any,
    ) -> Any:
        """Run a single node on a device and return its outputs."""
        helper = onnx.helper
        arrays = [np.asarray(one) for one in inputs]
        names = [name for name in node.input if name]
        if len(names) != len(arrays):
            raise ValidationError(f"onnx: got {len(arrays)} inputs, expected {names}")
        values = [
            helper.make_tensor_value_info(
                name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape
            )
            for name, array in zip(names, arrays, strict=True)
        ]
        made = [onnx.ValueInfoProto(name=name) for name in node.output if name]
        version = kwargs.get("opset_version", onnx.defs.onnx_opset_version())
        model = helper.make_model(
            helper.make_graph([node], "node", values, made),
            opset_imports=[helper.make_opsetid("", version)],
        )
        return cls.run_model(model, arrays, device)


is_compatible = WebNNBackend.is_compatible
prepare = WebNNBackend.prepare
run_model = WebNNBackend.run_model
run_node = WebNNBackend.run_node
supports_device = WebNNBackend.supports_device

"""One small convolutional network, and who runs it asynchronously: webnn_py and others."""

from __future__ import annotations

import asyncio
import importlib.util
import os
from abc import ABC, abstractmethod
from typing import Any, NamedTuple

import numpy as np
import onnx
import onnxruntime
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from webnn_py import MLAwaitedExecution, MLContext, MLGraph, MLGraphBuilder, MLOperand

Array = NDArray[np.float32]
WEBGPU = "WebGpuExecutionProvider"
JOINED = ", joined"
MOST_JOINED = 64
"""Pictures in a run, where requests are joined."""
SIDE = 32
FILTERS = [(8, 3, 3, 3), (16, 8, 3, 3), (32, 16, 3, 3)]
WIDTH = 32
FEATURES = FILTERS[-1][0] * (SIDE >> len(FILTERS)) ** 2


class Size(NamedTuple):
    """How much one run has to do.

    Attributes:
        batch: Pictures in a run.
        depth: Convolutions more than usual, of `WIDTH` channels, after the first one.
    """

    batch: int = 1
    depth: int = 0


class Weights(NamedTuple):
    """The network's constants.

    Attributes:
        layers: Each convolution's filters, and whether a pooling follows.
        matrix: Of the last layer.
        bias: Of the last layer.
    """

    layers: list[tuple[Array, bool]]
    matrix: Array
    bias: Array


def weights(depth: int) -> Weights:
    """The same numbers each time."""
    normal = np.random.default_rng(0).normal
    shapes = FILTERS
    if depth:
        first, second, *rest = FILTERS
        widened = [(WIDTH, *first[1:]), *[(WIDTH, WIDTH, 3, 3)] * depth]
        shapes = [*widened, (second[0], WIDTH, 3, 3), *rest]
    layers = [
        (normal(0, np.prod(shape[1:]) ** -0.5, shape).astype(np.float32), place >= depth)
        for place, shape in enumerate(shapes)
    ]
    matrix = normal(0, FEATURES**-0.5, (FEATURES, 10)).astype(np.float32)
    return Weights(layers, matrix, normal(0, 0.1, (10,)).astype(np.float32))


def pictures(count: int, batch: int = 1) -> list[Array]:
    """Inputs, each different from the others."""
    random = np.random.default_rng(1).random
    return [random((batch, 3, SIDE, SIDE), np.float32) for _ in range(count)]


def describe(builder: Any, x: Any, depth: int = 0) -> Any:
    """The network's output, with the builder of webnn_py or of pywebnn."""
    ours = isinstance(builder, MLGraphBuilder)
    layers, matrix, bias = weights(depth)
    padding: dict[str, Any] = {"padding" if ours else "pads": [1, 1, 1, 1]}
    batch = x.shape[0]
    for filters, pooled in layers:
        x = builder.relu(builder.conv2d(x, builder.constant(filters), **padding))
        if pooled:
            x = builder.max_pool2d(x, window_dimensions=[2, 2], strides=[2, 2])
    x = builder.reshape(x, [batch, FEATURES])
    return builder.softmax(builder.gemm(x, builder.constant(matrix), c=builder.constant(bias)), 1)


def onnx_model(size: Size, batch: int | str | None = None) -> bytes:
    """The same network in ONNX; for any batch if that is a name."""
    layers, matrix, bias = weights(size.depth)
    batch = size.batch if batch is None else batch
    nodes, constants, name = [], {"matrix": matrix, "bias": bias}, "x"
    for i, (filters, pooled) in enumerate(layers):
        constants[f"filter{i}"] = filters
        nodes += [
            helper.make_node("Conv", [name, f"filter{i}"], [f"conv{i}"], pads=[1, 1, 1, 1]),
            helper.make_node("Relu", [f"conv{i}"], [f"relu{i}"]),
        ]
        name = f"relu{i}"
        if pooled:
            window = {"kernel_shape": [2, 2], "strides": [2, 2]}
            nodes.append(helper.make_node("MaxPool", [name], [f"pool{i}"], **window))
            name = f"pool{i}"
    nodes += [
        helper.make_node("Flatten", [name], ["features"]),
        helper.make_node("Gemm", ["features", "matrix", "bias"], ["scores"]),
        helper.make_node("Softmax", ["scores"], ["y"], axis=1),
    ]
    graph = helper.make_graph(
        nodes,
        "network",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [batch, 3, SIDE, SIDE])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [batch, 10])],
        [numpy_helper.from_array(array, key) for key, array in constants.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.checker.check_model(model)
    content: bytes = model.SerializeToString()
    return content


class Peer(ABC):
    """Who builds the network and runs it awaited.

    Attributes:
        name: In tables.
        joins: It computes at once what is asked at about the same time.
    """

    name: str
    joins = False

    @abstractmethod
    def describe(self, size: Size) -> Any:
        """The network in the words of this library; blocks the loop in all of them."""

    @abstractmethod
    async def build(self, description: Any) -> Any:
        """Make the network ready to run."""

    @abstractmethod
    async def run(self, graph: Any, picture: Array) -> Array:
        """Await one inference."""


class Ours(Peer):
    """MLAwaitedExecution."""

    def __init__(self, context: MLContext) -> None:
        self.name = f"webnn_py {context.device_type} ({context.engine})"
        self._context = context
        self._execution = MLAwaitedExecution(context)

    def describe(self, size: Size) -> tuple[MLGraphBuilder, MLOperand]:
        """Recorded by a builder."""
        builder = MLGraphBuilder(self._context)
        x = builder.input("x", "float32", [size.batch, 3, SIDE, SIDE])
        return builder, describe(builder, x, size.depth)

    async def build(self, description: tuple[MLGraphBuilder, MLOperand]) -> MLGraph:
        """With `build_async`."""
        builder, y = description
        return await builder.build_async({"y": y})

    async def run(self, graph: MLGraph, picture: Array) -> Array:
        """With `compute`."""
        return (await self._execution.compute(graph, {"x": picture}))["y"]


class OursJoined(Ours):
    """MLAwaitedExecution, which joins computes along the batch."""

    joins = True

    def __init__(self, context: MLContext) -> None:
        super().__init__(context)
        self.name += JOINED
        self._execution = MLAwaitedExecution(context, batch="batch", max_batch=MOST_JOINED)

    def describe(self, size: Size) -> tuple[MLGraphBuilder, MLOperand]:
        """Recorded by a builder, for any batch."""
        builder = MLGraphBuilder(self._context)
        x = builder.input("x", "float32", ["batch", 3, SIDE, SIDE])
        return builder, describe(builder, x, size.depth)

    async def build(self, description: tuple[MLGraphBuilder, MLOperand]) -> MLGraph:
        """With `build_async`, and compiled for all sizes of runs."""
        graph = await super().build(description)
        size = MOST_JOINED
        while size:
            await graph.prepare_async({"batch": size})
            size //= 2
        return graph


class ThreadedOnnxRuntime(Peer):
    """ONNX Runtime's `run` in asyncio.to_thread."""

    name = "onnxruntime, to_thread"
    provider = "CPUExecutionProvider"

    def describe(self, size: Size) -> bytes:
        """A model."""
        return onnx_model(size)

    async def build(self, description: bytes) -> onnxruntime.InferenceSession:
        """A session, made on a thread; `run_async` needs a pool of at least two."""
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = max(2, os.cpu_count() or 2)
        return await asyncio.to_thread(
            onnxruntime.InferenceSession, description, options, [self.provider]
        )

    async def run(self, graph: onnxruntime.InferenceSession, picture: Array) -> Array:
        """On a thread of the loop's executor."""
        (y,) = await asyncio.to_thread(graph.run, None, {"x": picture})
        result: Array = y
        return result


class AsyncOnnxRuntime(ThreadedOnnxRuntime):
    """ONNX Runtime's `run_async`."""

    name = "onnxruntime, run_async"

    async def run(self, graph: onnxruntime.InferenceSession, picture: Array) -> Array:
        """Resolved by the callback, which comes on a thread of ONNX Runtime's."""
        loop = asyncio.get_running_loop()
        reply: asyncio.Future[Array] = loop.create_future()

        def resolve(results: list[Array], _: Any, error: str) -> None:
            if error:
                loop.call_soon_threadsafe(reply.set_exception, RuntimeError(error))
            else:
                loop.call_soon_threadsafe(reply.set_result, results[0])

        graph.run_async(["y"], {"x": picture}, resolve, None)
        return await reply


class JoinedOnnxRuntime(ThreadedOnnxRuntime):
    """ONNX Runtime's `run` on what waits, in asyncio.to_thread, as one writes it oneself."""

    name = f"onnxruntime{JOINED}"
    joins = True

    def __init__(self) -> None:
        self._waiting: list[tuple[Array, asyncio.Future[Array]]] = []
        self._serving: asyncio.Task[None] | None = None

    def describe(self, size: Size) -> bytes:
        """A model for any batch."""
        return onnx_model(size, "batch")

    async def run(self, graph: onnxruntime.InferenceSession, picture: Array) -> Array:
        """With what else waits when the run before is done."""
        reply: asyncio.Future[Array] = asyncio.get_running_loop().create_future()
        self._waiting.append((picture, reply))
        if self._serving is None:
            self._serving = asyncio.create_task(self._serve(graph))
        return await reply

    async def _serve(self, graph: onnxruntime.InferenceSession) -> None:
        while self._waiting:
            joined, self._waiting = self._waiting[:MOST_JOINED], self._waiting[MOST_JOINED:]
            batch = np.concatenate([picture for picture, _ in joined])
            (y,) = await asyncio.to_thread(graph.run, None, {"x": batch})
            for row, (_, reply) in enumerate(joined):
                reply.set_result(y[row : row + 1].copy())
        self._serving = None


class ThreadedWebGpu(ThreadedOnnxRuntime):
    """The same on ONNX Runtime's WebGPU."""

    name = "onnxruntime webgpu, to_thread"
    provider = WEBGPU


class JoinedWebGpu(JoinedOnnxRuntime):
    """The same on ONNX Runtime's WebGPU."""

    name = f"onnxruntime webgpu{JOINED}"
    provider = WEBGPU


class ThreadedPywebnn(Peer):
    """pywebnn's `compute`, which knows no await, in asyncio.to_thread."""

    name = "pywebnn, to_thread"

    def __init__(self) -> None:
        import webnn

        self._context = webnn.ML().create_context(device_type="cpu")

    def describe(self, size: Size) -> tuple[Any, Any]:
        """Recorded by a builder."""
        builder = self._context.create_graph_builder()
        x = builder.input("x", [size.batch, 3, SIDE, SIDE], "float32")
        return builder, describe(builder, x, size.depth)

    async def build(self, description: tuple[Any, Any]) -> Any:
        """On a thread."""
        builder, y = description
        return await asyncio.to_thread(builder.build, {"y": y})

    async def run(self, graph: Any, picture: Array) -> Array:
        """On a thread of the loop's executor."""
        results = await asyncio.to_thread(self._context.compute, graph, {"x": picture})
        return np.asarray(results["y"], np.float32)


def peers(contexts: list[MLContext]) -> tuple[list[Peer], list[str]]:
    """All that are installed, and notes on the others."""
    found: list[Peer] = [make(context) for context in contexts for make in (Ours, OursJoined)]
    found += [ThreadedOnnxRuntime(), AsyncOnnxRuntime(), JoinedOnnxRuntime()]
    notes = []
    if WEBGPU in onnxruntime.get_available_providers():
        found += [ThreadedWebGpu(), JoinedWebGpu()]
    else:
        notes.append("this onnxruntime has no WebGPU: left out")
    if importlib.util.find_spec("webnn") is None:
        return found, [*notes, "pywebnn is not installed (it has wheels for Python 3.12): left out"]
    return [*found, ThreadedPywebnn()], notes

"""The three modes, each as a function from arrays to arrays."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator, Mapping

from webnn_py.api.awaited import MLAwaitedExecution
from webnn_py.api.context import MLContext
from webnn_py.api.encoder import MLCommandEncoder
from webnn_py.api.execution import MLExecution
from webnn_py.api.graph import MLGraph, compiled_of
from webnn_py.core.dtypes import from_numpy
from webnn_py.ir import Array

Arrays = dict[str, Array]
Compute = Callable[[Mapping[str, Array]], Arrays]


@contextlib.contextmanager
def execution(context: MLContext, graph: MLGraph) -> Iterator[Compute]:
    """Synchronously, on the CPU."""
    mode = MLExecution(context)
    yield lambda inputs: mode.compute(graph, inputs)


@contextlib.contextmanager
def awaited(context: MLContext, graph: MLGraph) -> Iterator[Compute]:
    """Awaited on an event loop."""
    mode = MLAwaitedExecution(context)

    async def compute(inputs: Mapping[str, Array]) -> Arrays:
        return await mode.compute(graph, inputs)

    with asyncio.Runner() as loop:
        yield lambda inputs: loop.run(compute(inputs))


@contextlib.contextmanager
def encoder(context: MLContext, graph: MLGraph) -> Iterator[Compute]:
    """Recorded from tensors to tensors, submitted, and read back."""
    MLCommandEncoder(context)  # an error on a CPU

    def compute(inputs: Mapping[str, Array]) -> Arrays:
        sources = {}
        for name, array in inputs.items():
            data_type = from_numpy(array.dtype)
            source = context.create_tensor_sync(data_type, array.shape, writable=True)
            context.write_tensor(source, array)
            sources[name] = source
        signature, _ = compiled_of(graph).fixed(inputs)
        targets = {
            name: context.create_tensor_sync(output.data_type, output.shape, readable=True)
            for name, output in signature.outputs.items()
        }
        commands = MLCommandEncoder(context)
        commands.dispatch(graph, sources, targets)
        context.submit([commands.finish()])
        found = {name: context.read_tensor_sync(target) for name, target in targets.items()}
        for tensor in (*sources.values(), *targets.values()):
            tensor.destroy()
        return found

    yield compute


MODES = {"execution": execution, "awaited": awaited, "encoder": encoder}
"""By the names that `--mode` takes."""

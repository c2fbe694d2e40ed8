"""The three execution modes as functions from arrays to arrays."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator, Mapping

from webnn_py.api.awaited import MLAwaitedExecution
from webnn_py.api.compiled import compiled_of
from webnn_py.api.context import MLContext
from webnn_py.api.encoder import MLCommandEncoder
from webnn_py.api.execution import MLExecution
from webnn_py.api.graph import MLGraph
from webnn_py.core.dtypes import from_numpy
from webnn_py.ir import Array

Arrays = dict[str, Array]
Compute = Callable[[Mapping[str, Array]], Arrays]


@contextlib.contextmanager
def execution(context: MLContext, graph: MLGraph) -> Iterator[Compute]:
    """Compute synchronously (MLExecution), on a CPU."""
    mode = MLExecution(context)
    yield lambda inputs: mode.compute(graph, inputs)


@contextlib.contextmanager
def awaited(context: MLContext, graph: MLGraph) -> Iterator[Compute]:
    """Compute awaited (MLAwaitedExecution), on an event loop."""
    mode = MLAwaitedExecution(context)

    async def compute(inputs: Mapping[str, Array]) -> Arrays:
        return await mode.compute(graph, inputs)

    with asyncio.Runner() as loop:
        yield lambda inputs: loop.run(compute(inputs))


@contextlib.contextmanager
def encoder(context: MLContext, graph: MLGraph) -> Iterator[Compute]:
    """Record a dispatch over tensors (MLCommandEncoder), submit it, and read the tensors."""
    MLCommandEncoder(context)  # raises on a CPU

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
        results = {name: context.read_tensor_sync(target) for name, target in targets.items()}
        for tensor in (*sources.values(), *targets.values()):
            tensor.destroy()
        return results

    yield compute


MODES = {"execution": execution, "awaited": awaited, "encoder": encoder}
"""The modes by the values of `--mode`."""

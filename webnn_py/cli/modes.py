"""The modes of `run`: each runs a model on arrays, once or repeatedly."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import Protocol

from webnn_py.api.awaited import MLAwaitedExecution
from webnn_py.api.compiled import compiled_of
from webnn_py.api.context import MLContext
from webnn_py.api.encoder import MLCommandEncoder
from webnn_py.api.execution import MLExecution
from webnn_py.api.graph import MLGraph
from webnn_py.cli.benchmark import Clock
from webnn_py.core.dtypes import from_numpy
from webnn_py.core.errors import ValidationError
from webnn_py.ir import Array

Arrays = dict[str, Array]
Compute = Callable[[Mapping[str, Array]], Arrays]
Start = Callable[[Mapping[str, Array]], Awaitable[Arrays]]


class Mode(Protocol):
    """A model, ready to run.

    Attributes:
        name: The value of `--mode`.
    """

    name: str

    def compute(self, inputs: Mapping[str, Array]) -> Arrays:
        """Run once."""

    def repeat(self, inputs: Mapping[str, Array], clock: Clock, concurrency: int) -> None:
        """Make the runs of a clock, `concurrency` at once."""


class Blocking:
    """A mode whose runs block a thread each.

    Args:
        name: The value of `--mode`.
        compute: Function that runs once.
    """

    def __init__(self, name: str, compute: Compute) -> None:
        self.name = name
        self.compute = compute

    def repeat(self, inputs: Mapping[str, Array], clock: Clock, concurrency: int) -> None:
        """Make the runs, on further threads if there are several at once."""
        errors: list[BaseException] = []

        def work() -> None:
            try:
                for _ in clock.runs():
                    self.compute(inputs)
            except BaseException as error:  # raised again by the caller's thread
                errors.append(error)
                clock.stop()

        threads = [threading.Thread(target=work, daemon=True) for _ in range(concurrency - 1)]
        for thread in threads:
            thread.start()
        work()
        for thread in threads:
            thread.join()
        if errors:
            raise errors[0]


class Awaited:
    """A mode whose runs are awaited on an event loop.

    Args:
        loop: The event loop.
        start: Function that starts a run.
    """

    name = "awaited"

    def __init__(self, loop: asyncio.Runner, start: Start) -> None:
        self._loop = loop
        self._start = start

    def compute(self, inputs: Mapping[str, Array]) -> Arrays:
        """Run once."""

        async def once() -> Arrays:
            return await self._start(inputs)

        return self._loop.run(once())

    def repeat(self, inputs: Mapping[str, Array], clock: Clock, concurrency: int) -> None:
        """Make the runs, in as many tasks as there are at once."""

        async def work() -> None:
            for _ in clock.runs():
                await self._start(inputs)

        async def all_tasks() -> None:
            async with asyncio.TaskGroup() as tasks:
                for _ in range(concurrency):
                    tasks.create_task(work())

        try:
            self._loop.run(all_tasks())
        except BaseExceptionGroup as group:
            raise group.exceptions[0] from None


@contextlib.contextmanager
def execution(context: MLContext, graph: MLGraph, concurrency: int) -> Iterator[Mode]:
    """Compute synchronously (MLExecution), on a CPU."""
    mode = MLExecution(context)
    yield Blocking("execution", lambda inputs: mode.compute(graph, inputs))


@contextlib.contextmanager
def awaited(context: MLContext, graph: MLGraph, concurrency: int) -> Iterator[Mode]:
    """Compute awaited (MLAwaitedExecution), on an event loop."""
    mode = MLAwaitedExecution(context)
    with asyncio.Runner() as loop:
        yield Awaited(loop, lambda inputs: mode.compute(graph, inputs))


@contextlib.contextmanager
def encoder(context: MLContext, graph: MLGraph, concurrency: int) -> Iterator[Mode]:
    """Record a dispatch over tensors (MLCommandEncoder), submit it, and read the tensors."""
    MLCommandEncoder(context)  # raises on a CPU
    if concurrency > 1:
        raise ValidationError("--concurrency: the mode encoder records one run after the other")

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

    yield Blocking("encoder", compute)


MODES = {"execution": execution, "awaited": awaited, "encoder": encoder}
"""The modes by the values of `--mode`."""

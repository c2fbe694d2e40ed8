"""MLExecution and MLAwaitedExecution: the synchronous and the awaited mode."""

from __future__ import annotations

import functools
from collections.abc import Callable, Coroutine, Iterable, Mapping
from typing import Any

import numpy as np

from webnn_py.api.context import MLContext, check_context
from webnn_py.api.graph import MLGraph, executable_of
from webnn_py.api.tensor import MLTensor, mark_failed, on_tensors
from webnn_py.core import convert, dtypes
from webnn_py.core.completion import Completion, Parts, check_may_block, wait_or_drop
from webnn_py.core.errors import (
    ContextLostError,
    DataError,
    InvalidStateError,
    telling_of_memory,
)
from webnn_py.core.messages import named
from webnn_py.engines.base import AwaitedRun, Executable, HostExecutable
from webnn_py.ir import Array, Descriptor
from webnn_py.memory import host
from webnn_py.memory.overlap import check_apart
from webnn_py.ordering.schedule import Operation, Run
from webnn_py.ordering.timeline import Timeline, TimelinePoint, points

Points = tuple[TimelinePoint, ...]


def _mappings(
    inputs: object, outputs: object
) -> tuple[Mapping[str, Any], Mapping[str, Any] | None]:
    """What is given by name, as dictionaries."""
    given = convert.mapping(inputs, "inputs", DataError)
    return given, None if outputs is None else convert.mapping(outputs, "outputs", DataError)


@telling_of_memory
def _prepare(
    graph: MLGraph, inputs: Mapping[str, Any], outputs: Mapping[str, Any] | None
) -> tuple[dict[str, Array], dict[str, Array]]:
    """Inputs as arrays, and for every output an array to write into; nothing runs before."""
    given = {} if outputs is None else outputs
    graph.check_names(inputs, given, frozenset())
    targets = {
        name: _output(graph, given[name], descriptor, named("output", name))
        if given.get(name) is not None
        else _empty(descriptor)
        for name, descriptor in graph.output_descriptors.items()
    }
    check_apart({name: array for name, array in targets.items() if given.get(name) is not None})
    arrays = {
        name: _input(graph, inputs[name], descriptor, named("input", name))
        for name, descriptor in graph.input_descriptors.items()
    }
    return arrays, targets


def _input(graph: MLGraph, value: Any, descriptor: Descriptor, what: str) -> Array:
    resource = host.resource_of(value)
    if isinstance(resource, MLTensor):
        host.split_dimensions(value, descriptor, what)
        return _memory(graph, resource, descriptor, what)
    return host.input_array(value, descriptor, what)


def _output(graph: MLGraph, value: Any, descriptor: Descriptor, what: str) -> Array:
    if not isinstance(value, MLTensor):
        return host.output_array(value, descriptor, what)
    if value.constant or value.read_only:
        raise DataError(f"{what}: the MLTensor cannot be written to")
    return _memory(graph, value, descriptor, what)


def _memory(graph: MLGraph, tensor: MLTensor, descriptor: Descriptor, what: str) -> Array:
    memory: Array = tensor.memory(graph.context, what, DataError)
    tensor.check_fits(descriptor, what, DataError)
    return memory


class _Tensors:
    """The tensors of a run: it keeps the context's order if it has any.

    Attributes:
        reads: Among the inputs.
        writes: Among the outputs.
        only: Whether nothing else is given, and nothing comes back in host memory.
    """

    def __init__(
        self, graph: MLGraph, inputs: Mapping[str, Any], outputs: Mapping[str, Any] | None
    ) -> None:
        given = [host.resource_of(value) for value in inputs.values()]
        targets = [(outputs or {}).get(name) for name in graph.output_descriptors]
        self.reads = [value for value in given if isinstance(value, MLTensor)]
        self.writes = [value for value in targets if isinstance(value, MLTensor)]
        self.only = len(self.reads) == len(given) and len(self.writes) == len(targets)

    def __bool__(self) -> bool:
        return bool(self.reads or self.writes)

    def operation(
        self, run: Run, fail: Callable[[BaseException], None], parts: Parts, sync: Points = ()
    ) -> Operation:
        """A run as a piece of work."""
        mark = mark_failed(self.writes)

        def failed(error: BaseException) -> None:
            if not parts.dropped:  # what was cancelled leaves its outputs alone
                mark(error)
            fail(error)

        return Operation(
            on_tensors(self.reads, self.writes, run),
            failed,
            sync,
            slow=True,
            host=not self.only,
            uses=(*self.reads, *self.writes),
        )


def _empty(descriptor: Descriptor) -> Array:
    return np.empty(descriptor.shape, dtypes.DTYPES[descriptor.data_type].numpy)


def _results(
    targets: Mapping[str, Array], outputs: Mapping[str, Any] | None
) -> dict[str, np.ndarray[Any, Any]]:
    """What the user gave where it was an array, else the array that was written."""
    given = {} if outputs is None else outputs
    return {
        name: given[name] if isinstance(given.get(name), (np.ndarray, MLTensor)) else array
        for name, array in targets.items()
    }


class MLExecution:
    """Runs graphs synchronously on the calling thread, on a CPU context.

    It may be called from many threads at once on one graph. On a thread that is running an event
    loop it refuses to block, unless made with `allow_blocking`.

    Args:
        context: A CPU context.
        allow_blocking: Run even on a thread with an event loop, for notebooks.

    Raises:
        InvalidStateError: The context is not a CPU context.

    Source: WebNN 2022, "MLExecution".
    """

    def __init__(self, context: MLContext, *, allow_blocking: bool = False) -> None:
        check_context(context)
        if context.device_type != "cpu":
            raise InvalidStateError(
                "MLExecution needs a CPU context; on a GPU context use MLAwaitedExecution or"
                " MLCommandEncoder"
            )
        self._context = context
        self._allow_blocking = convert.boolean(allow_blocking, "option 'allow_blocking'")

    def compute(
        self,
        graph: MLGraph,
        inputs: Mapping[str, Any],
        outputs: Mapping[str, Any] | None = None,
    ) -> dict[str, np.ndarray[Any, Any]]:
        """Run the graph and return its outputs by name.

        Args:
            graph: Built by this context.
            inputs: Every input by name: an array of its data type and shape (or flat, with all its
                elements), a buffer, a DLPack tensor in CPU memory, or {"resource": one of these,
                "dimensions": [...]}.
            outputs: Arrays to write into, by name; larger ones are accepted. Outputs not given are
                allocated.

        Returns:
            Every output by name.

        Raises:
            ValidationError: `graph` is no MLGraph.
            DataError: A name, data type or size does not fit; nothing has run.
            InvalidStateError: Called under a running event loop, or the graph is destroyed.
            OperationError: The engine failed.
        """
        if not self._allow_blocking:
            check_may_block(
                "MLExecution.compute",
                "MLAwaitedExecution, a worker thread, or MLExecution(context, allow_blocking=True)",
            )
        executable = executable_of(graph, self._context)
        inputs, outputs = _mappings(inputs, outputs)
        assert isinstance(executable, HostExecutable)
        arrays, targets = _prepare(graph, inputs, outputs)
        tensors = _Tensors(graph, inputs, outputs)
        if tensors:
            self._run_in_order(tensors, functools.partial(executable.run, arrays, targets))
        else:
            executable.run(arrays, targets)
        return _results(targets, outputs)

    def _run_in_order(self, tensors: _Tensors, run: Run) -> None:
        done: Completion[None] = Completion()

        def work() -> None:
            run()
            done.set_result(None)

        operation = tensors.operation(work, done.set_exception, Parts())
        self._context.queue.submit(operation)
        done.wait()


class _HostRun(AwaitedRun):
    """One awaited computation on the host."""

    def __init__(
        self,
        graph: MLGraph,
        executable: HostExecutable,
        inputs: Mapping[str, Any],
        outputs: Mapping[str, Any] | None,
    ) -> None:
        # What nobody sees may be written after the await has ended.
        super().__init__(settle=bool(outputs))
        self._executable = executable
        self._outputs = outputs
        arrays, self._targets = _prepare(graph, inputs, outputs)
        self._arrays = {
            name: array
            if isinstance(host.resource_of(inputs[name]), MLTensor)
            else host.private(array, inputs[name])
            for name, array in arrays.items()
        }

    def begin(self) -> None:
        """Compute."""
        arrays = self._arrays
        with self.part():
            self._executable.run(arrays, self._targets)
        self.done.set_result(None)

    def release(self) -> None:
        """Keep the input arrays no more; a computation under way does."""
        self._arrays = {}

    def results(self) -> dict[str, Any]:
        """What was given where it was an array, else the arrays that were written."""
        return _results(self._targets, self._outputs)


class MLAwaitedExecution:
    """Runs graphs without blocking the event loop, on CPU and GPU contexts.

    Any number of computations may be awaited at once, under asyncio or trio.

    Source: WebNN 2022, "MLAwaitedExecution".
    """

    def __init__(self, context: MLContext) -> None:
        check_context(context)
        self._context = context

    def compute(
        self,
        graph: MLGraph,
        inputs: Mapping[str, Any],
        outputs: Mapping[str, Any] | None = None,
        sync: Iterable[TimelinePoint] = (),
    ) -> Coroutine[Any, Any, dict[str, np.ndarray[Any, Any]]]:
        """Run the graph and return its outputs by name; to be awaited.

        Arguments, result and errors are those of `MLExecution.compute`; inputs and outputs may also
        be MLTensors, and GPU resources on GPU contexts. Inputs in host memory are read before this
        returns: changing them afterwards changes nothing. The work begins with the await. A
        cancelled await leaves the given outputs either untouched or whole, and the context usable;
        it waits for nothing but what is being written into them. What a run signals is reached when
        the await returns; it fails if the run is cancelled before it began.

        Args:
            graph: As there.
            inputs: As there.
            outputs: As there.
            sync: Timeline points that the run waits for and signals. Runs on tensors keep the
                context's order; others begin as soon as their own waits are met.
        """
        try:
            waits = points(sync)
            executable = executable_of(graph, self._context)
            inputs, outputs = _mappings(inputs, outputs)
            tensors = _Tensors(graph, inputs, outputs)
            run = self._run(graph, executable, inputs, outputs)
        except Exception as error:
            return _raised(error)
        return self._finish(run, tensors, waits)

    @telling_of_memory
    def _run(
        self,
        graph: MLGraph,
        executable: Executable,
        inputs: Mapping[str, Any],
        outputs: Mapping[str, Any] | None,
    ) -> AwaitedRun:
        if isinstance(executable, HostExecutable):
            return _HostRun(graph, executable, inputs, outputs)
        from webnn_py.engines.webgpu.runtime import awaited

        with self._context.queue.loss():
            return awaited.Run(graph, executable, inputs, outputs)

    async def _finish(self, run: AwaitedRun, tensors: _Tensors, waits: Points) -> dict[str, Any]:
        with self._context.queue.loss():
            self._context.check_alive()
            await self._wait(run, tensors, waits)
        return run.results()

    async def _wait(self, run: AwaitedRun, tensors: _Tensors, waits: Points) -> None:
        signalled: Timeline | None = None
        if any(point.signal is not None for point in waits):
            signalled = Timeline()
            waits = (*waits, signalled(signal=1))
        operation = tensors.operation(run.begin, run.done.set_exception, run.parts, waits)
        withdraw: Run | None = None
        if waits or tensors:
            withdraw = self._context.queue.submit(operation, ordered=bool(tensors))
        else:
            run.when_there_is_room(functools.partial(self._begin, operation))
        try:
            await wait_or_drop(run.done, run.parts, withdraw, run.settle)
        finally:
            run.release()
        if signalled is not None:
            await signalled.wait_async(1)

    def _begin(self, operation: Operation) -> None:
        try:
            self._context.run_on_worker(operation.run).on_failure(operation.fail)
        except ContextLostError as error:
            operation.fail(error)


async def _raised(error: Exception) -> Any:
    """What an awaitable gives that failed before it was awaited."""
    raise error

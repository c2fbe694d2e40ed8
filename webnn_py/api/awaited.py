"""MLAwaitedExecution: the awaited mode."""

from __future__ import annotations

import functools
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from webnn_py.api.arguments import Arguments
from webnn_py.api.awaited_run import (
    Points,
    computed,
    finished,
    promising,
    raised,
)
from webnn_py.api.batching.batching import Batching, batching_of
from webnn_py.api.batching.request import Request
from webnn_py.api.compiled import CompiledGraph
from webnn_py.api.context import MLContext
from webnn_py.api.deferred_run import in_turn
from webnn_py.api.graph import MLGraph, compiled_of
from webnn_py.api.session import session_of
from webnn_py.api.shape_specialization import Prepared, Sizes
from webnn_py.api.signature import Signature
from webnn_py.core.errors import ContextLostError
from webnn_py.core.lru_cache import LRUCache
from webnn_py.core.messages import Suggesting
from webnn_py.core.open_dims import check_name
from webnn_py.core.pickling import Unpicklable
from webnn_py.engines.base import AwaitedRun, Executable, HostExecutable
from webnn_py.memory.overlap import region_of
from webnn_py.ordering.timeline import TimelinePoint, points
from webnn_py.ordering.unordered import UnorderedRun


class MLAwaitedExecution(Unpicklable, Suggesting):
    """Runs graphs without blocking the event loop, on CPU and GPU contexts.

    Any number of computations may be awaited at once, under asyncio or trio. With `batch`, those of
    one graph are joined into one run along its open dimension of that name, and each gets its own
    results as if it had run alone.

    Args:
        context: Where the graphs were built.
        batch: The open dimension to join computes along, which each graph must have. Not joined are
            computes on tensors and resources of a GPU, those with `sync`, and those that differ in
            other open sizes or in the contents of inputs without it.
        max_batch: Largest size of the dimension in a joined run, at least 1. What is larger alone
            is not joined. Of no meaning without `batch`, as `max_delay`.
        max_delay: How many seconds a compute waits for others, at least 0. What waits when a run
            begins is joined in any case, and under load that is enough.

    Raises:
        ValidationError: `context` is no MLContext, or an option is not of its type or range.
        ContextLostError: It is lost.

    Source: WebNN 2022, "MLAwaitedExecution"; `batch`: webnn_py, spec/execution.md, "Batching".
    """

    def __init__(
        self,
        context: MLContext,
        *,
        batch: str | None = None,
        max_batch: int = 32,
        max_delay: float = 0.0,
    ) -> None:
        self._session = session_of(context)
        self._batching = batching_of(self._session, batch, max_batch, max_delay)

    def compute(
        self,
        graph: MLGraph,
        inputs: Mapping[str, Any],
        outputs: Mapping[str, Any] | None = None,
        sync: Iterable[TimelinePoint] = (),
    ) -> Coroutine[Any, Any, dict[str, np.ndarray[Any, Any]]]:
        """Run the graph; the await gives its outputs by name.

        Inputs in host memory are read before this returns: changing them afterwards changes
        nothing. The work begins with the await. A cancelled await leaves the given outputs either
        untouched or whole, and the context usable; it waits for nothing but what is being written
        into them. What the run signals is reached when the await returns; waits for it fail if the
        run is cancelled before it began.

        Args:
            graph: Built by this context.
            inputs: Every input by name, as `MLExecution.compute` takes it; on GPU contexts as
                `MLCommandEncoder.dispatch` does.
            outputs: What to write into, by name, as there; on GPU contexts arrays, too. Outputs not
                given are allocated, as arrays.
            sync: Timeline points that the run waits for and signals. Runs on tensors keep the
                context's order; others begin as soon as their own waits are met.

        Returns:
            Every output by name: what was given, else arrays of the output's data type and shape.

        Raises:
            ValidationError: `graph` is no MLGraph, a timeline point does not fit, the graph has no
                open dimension `batch`, or an operator mixes what lies along it. This and all that
                follows is raised by the await.
            DataError: A name, data type, size, format, context or device does not fit; nothing has
                run.
            InvalidStateError: The graph is destroyed, a tensor is exported, or an input is left out
                that becomes a constant by commands not submitted yet.
            NotSupportedError: More bytes than a buffer of the device can have, or with a texture
                than it binds at once.
            OperationError: The engine or the device failed, or what the run waits for did.
            ContextLostError: The context is lost, also while this waits.

        Source: WebNN 2022, "MLAwaitedExecution", "compute(graph, inputs, outputs)"; cancelling and
        `sync`: webnn_py, spec/execution.md, "MLAwaitedExecution".
        """
        try:
            session = self._session
            waits = points(sync)
            compiled = compiled_of(graph)
            executables = compiled.check_usable(session)
            signature, sizes = compiled.fixed(inputs)
            batching = self._batching
            if batching is not None:
                check_name(dict(sizes), batching.name, "option 'batch'")
                given = self._given(compiled, signature, inputs, outputs)
                alone = functools.partial(self._compile_first, executables, signature, sizes)
                run = self._joined(batching, compiled, executables, alone, sizes, given, waits)
            elif (prepared := executables.find(sizes)) is not None:
                given = self._given(compiled, signature, inputs, outputs, private=False)
                run = self._run(prepared.executable, signature, given, waits)
            else:
                given = self._given(compiled, signature, inputs, outputs)
                run = self._compile_first(executables, signature, sizes, given, waits)
            return promising(run, given, waits) if waits else run
        except Exception as error:
            return raised(error)

    def _given(
        self,
        compiled: CompiledGraph,
        signature: Signature,
        inputs: Any,
        outputs: Any,
        private: bool = True,
    ) -> Arguments:
        """What is given, checked; for later, or not `private`: for a run that starts now."""
        session = self._session
        if session.device is None:
            return signature.on_host(session, inputs, outputs, private=True)
        with session.queue.loss():
            bound = compiled.bound
            places = bound.constants.places
            return signature.on_device(session, inputs, outputs, bound, places, private=private)

    def _run(
        self, executable: Executable, signature: Signature, given: Arguments, waits: Points
    ) -> Coroutine[Any, Any, dict[str, Any]]:
        """A run of what is compiled: in the context's order only where others see what it does."""
        session = self._session
        if isinstance(executable, HostExecutable):
            if not (waits or given.on_tensors or given.writes_given):
                return computed(session, executable, given.hand_over(), signature.made)
            run = _started(signature, given.outputs, executable, given.hand_over())
        else:
            with session.queue.loss():
                run = executable.start(given.hand_over(), given.outputs)
                run.read_inputs()
        return finished(session, run, given, waits)

    async def _joined(
        self,
        batching: Batching,
        compiled: CompiledGraph,
        executables: LRUCache[Prepared],
        alone: Callable[..., Coroutine[Any, Any, dict[str, Any]]],
        sizes: Sizes,
        given: Arguments,
        waits: Points,
    ) -> dict[str, Any]:
        """A run with others, or `alone` if it cannot be joined."""
        session = self._session
        try:
            session.check_alive()
            known = batching.known(compiled)
            unordered: UnorderedRun | None = None
            joins = not waits and batching.takes(given)
            if joins and given.writes_given:
                writes = [region_of(array) for array in given.outputs if array is not None]
                unordered = session.queue.begin_unordered((), writes, given.names)
                joins = unordered is not None
            if not joins:
                check = None if known else functools.partial(batching.check, compiled)
                return await alone(given, waits, check)
            try:
                known = known or await batching.examined(compiled)
                request = batching.join(compiled, executables, known, sizes, given)
                if request is not None:
                    return given.results((await _led(request)).outcome())
            finally:
                if unordered is not None:
                    unordered.end()
            return await alone(given, waits)
        except ContextLostError as error:
            session.queue.on_lost(str(error))
            raise

    async def _compile_first(
        self,
        executables: LRUCache[Prepared],
        signature: Signature,
        sizes: Sizes,
        given: Arguments,
        waits: Points,
        check: Callable[[], None] | None = None,
    ) -> dict[str, Any]:
        """A run with sizes that the graph may have to be compiled for first, on another thread.

        Args:
            executables: Of the graph, which may be destroyed by then.
            signature: Of the graph, for its sizes.
            sizes: Its open sizes.
            given: What is to be read and written.
            waits: What the run waits for and signals.
            check: Called before, on that thread.
        """
        session = self._session
        prepared = None if check else executables.find(sizes)
        if prepared is None:

            def compile_it() -> Executable:
                if check is not None:
                    check()
                return executables.get(sizes).executable

            if waits or given.on_tensors or given.writes_given or self._reads_device(given):
                start = functools.partial(_started, signature, given.outputs)
                return await in_turn(session, given, waits, compile_it, start)
            return await self._run(await session.await_builder(compile_it), signature, given, waits)
        return await self._run(prepared.executable, signature, given, waits)

    def _reads_device(self, given: Arguments) -> bool:
        """Whether resources of the device are read."""
        session = self._session
        return session.device is not None and any(map(session.engine.takes, given.inputs))


# Python calls a coroutine that nobody awaits by the name of its function: that of the call.
for _called in (
    computed,
    finished,
    raised,
    MLAwaitedExecution._joined,
    MLAwaitedExecution._compile_first,
):
    _called.__qualname__ = MLAwaitedExecution.compute.__qualname__


async def _led(request: Request) -> Request:
    """A request that has ended; if it comes first, it has the run made."""
    try:
        if request.leads:
            await request.lead()
        await request
    except BaseException as error:
        await request.withdraw(error)
        raise
    return request


def _started(
    signature: Signature, outputs: Sequence[Any], executable: Executable, inputs: Sequence[Any]
) -> AwaitedRun:
    """One run, which begins when it is told to."""
    on_host = isinstance(executable, HostExecutable)
    return executable.start(inputs, signature.with_outputs(outputs) if on_host else outputs)

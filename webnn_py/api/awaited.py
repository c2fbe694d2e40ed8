"""MLAwaitedExecution, the awaited execution mode of CPU and GPU contexts."""

from __future__ import annotations

import functools
from collections.abc import Callable, Coroutine, Hashable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from webnn_py.api.batching.batching import Batching, batching_of
from webnn_py.api.batching.request import Request
from webnn_py.api.compiled import CompiledGraph, compiled_of
from webnn_py.api.context import MLContext
from webnn_py.api.graph import MLGraph
from webnn_py.api.runs import (
    HeldPlace,
    Points,
    computed,
    done,
    finished,
    in_turn,
    promising,
    raised,
    repeated_run,
    small_output,
)
from webnn_py.api.session import Session, session_of
from webnn_py.api.shape_specialization import Prepared, Sizes
from webnn_py.api.signature import Arguments, Signature
from webnn_py.api.staged_graph import StagedGraph, Steps
from webnn_py.api.tensor import repeated
from webnn_py.core import convert
from webnn_py.core.completion import CANCELLED
from webnn_py.core.errors import ContextLostError, DataError, NotSupportedError, OperationError
from webnn_py.core.lru_cache import LRUCache
from webnn_py.core.messages import Suggesting
from webnn_py.core.open_dims import check_name
from webnn_py.core.pickling import Unpicklable
from webnn_py.engines.base import AwaitedRun, Executable, HostExecutable
from webnn_py.memory.overlap import region_of
from webnn_py.ordering.timeline import TimelinePoint, points
from webnn_py.ordering.unordered import UnorderedRun


class MLAwaitedExecution(Unpicklable, Suggesting):
    """Execution of graphs without blocking the event loop, on CPU and GPU contexts.

    Any number of computations may be awaited at once, under asyncio or trio. `batch` enables
    dynamic batching: concurrent computes of one graph are joined into one run along its open
    dimension of that name. Each compute gets its own results, as if it had run alone.

    Args:
        context: The context that built the graphs.
        batch: Name of the open dimension to join computes along, which each graph must have.
            Computes on tensors or GPU resources and computes with `sync` are not joined. Computes
            are joined only if their other open sizes are equal, and the contents of their inputs
            without this dimension.
        max_batch: Largest size of the dimension in a joined run, at least 1. A compute that is
            larger by itself is not joined. Has no effect without `batch`.
        max_delay: Seconds that a compute waits for others, at least 0. A run joins the computes
            that wait when it begins in any case; under load that suffices. Has no effect without
            `batch`.

    Raises:
        ValidationError: `context` is not an MLContext, or an option has a wrong type or is out of
            range.
        ContextLostError: The context is lost.

    Examples:
        ```python
        import asyncio

        import numpy as np

        from webnn_py import MLAwaitedExecution, MLGraphBuilder, ml


        async def main():
            ctx = await ml.create_context_async(device_type="cpu")
            b = MLGraphBuilder(ctx)
            x = b.input("x", "float32", ["batch", 2])
            graph = await b.build_async({"y": b.add(x, x)})
            execution = MLAwaitedExecution(ctx, batch="batch", max_batch=32)
            rows = [np.float32([[n, n]]) for n in range(3)]
            results = await asyncio.gather(*(execution.compute(graph, {"x": row}) for row in rows))
            return [result["y"].tolist() for result in results]


        print(asyncio.run(main()))  # [[[0.0, 0.0]], [[2.0, 2.0]], [[4.0, 4.0]]]
        ```

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
        """Run the graph; the await returns its outputs by name.

        Inputs in host memory are read before this returns, so later changes to them have no
        effect. The work begins with the await. A cancelled await leaves your outputs either
        untouched or completely written, and the context usable. It waits only for a write to them
        that is in progress. When the await returns, the timelines have reached the points that the
        run signals. If the run is cancelled before it begins, waits for these points fail.

        Args:
            graph: Built by this context.
            inputs: Every input by name, as in `MLExecution.compute`; on GPU contexts as in
                `MLCommandEncoder.dispatch`.
            outputs: Destinations by name, likewise; GPU contexts accept arrays, too. Missing
                outputs are allocated as arrays.
            sync: Timeline points that the run waits for and signals. Runs on tensors keep the
                context's order; others begin as soon as their own waits are met.

        Returns:
            Every output by name: your destination, else an array of the output's data type and
            shape.

        Raises:
            ValidationError: `graph` is not an MLGraph, a timeline point does not fit, the graph has
                no open dimension `batch`, or an operator mixes elements along it. The await raises
                this and all errors below.
            DataError: A name, data type, size, format, context or device does not fit; nothing has
                run.
            InvalidStateError: The graph is destroyed, a tensor is exported, or an input is missing
                that commands not submitted yet turn into a constant.
            NotSupportedError: A tensor has more bytes than a buffer of the device can have, or
                with a texture more than the device can bind at once.
            OperationError: The engine or the device failed, or work that the run waits for failed.
            ContextLostError: The context is lost, before or during the wait.

        Source: WebNN 2022, "MLAwaitedExecution", "compute(graph, inputs, outputs)"; cancelling and
        `sync`: webnn_py, spec/execution.md, "MLAwaitedExecution".
        """
        try:
            session = self._session
            waits = () if isinstance(sync, tuple) and not sync else points(sync)
            if isinstance(graph, StagedGraph):
                return self._compute_stages(graph, inputs, outputs, waits)
            compiled = compiled_of(graph)
            executables = compiled.check_usable(session)
            signature, sizes = compiled.fixed(inputs)
            with session.queue.loss():
                batching = self._batching
                if batching is not None:
                    check_name(dict(sizes), batching.name, "option 'batch'")
                    given = self._given(compiled, signature, inputs, outputs)
                    alone = functools.partial(self._compile_first, executables, signature, sizes)
                    run = self._joined(batching, compiled, executables, alone, sizes, given, waits)
                elif (prepared := executables.find(sizes)) is not None:
                    to: Any = outputs  # only looked at where it is a mapping
                    key, known = None, None if waits or to is None else repeated(inputs, to)
                    end = None if known is None else small_output(known)
                    if known is not None and end is not None:
                        key = compiled.key_of(known.key)
                        work = session.queue.repeat_at_once(prepared.executable, key)
                        if work is not None:
                            return repeated_run(session, compiled.signature, work, known, to, end)
                    given = self._given(compiled, signature, inputs, outputs, private=False)
                    run = self._run(prepared.executable, signature, given, waits, key)
                else:
                    given = self._given(compiled, signature, inputs, outputs)
                    run = self._compile_first(executables, signature, sizes, given, waits)
            return promising(run, given.names, waits) if waits else run
        except Exception as error:
            return raised(error)

    def _compute_stages(
        self, graph: StagedGraph, inputs: Any, outputs: Any, waits: Points
    ) -> Coroutine[Any, Any, dict[str, Any]]:
        """Run a graph whose stages follow from each other's results, one after another."""
        if self._batching is not None:
            raise NotSupportedError(
                "option 'batch': results of this graph decide sizes of its tensors, so that it runs"
                " in parts; leave out `batch`"
            )
        copied = {
            name: value.copy() if isinstance(value, np.ndarray) else value
            for name, value in convert.mapping(inputs, "inputs", DataError).items()
        }
        targets = {} if outputs is None else convert.mapping(outputs, "outputs", DataError)
        steps = graph.steps(copied, targets)
        place = functools.partial(
            HeldPlace, self._session, copied, targets, waits, [*graph.outputs]
        )
        run = self._awaited_stages(steps, waits, place)
        return promising(run, [*graph.outputs], waits)

    async def _awaited_stages(
        self, steps: Steps, waits: Points, hold: Callable[[], HeldPlace]
    ) -> dict[str, Any]:
        before = tuple(point.timeline(wait=point.wait) for point in waits if point.wait is not None)
        place = hold()
        try:
            step = next(steps)
            while True:
                if callable(step):
                    step = steps.send(await self._session.await_builder(step))
                else:
                    sync = (*before, *place.next_stage())
                    step = steps.send(await self.compute(*step, sync=sync))
                    before = ()
        except StopIteration as end:
            results: dict[str, Any] = end.value
        except BaseException as error:
            place.fail(error if isinstance(error, Exception) else OperationError(CANCELLED))
            raise
        await place.end()
        return results

    def _given(
        self,
        compiled: CompiledGraph,
        signature: Signature,
        inputs: Any,
        outputs: Any,
        private: bool = True,
    ) -> Arguments:
        """Return the checked arguments; `private` copies inputs, for a run that starts later."""
        session = self._session
        if session.device is None:
            return signature.on_host(session, inputs, outputs, private=True)
        bound = compiled.bound
        places = bound.constants.places
        return signature.on_device(session, inputs, outputs, bound, places, private=private)

    def _run(
        self,
        executable: Executable,
        signature: Signature,
        given: Arguments,
        waits: Points,
        key: Hashable = None,
    ) -> Coroutine[Any, Any, dict[str, Any]]:
        """Run an executable; keep the context's order only if others can see the effects.

        Args:
            executable: The executable.
            signature: Signature of the graph.
            given: Inputs and outputs of the run.
            waits: Timeline points that the run waits for and signals.
            key: A key under which `Queue.repeat_at_once` finds the work of the run later.
        """
        session = self._session
        if isinstance(executable, HostExecutable):
            if not (waits or given.on_tensors or given.writes_given):
                return computed(session, executable, given.hand_over(), signature.made)
            run = _started(signature, given.outputs, executable, given.hand_over())
        else:
            run = executable.start(given.hand_over(), given.outputs)
            run.key = key
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
        """Run joined with other computes, or `alone` if the compute cannot be joined."""
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
        """Run the graph, after compiling it for these sizes on the build thread if needed.

        Args:
            executables: Cache of the graph's executables; outlives the graph.
            signature: Signature of the graph for these sizes.
            sizes: Sizes of the open dimensions.
            given: Inputs and outputs of the run.
            waits: Timeline points that the run waits for and signals.
            check: Called before the compilation, on the build thread.
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
            executable = await session.await_builder(compile_it)
        else:
            executable = prepared.executable
        with session.queue.loss():
            run = self._run(executable, signature, given, waits)
        return await run

    def _reads_device(self, given: Arguments) -> bool:
        """Whether an input is a resource of the device."""
        session = self._session
        return session.device is not None and any(map(session.engine.takes, given.inputs))


# Python's warning about a coroutine never awaited should name the public method.
for _called in (
    computed,
    finished,
    raised,
    repeated_run,
    MLAwaitedExecution._awaited_stages,
    MLAwaitedExecution._joined,
    MLAwaitedExecution._compile_first,
):
    _called.__qualname__ = MLAwaitedExecution.compute.__qualname__


def run_blocking(
    session: Session, graph: MLGraph, inputs: Mapping[str, Any], outputs: Mapping[str, Any]
) -> dict[str, Any]:
    """Run a graph on any context, and block this thread until it is done.

    Arguments, results and errors are those of `MLAwaitedExecution.compute`. Only for threads that
    run no event loop.
    """
    compiled = compiled_of(graph)
    executables = compiled.check_usable(session)
    signature, sizes = compiled.fixed(inputs)
    executable = executables.get(sizes).executable
    bound = compiled.bound
    if isinstance(executable, HostExecutable):
        given = signature.on_host(session, inputs, outputs)
        executable.run(given.inputs, given.outputs)
        return given.results(given.outputs)
    with session.queue.loss():
        given = signature.on_device(session, inputs, outputs, bound, bound.constants.places)
        run = executable.start(given.hand_over(), given.outputs)
        run.read_inputs()
    return done(session, run, given)


async def _led(request: Request) -> Request:
    """Await a request, leading the joined run if it is the first of it; return the request."""
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
    """Return a run that its `begin` starts."""
    on_host = isinstance(executable, HostExecutable)
    return executable.start(inputs, signature.with_outputs(outputs) if on_host else outputs)

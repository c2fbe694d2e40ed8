"""MLExecution, the synchronous execution mode of CPU contexts."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any, cast

import numpy as np

from webnn_py.api.compiled import compiled_of
from webnn_py.api.context import MLContext
from webnn_py.api.graph import MLGraph
from webnn_py.api.runs import Memory, ordered_operation
from webnn_py.api.session import Session, session_of
from webnn_py.api.signature import Arguments
from webnn_py.api.staged_graph import StagedGraph, Steps
from webnn_py.core import convert
from webnn_py.core.completion import (
    Cancellation,
    Completion,
    check_interrupts_nothing,
    check_may_block,
)
from webnn_py.core.errors import InvalidStateError
from webnn_py.core.messages import Suggesting
from webnn_py.core.pickling import Unpicklable
from webnn_py.engines.base import HostExecutable
from webnn_py.memory.host_arrays import plain_arrays
from webnn_py.memory.overlap import region_of
from webnn_py.ordering.operation import Run, wait_in_order


class MLExecution(Unpicklable, Suggesting):
    """Synchronous execution of graphs on the calling thread, on a CPU context.

    Many threads may run one graph at once. On a thread that is running an event loop, calls raise
    an error instead of blocking, unless you set `allow_blocking`.

    Args:
        context: A CPU context.
        allow_blocking: Allow runs on a thread with an event loop, for notebooks.

    Raises:
        ValidationError: `context` is not an MLContext, or `allow_blocking` is not a bool.
        InvalidStateError: The context is not a CPU context.
        ContextLostError: The context is lost.

    Examples:
        ```python
        import numpy as np

        from webnn_py import MLExecution, MLGraphBuilder, ml

        ctx = ml.create_context_sync(device_type="cpu")
        b = MLGraphBuilder(ctx)
        x = b.input("x", "float32", [2])
        graph = b.build_sync({"y": b.add(x, x)})

        execution = MLExecution(ctx)
        print(execution.compute(graph, {"x": np.float32([1, 2])})["y"])  # [2. 4.]
        target = np.empty(2, np.float32)
        execution.compute(graph, {"x": np.float32([3, 4])}, {"y": target})
        print(target)  # [6. 8.]
        ```

    Source: WebNN 2022, "MLExecution".
    """

    def __init__(self, context: MLContext, *, allow_blocking: bool = False) -> None:
        session = session_of(context)
        if session.device_type != "cpu":
            raise InvalidStateError(
                "MLExecution needs a CPU context; on a GPU context use MLAwaitedExecution or"
                " MLCommandEncoder"
            )
        self._session = session
        self._allow_blocking = convert.boolean(allow_blocking, "option 'allow_blocking'")

    def compute(
        self,
        graph: MLGraph,
        inputs: Mapping[str, Any],
        outputs: Mapping[str, Any] | None = None,
    ) -> dict[str, np.ndarray[Any, Any]]:
        """Run the graph and return its outputs by name.

        A run never changes its inputs. It keeps the context's order: it first waits for pending
        operations that share tensors or arrays with it.

        Args:
            graph: Built by this context.
            inputs: Every input by name: an array of its data type and shape, a flat array of all
                its elements, or a buffer of its size in bytes. Also a DLPack tensor in CPU memory,
                an MLTensor of this context, or {"resource": one of these, "dimensions": [...]}.
            outputs: Destinations by name: arrays of the result's shape, 1-D arrays, buffers, or
                MLTensors of this context. If a 1-D array or buffer is larger than the result, only
                its beginning is written. No two destinations may share memory. Missing outputs are
                allocated.

        Returns:
            Every output by name: your array or MLTensor, else an array of the output's data type
            and shape.

        Raises:
            ValidationError: `graph` is not an MLGraph.
            DataError: A name, data type, size or context does not fit; nothing has run.
            InvalidStateError: This thread is running an event loop, or the graph is destroyed.
            OperationError: The engine failed, or the work that writes an input tensor failed.
            ContextLostError: The context is lost.

        Source: WebNN 2022, "MLExecution", "compute(graph, inputs, outputs)".
        """
        if not self._allow_blocking:
            check_may_block(
                "MLExecution.compute",
                "MLAwaitedExecution, a worker thread, or MLExecution(context, allow_blocking=True)",
            )
        session = self._session
        if isinstance(graph, StagedGraph):
            return self._compute_stages(graph.steps(inputs, outputs))
        compiled = compiled_of(graph)
        latest, plain = compiled.latest, None
        if latest is not None and outputs is None:  # arrays mostly have the shapes of the last ones
            signature, sizes = latest
            plain = plain_arrays(inputs, signature.read)
        if plain is None:
            signature, sizes = compiled.fixed(inputs)
            plain = plain_arrays(inputs, signature.read) if outputs is None else None
        # The engine of a CPU context makes no others; a check here would dominate the call.
        executable = cast(HostExecutable, compiled.executable(session, sizes=sizes))
        has_others = session.queue.has_others
        if plain and not has_others:
            results = executable.new_results(plain, signature.made.values())
            return dict(zip(signature.made, results, strict=True))
        given = signature.on_host(session, inputs, outputs)
        memory = _memory(given) if has_others else None
        if given.on_tensors or (memory is not None and _must_wait(session, memory)):
            run = functools.partial(executable.run, given.inputs, given.outputs)
            self._run_in_order(given, run, memory or _memory(given))
        else:
            executable.run(given.inputs, given.outputs)
        return given.results(given.outputs)

    def _compute_stages(self, steps: Steps) -> dict[str, np.ndarray[Any, Any]]:
        try:
            step = next(steps)
            while True:
                step = steps.send(step() if callable(step) else self.compute(*step))
        except StopIteration as end:
            results: dict[str, Any] = end.value
            return results

    def _run_in_order(self, given: Arguments, run: Run, memory: Memory) -> None:
        check_interrupts_nothing("MLExecution.compute")
        done: Completion[None] = Completion()

        def work() -> None:
            run()
            done.set_result(None)

        fail = done.set_exception
        operation = ordered_operation(given, work, fail, Cancellation(), memory)
        self._session.queue.submit(operation)
        wait_in_order(done, operation)


def _memory(given: Arguments) -> Memory:
    """Return the memory regions that a run reads, and those that it writes."""
    return [region_of(array) for array in given.inputs], [region_of(a) for a in given.outputs]


def _must_wait(session: Session, memory: Memory) -> bool:
    """Whether a run has a memory hazard with pending work."""
    users = session.queue.users
    return any(users(region) for region in memory[1]) or any(
        work.uses(region, writing=True) for region in memory[0] for work in users(region)
    )

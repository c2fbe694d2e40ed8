"""Awaited runs whose graph is compiled first, and whose place in the context's order is taken."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from webnn_py.api.arguments import Arguments
from webnn_py.api.awaited_run import Points, finished
from webnn_py.api.session import Session
from webnn_py.api.signature import Signature
from webnn_py.core.completion import Completion
from webnn_py.core.errors import DataError, OperationError, ValidationError
from webnn_py.engines.awaited import AwaitedRun
from webnn_py.engines.base import Executable, HostExecutable
from webnn_py.memory.overlap import Region, region_of
from webnn_py.ordering.operation import CANCELLED
from webnn_py.ordering.timeline import Timeline

COMPILED = "compilation"
"""What messages call the timeline that such a run waits for."""


class PostponedRun(AwaitedRun):
    """A run of what is still being compiled.

    Args:
        session: Of the context.
        signature: Of the graph, for its sizes.
        given: What is to be read and written, which nobody else may change if it is an array to
            be read.
    """

    def __init__(self, session: Session, signature: Signature, given: Arguments) -> None:
        super().__init__()
        self._session = session
        self._signature = signature
        self._inputs: Sequence[Any] = given.hand_over()
        self._outputs: Sequence[Any] = given.outputs
        self._compiling: Completion[Executable] = Completion()
        self._run: AwaitedRun | None = None

    def compile(self, compile_it: Callable[[], Executable]) -> Timeline:
        """Have it compiled.

        Returns:
            What is at 1 when that is over.
        """
        over = Timeline(label=COMPILED)

        def work() -> Executable:
            if self.cancellation.cancelled:
                raise OperationError(CANCELLED)
            return compile_it()

        self._compiling = self._session.run_on_builder(work)
        self._compiling.on_done(lambda: over.signal(1))
        return over

    def begin(self) -> None:
        """Begin the run, which is compiled by now."""
        self.check_not_cancelled()
        try:
            executable = self._compiling.wait(0)
            outputs = self._outputs
            if isinstance(executable, HostExecutable):
                outputs = self._signature.with_outputs(outputs)
            run = executable.start(self._inputs, outputs)
        except (DataError, ValidationError):
            self.cancellation.cancel()  # it leaves its outputs as they are
            raise
        run.done, run.cancellation = self.done, self.cancellation
        self._run = run
        run.begin()

    def memory(self) -> tuple[list[Region], list[Region]]:
        """The resources of a device, and the arrays among the outputs."""
        engine = self._session.engine
        read = [engine.region(given) for given in self._inputs if engine.takes(given)]
        written = [engine.region(given) for given in self._outputs if engine.takes(given)]
        arrays = [given for given in self._outputs if isinstance(given, np.ndarray)]
        return read, [*written, *map(region_of, arrays)]

    def results(self) -> list[Any]:
        """What was written."""
        return [] if self._run is None else self._run.results()

    def release(self) -> None:
        """Keep nothing of what was given any more."""
        self._inputs = ()
        if self._run is not None:
            self._run.release()


async def in_turn(
    session: Session,
    signature: Signature,
    given: Arguments,
    waits: Points,
    compile_it: Callable[[], Executable],
) -> dict[str, Any]:
    """Have a run done in its turn, also if it is compiled later; what was written, by name.

    Args:
        session: Of the context.
        signature: Of the graph, for its sizes.
        given: What is to be read and written.
        waits: What it waits for and signals.
        compile_it: Compiles the graph.
    """
    run = PostponedRun(session, signature, given)
    over = run.compile(compile_it)
    return await finished(session, run, given, (*waits, over(wait=1)))

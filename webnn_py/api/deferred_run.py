"""Awaited runs of what is compiled first, and whose place in the context's order is taken."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np

from webnn_py.api.arguments import Arguments
from webnn_py.api.awaited_run import Points, finished
from webnn_py.api.session import Session
from webnn_py.core.completion import Completion
from webnn_py.core.errors import DataError, ValidationError
from webnn_py.engines.base import AwaitedRun
from webnn_py.memory.overlap import Region, region_of
from webnn_py.ordering.timeline import Timeline

T = TypeVar("T")

COMPILED = "compilation"
"""What messages call the timeline that such a run waits for."""


async def in_turn(
    session: Session,
    given: Arguments,
    waits: Points,
    compile_it: Callable[[], T],
    start: Callable[[T, Sequence[Any]], AwaitedRun],
) -> dict[str, Any]:
    """Have a run done in its turn, also if it is compiled later; what was written, by name.

    Args:
        session: Of the context.
        given: What is to be read and written. Nobody else may change the arrays to be read.
        waits: What the run waits for and signals.
        compile_it: Compiles it, on the thread for builds.
        start: The run of what is compiled, with what is to be read.
    """
    over = Timeline(label=COMPILED)

    def begin(inputs: Sequence[Any]) -> AwaitedRun:
        return start(compiling.wait(0), inputs)

    run = PostponedRun(session, given, begin)
    compiling: Completion[T] = session.run_on_builder(compile_it, run.cancellation)
    compiling.on_done(lambda: over.signal(1))
    return await finished(session, run, given, (*waits, over(wait=1)))


class PostponedRun(AwaitedRun):
    """A run of what is still being compiled.

    Args:
        session: Of the context.
        given: What is to be read and written.
        start: The run of what is compiled, once it is, with what is to be read.
    """

    def __init__(
        self,
        session: Session,
        given: Arguments,
        start: Callable[[Sequence[Any]], AwaitedRun],
    ) -> None:
        super().__init__()
        self._session = session
        self._inputs = given.hand_over()
        self._outputs = given.outputs
        self._start = start
        self._run: AwaitedRun | None = None

    def begin(self) -> None:
        """Begin the run, which is compiled by now."""
        inputs = self._inputs  # before `release` drops them, which follows the cancelling
        self.cancellation.check()
        try:
            run = self._start(inputs)
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
        """Keep nothing of what is read any more."""
        self._inputs = ()
        if self._run is not None:
            self._run.release()

"""Awaited runs that take their place in the context's order before they are compiled."""

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
"""Label of the timeline that such a run waits for, in messages."""


async def in_turn(
    session: Session,
    given: Arguments,
    waits: Points,
    compile_it: Callable[[], T],
    start: Callable[[T, Sequence[Any]], AwaitedRun],
) -> dict[str, Any]:
    """Submit a run, compile it on the build thread, await it, and return its outputs by name.

    The run keeps its place in the context's order.

    Args:
        session: Session of the context.
        given: Inputs and outputs of the run; the input arrays are private.
        waits: Timeline points that the run waits for and signals.
        compile_it: Compiles the executable, on the build thread.
        start: Creates the run from the compiled object and the inputs.
    """
    over = Timeline(label=COMPILED)

    def begin(inputs: Sequence[Any]) -> AwaitedRun:
        return start(compiling.wait(0), inputs)

    run = PostponedRun(session, given, begin)
    compiling: Completion[T] = session.run_on_builder(compile_it, run.cancellation)
    compiling.on_done(lambda: over.signal(1))
    return await finished(session, run, given, (*waits, over(wait=1)))


class PostponedRun(AwaitedRun):
    """Run whose executable is still being compiled.

    Args:
        session: Session of the context.
        given: Inputs and outputs of the run.
        start: Creates the actual run from the inputs, after the compilation.
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
        """Create and begin the actual run; its executable is compiled by now."""
        inputs = self._inputs  # read first: a cancellation leads to `release`, which drops them
        self.cancellation.check()
        try:
            run = self._start(inputs)
        except (DataError, ValidationError):
            self.cancellation.cancel()  # the run leaves its outputs unchanged
            raise
        run.done, run.cancellation = self.done, self.cancellation
        self._run = run
        run.begin()

    def memory(self) -> tuple[list[Region], list[Region]]:
        """Return the regions read and written: device resources, and output arrays."""
        engine = self._session.engine
        read = [engine.region(given) for given in self._inputs if engine.takes(given)]
        written = [engine.region(given) for given in self._outputs if engine.takes(given)]
        arrays = [given for given in self._outputs if isinstance(given, np.ndarray)]
        return read, [*written, *map(region_of, arrays)]

    def results(self) -> list[Any]:
        """Return the outputs."""
        return [] if self._run is None else self._run.results()

    def release(self) -> None:
        """Drop the inputs."""
        self._inputs = ()
        if self._run is not None:
            self._run.release()

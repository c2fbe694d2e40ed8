"""Operations of a context's queue that run graphs."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence

from webnn_py.api.arguments import Arguments
from webnn_py.api.tensor_memory import mark_failed, run_on_tensors
from webnn_py.core.completion import Cancellation
from webnn_py.core.messages import shown
from webnn_py.memory.overlap import Region
from webnn_py.ordering.operation import Operation, Run
from webnn_py.ordering.timeline import TimelinePoint

Memory = tuple[Sequence[Region], Sequence[Region]]
"""Memory regions that are read, and those that are written."""


def ordered_operation(
    given: Arguments,
    run: Run,
    fail: Callable[[BaseException], None],
    cancellation: Cancellation,
    sync: tuple[TimelinePoint, ...] = (),
    memory: Memory = ((), ()),
) -> Operation:
    """Return the operation of a run, which stores its error in the tensors it should write.

    Args:
        given: Arguments of the run.
        run: Performs the run.
        fail: Called with the error if the run fails or is refused.
        cancellation: Cancellation of the await.
        sync: Timeline points that it waits for and signals.
        memory: Regions that it reads and writes besides tensors.
    """

    def failed(error: BaseException) -> None:
        if not cancellation.cancelled:  # a cancelled run leaves its outputs unchanged
            mark_failed(given.writes, error)
        fail(error)

    return Operation(
        functools.partial(run_on_tensors, given.reads, given.writes, run),
        failed,
        sync,
        slow=True,
        host=not given.only_tensors,
        reads=(*given.reads, *memory[0]),
        writes=(*given.writes, *memory[1]),
        title=title_of(given.names),
    )


def title_of(outputs: Iterable[str]) -> str:
    """Return the name of a run with these outputs in messages."""
    return f"compute of {', '.join(map(shown, outputs))}"

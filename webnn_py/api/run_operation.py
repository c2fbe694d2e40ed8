"""A run of a graph as a piece of work in a context's order."""

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
"""What is read, and what is written."""


def ordered_operation(
    given: Arguments,
    run: Run,
    fail: Callable[[BaseException], None],
    cancellation: Cancellation,
    sync: tuple[TimelinePoint, ...] = (),
    memory: Memory = ((), ()),
) -> Operation:
    """A run with these arguments; its tensors know if it fails.

    Args:
        given: Its tensors.
        run: Does it.
        fail: Is told why it will not be done.
        cancellation: Whether its await was cancelled.
        sync: What it waits for and signals.
        memory: What it reads and writes besides tensors.
    """

    def failed(error: BaseException) -> None:
        if not cancellation.cancelled:  # what was cancelled leaves its outputs alone
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
    """What messages call a run with these outputs."""
    return f"compute of {', '.join(map(shown, outputs))}"

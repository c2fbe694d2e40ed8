"""Where and how the operations of a context run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from webnn_py.ordering.operation import Operation, Run, complete


def perform(operation: Operation) -> None:
    """Run an operation as it is."""
    operation.run()


@dataclass(frozen=True, slots=True)
class Executor:
    """Where and how the operations of a context run.

    Attributes:
        worker: Runs a function on a thread of the context's own, begun after what it was given
            before.
        signal: Raises what an operation signals, once what it has run or recorded is done.
        parked: Called when an operation waits for a timeline; submits what was recorded so far.
        queue: Identity of the device queue that keeps the order, if there is one.
        inline: Operations that are not slow run on the thread that submits them.
        perform: Has an operation run.
        width: How many operations may run at once.
    """

    worker: Callable[[Run], None]
    signal: Callable[[Operation], None] = complete
    parked: Callable[[], object] = lambda: None
    queue: object = None
    inline: bool = False
    perform: Callable[[Operation], None] = perform
    width: int = 1

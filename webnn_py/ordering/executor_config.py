"""Configuration of where and how a context's operations run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from webnn_py.ordering.operation import Operation, Run, complete


def perform(operation: Operation) -> None:
    """Run an operation."""
    operation.run()


@dataclass(frozen=True, slots=True)
class Executor:
    """Where and how a context's operations run.

    Attributes:
        worker: Runs functions on a thread of the context, in order.
        signal: Raises the timelines of an operation once its work is done.
        on_parked: Called when an operation waits for a timeline; submits the recorded commands.
        queue: Identity of the device queue that keeps the order, if there is one.
        inline: Operations that are not slow run on the thread that submits them.
        perform: Runs an operation.
        width: Number of operations that may run at once.
    """

    worker: Callable[[Run], None]
    signal: Callable[[Operation], None] = complete
    on_parked: Callable[[], object] = lambda: None
    queue: object = None
    inline: bool = False
    perform: Callable[[Operation], None] = perform
    width: int = 1

"""AwaitedRun: one awaited computation, from its arguments to its end."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from webnn_py.core.completion import Cancellation, Completion
from webnn_py.ir import Array
from webnn_py.memory.overlap import Region, region_of
from webnn_py.ordering.operation import Run

Compute = Callable[[Sequence[Array], Sequence[Array]], None]
"""Computes outputs from inputs, as `HostExecutable.run`."""


class AwaitedRun(ABC):
    """One awaited computation, its arguments checked.

    Attributes:
        done: Its end.
        cancellation: Whether its await was cancelled.
    """

    def __init__(self) -> None:
        self.done: Completion[None] = Completion()
        self.cancellation = Cancellation()

    def read_inputs(self) -> None:
        """Read the arrays among the inputs that others may change from now on.

        Raises:
            ContextLostError: The device is lost.
        """
        return None

    @abstractmethod
    def begin(self) -> None:
        """Compute, or have the device do so; `done` follows."""

    @property
    def end(self) -> Awaitable[None]:
        """What to await, once, after it was begun: `done`, or what leads there sooner."""
        return self.done

    def prepare_next(self) -> None:
        """Prepare such runs that follow, on the context's worker when this one has begun."""
        return None

    @abstractmethod
    def memory(self) -> tuple[list[Region], list[Region]]:
        """What is read and what is written that others may use, but for tensors."""

    @abstractmethod
    def results(self) -> list[Any]:
        """What was written, in the order of the outputs, once it is done."""

    @abstractmethod
    def release(self) -> None:
        """Keep no copies of inputs any more; the run is done or was cancelled."""

    def when_there_is_room(self, start: Run, is_next: bool = False) -> None:
        """Call `start` now or when fewer runs are under way; blocks nobody.

        Args:
            start: Has `begin` called by the context's worker.
            is_next: The worker has nothing else to do, so that this may do for it what takes but a
                moment.
        """
        start()


class HostRun(AwaitedRun):
    """One awaited computation on the host.

    Args:
        compute: Computes outputs from inputs.
        inputs: Arrays that nobody else changes.
        outputs: The arrays to be written.
    """

    def __init__(self, compute: Compute, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        super().__init__()
        self._compute = compute
        self._inputs = inputs
        self._outputs = list(outputs)

    def begin(self) -> None:
        """Compute."""
        inputs = self._inputs
        with self.cancellation:
            self.cancellation.check()
            self._compute(inputs, self._outputs)
        self.done.set_result(None)

    def memory(self) -> tuple[list[Region], list[Region]]:
        """The outputs; nobody else may change the inputs."""
        return [], [region_of(array) for array in self._outputs]

    def release(self) -> None:
        """Keep the input arrays no more; a computation under way does."""
        self._inputs = ()

    def results(self) -> list[Any]:
        """The arrays that were written."""
        return self._outputs

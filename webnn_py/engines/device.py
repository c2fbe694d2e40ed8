"""Interfaces of engines that record graphs into a device's commands."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from webnn_py.engines.base import Engine, Executable, Queue
from webnn_py.engines.initialization import BoundInputs, Constants
from webnn_py.ir import Descriptor, Graph
from webnn_py.memory.overlap import Region
from webnn_py.ordering.operation import Operation, Run

GivenInputs = Mapping[str, tuple[Descriptor, Any]]
"""Descriptor and argument of each input, by name; see the inputs of `record`."""


class DeviceExecutable(Executable):
    """Compiled graph that can be recorded into a device's commands."""

    @property
    def remark(self) -> str:
        """Return a remark for the last line of its listing, or an empty string."""
        return ""

    @property
    def is_far(self) -> bool:
        """Whether its kernels were compiled for far sizes: correct, but perhaps slower."""
        return False

    @abstractmethod
    def record(self, commands: Commands, inputs: Sequence[Any], outputs: Sequence[Any]) -> None:
        """Record one run, which executes when the commands are submitted.

        Args:
            commands: Commands of the engine that compiled it.
            inputs: For each input an array, the memory of a tensor, or a resource of the device.
            outputs: For each output the memory of a tensor or a resource of the device.

        Raises:
            DataError: An input or output does not fit; nothing was recorded.
        """

    def repeat(
        self,
        commands: Commands,
        bound: BoundInputs,
        inputs: Mapping[str, Any],
        outputs: Mapping[str, Any],
    ) -> bool:
        """Record a run with the arguments of an earlier one, if those need no checks anew.

        Args:
            commands: Commands of the engine that compiled it.
            bound: The graph's inputs that are constants.
            inputs: The user's inputs by name, unchecked.
            outputs: The user's outputs by name, unchecked.

        Returns:
            Whether the run was recorded. If not, `record` must be called with checked arguments.
        """
        return False

    @abstractmethod
    def sliced(self, inputs: Sequence[Any], outputs: Sequence[Any]) -> SlicedRun:
        """Begin a run that is recorded in slices.

        Args:
            inputs: As in `record`; arrays are read now, the rest by the first slice.
            outputs: As in `record`; written by the last slice.

        Raises:
            DataError: An input or output does not fit.
        """

    @abstractmethod
    def record_slice(self, commands: Commands, run: SlicedRun, seconds: float) -> bool:
        """Record the next part of a run, of about `seconds` of device time and never empty.

        Returns:
            Whether the whole run is recorded now.
        """


class SlicedRun(ABC):
    """Run that is recorded in consecutive slices."""

    @property
    @abstractmethod
    def progress(self) -> float:
        """Return the recorded fraction of the run, 0 to 1."""

    @abstractmethod
    def release(self) -> None:
        """Release its memory after the loss of the context."""


class Commands(ABC):
    """Device commands under construction, in an own encoder or the user's."""

    @abstractmethod
    def check_open(self) -> None:
        """Raise an InvalidStateError if the commands are finished."""

    @abstractmethod
    def constants(self, bound: BoundInputs) -> Constants:
        """Return the inputs of a graph that are constants in these commands.

        Raises:
            InvalidStateError: The commands are finished.
        """

    @abstractmethod
    def initialize(self, bound: BoundInputs, inputs: GivenInputs) -> None:
        """Record copies of inputs that become constants.

        They are constants at once for later recordings into these commands, and everywhere when
        the commands are submitted.

        Args:
            bound: The graph's inputs that are constants.
            inputs: The inputs to turn into constants.

        Raises:
            DataError: An input does not fit; nothing was recorded.
            InvalidStateError: The graph is initialized already, here or elsewhere.
        """

    @abstractmethod
    def carry(self, bound: BoundInputs) -> None:
        """Have the submission of these commands initialize a graph that is not initialized yet."""

    @abstractmethod
    def finish(self, label: str) -> Any:
        """Finish the commands and return them for submission."""


class Rent(Protocol):
    """Loan of a tensor's buffer to the user."""

    @property
    def buffer(self) -> Any:
        """Return the device's buffer."""

    @property
    def destroyed(self) -> bool:
        """Whether the user has destroyed the buffer."""

    def revoke(self) -> None:
        """Destroy the buffer, but not during a submission that uses it."""

    def end(self) -> None:
        """End the rent: the buffer's `destroy` does nothing afterwards."""


class CommandQueue(Queue):
    """Queue of a context whose engine records into a device's commands."""

    @abstractmethod
    def check_commands(self, commands: Sequence[Any]) -> None:
        """Check the user's command buffers and mark them as submitted.

        Raises:
            ValidationError: They are not command buffers of this device, were submitted before, or
                use a destroyed or mapped resource.
            ContextLostError: The device is lost.
        """

    @abstractmethod
    def memory_of_commands(self, commands: Sequence[Any]) -> list[Region]:
        """Return the regions that command buffers use, all of which they may write."""

    @abstractmethod
    def submit_commands(self, commands: Sequence[Any]) -> Run:
        """Return a function that submits the batch, then the user's command buffers."""

    @abstractmethod
    def submit_before_return(self, operation: Operation) -> None:
        """Submit commands before returning, unless they or their resources wait for a timeline.

        The user's own later submissions, ordered only by the device queue, then follow them.
        """

    @abstractmethod
    def commands_failed(self, commands: Sequence[Any], error: BaseException) -> None:
        """Allow command buffers to be submitted again after a failed submission."""

    @abstractmethod
    def part(self, storage: Any, offset: int, size: int) -> Any:
        """Return the storage of a part of a tensor, in bytes; the offset suits a binding."""

    @abstractmethod
    def rent(self, storage: Any) -> Rent:
        """Rent out a tensor's buffer to the user."""


class ForSizes(ABC):
    """Thread-safe compiler of one graph with open dimensions for sets of sizes."""

    @abstractmethod
    def known(self, sizes: Mapping[str, int]) -> DeviceExecutable | None:
        """Return an executable for these sizes with kernels compiled for others, or None.

        If its kernels suit far sizes (`is_far`), `compile` creates kernels for these sizes.
        """

    @abstractmethod
    def compile(
        self, opened: Graph, sizes: Mapping[str, int], fixed: Graph, for_any: bool
    ) -> Executable:
        """Compile the graph for these sizes, with the errors of `Engine.compile`.

        Args:
            opened: The graph with open dimensions, the same object in each call.
            sizes: Sizes of the open dimensions, by name.
            fixed: The graph with these sizes.
            for_any: Allow kernels that suit far sizes, so that they serve more sizes.
        """

    @abstractmethod
    def compile_ahead(self, opened: Graph, sizes: Mapping[str, int]) -> None:
        """Compile kernels ahead for sizes that may follow, unless existing kernels serve them.

        Args:
            opened: As in `compile`.
            sizes: Sizes close to the expected ones, by name.
        """


class DeviceEngine(Engine):
    """Base class of engines that record graphs into a device's commands."""

    @property
    def compiles_ahead(self) -> bool:
        """Whether to compile ahead for likely sizes; false if runs need the same processors."""
        return self.accelerated

    @abstractmethod
    def for_sizes(self) -> ForSizes:
        """Return a compiler of one graph with open dimensions for sets of sizes."""

    @abstractmethod
    def queue(self, worker: Callable[[Run], None], width: int = 1) -> CommandQueue:
        """Create the queue of a new context; arguments as in `Engine.queue`."""

    @abstractmethod
    def commands(self, queue: CommandQueue, encoder: Any) -> Commands:
        """Create empty commands.

        Args:
            queue: Queue of the recording context.
            encoder: The user's encoder to record into; None for a new one.

        Raises:
            DataError: `encoder` is not an encoder of the device.
        """

"""Engines that run on a device: executables that are recorded, and what they are recorded into."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

from webnn_py.engines.base import Engine, Executable, Queue
from webnn_py.engines.initialization import BoundInputs, Constants
from webnn_py.ir import Descriptor, Graph

GivenInputs = Mapping[str, tuple[Descriptor, Any]]
"""By name, what an input is and what it is given as: see the inputs of `record`."""


class DeviceExecutable(Executable):
    """A compiled graph that is recorded into a device's commands."""

    @property
    def remark(self) -> str:
        """What to know of it, in a line of its listing, if there is anything."""
        return ""

    @property
    def is_far(self) -> bool:
        """Whether it was compiled for sizes far from its own: as right, but slower, maybe."""
        return False

    @abstractmethod
    def record(self, commands: Commands, inputs: Sequence[Any], outputs: Sequence[Any]) -> None:
        """Record one run; it takes place when the commands are submitted.

        Args:
            commands: Of the engine that compiled it.
            inputs: For each an array, the memory of a tensor, or a resource of the device.
            outputs: For each the memory of a tensor or a resource of the device.

        Raises:
            DataError: Something does not fit; nothing was recorded.
        """

    @abstractmethod
    def sliced(self, inputs: Sequence[Any], outputs: Sequence[Any]) -> SlicedRun:
        """Begin a run that is recorded in slices.

        Args:
            inputs: As `record` takes them; arrays are read now, the rest by the first slice.
            outputs: As there; written by the last slice.

        Raises:
            DataError: Something does not fit.
        """

    @abstractmethod
    def record_slice(self, commands: Commands, run: SlicedRun, seconds: float) -> bool:
        """Record as much of a run as takes so many seconds of the device's time, and not nothing.

        Returns:
            Whether all of it is recorded now.
        """


class SlicedRun(ABC):
    """A run that is recorded in slices, one after the other."""

    @property
    @abstractmethod
    def progress(self) -> float:
        """How much of it is recorded, 0 to 1."""

    @abstractmethod
    def release(self) -> None:
        """Give its memory back; the context is gone."""


class Commands(ABC):
    """A device's commands under construction, owned or the user's."""

    @abstractmethod
    def check_open(self) -> None:
        """Raise an InvalidStateError once finished."""

    @abstractmethod
    def constants(self, bound: BoundInputs) -> Constants:
        """The inputs of a graph that are constants for what is recorded here."""

    @abstractmethod
    def initialize(self, bound: BoundInputs, inputs: GivenInputs) -> None:
        """Record the copying of inputs that are constants from now on.

        They are constants for what is recorded into these commands after it, and for everyone once
        they are submitted.

        Args:
            bound: The graph's inputs that are constants.
            inputs: More of them.

        Raises:
            DataError: One does not fit; nothing was recorded.
            InvalidStateError: The graph is initialized, here or before.
        """

    @abstractmethod
    def carry(self, bound: BoundInputs) -> None:
        """Let these commands initialize a graph by being submitted, if nothing did before."""

    @abstractmethod
    def finish(self, label: str) -> Any:
        """The commands, to be submitted."""


class ForSizes(ABC):
    """Compiles a graph with open dimensions for each set of sizes; called from any thread."""

    @abstractmethod
    def known(self, sizes: Mapping[str, int]) -> DeviceExecutable | None:
        """What was compiled for others, for these sizes; None where that does not serve.

        Where it serves, but `is_far`, `compile` makes what is meant for them.
        """

    @abstractmethod
    def compile(
        self, opened: Graph, sizes: Mapping[str, int], fixed: Graph, for_any: bool
    ) -> Executable:
        """As `Engine.compile`.

        Args:
            opened: The graph, which is the same one each time.
            sizes: By name.
            fixed: The graph recorded for them.
            for_any: What is made may be far from these sizes, to serve more others.
        """

    @abstractmethod
    def compile_ahead(self, opened: Graph, sizes: Mapping[str, int]) -> None:
        """Compile what serves sizes that may come, if nothing is there that serves these.

        Args:
            opened: As for `compile`.
            sizes: Those are taken to be near.
        """


class DeviceEngine(Engine):
    """An engine that records graphs into a device's commands."""

    @property
    def compiles_ahead(self) -> bool:
        """Whether it compiles for sizes that may come: not where runs need the same processors."""
        return self.accelerated

    @abstractmethod
    def for_sizes(self) -> ForSizes:
        """What compiles one graph with open dimensions for one set of sizes after the other."""

    @abstractmethod
    def commands(self, queue: Queue, encoder: Any) -> Commands:
        """New commands.

        Args:
            queue: Of the context that records.
            encoder: The user's encoder to record into; None for one of our own.

        Raises:
            DataError: It is no encoder of the device.
        """

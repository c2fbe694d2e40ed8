"""Inputs of a graph that recorded initialization commands turn into constants."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from webnn_py.core.errors import InvalidStateError
from webnn_py.ir import Shape


@dataclass(frozen=True, slots=True)
class Constants:
    """The inputs of a graph that are constant.

    Attributes:
        places: Memory of each input, by name.
        shapes: Shape of each input, by name.
    """

    places: Mapping[str, Any] = field(default_factory=dict)
    shapes: Mapping[str, Shape] = field(default_factory=dict)


@dataclass(slots=True, eq=False, weakref_slot=True)
class Initialization:
    """A recorded initialization of a graph.

    Attributes:
        graph: The graph's bound inputs.
        constants: The inputs that it turns into constants.
    """

    graph: BoundInputs
    constants: Constants

    def take_effect(self) -> None:
        """Bind its constants to the graph when its commands are submitted; the first one wins."""
        self.graph.bind(self.constants)


class BoundInputs:
    """The constant inputs of one graph; thread-safe.

    Attributes:
        constants: The constant inputs.
        initialized: Whether initialization commands were submitted.
    """

    def __init__(self) -> None:
        self.constants = Constants()
        self.initialized = False
        self._recorded: weakref.WeakSet[Initialization] = weakref.WeakSet()
        self._lock = threading.Lock()

    def initialization(self, constants: Constants) -> Initialization:
        """Record an initialization, which takes effect when its commands are submitted."""
        made = Initialization(self, constants)
        self._recorded.add(made)
        return made

    def bind(self, constants: Constants) -> None:
        """Make these inputs constant unless the graph is already initialized."""
        with self._lock:
            if not self.initialized:
                self.constants = constants
                self.initialized = True

    def release(self) -> None:
        """Release the memory; the graph cannot run any more."""
        with self._lock:
            old, self.initialized = self.constants, True
            self.constants = Constants(dict.fromkeys(old.places), old.shapes)

    def pending_names(self) -> frozenset[str]:
        """Return the inputs that unsubmitted initializations will turn into constants."""
        return frozenset(
            name for recorded in set(self._recorded) for name in recorded.constants.places
        )

    def check_free(self, what: str) -> None:
        """Raise an InvalidStateError if any input is constant or will become so."""
        if self.constants.places or self.pending_names():
            raise InvalidStateError(
                f"{what}: initialize_graph has made inputs of this graph constants; build one that"
                " has them as constants"
            )

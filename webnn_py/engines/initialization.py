"""Inputs that become constants by recorded commands, once those are submitted."""

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
    """Inputs of a graph that are constant.

    Attributes:
        places: Where they lie, by name.
        shapes: Their shapes, by name.
    """

    places: Mapping[str, Any] = field(default_factory=dict)
    shapes: Mapping[str, Shape] = field(default_factory=dict)


@dataclass(slots=True, eq=False, weakref_slot=True)
class Initialization:
    """The initialization of a graph, as commands record it.

    Attributes:
        graph: The graph's bound inputs.
        constants: The inputs that it makes constant.
    """

    graph: BoundInputs
    constants: Constants

    def take_effect(self) -> None:
        """The commands were submitted: its constants are the graph's, if no others are."""
        self.graph.bind(self.constants)


class BoundInputs:
    """The inputs of one graph that are constants by now.

    Attributes:
        constants: They.
        initialized: Whether commands that initialize the graph were submitted.
    """

    def __init__(self) -> None:
        self.constants = Constants()
        self.initialized = False
        self._recorded: weakref.WeakSet[Initialization] = weakref.WeakSet()
        self._lock = threading.Lock()

    def initialization(self, constants: Constants) -> Initialization:
        """A new one, recorded; it takes effect when its commands are submitted."""
        made = Initialization(self, constants)
        self._recorded.add(made)
        return made

    def bind(self, constants: Constants) -> None:
        """Take these, if the graph was not initialized before."""
        with self._lock:
            if not self.initialized:
                self.constants = constants
                self.initialized = True

    def release(self) -> None:
        """Give the memory back; the graph cannot be run any more."""
        with self._lock:
            known, self.initialized = self.constants, True
            self.constants = Constants(dict.fromkeys(known.places), known.shapes)

    def pending_names(self) -> frozenset[str]:
        """Inputs that become constants with commands that are not submitted yet."""
        return frozenset(
            name for recorded in set(self._recorded) for name in recorded.constants.places
        )

    def check_free(self, what: str) -> None:
        """Raise an InvalidStateError if inputs are constants, or will be."""
        if self.constants.places or self.pending_names():
            raise InvalidStateError(
                f"{what}: initialize_graph has made inputs of this graph constants; build one that"
                " has them as constants"
            )

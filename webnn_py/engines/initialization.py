"""Inputs that become constants by recorded commands, once those are submitted."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any


@dataclass(slots=True, eq=False, weakref_slot=True)
class Initialization:
    """The initialization of a graph, as commands record it.

    Attributes:
        graph: The graph's bound inputs.
        places: The inputs that it makes constant, and where they will lie.
    """

    graph: BoundInputs
    places: Mapping[str, Any]

    def take_effect(self) -> None:
        """The commands were submitted: its places are the graph's, if no others are."""
        self.graph.bind(self.places)


class BoundInputs:
    """The inputs of one graph that are constants by now.

    Attributes:
        places: Where they lie, by name.
        initialized: Whether commands that initialize the graph were submitted.
    """

    def __init__(self) -> None:
        self.places: Mapping[str, Any] = MappingProxyType({})
        self.initialized = False
        self._recorded: weakref.WeakSet[Initialization] = weakref.WeakSet()
        self._lock = threading.Lock()

    def initialization(self, places: Mapping[str, Any]) -> Initialization:
        """A new one, recorded; it takes effect when its commands are submitted."""
        made = Initialization(self, places)
        self._recorded.add(made)
        return made

    def bind(self, places: Mapping[str, Any]) -> None:
        """Take these places, if the graph was not initialized before."""
        with self._lock:
            if not self.initialized:
                self.places = places
                self.initialized = True

    def pending_names(self) -> frozenset[str]:
        """Inputs that become constants with commands that are not submitted yet."""
        return frozenset(name for recorded in set(self._recorded) for name in recorded.places)

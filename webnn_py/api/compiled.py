"""A built graph: its recipe, its signature, and the executables made of it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

from webnn_py.api.session import Session
from webnn_py.api.signature import Signature
from webnn_py.core.completion import Completion
from webnn_py.core.errors import DataError, InvalidStateError, MLError
from webnn_py.engines.base import Executable
from webnn_py.engines.initialization import BoundInputs
from webnn_py.ir import Graph

T = TypeVar("T")

MOST_EXECUTABLES = 16
"""Executables of one graph that are kept, for as many sets of sizes."""


class RecentlyUsed(Generic[T]):
    """What was made for a key, kept for the keys used last; made once, whoever asks meanwhile.

    Args:
        make: Makes it.
        most: How many are kept.
    """

    def __init__(self, make: Callable[[Hashable], T], most: int) -> None:
        self._make = make
        self._most = most
        self._made: dict[Hashable, Completion[T]] = {}
        self._latest: tuple[Hashable, T] | None = None
        self._lock = threading.Lock()

    def get(self, key: Hashable) -> T:
        """What belongs to a key; an error in making it is everyone's who waits for it."""
        latest = self._latest
        if latest is not None and latest[0] == key:
            return latest[1]
        with self._lock:
            found = self._made.pop(key, None)
            made = Completion[T]() if found is None else found
            self._made[key] = made  # the last one is the one used last
            while len(self._made) > self._most:
                self._made.pop(next(iter(self._made)))
        if found is None:
            try:
                made.set_result(self._make(key))
            except BaseException as error:
                with self._lock:
                    self._made.pop(key, None)
                made.set_exception(error)
                raise
        result = made.wait()
        self._latest = key, result
        return result


class CompiledGraph:
    """A graph that was built by a context, and what runs it there.

    Args:
        session: The context's.
        recipe: The graph as the user gave it.

    Attributes:
        signature: What its executions are given.
        bound: The inputs that `initialize_graph` made constant.
    """

    def __init__(self, session: Session, recipe: Graph) -> None:
        self.session = session
        self.signature = Signature(recipe)
        self.bound = BoundInputs()
        self._recipe: Graph | None = recipe
        self._executables: RecentlyUsed[Executable] | None = RecentlyUsed(
            self._compile, MOST_EXECUTABLES
        )
        self.listing: object = recipe
        self._executables.get(())

    def _compile(self, sizes: Hashable) -> Executable:
        self.listing, executable = self.session.compile(self.recipe)
        return executable

    @property
    def recipe(self) -> Graph:
        """The graph as the user gave it, before any pass.

        Raises:
            InvalidStateError: The graph is destroyed.
        """
        if self._recipe is None:
            raise InvalidStateError("this MLGraph is destroyed")
        return self._recipe

    @property
    def destroyed(self) -> bool:
        """Whether its memory was given back."""
        return self._recipe is None

    def executable(self, session: Session, error: type[MLError] = DataError) -> Executable:
        """What runs, if the graph can run on a context now.

        Raises:
            ContextLostError: The context is destroyed or lost.
            InvalidStateError: The graph is destroyed.
            DataError: The graph belongs to another context (or `error`, where given).
        """
        session.check_alive()
        if self._executables is None:
            raise InvalidStateError("this MLGraph is destroyed")
        if self.session is not session:
            raise error("this MLGraph was built by another context")
        return self._executables.get(())

    def destroy(self) -> None:
        """Give back memory and device objects; work that is under way still completes."""
        self.listing = str(self.listing)  # without the constants' contents
        self._recipe = self._executables = None

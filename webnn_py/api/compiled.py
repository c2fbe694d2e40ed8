"""A built graph: its recipe, its signature, and the executables made of it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable
from typing import Any, Generic, TypeVar

from webnn_py.api.session import Session
from webnn_py.api.signature import Signature
from webnn_py.core.completion import Completion
from webnn_py.core.errors import DataError, InvalidStateError, MLError
from webnn_py.core.sizes import check_sizes
from webnn_py.engines.base import Executable
from webnn_py.engines.executor import Listing
from webnn_py.engines.initialization import BoundInputs
from webnn_py.ir import Graph
from webnn_py.ops.replay import fix

T = TypeVar("T")

Sizes = tuple[tuple[str, int], ...]
"""Open sizes by name, in alphabetical order."""

DESTROYED = "this MLGraph is destroyed"
MOST_EXECUTABLES = 16
"""Executables of one graph that are kept, for as many sets of sizes."""


class RecentlyUsed(Generic[T]):
    """What was made for a key, kept for the keys used last; made once, whoever asks meanwhile.

    Args:
        make: Makes it.
        most: How many are kept; what is being made does not count.
    """

    def __init__(self, make: Callable[[Any], T], most: int) -> None:
        self._make = make
        self._most = most
        self._made: dict[Hashable, Completion[T]] = {}  # the one used last is the last one
        self._latest: tuple[Hashable, T] | None = None
        self._lock = threading.Lock()

    def get(self, key: Hashable) -> T:
        """What belongs to a key.

        An error in making it is everyone's who waits for it; who asks later has it made anew.
        """
        latest = self._latest
        if latest is not None and latest[0] == key:
            return latest[1]
        with self._lock:
            found = self._made.pop(key, None)
            made = Completion[T]() if found is None else found
            self._made[key] = made
        if found is None:
            self._fill(key, made)
        result = made.wait()
        self._latest = key, result
        return result

    def has(self, key: Hashable) -> bool:
        """Whether what belongs to a key is there."""
        with self._lock:
            found = self._made.get(key)
            return found is not None and found.done

    def _fill(self, key: Hashable, made: Completion[T]) -> None:
        try:
            made.set_result(self._make(key))
        except BaseException as error:
            with self._lock:
                del self._made[key]
            made.set_exception(error)
            raise
        with self._lock:
            kept = [other for other, completion in self._made.items() if completion.done]
            for other in kept[: -self._most]:
                del self._made[other]


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
        self.signature = signature = Signature.of(recipe)
        self.bound = BoundInputs()
        self._recipe: Graph | None = recipe
        # Without a way from it back to this object, whose memory goes when nobody has it any more.
        self._compiled: RecentlyUsed[tuple[Listing, Executable]] | None = RecentlyUsed(
            lambda sizes: session.compile(fix(recipe, dict(sizes))), MOST_EXECUTABLES
        )
        self._signatures: RecentlyUsed[Signature] = RecentlyUsed(
            lambda sizes: signature.at(dict(sizes)), MOST_EXECUTABLES
        )
        self.is_open = bool(recipe.open_sizes)
        self._listing: Listing | str = str(recipe) if self.is_open else self._compiled.get(())[0]

    def fixed(self, inputs: object, error: type[MLError] = DataError) -> tuple[Signature, Sizes]:
        """What an execution with these inputs is given, and the sizes that follow from them.

        Raises:
            DataError: (or `error`) Open sizes do not follow from the inputs, or contradict.
        """
        if not self.is_open:
            return self.signature, ()
        sizes = tuple(sorted(self.signature.sizes_of(inputs, error).items()))
        return self._signatures.get(sizes), sizes

    def prepare(self, sizes: object) -> None:
        """Compile for these sizes; raises as `MLGraph.prepare_sync`."""
        numbers = check_sizes(self.recipe.open_sizes, sizes)
        self.executable(self.session, sizes=tuple(sorted(numbers.items())))

    def is_ready(self, sizes: Sizes) -> bool:
        """Whether nothing need be compiled for these sizes."""
        compiled = self._compiled
        return not self.is_open or compiled is None or compiled.has(sizes)

    @property
    def recipe(self) -> Graph:
        """The graph as the user gave it, before any pass.

        Raises:
            InvalidStateError: The graph is destroyed.
        """
        recipe = self._recipe
        if recipe is None:
            raise InvalidStateError(DESTROYED)
        return recipe

    @property
    def destroyed(self) -> bool:
        """Whether its memory was given back."""
        return self._recipe is None

    def executable(
        self, session: Session, error: type[MLError] = DataError, sizes: Sizes = ()
    ) -> Executable:
        """What runs, if the graph can run on a context now.

        Args:
            session: The context's.
            error: What to raise for a graph of another context.
            sizes: The graph's open sizes.

        Raises:
            ContextLostError: The context is destroyed or lost.
            InvalidStateError: The graph is destroyed.
            DataError: The graph belongs to another context (or `error`, where given).
        """
        return self.check_usable(session, error).get(sizes)[1]

    def check_usable(
        self, session: Session, error: type[MLError] = DataError
    ) -> RecentlyUsed[tuple[Listing, Executable]]:
        """The executables, if the graph can run on a context now; raises as `executable`."""
        session.check_alive()
        compiled = self._compiled  # another thread may destroy the graph
        if compiled is None:
            raise InvalidStateError(DESTROYED)
        if self.session is not session:
            raise error("this MLGraph was built by another context")
        return compiled

    def destroy(self) -> None:
        """Give back memory and device objects; work that is under way still completes."""
        self._listing = str(self._listing)  # without the constants' contents
        self._recipe = self._compiled = None

    def __str__(self) -> str:
        """The listing of what runs; also once it is destroyed."""
        return str(self._listing)

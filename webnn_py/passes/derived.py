"""What passes compute from constants, made once for all graphs that are recorded from one."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Hashable, Sequence
from typing import TypeAlias

from webnn_py.ir import Array

Sources = Sequence[Array | None]
Results = tuple[Array, ...]
Derive: TypeAlias = Callable[[Hashable, Sources, Callable[[], Results]], Results]
"""Gives the results of a computation from constants. Arguments: what is computed (not from what),
from what, and the computation. What it returns is not changed by anyone."""


def derive_anew(what: Hashable, sources: Sources, compute: Callable[[], Results]) -> Results:
    """Computes whenever asked: for a graph that is compiled once."""
    return compute()


class _Derivation:
    """Arrays, and those that were computed from them: while it lives, they do."""

    __slots__ = ("__weakref__", "results", "sources")

    def __init__(self, sources: Sources, results: Results) -> None:
        self.sources = sources  # they are known by their identity, which must not be used again
        self.results = results


class DerivedConstants:
    """What was computed from constants for several graphs that share these.

    It is known as long as a `Derivations` has it.
    """

    def __init__(self) -> None:
        self.known: weakref.WeakValueDictionary[Hashable, _Derivation] = (
            weakref.WeakValueDictionary()
        )
        self.lock = threading.Lock()


class Derivations:
    """What was computed from constants for one graph; keeps it, for others to have it, too."""

    def __init__(self, shared: DerivedConstants) -> None:
        self._shared = shared
        self._used: list[_Derivation] = []

    def __call__(self, what: Hashable, sources: Sources, compute: Callable[[], Results]) -> Results:
        """A `Derive`."""
        key = what, tuple(map(id, sources))
        shared = self._shared
        with shared.lock:
            found = shared.known.get(key)
        if found is None:
            made = _Derivation(sources, compute())
            with shared.lock:  # another thread may have been first
                found = shared.known.setdefault(key, made)
        self._used.append(found)
        return found.results

"""What passes compute from constants, made once for all graphs that are recorded from one."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Hashable, Sequence
from typing import TypeAlias

from webnn_py.ir import Array

Sources = Sequence[Array | None]
Results = tuple[Array, ...]
References = tuple[weakref.ref[Array] | None, ...]
Derive: TypeAlias = Callable[[Hashable, Sources, Callable[[], Results]], Results]
"""Gives the results of a computation from constants. Arguments: what is computed (not from what),
from what, and the computation. What it returns is not changed by anyone."""


def derive_anew(what: Hashable, sources: Sources, compute: Callable[[], Results]) -> Results:
    """Computes whenever asked: for a graph that is compiled once."""
    return compute()


FEW = 64
"""Results that may be gone before it is looked which are."""


class SharedResults:
    """A `Derive` for all graphs of a context: what these share they have once, whoever asks first.

    It keeps nothing: what nobody has any more is computed again.
    """

    def __init__(self) -> None:
        self._known: dict[Hashable, tuple[References, References]] = {}  # of sources, of results
        self._most = FEW
        self._lock = threading.Lock()

    def __call__(self, what: Hashable, sources: Sources, compute: Callable[[], Results]) -> Results:
        """A `Derive`."""
        key = what, tuple(map(id, sources))
        with self._lock:
            found = self._find(key, sources)
        if found is not None:
            return found
        made = compute()
        with self._lock:
            found = self._find(key, sources)
            if found is not None:  # another thread was first
                return found
            self._known[key] = _references(sources), _references(made)
            if len(self._known) > self._most:
                self._known = {k: known for k, known in self._known.items() if _there(known[1])}
                self._most = 2 * len(self._known) + FEW
        return made

    def _find(self, key: Hashable, sources: Sources) -> Results | None:
        """The results from these very arrays, if they are there."""
        given, made = self._known.get(key, ((), ()))
        if not made or any(a is not b for a, b in zip(_arrays(given), sources, strict=True)):
            return None
        results = tuple(array for array in _arrays(made) if array is not None)
        return results if len(results) == len(made) else None


def _references(arrays: Sources) -> References:
    return tuple(None if array is None else weakref.ref(array) for array in arrays)


def _arrays(references: References) -> list[Array | None]:
    """What they refer to; None where it is gone."""
    return [None if reference is None else reference() for reference in references]


def _there(references: References) -> bool:
    return all(array is not None for array in _arrays(references))


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

"""Caches of the constants that passes compute from constants, shared between graphs."""

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
"""Function that returns the results of a computation from constants, computed or cached.

Its arguments are the computation's description, its operands, and the function that computes it.
Nobody writes to the results.
"""


def derive_anew(what: Hashable, sources: Sources, compute: Callable[[], Results]) -> Results:
    """Compute without a cache, for a graph that is compiled once."""
    return compute()


MIN_SWEEP_ENTRIES = 64
"""Least number of cache entries at which dead ones are removed."""


class SharedResults:
    """A `Derive` with a cache of weak references, shared by all graphs of a context.

    It keeps no array alive: a result that no graph uses any more is computed again.
    """

    def __init__(self) -> None:
        self._cache: dict[Hashable, tuple[References, References]] = {}  # sources, results
        self._sweep_at = MIN_SWEEP_ENTRIES
        self._lock = threading.Lock()

    def __call__(self, what: Hashable, sources: Sources, compute: Callable[[], Results]) -> Results:
        """Return the results from the cache, or compute them; see `Derive`."""
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
            self._cache[key] = _references(sources), _references(made)
            if len(self._cache) > self._sweep_at:
                self._cache = {k: entry for k, entry in self._cache.items() if _is_alive(entry[1])}
                self._sweep_at = 2 * len(self._cache) + MIN_SWEEP_ENTRIES
        return made

    def _find(self, key: Hashable, sources: Sources) -> Results | None:
        """Return the cached results for exactly these array objects, or None."""
        operands, made = self._cache.get(key, ((), ()))
        if not made or any(a is not b for a, b in zip(_arrays(operands), sources, strict=True)):
            return None
        results = tuple(array for array in _arrays(made) if array is not None)
        return results if len(results) == len(made) else None


def _references(arrays: Sources) -> References:
    return tuple(None if array is None else weakref.ref(array) for array in arrays)


def _arrays(references: References) -> list[Array | None]:
    """Return the referenced arrays; None for each that no longer exists."""
    return [None if reference is None else reference() for reference in references]


def _is_alive(references: References) -> bool:
    return all(array is not None for array in _arrays(references))


class _Derivation:
    """The operands and results of one computation, kept alive together."""

    __slots__ = ("__weakref__", "results", "sources")

    def __init__(self, sources: Sources, results: Results) -> None:
        self.sources = sources  # the cache key holds their id(), which must not be reused
        self.results = results


class DerivedConstants:
    """The cache of computed constants that several graphs share.

    An entry lives as long as a `Derivations` uses it.
    """

    def __init__(self) -> None:
        self.cache: weakref.WeakValueDictionary[Hashable, _Derivation] = (
            weakref.WeakValueDictionary()
        )
        self.lock = threading.Lock()


class Derivations:
    """A `Derive` for one graph, which keeps its entries of the shared cache alive."""

    def __init__(self, shared: DerivedConstants) -> None:
        self._shared = shared
        self._used: list[_Derivation] = []

    def __call__(self, what: Hashable, sources: Sources, compute: Callable[[], Results]) -> Results:
        """Return the results from the shared cache, or compute them; see `Derive`."""
        key = what, tuple(map(id, sources))
        shared = self._shared
        with shared.lock:
            found = shared.cache.get(key)
        if found is None:
            made = _Derivation(sources, compute())
            with shared.lock:  # another thread may have been first
                found = shared.cache.setdefault(key, made)
        self._used.append(found)
        return found.results

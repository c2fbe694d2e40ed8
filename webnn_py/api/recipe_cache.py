"""Weak cache of a context's compiled recipes, so that equal graphs are compiled once.

Two recipes are equal if they have the same nodes, options, labels and names, and constants of the
same bytes. Their graphs share everything but the memory of runs: on a device pipelines and
constants, on a CPU the whole executable. The cache holds nothing by itself: an entry lives as long
as a graph that uses it.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any

import numpy as np

from webnn_py.core.gil_yield import checkpoint
from webnn_py.engines.base import Engine, Executable
from webnn_py.engines.executor import Listing
from webnn_py.ir import Array, Graph, Value

COMPARED_BYTES = 1 << 20
"""Bytes of constants that are compared at once, which limits temporary memory."""


@dataclass(frozen=True, slots=True, weakref_slot=True)
class CompiledRecipe:
    """A compiled recipe, which the graphs of equal recipes share.

    Attributes:
        recipe: The recipe, whose constants equal graphs share, too.
        listing: Listing of the graph after the engine's passes.
        make: Makes an executable, without compiling.
    """

    recipe: Graph
    listing: Listing
    make: Callable[[], Executable]


class RecipeCache:
    """Weak cache of compiled recipes; several threads may use it.

    Args:
        engine: Engine that compiles the recipes.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._compiled: weakref.WeakValueDictionary[_Contents, CompiledRecipe]
        self._compiled = weakref.WeakValueDictionary()
        self._lock = threading.Lock()

    def find(self, recipe: Graph) -> CompiledRecipe | None:
        """Return the compiled form of an equal recipe if a graph of it is alive, else None."""
        with self._lock:
            if not self._compiled:
                return None
        return self._compiled.get(self._key(recipe))

    def add(self, compiled: CompiledRecipe) -> None:
        """Add a compiled recipe for as long as graphs refer to it."""
        with self._lock:
            self._compiled[self._key(compiled.recipe)] = compiled

    def _key(self, recipe: Graph) -> _Contents:
        return _Contents(recipe, self._engine.rewrites_by)


class _Contents:
    """Recipe that is compared by structure and by the bytes of its constants.

    Args:
        recipe: The recipe.
        rewrites_by: Key of what else the result depends on, such as tuned tiles of the device.
    """

    def __init__(self, recipe: Graph, rewrites_by: str) -> None:
        self._structure = rewrites_by, *_structure(recipe)
        self._hash = hash(self._structure)
        self._constants = tuple(recipe.constants.values())

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        assert isinstance(other, _Contents)
        return self._structure == other._structure and all(
            map(_same_bytes, self._constants, other._constants)
        )


def _structure(recipe: Graph) -> tuple[Any, ...]:
    """Return everything of a recipe but the contents of constants."""
    ends = (*recipe.inputs, *recipe.constants)
    numbers: dict[Value | None, int] = {value: number for number, value in enumerate(ends)}
    nodes = []
    for node in recipe.nodes:
        operands = [numbers.get(value, -1) for value in node.inputs]
        outputs = [(value.data_type, value.shape) for value in node.outputs]
        nodes.append(
            (node.op, *operands, *map(_distinct, node.given.values()), *outputs, node.label)
        )
        for value in node.outputs:
            numbers[value] = len(numbers)
    results = [(name, numbers[value]) for name, value in recipe.outputs]
    named = [(value.data_type, value.shape, value.name) for value in ends]
    return len(recipe.inputs), *named, *nodes, *results


def _distinct(value: Any) -> Hashable:
    """Return an option in a form in which 0.0, -0.0, 0 and False differ."""
    if isinstance(value, tuple):
        return tuple(map(_distinct, value))
    return type(value), value.hex() if isinstance(value, float) else value


def _same_bytes(first: Array, second: Array) -> bool:
    """Whether arrays of one data type and shape have the same bytes."""
    if first is second:
        return True
    one, other = (np.ascontiguousarray(each).reshape(-1).view(np.uint8) for each in (first, second))
    for start in range(0, one.size, COMPARED_BYTES):
        if start:
            checkpoint()
        end = start + COMPARED_BYTES
        if not np.array_equal(one[start:end], other[start:end]):
            return False
    return True

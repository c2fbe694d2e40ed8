"""Records how passes compute constants from weights, so that another process can repeat it.

The import cache stores these descriptions in place of the computed arrays.
"""

from __future__ import annotations

import ast
import threading
import weakref
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from webnn_py.core.parallel_map import MAX_THREADS
from webnn_py.ir import Array
from webnn_py.passes import (
    convolve_transposed,
    filter_layouts,
    fold,
    fuse_batch_norm,
    transposes,
)
from webnn_py.passes.derived_constants import Results, Sources
from webnn_py.passes.target import Evaluate

Buffer = bytes | memoryview


@dataclass(frozen=True, slots=True)
class Computation:
    """A computation that a pass requested through `Target.derive`.

    Attributes:
        kind: Key in KINDS.
        text: Parameters as a Python literal.
        numbers: Further parameters, each the bytes of a float64 array.
        sources: Operands: arrays of the file, results of other computations, or None.
    """

    kind: str
    text: str
    numbers: tuple[bytes, ...]
    sources: tuple[Array | Result | None, ...]


@dataclass(frozen=True, slots=True)
class Result:
    """One of the arrays that a computation returns.

    Attributes:
        computation: The computation.
        place: Index among its results.
    """

    computation: Computation
    place: int


class Recorder:
    """A `Derive` that records the computation of each array; it keeps no array alive."""

    def __init__(self) -> None:
        self._results: dict[int, tuple[weakref.ref[Array], Result]] = {}
        self._lock = threading.Lock()

    def __call__(self, what: Hashable, sources: Sources, compute: Callable[[], Results]) -> Results:
        """Compute and record the results; see `Derive`."""
        made = compute()
        if isinstance(what, tuple) and what[0] in KINDS:
            kind, text, *numbers = what
            computation = Computation(
                kind, text, tuple(numbers), tuple(map(self.origin_of, sources))
            )
            with self._lock:
                for place, array in enumerate(made):
                    self._results[id(array)] = weakref.ref(array), Result(computation, place)
        return made

    def origin_of(self, array: Array | None) -> Array | Result | None:
        """Return the `Result` that an array is, or the array itself if it was not computed."""
        if array is None:
            return None
        reference, result = self._results.get(id(array), (None, None))
        return result if reference is not None and reference() is array else array


def compute(
    kind: str, text: str, numbers: Sequence[Buffer], sources: Sources, evaluate: Evaluate
) -> Results:
    """Repeat a `Computation` and return its results.

    Raises:
        LookupError, TypeError, ValueError: The description is not valid.
    """
    arrays = [np.frombuffer(each) for each in numbers]
    made: Results = KINDS[kind](ast.literal_eval(text), arrays, sources, evaluate)
    return made


def _evaluated(description: Any, _: Any, sources: Any, evaluate: Evaluate) -> Results:
    return fold.evaluated(evaluate, fold.node_of(description), sources, MAX_THREADS)


def _scaled(parameters: Any, numbers: Any, sources: Any, _: Any) -> Results:
    op, attrs = parameters
    return fuse_batch_norm.products(op, attrs, fuse_batch_norm.Affine(*numbers), *sources)


def _laid_out(layout: Any, _: Any, sources: Any, __: Any) -> Results:
    (array,) = sources
    return (filter_layouts.laid_out(array, layout),)


def _transposed(order: Any, _: Any, sources: Any, __: Any) -> Results:
    (array,) = sources
    return (transposes.transposed(array, order),)


def _phases(parameters: Any, _: Any, sources: Any, __: Any) -> Results:
    (array,) = sources
    return (convolve_transposed.phases(array, *parameters),)


KINDS: dict[Any, Callable[..., Results]] = {
    fold.KIND: _evaluated,
    fuse_batch_norm.KIND: _scaled,
    filter_layouts.KIND: _laid_out,
    transposes.KIND: _transposed,
    convolve_transposed.KIND: _phases,
}
"""Function of each kind of computation; it takes parameters, numbers, sources and `evaluate`."""

"""What passes need to know of the engine they prepare a graph for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

from webnn_py.core import cooperation
from webnn_py.ir import Array, Node
from webnn_py.passes.derived import Derive, derive_anew

T = TypeVar("T")

WORTH_THREADS = 1 << 22
"""Bytes of weights from which on several threads compute from them."""

Evaluate = Callable[[Node, Sequence[Array | None]], tuple[Array, ...]]


@dataclass(frozen=True, slots=True)
class Target:
    """An engine, as passes see it.

    Attributes:
        has_kernel: Whether the engine runs this node itself, composite or not.
        evaluate: Computes a node whose operands are all constants. What it returns is not changed
            later by anyone, so it may return the same arrays for the same node and arrays.
        fold_limit: Most bytes of a constant that folding may make larger than what it replaces.
        derive: Gives what passes compute from constants.
        threads: How many threads may do so at once.
    """

    has_kernel: Callable[[Node], bool]
    evaluate: Evaluate
    fold_limit: int = 1 << 20
    derive: Derive = derive_anew
    threads: int = 1

    def at_once(self, works: Sequence[Callable[[], T]], size: int) -> list[T]:
        """What functions return that compute from constants, of so many bytes together."""
        threads = min(self.threads, len(works))
        if threads <= 1 or size < WORTH_THREADS:
            return [work() for work in works]
        with ThreadPoolExecutor(
            threads, thread_name_prefix="webnn-weights", initializer=cooperation.enable
        ) as pool:
            return list(pool.map(lambda work: work(), works))

"""What passes need to know of the engine they prepare a graph for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from webnn_py.ir import Array, Node
from webnn_py.passes.derived_constants import Derive, derive_anew

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

"""The properties of an engine that passes depend on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from webnn_py.ir import Array, Node
from webnn_py.passes.derived_constants import Derive, derive_anew

Evaluate = Callable[[Node, Sequence[Array | None]], tuple[Array, ...]]


@dataclass(frozen=True, slots=True)
class Target:
    """The engine that a graph is compiled for.

    Attributes:
        has_kernel: Whether the engine has a kernel for this node, composite or not.
        evaluate: Computes a node whose operands are all constants. Callers never write to the
            results, so it may return the same arrays again for the same node and operands.
        fold_limit: Most bytes by which folding one node may enlarge the constants.
        widen_limit: The same for nodes that widen 8-bit integers to floats, which each run would
            otherwise repeat; default: `fold_limit`.
        derive: Computes constants from constants, or returns them from a cache.
        threads: Most threads for such computations.
        leaves_states: Whether another engine writes rows into states, in place.
        has_tensor_cores: Whether its device has instructions that multiply matrices of float16.
    """

    has_kernel: Callable[[Node], bool]
    evaluate: Evaluate
    fold_limit: int = 1 << 20
    widen_limit: int = 0
    derive: Derive = derive_anew
    threads: int = 1
    leaves_states: bool = False
    has_tensor_cores: bool = False

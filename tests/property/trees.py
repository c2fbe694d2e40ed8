"""Random calculations from numbers and sizes by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from hypothesis import strategies as st

Tree = Any
"""A number, a name, or a calculation and two trees."""


def trees(
    lowest: int, names: Sequence[str], calculations: Sequence[Callable[[Any, Any], Any]], most: int
) -> st.SearchStrategy[Tree]:
    """Trees of so many leaves at most: numbers from the lowest to 9, and names."""
    leaves = st.integers(lowest, 9) | st.sampled_from(names)
    return st.recursive(
        leaves,
        lambda inner: st.tuples(st.sampled_from(calculations), inner, inner),
        max_leaves=most,
    )


def calculated(tree: Tree, of: Mapping[str, Any]) -> Any:
    """What a tree gives for sizes by name."""
    if isinstance(tree, tuple):
        function, *operands = tree
        return function(*(calculated(operand, of) for operand in operands))
    return of[tree] if isinstance(tree, str) else tree

"""The table of lowerings, and what fusion must know of an operator."""

from __future__ import annotations

from collections.abc import Callable

from webnn_py.engines.webgpu.compiler.code.affine import Affine
from webnn_py.engines.webgpu.compiler.code.index import Index
from webnn_py.engines.webgpu.compiler.kernel_builder import Body, Lowering
from webnn_py.ir import Node

LOWERINGS: dict[str, Lowering] = {}
VIEWS: dict[str, Callable[[Node, int], Affine]] = {}
"""Operators whose output is their first operand read through an affine map."""

LOOPING: set[str] = set()
"""Operators with a loop for every element: their result is worth storing."""

FUSES: set[str] = set()
"""Operators that go element by element with operands of their output's shape."""

READS: dict[str, Callable[[Node], int]] = {}
"""Of operators that read an operand at several places for one element: at how many, at most."""


def lowering(
    name: str,
    *,
    loops: bool = False,
    fuses: bool = False,
    reads: Callable[[Node], int] | None = None,
) -> Callable[[Lowering], Lowering]:
    """Register what computes one element of an operator, at an index that is quick to repeat."""

    def register(function: Lowering) -> Lowering:
        LOWERINGS[name] = with_named_index(function)
        if reads:
            READS[name] = reads
        if loops:
            LOOPING.add(name)
        if fuses:
            FUSES.add(name)
        return function

    return register


def with_named_index(function: Lowering) -> Lowering:
    """The lowering, given a name for an index that is a sum."""

    def lower(body: Body, node: Node, output: int, index: Index) -> str:
        return function(body, node, output, index if index.is_product else body.let(index, "i"))

    return lower


def view(name: str) -> Callable[[Callable[[Node, int], Affine]], Callable[[Node, int], Affine]]:
    """Register an operator that only reads its first operand elsewhere."""

    def register(function: Callable[[Node, int], Affine]) -> Callable[[Node, int], Affine]:
        VIEWS[name] = function
        LOWERINGS[name] = lambda body, node, output, index: body.load(
            next(node.operands), body.through(function(node, output), index)
        )
        return function

    return register

"""Registry of lowerings, and the facts about operators that fusion needs."""

from __future__ import annotations

from collections.abc import Callable

from webnn_py.engines.webgpu.compiler.code.affine import Affine
from webnn_py.engines.webgpu.compiler.code.index import Index
from webnn_py.engines.webgpu.compiler.kernel_builder import Body, Lowering
from webnn_py.ir import Node

LOWERINGS: dict[str, Lowering] = {}
VIEWS: dict[str, Callable[[Node, int], Affine]] = {}
"""Operators whose output is their first operand, read through an affine map."""

LOOPING: set[str] = set()
"""Operators with a loop per element: storing their result saves work."""

FUSES: set[str] = set()
"""Operators without a WGSL expression that fusion treats as elementwise."""

READS: dict[str, Callable[[Node], int]] = {}
"""For operators that read an operand several times per element: the maximum number of reads."""


def lowering(
    name: str,
    *,
    loops: bool = False,
    fuses: bool = False,
    reads: Callable[[Node], int] | None = None,
) -> Callable[[Lowering], Lowering]:
    """Register the lowering of an operator.

    Args:
        name: The operator.
        loops: Whether it has a loop per element.
        fuses: Whether elementwise fusion may include it.
        reads: Returns the maximum number of an operand's elements that one output element reads.
    """

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
    """Wrap a lowering so that an index that is a sum gets a name first."""

    def lower(body: Body, node: Node, output: int, index: Index) -> str:
        return function(body, node, output, index if index.is_product else body.let(index, "i"))

    return lower


def view(name: str) -> Callable[[Callable[[Node, int], Affine]], Callable[[Node, int], Affine]]:
    """Register an operator that only reads its first operand through an affine map."""

    def register(function: Callable[[Node, int], Affine]) -> Callable[[Node, int], Affine]:
        VIEWS[name] = function
        LOWERINGS[name] = lambda body, node, output, index: body.load(
            next(node.operands), body.through(function(node, output), index)
        )
        return function

    return register

"""Traits of operators that fusion decides by.

`legalize` makes operators of the compiler's own, which have kernels of their own (`kernels.OWN`).
No user, pass or other engine meets them, so they are in no registry but this.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from webnn_py.engines.webgpu.compiler.code.affine import Affine
from webnn_py.engines.webgpu.compiler.legalize.attention import ATTENTION
from webnn_py.engines.webgpu.compiler.legalize.integer_products import (
    CODES_CONVOLUTION,
    CODES_PRODUCT,
)
from webnn_py.engines.webgpu.compiler.legalize.packed_products import PACKED_PRODUCT
from webnn_py.engines.webgpu.compiler.legalize.sequences import STEPS
from webnn_py.engines.webgpu.compiler.legalize.split_products import (
    SPLIT_CONVOLUTION,
    SPLIT_PRODUCT,
)
from webnn_py.engines.webgpu.compiler.lower import pointwise
from webnn_py.engines.webgpu.compiler.lower.reduction import count_of
from webnn_py.engines.webgpu.compiler.lower.registry import FUSES, LOOPING, READS, VIEWS
from webnn_py.engines.webgpu.program.storage import Features
from webnn_py.ir import Node, Value
from webnn_py.ops.declare import REGISTRY


def _one(node: Node) -> int:
    return 1


def _none(node: Node, features: Features) -> int:
    return 0


@dataclass(frozen=True, slots=True)
class Traits:
    """Traits of an operator.

    Attributes:
        loops: It runs a loop for every element, so its result is worth storing.
        reduced: Elements that a reduction combines into one result; None for other operators.
        fuses: It is elementwise over operands of its output's shape.
        view: Maps an output's index to the first operand's, for an operator that moves elements;
            else None.
        free: Computing it twice costs nothing worth counting.
        reads: Elements of an operand that it reads for one of its own, at most.
        iterations: Iterations of the loops in the functions that it calls for one element.
    """

    loops: bool = False
    reduced: Callable[[Node], int] | None = None
    fuses: bool = False
    view: Callable[[Node, int], Affine] | None = None
    free: bool = False
    reads: Callable[[Node], int] = _one
    iterations: Callable[[Node, Features], int] = _none


OWN: Mapping[str, Traits] = dict.fromkeys(
    (
        *(STEPS, ATTENTION, CODES_PRODUCT, CODES_CONVOLUTION, PACKED_PRODUCT),
        *(SPLIT_PRODUCT, SPLIT_CONVOLUTION),
    ),
    Traits(loops=True),
)
"""Traits of the compiler's own operators."""


def elementwise_leaves(
    value: Value, producers: Mapping[Value, Node], stored: Callable[[Value], bool]
) -> list[Value] | None:
    """Return the stored values that a value is computed from, element by element.

    Stored values may be broadcast. Return None if an operator on the way is not elementwise.
    """
    leaves: dict[Value, None] = {}
    todo, seen = [value], {value}
    while todo:
        node = producers[todo.pop()]
        if node.op not in REGISTRY or REGISTRY[node.op].wgsl is None:
            return None
        for operand in node.operands:
            if stored(operand):
                leaves[operand] = None
            elif operand.shape != value.shape:
                return None
            elif operand not in seen:
                seen.add(operand)
                todo.append(operand)
    return list(leaves)


@functools.cache
def traits_of(op: str) -> Traits:
    """Return the traits of an operator."""
    if op in OWN:
        return OWN[op]
    declared = REGISTRY[op]
    return Traits(
        loops=op in LOOPING or declared.reduce is not None,
        reduced=None if declared.reduce is None else count_of,
        fuses=op in FUSES or declared.wgsl is not None,
        view=VIEWS.get(op),
        free=op in VIEWS or op in ("cast", "identity"),
        reads=READS.get(op, _one),
        iterations=_none if declared.wgsl is None else pointwise.iterations,
    )

"""What fusion must know of operators: those that are declared, and the compiler's own.

An operator of the compiler's own is made by `legalize` and has kernels of its own
(`kernels.OWN`); no user, no pass and no other engine meets it, so it is in no registry but this.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from webnn_py.engines.webgpu.compiler.code.affine import Affine
from webnn_py.engines.webgpu.compiler.legalize.attention import ATTENTION
from webnn_py.engines.webgpu.compiler.legalize.sequences import STEPS
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
class Facts:
    """What fusion must know of an operator.

    Attributes:
        loops: It goes round a loop for every element, so that its result is worth storing.
        reduced: Of a reduction: how many elements go into one result.
        fuses: It goes element by element with operands of its output's shape.
        view: Of an operator that only reads its first operand elsewhere: where an output's
            elements lie in it.
        free: It costs nothing worth counting to compute once more.
        reads: How many elements of an operand it reads for one of its own, at most.
        rounds: Rounds of the loops in the functions that it calls for one element.
    """

    loops: bool = False
    reduced: Callable[[Node], int] | None = None
    fuses: bool = False
    view: Callable[[Node, int], Affine] | None = None
    free: bool = False
    reads: Callable[[Node], int] = _one
    rounds: Callable[[Node, Features], int] = _none


OWN: Mapping[str, Facts] = {STEPS: Facts(loops=True), ATTENTION: Facts(loops=True)}
"""The compiler's own operators."""


def elementwise_leaves(
    value: Value, producers: Mapping[Value, Node], stored: Callable[[Value], bool]
) -> list[Value] | None:
    """The stored values that a value is computed from, element by element.

    Some are broadcast, all of which are stored. None if the value is computed in another way.
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
def facts_of(op: str) -> Facts:
    """What is known of an operator by its name."""
    if op in OWN:
        return OWN[op]
    declared = REGISTRY[op]
    return Facts(
        loops=op in LOOPING or declared.reduce is not None,
        reduced=None if declared.reduce is None else count_of,
        fuses=op in FUSES or declared.wgsl is not None,
        view=VIEWS.get(op),
        free=op in VIEWS or op in ("cast", "identity"),
        reads=READS.get(op, _one),
        rounds=_none if declared.wgsl is None else pointwise.iterations,
    )

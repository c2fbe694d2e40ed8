"""Lowerings by operator family: functions that emit WGSL for one output element."""

from __future__ import annotations

from collections.abc import Mapping

from webnn_py.engines.webgpu.compiler.kernel_builder import Lowering
from webnn_py.engines.webgpu.compiler.lower import (  # noqa: F401 - each enters its own in LOWERINGS
    indexing,
    movement,
    pointwise,
    quantization,
    reduction,
    resampling,
    scan,
    window,
)
from webnn_py.engines.webgpu.compiler.lower.registry import LOWERINGS as _LOWERINGS
from webnn_py.engines.webgpu.compiler.lower.registry import with_named_index
from webnn_py.ir import Node
from webnn_py.ops.declare import REGISTRY

LOWERINGS: Mapping[str, Lowering] = _LOWERINGS
_REDUCE = with_named_index(reduction.reduce)


def lowering_of(node: Node) -> Lowering:
    """Return the function that emits one element of a node."""
    op = REGISTRY[node.op]
    if op.wgsl is not None:
        return pointwise.elementwise
    if op.reduce is not None:
        return _REDUCE
    return LOWERINGS[node.op]


def has_lowering(name: str) -> bool:
    """Whether an operator can be computed element by element."""
    op = REGISTRY[name]
    return op.wgsl is not None or op.reduce is not None or name in LOWERINGS

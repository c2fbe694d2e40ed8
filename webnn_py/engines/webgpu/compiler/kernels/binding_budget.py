"""What a kernel binds, before it is written."""

from __future__ import annotations

from webnn_py.engines.webgpu.compiler.kernel_builder import KernelBuilder
from webnn_py.ir import Value


def unbound(builder: KernelBuilder) -> int:
    """How many buffers may be bound beside the root's and those from which it is computed."""
    taken = sum(len(builder.parts(value)) for value in _read(builder))
    return builder.features.max_bindings - 1 - taken


def _read(builder: KernelBuilder) -> set[Value]:
    """The buffers from which the root is computed."""
    found, todo = set(), [builder.root]
    for value in todo:
        if builder.computes(value):
            node = builder.producers[value]
            scratch = [builder.scratch[v] for v in node.outputs if v in builder.scratch]
            todo += [v for v in (*node.operands, *scratch) if v not in todo]
        elif builder.scalar(value) is None:
            found.add(builder.places.buffer_of(builder.sums.get(value, value)))
    return found

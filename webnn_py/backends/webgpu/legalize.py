"""What a device's limits ask of a graph before it is partitioned."""

from __future__ import annotations

import functools
from collections.abc import Callable

from webnn_py.backends.webgpu.cropping import crop
from webnn_py.backends.webgpu.sequences import is_sequence, sequence
from webnn_py.backends.webgpu.shorten import shorten
from webnn_py.backends.webgpu.stabilize import stabilize
from webnn_py.backends.webgpu.storage import Features
from webnn_py.ir import Graph, Node
from webnn_py.ops.operand import MLOperand
from webnn_py.passes.rewrite import Rewriter

Rule = Callable[[Rewriter, Node], list[MLOperand] | None]


def legalize(graph: Graph, features: Features) -> Graph:
    """Apply each rule to all nodes, those of the rules before it included."""
    # Stable formulas reduce, sequences are products; long windows become reductions and concats.
    sequences = functools.partial(_sequence, features=features)
    narrow = functools.partial(_narrow_concat, features=features)
    rules: tuple[Rule, ...] = (stabilize, sequences, crop, shorten, shorten, narrow)
    for rule in rules:
        graph = Rewriter(graph).run(rule)
    return graph


def _narrow_concat(rewriter: Rewriter, node: Node, features: Features) -> list[MLOperand] | None:
    """A concat of more inputs than one kernel can bind as concats of concats."""
    most = max(2, features.max_bindings - 1)
    if node.op != "concat" or len(node.inputs) <= most:
        return None
    parts = [rewriter.map[value] for value in node.operands]
    axis = node.attrs["axis"]
    while len(parts) > most:
        groups = [parts[i : i + most] for i in range(0, len(parts), most)]
        parts = [
            group[0] if len(group) == 1 else rewriter.concat(group, axis, label=node.label)
            for group in groups
        ]
    return [rewriter.concat(parts, axis, label=node.label)]


def _sequence(rewriter: Rewriter, node: Node, features: Features) -> list[MLOperand] | None:
    """What a recurrent network takes besides its steps."""
    return sequence(rewriter, node) if is_sequence(node, features) else None

"""What a device's limits ask of a graph before it is partitioned."""

from __future__ import annotations

import functools
from collections.abc import Callable

from webnn_py.engines.webgpu.compiler.cropping import crop
from webnn_py.engines.webgpu.compiler.sequences import is_sequence, sequence
from webnn_py.engines.webgpu.compiler.shorten import shorten
from webnn_py.engines.webgpu.compiler.stabilize import stabilize
from webnn_py.engines.webgpu.compiler.storage import Features
from webnn_py.ir import Graph, Node
from webnn_py.ops.operand import MLOperand
from webnn_py.passes.rewrite import Rewriter

Rule = Callable[[Rewriter, Node], list[MLOperand] | None]


def legalize(graph: Graph, features: Features) -> Graph:
    """Apply the rules of each stage to all nodes, those of the stages before it included."""
    sequences = functools.partial(_sequence, features=features)
    narrow = functools.partial(_narrow_concat, features=features)
    # What is long among the results of the first stage is shortened. Shortening makes reductions of
    # pools, which may be long themselves, and concats.
    stages: tuple[tuple[Rule, ...], ...] = (
        (stabilize, sequences, crop),
        (shorten,),
        (shorten,),
        (narrow,),
    )
    for rules in stages:
        graph = Rewriter(graph).run(functools.partial(_first_of, rules))
    return graph


def _first_of(rules: tuple[Rule, ...], rewriter: Rewriter, node: Node) -> list[MLOperand] | None:
    """What the first rule for a node puts in its place; each rule is for operators of its own."""
    for rule in rules:
        made = rule(rewriter, node)
        if made is not None:
            return made
    return None


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

"""What a device's limits ask of a graph before its kernels are decided."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from webnn_py.engines.webgpu.compiler.cropping import crop
from webnn_py.engines.webgpu.compiler.sequences import is_sequence, sequence
from webnn_py.engines.webgpu.compiler.shorten import shorten
from webnn_py.engines.webgpu.compiler.stabilize import stabilize
from webnn_py.engines.webgpu.compiler.storage import Features
from webnn_py.ir import Descriptor, Graph, Node
from webnn_py.ops.operand import MLOperand
from webnn_py.passes.rewrite import Rewriter

Rule = Callable[[Rewriter, Node], list[MLOperand] | None]


def legalize(graph: Graph, features: Features) -> Graph:
    """Apply the rules to all nodes, and to those that rules put in their place."""
    sequences = functools.partial(_sequence, features=features)
    narrow = functools.partial(_narrow_concat, features=features)
    return _Legalizer(graph, (stabilize, sequences, crop, shorten, narrow)).run(_as_it_is)


class _Legalizer(Rewriter):
    """Applies rules to each node as it is emitted, by whomever, until none has anything to say.

    What a rule makes must be smaller in what the rule looks at, or this would not end.
    """

    def __init__(self, graph: Graph, rules: tuple[Rule, ...]) -> None:
        super().__init__(graph)
        self._rules = rules

    def emit(
        self,
        op: str,
        operands: Sequence[MLOperand | None],
        attrs: Mapping[str, Any],
        outputs: Sequence[Descriptor],
        label: str,
    ) -> list[MLOperand]:
        """Add a node, or what the first rule for it puts in its place; return the outputs."""
        made = super().emit(op, operands, attrs, outputs, label)
        node = self._nodes.pop()
        # Rules look operands up by the values that the node reads.
        self.map.update((operand.value, operand) for operand in operands if operand is not None)
        for rule in self._rules:
            instead = rule(self, node)
            if instead is not None:
                return instead
        self._nodes.append(node)
        return made


def _as_it_is(rewriter: Rewriter, node: Node) -> None:
    """Keeps a node; rules apply when its copy is emitted."""


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

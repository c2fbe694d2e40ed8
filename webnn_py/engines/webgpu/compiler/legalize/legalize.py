"""Rewrites that devices' limits ask for, applied before kernels are decided."""

from __future__ import annotations

import functools
from collections.abc import Callable

from webnn_py.engines.webgpu.compiler.legalize.attention import attention
from webnn_py.engines.webgpu.compiler.legalize.cropping import crop
from webnn_py.engines.webgpu.compiler.legalize.quotients import ExactQuotients
from webnn_py.engines.webgpu.compiler.legalize.sequences import is_sequence, sequence
from webnn_py.engines.webgpu.compiler.legalize.split_loops import shorten
from webnn_py.engines.webgpu.compiler.legalize.stabilize import stabilize
from webnn_py.engines.webgpu.program.storage import Features, storage_of
from webnn_py.ir import Graph, Node, Value
from webnn_py.ops.operand import MLOperand
from webnn_py.passes.rewrite import Rewriter

Rule = Callable[[Rewriter, Node], list[MLOperand] | None]


def legalize(graph: Graph, features: Features) -> Graph:
    """Apply the rules to all nodes, and to those that rules put in their place."""
    sequences = functools.partial(_sequence, features=features)
    narrow = functools.partial(_narrow_concat, features=features)
    one = functools.partial(attention, features=features)
    exact = ExactQuotients(graph)
    rules = (stabilize, sequences, one, crop, shorten, _GrowingConcats(features), narrow, exact)
    legalizer = _Legalizer(graph, rules)
    return legalizer.run(lambda _, node: legalizer.instead(node))


class _Legalizer(Rewriter):
    """Applies rules to each node, and to what they emit, until none has anything to say.

    What a rule makes must be smaller in what the rule looks at, or this would not end.
    """

    def __init__(self, graph: Graph, rules: tuple[Rule, ...]) -> None:
        super().__init__(graph)
        self._rules = rules

    def emit(self, node: Node) -> list[MLOperand]:
        """Add a node, or what the first rule for it puts in its place; return the outputs."""
        made = super().emit(node)
        self._nodes.pop()
        instead = self.instead(node)
        if instead is not None:
            return instead
        self._nodes.append(node)
        return made

    def instead(self, node: Node) -> list[MLOperand] | None:
        """What the first rule for a node puts in its place."""
        for rule in self._rules:
            made = rule(self, node)
            if made is not None:
                return made
        return None


class _GrowingConcats:
    """Concats that begin as others do, as concats of these, which may lie in one buffer."""

    def __init__(self, features: Features) -> None:
        self._features = features
        self._known: dict[tuple[int, Value], list[Node]] = {}

    def __call__(self, rewriter: Rewriter, node: Node) -> list[MLOperand] | None:
        """The concat of the longest one before it and of what that lacks."""
        if node.op != "concat" or storage_of(node.output.data_type, self._features).per_word > 1:
            return None
        axis, operands = node.attrs["axis"], tuple(node.operands)
        alike = self._known.setdefault((axis, operands[0]), [])
        shorter = [n for n in alike if operands[: len(n.inputs)] == n.inputs != operands]
        alike.append(node)
        if not shorter:
            return None
        longest = max(shorter, key=lambda other: len(other.inputs))
        parts = (longest.output, *operands[len(longest.inputs) :])
        return [rewriter.concat([rewriter.map[v] for v in parts], axis, label=node.label)]


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

"""Rows: reductions whose results are read in the rows that they reduce, and what reads them.

Softmax and normalizations reduce each row, once or twice, and then compute its elements. One kernel
does all of it, with a workgroup for each row.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from webnn_py.engines.webgpu.compiler.facts import facts_of
from webnn_py.engines.webgpu.program.storage import Features, storage_of
from webnn_py.ir import Graph, Node, Shape, Value
from webnn_py.ops.declare import REGISTRY

SHORTEST, LONGEST = 64, 8192
"""Elements of the rows that a workgroup computes."""

MOST_ROWS = 1 << 20


@dataclass(frozen=True, slots=True)
class Stored:
    """What fusion knows of a stored value.

    Attributes:
        anchor: The node whose loop its kernel is built around, if there is one.
        leaves: The stored values that its kernel reads.
    """

    anchor: Node | None
    leaves: frozenset[Value]


@dataclass(frozen=True, slots=True)
class Stage:
    """A reduction of each row.

    Attributes:
        node: The reduction.
        value: What is read of it: its result, or what that flows into.
    """

    node: Node
    value: Value


class Rows:
    """Finds what kernels of rows compute by themselves.

    Args:
        graph: The graph.
        features: The device.
        stored: The values that kernels write, in order.
    """

    def __init__(self, graph: Graph, features: Features, stored: Mapping[Value, Stored]) -> None:
        self._producers = graph.producers
        self._features = features
        self._stored = stored
        self._outputs = {value for _, value in graph.outputs}
        self._readers: dict[Value, set[Value]] = {}
        for value, facts in stored.items():
            for leaf in facts.leaves:
                self._readers.setdefault(leaf, set()).add(value)

    def stages_of(self, root: Value) -> tuple[Stage, ...]:
        """The reductions that the kernel of a value computes for its rows, in order."""
        kind, storage = self._features.kind, storage_of(root.data_type, self._features)
        if kind == "cpu" or storage.per_word > 1 or self._stored[root].anchor is not None:
            return ()
        found = self._reductions(root)
        while (
            own := {value for value in found if self._readers[value] <= {root, *found}}
        ) != found:
            found = own
        if not all(self._is_along(value, found) for value in (root, *found)):
            return ()
        return tuple(
            Stage(facts.anchor, value)
            for value, facts in self._stored.items()
            if value in found and facts.anchor is not None
        )

    def _reductions(self, root: Value) -> set[Value]:
        """Those of a value's rows that it reads, and that these read."""
        found: set[Value] = set()
        todo = [root]
        while todo:
            for leaf in self._stored[todo.pop()].leaves - found:
                if self._reduces(leaf, root.shape):
                    found.add(leaf)
                    todo.append(leaf)
        return found

    def _reduces(self, value: Value, shape: Shape) -> bool:
        """Whether a value follows from a reduction of the rows of this shape."""
        facts = self._stored.get(value)
        if facts is None or facts.anchor is None or value in self._outputs:
            return False
        node = facts.anchor
        if facts_of(node.op).reduced is None or next(node.operands).shape != shape:
            return False
        axes = sorted(node.attrs["axes"])
        first = len(shape) - len(axes)
        kept = (*shape[:first], *[1] * len(axes))
        if axes != list(range(first, len(shape))) or value.shape != kept:
            return False
        is_float = storage_of(node.output.data_type, self._features).compute == "f32"
        short = SHORTEST <= math.prod(shape[first:]) <= LONGEST
        return is_float and short and math.prod(shape[:first]) <= MOST_ROWS

    def _is_along(self, value: Value, found: set[Value]) -> bool:
        """Whether its elements are computed from the reductions of their own rows alone."""
        anchor = self._stored[value].anchor
        if anchor is None:
            return self._path(value, value.shape, found - {value}, start=True) is not False
        ends = (found - {value}) | {anchor.output}
        behind = value is anchor.output or self._path(value, value.shape, ends, start=True)
        (operand,) = anchor.operands
        return bool(behind) and self._path(operand, operand.shape, found) is not False

    def _path(
        self, value: Value, shape: Shape, ends: set[Value], start: bool = False
    ) -> bool | None:
        """Whether all on the way from the ends to a value is elementwise; None if there is none."""
        if value in ends:
            return True
        if value not in self._producers or (value in self._stored and not start):
            return None
        node = self._producers[value]
        ways = {self._path(operand, shape, ends) for operand in node.operands}
        if ways == {None}:
            return None
        return False not in ways and REGISTRY[node.op].wgsl is not None and value.shape == shape

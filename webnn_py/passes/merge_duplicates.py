"""Pass that merges equal constants and equal nodes (common subexpression elimination)."""

from __future__ import annotations

import hashlib
from collections.abc import Hashable, Iterator, Mapping

import numpy as np

from webnn_py.ir import Array, Graph, Node, Value
from webnn_py.ops.operand import MLOperand, value_of
from webnn_py.passes.rewrite import Rewriter
from webnn_py.passes.target import Target

SAMPLE_ELEMENTS = 16
"""Elements compared first; they differ for most constants, so few are hashed whole."""


def merge_duplicates(graph: Graph, target: Target) -> Graph:
    """Merge constants of equal bytes, and nodes of the same operator, operands and attributes."""
    rewriter = Rewriter(graph)
    for value, first in _equal_constants(graph.constants):
        rewriter.map[value] = rewriter.map[first]
    earliest: dict[Hashable, Node] = {}
    by_options: dict[Hashable, Node] = {}

    def rule(rewriter: Rewriter, node: Node) -> list[MLOperand] | None:
        operands = tuple(None if v is None else value_of(rewriter.map[v]) for v in node.inputs)
        key = node.op, operands
        if earliest.setdefault(key, node) is node:
            return None  # most nodes are the first with these operands: skip formatting options
        by_options.setdefault((key, _options(earliest[key])), earliest[key])
        first = by_options.setdefault((key, _options(node)), node)
        return None if first is node else [rewriter.map[value] for value in first.outputs]

    return rewriter.run(rule)


def _options(node: Node) -> str:
    """Return the attributes as text, in which 0.0, -0.0, 0 and False differ."""
    return repr(node.attrs)


def _equal_constants(constants: Mapping[Value, Array]) -> Iterator[tuple[Value, Value]]:
    """Yield each constant that equals an earlier one, with the earlier one."""
    same_sample: dict[Hashable, list[Value]] = {}
    holders: dict[Hashable, Value] = {}
    for value, array in constants.items():
        holder = holders.setdefault((value.data_type, id(array)), value)
        if holder is not value:
            yield value, holder
            continue
        flat = array.reshape(-1)
        sample = flat[:: max(1, flat.size // SAMPLE_ELEMENTS)][:SAMPLE_ELEMENTS].tobytes()
        same_sample.setdefault((value.data_type, value.shape, sample), []).append(value)
    for values in same_sample.values():
        if len(values) > 1:
            yield from _equal_by_hash({value: constants[value] for value in values})


def _equal_by_hash(constants: Mapping[Value, Array]) -> Iterator[tuple[Value, Value]]:
    first: dict[bytes, Value] = {}
    for value, array in constants.items():
        data = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        digest = hashlib.blake2b(data.data).digest()
        if digest in first:
            yield value, first[digest]
        first.setdefault(digest, value)

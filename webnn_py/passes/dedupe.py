"""What is computed or stored twice, once."""

from __future__ import annotations

import hashlib
from collections.abc import Hashable, Iterator, Mapping

import numpy as np

from webnn_py.ir import Array, Graph, Node, Value
from webnn_py.ops.operand import MLOperand
from webnn_py.passes.rewrite import Rewriter
from webnn_py.passes.target import Target

SAMPLE = 16
"""Elements that tell most constants apart, so that few large ones are read to the end."""


def merge_duplicates(graph: Graph, target: Target) -> Graph:
    """Merge constants of equal bytes, and nodes of the same operator, operands and attributes."""
    rewriter = Rewriter(graph)
    for value, first in _repeated(graph.constants):
        rewriter.map[value] = rewriter.map[first]
    made: dict[Hashable, list[MLOperand]] = {}

    def rule(rewriter: Rewriter, node: Node) -> list[MLOperand]:
        key = _key(rewriter, node)
        if key not in made:
            made[key] = rewriter.copy(node)
        return made[key]

    return rewriter.run(rule)


def _key(rewriter: Rewriter, node: Node) -> Hashable:
    """What the outputs follow from. Attributes as text: 0.0, -0.0, 0 and False differ."""
    operands = tuple(None if v is None else rewriter.map[v].value for v in node.inputs)
    return node.op, operands, tuple((name, repr(value)) for name, value in node.attrs.items())


def _repeated(constants: Mapping[Value, Array]) -> Iterator[tuple[Value, Value]]:
    """Each constant that has the bytes of an earlier one, with that one."""
    alike: dict[Hashable, list[Value]] = {}
    for value, array in constants.items():
        flat = array.reshape(-1)
        sample = flat[:: max(1, flat.size // SAMPLE)][:SAMPLE].tobytes()
        alike.setdefault((value.data_type, value.shape, sample), []).append(value)
    for values in alike.values():
        if len(values) > 1:
            yield from _repeated_bytes({value: constants[value] for value in values})


def _repeated_bytes(constants: Mapping[Value, Array]) -> Iterator[tuple[Value, Value]]:
    first: dict[bytes, Value] = {}
    for value, array in constants.items():
        data = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        digest = hashlib.blake2b(data.data).digest()
        if digest in first:
            yield value, first[digest]
        first.setdefault(digest, value)

"""Chooses the version of the ONNX operators that a model declares."""

from __future__ import annotations

import functools

import onnx

from webnn_py.core.requirements import check_version
from webnn_py.engines.onnx_lowering.emitter import OPSET, Emitter

OLDER_OPSET = 18
"""An older version in which most operators are the same."""

check_version(onnx)

# The first query makes ONNX list all operators, which holds the GIL for 10 ms. Do it at import,
# not during a build, where it would delay event loops.
onnx.defs.has("Identity")


def older_opset(e: Emitter) -> int:
    """Return OLDER_OPSET if all written nodes mean the same in it, else OPSET."""
    for node, types in zip(e.nodes, e.types, strict=True):
        attributes = frozenset(attribute.name for attribute in node.attribute)
        if not node.domain and not _is_older(node.op_type, attributes, frozenset(sum(types, ()))):
            return OPSET
    return OLDER_OPSET


@functools.cache
def _is_older(operator: str, attributes: frozenset[str], types: frozenset[str]) -> bool:
    """Whether the older version has an operator with these attributes and data types."""
    try:
        older = onnx.defs.get_schema(operator, OLDER_OPSET)
    except onnx.defs.SchemaError:
        return False
    if onnx.defs.get_schema(operator, OPSET).since_version == older.since_version:
        return True
    taken = {t for one in older.type_constraints for t in one.allowed_type_strs}
    named = {f"tensor({_NAMES.get(t, t)})" for t in types if t}
    return attributes <= older.attributes.keys() and named <= taken


_NAMES = {"float32": "float"}
"""ONNX's names of data types where they differ."""

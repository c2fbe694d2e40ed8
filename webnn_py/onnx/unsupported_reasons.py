"""Reasons why operators have no handler, for error messages."""

from __future__ import annotations

from fnmatch import fnmatch
from typing import Any

REASONS = {
    "NonZero": "the shape of its result depends on contents",
    "Unique": "the shape of its result depends on contents",
    "Optional*": "WebNN has no optional values",
    "String*": "WebNN has no strings",
    "RegexFullMatch": "WebNN has no strings",
    "ImageDecoder": "WebNN decodes no images",
    **dict.fromkeys(
        [f"com.microsoft.{kind}" for kind in ("*BeamSearch", "GreedySearch", "Sampling")],
        "it generates whole texts; take the model of a step, which it holds",
    ),
    "com.microsoft.DecoderMasked*": (
        "it writes its caches in place; take the model as it was before it was made for beam search"
    ),
    "com.microsoft.*": (
        "it is ONNX Runtime's own; take the model as it was before ONNX Runtime optimized or"
        " quantized it"
    ),
    "ai.onnx.ml.*": "WebNN has no operators of classical machine learning",
    "ai.onnx.preview.training.*": "WebNN does not train",
}
"""Reasons by pattern of the operator's name, after its domain if that is not the default one."""


def operator_of(node: Any) -> str:
    """Return a node's operator, after its domain if the node has one."""
    return f"{node.domain}.{node.op_type}" if node.domain else str(node.op_type)


def reason_of(operator: str) -> str:
    """Return the reason why an operator has no handler."""
    for pattern, text in REASONS.items():
        if fnmatch(operator, pattern):
            return text
    return "webnn_py has no importer for it"

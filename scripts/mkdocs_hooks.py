"""Fills the operators' table of the documentation from their registry."""

from __future__ import annotations

from typing import Any

import webnn_py.ops.all  # noqa: F401  (declares every operator)
from webnn_py.ops.declare import REGISTRY, Operator

MARKER = "<!-- operators -->"


def row(op: Operator) -> str:
    """One operator: how it is called, its first operand's data types, and how it is made."""
    parameters = [name for name in op.signature.parameters if name not in ("self", "label")]
    types = ", ".join(op.operand_types(next(iter(op.limits))))
    kind = "elementwise" if op.elementwise else "composite" if op.decompose else ""
    summary = op.doc.partition("\n")[0].replace("|", "\\|")
    return f"| `{op.name}` | {summary} | {', '.join(parameters)} | {types} | {kind} |"


def table() -> str:
    """All operators by family."""
    families: dict[str, list[Operator]] = {}
    for op in REGISTRY.values():
        families.setdefault(op.family, []).append(op)
    parts = []
    for family, members in families.items():
        parts += [f"\n## {family.capitalize()}\n", "| | | parameters | data types | |"]
        parts += ["|---|---|---|---|---|", *map(row, members)]
    return "\n".join(parts)


def on_page_markdown(markdown: str, **_: Any) -> str:
    """What mkdocs calls for each page."""
    return markdown.replace(MARKER, table()) if MARKER in markdown else markdown

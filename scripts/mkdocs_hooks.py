"""Fills tables of the documentation from the code, and puts the pages of spec/ among the others."""

from __future__ import annotations

import typing
from pathlib import Path
from typing import Any, Literal

import webnn_py
from webnn_py.ops.declare import REGISTRY, Operator
from webnn_py.ops.decompositions import DECOMPOSITIONS
from webnn_py.ops.docstrings import SPECIFICATION


def row(op: Operator) -> str:
    """One operator: its call, its first operand's data types, how it is made, its section."""
    parameters = [name for name in op.signature.parameters if name not in ("self", "label")]
    types = ", ".join(op.operand_types(next(iter(op.limits))))
    kind = "elementwise" if op.elementwise else "composite" if op.name in DECOMPOSITIONS else ""
    summary = op.doc.partition("\n")[0].replace("|", "\\|")
    name = f"[`{op.name}`](reference.md#webnn_py.MLGraphBuilder.{op.name})"
    section = "extension" if op.extension else f"[§]({SPECIFICATION}{op.section})"
    return f"| {name} | {summary} | {', '.join(parameters)} | {types} | {kind} | {section} |"


def operators() -> str:
    """All operators by family."""
    families: dict[str, list[Operator]] = {}
    for op in REGISTRY.values():
        families.setdefault(op.family, []).append(op)
    parts = []
    for family, members in families.items():
        parts += [
            f"\n## {family.capitalize()}\n",
            "| | | parameters | data types | | |",
        ]
        parts += ["|---|---|---|---|---|---|", *map(row, members)]
    return "\n".join(parts)


def names() -> str:
    """The types that are choices of strings."""
    public = {name: getattr(webnn_py, name) for name in webnn_py.__all__}
    choices = {n: typing.get_args(t) for n, t in public.items() if typing.get_origin(t) is Literal}
    rows = [f"| `{name}` | {', '.join(map(repr, values))} |" for name, values in choices.items()]
    return "\n".join(["| | |", "|---|---|", *rows])


SPEC = Path(__file__).parents[1] / "spec"
TABLES = {"<!-- operators -->": operators, "<!-- names -->": names}


def on_page_markdown(markdown: str, **_: Any) -> str:
    """What mkdocs calls for each page."""
    for marker, table in TABLES.items():
        if marker in markdown:
            markdown = markdown.replace(marker, table())
    return markdown.replace("](../spec/", "](spec/")


def on_files(files: Any, config: Any, **_: Any) -> Any:
    """What mkdocs calls once it knows its files: those of spec/ lie beside docs/, not in it."""
    from mkdocs.structure.files import File

    for path in sorted([*SPEC.glob("*.md"), *SPEC.glob("*.json")]):
        files.append(File.generated(config, f"spec/{path.name}", abs_src_path=str(path)))
    return files

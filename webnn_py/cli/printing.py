"""What commands print: tables, with rich where it is installed, and JSON."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from webnn_py.core.messages import printable

WIDTH = 160
"""Columns of tables that go into a file or another program."""


def print_json(value: object) -> None:
    """A document; other tools read it."""
    print(json.dumps(value, indent=2))


def print_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """A table; columns that hold nothing but numbers are flush right.

    Args:
        title: What stands above it.
        columns: Their headings; all empty for a table without.
        rows: The cells.
    """
    title, columns = printable(title), [printable(column) for column in columns]
    cells = [[shown(cell) for cell in row] for row in rows]
    right = [
        bool(rows) and all(_is_number(row[number]) for row in rows)
        for number in range(len(columns))
    ]
    try:
        from rich.console import Console
        from rich.markup import escape
        from rich.table import Table
    except ImportError:
        _print_plain(title, columns, cells, right)
        return
    table = Table(title=escape(title), title_justify="left", show_header=any(columns))
    for name, flush in zip(columns, right, strict=True):
        table.add_column(escape(name), justify="right" if flush else "left")
    for row in cells:
        table.add_row(*map(escape, row))
    console = Console(width=None if sys.stdout.isatty() else WIDTH)
    with console.capture() as captured:  # rich's own writing ends the process with the pipe
        console.print(table)
    print(captured.get(), end="")


def _print_plain(
    title: str, columns: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[bool]
) -> None:
    lines = [columns, *rows] if any(columns) else rows
    widths = [max((len(line[i]) for line in lines), default=0) for i in range(len(columns))]
    print(title)
    for line in lines:
        fitted = [
            cell.rjust(width) if flush else cell.ljust(width)
            for cell, width, flush in zip(line, widths, right, strict=True)
        ]
        print(f"  {'  '.join(fitted)}".rstrip())
    print()


def print_facts(title: str, facts: Mapping[str, object]) -> None:
    """A table of names and values; mappings within are taken apart."""
    print_table(title, ("", ""), list(_pairs(facts)))


def _pairs(facts: Mapping[str, object]) -> list[tuple[str, object]]:
    made: list[tuple[str, object]] = []
    for name, value in facts.items():
        made += _pairs(value) if isinstance(value, Mapping) else [(name, value)]
    return made


def shown(value: object) -> str:
    """A value in a cell."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:.4g}"
    return printable(str(value))


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def in_bytes(count: int) -> str:
    """A number of bytes, for people."""
    size, unit = float(count), "B"
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024 or unit == "GiB":
            break
        size /= 1024
    return f"{count} B" if unit == "B" else f"{size:.1f} {unit}"


def in_time(seconds: float) -> str:
    """A duration, for people."""
    return f"{seconds:.2f} s" if seconds >= 1 else f"{seconds * 1e3:.3g} ms"


def as_text(shape: Sequence[Any]) -> str:
    """A shape as listings have it."""
    return f"[{','.join(map(str, shape))}]"

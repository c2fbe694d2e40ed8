"""Output of commands: tables (with rich if it is installed) and JSON."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence

from webnn_py.api.view.formats import format_value
from webnn_py.core.messages import printable

PIPED_TABLE_COLUMNS = 160
"""Width in characters of a table that does not go to a terminal."""


def print_json(value: object) -> None:
    """Print a value as JSON."""
    print(json.dumps(value, indent=2))


def print_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Print a table; columns of numbers are flush right.

    Args:
        title: The title above the table.
        columns: The headings; all empty for a table without a header.
        rows: The cells of each row.
    """
    title, columns = printable(title), [printable(column) for column in columns]
    cells = [[format_value(cell) for cell in row] for row in rows]
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
    table = Table(show_header=any(columns))
    for name, flush in zip(columns, right, strict=True):
        table.add_column(escape(name), justify="right" if flush else "left")
    for row in cells:
        table.add_row(*map(escape, row))
    console = Console(width=None if sys.stdout.isatty() else PIPED_TABLE_COLUMNS)
    with console.capture() as captured:  # rich's own writing ends the process with the pipe
        console.print(f"[italic]{escape(title)}[/]")  # rich would wrap it to the table's width
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
    """Print a table of names and values; nested mappings are flattened."""
    print_table(title, ("", ""), list(_pairs(facts)))


def _pairs(facts: Mapping[str, object]) -> list[tuple[str, object]]:
    pairs: list[tuple[str, object]] = []
    for name, value in facts.items():
        pairs += _pairs(value) if isinstance(value, Mapping) else [(name, value)]
    return pairs


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)

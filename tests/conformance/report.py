"""The table of results: operators against backends."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Literal, TypeAlias

Status: TypeAlias = Literal["passed", "failed", "not supported", "exception"]
STATUSES: tuple[Status, ...] = ("passed", "failed", "not supported", "exception")
Counts: TypeAlias = Counter[str]


class Report:
    """Counts of results by operator and backend."""

    def __init__(self) -> None:
        self.counts: defaultdict[str, defaultdict[str, Counts]] = defaultdict(
            lambda: defaultdict(Counter)
        )

    def add(self, operator: str, backend: str, status: Status) -> None:
        """Count one case."""
        self.counts[operator][backend][status] += 1

    @property
    def backends(self) -> list[str]:
        """The backends that ran, in the order of their first result."""
        return list(dict.fromkeys(b for row in self.counts.values() for b in row))

    def total(self, backend: str) -> Counts:
        """The sum over all operators."""
        return sum((row[backend] for row in self.counts.values() if backend in row), Counter())

    def rows(self) -> Iterator[list[str]]:
        """Header, one row an operator, and the totals, as text."""
        yield ["operator", *self.backends]
        for operator in sorted(self.counts):
            row = self.counts[operator]
            yield [operator, *(cell(row.get(backend)) for backend in self.backends)]
        yield ["total", *(cell(self.total(backend)) for backend in self.backends)]

    def text(self) -> str:
        """A table with aligned columns."""
        rows = list(self.rows())
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = (
            "  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip()
            for row in rows
        )
        return "\n".join(lines)

    def markdown(self) -> str:
        """A Markdown table."""
        header, *rows = self.rows()
        lines = [header, ["---"] * len(header), *rows]
        return "".join(f"| {' | '.join(row)} |\n" for row in lines)

    def json(self) -> str:
        """Counts by operator, backend and status."""
        data = {
            operator: {
                backend: {status: counts[status] for status in STATUSES}
                for backend, counts in self.counts[operator].items()
            }
            for operator in sorted(self.counts)
        }
        return json.dumps(data, indent=1) + "\n"

    def write(self, path: Path) -> None:
        """Write the table in the form that the file's suffix names."""
        text = self.markdown() if path.suffix == ".md" else self.json()
        path.write_text(text, encoding="utf-8")


def cell(counts: Counts | None) -> str:
    """ "12", "10 / 2 failed", "8 / 4 not supported"."""
    if counts is None:
        return "-"
    others = [f"{counts[status]} {status}" for status in STATUSES[1:] if counts[status]]
    return " / ".join([str(counts["passed"]), *others])

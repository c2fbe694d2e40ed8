"""What the benchmarks share: interleaved rounds, tables, a description of the machine."""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import date
from pathlib import Path
from typing import Any, TypeVar

from webnn_py.engines.profile import wait_for_threads

K = TypeVar("K")
T = TypeVar("T")
Clock = Callable[[], float]
Figures = dict[str, Any]
Tables = tuple[list[tuple[str, list[str], list[list[object]]]], list[str]]
"""Tables, each with its title and its columns, and notes below them."""
TURN_SECONDS = 0.03
"""Of the runs that count in one peer's turn, about; but at least two runs."""
MOST_RUNS = 200
"""Of a turn."""


def interleaved(cases: Mapping[K, Callable[[], T]], rounds: int) -> dict[K, list[T]]:
    """What each case returns, round by round, so that a busy machine slows all of them alike.

    Every second round runs them in reverse order.
    """
    results: dict[K, list[T]] = {name: [] for name in cases}
    for number in range(rounds):
        for name in list(cases)[:: -1 if number % 2 else 1]:
            results[name].append(cases[name]())
    return results


def turn(
    run: Callable[[], object], clock: Clock = time.perf_counter, wake: float = 0.0
) -> tuple[float, float]:
    """Seconds of a peer's runs in its turn: of the first, and the median of those that count.

    The first comes behind another peer's: caches hold that one's data and code, and a GPU changes
    between contexts. It begins when none of that one's threads spins any more.

    Args:
        run: One run.
        clock: What tells seconds.
        wake: For how many seconds runs do not count; but at least one run.
    """
    wait_for_threads()

    def timed() -> float:
        begin = clock()
        run()
        return clock() - begin

    first, awake = timed(), time.perf_counter() + wake
    while time.perf_counter() < awake:
        run()
    times: list[float] = []
    end = time.perf_counter() + TURN_SECONDS
    while len(times) < 2 or (time.perf_counter() < end and len(times) < MOST_RUNS):
        times.append(timed())
    return first, statistics.median(times)


def ratio(values: Sequence[float], base: Sequence[float]) -> float:
    """The median of the rounds' ratios."""
    return statistics.median(a / b for a, b in zip(values, base, strict=True))


def machine(adapter: str | None = None) -> Figures:
    """What the figures were measured on."""
    return {
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None,
        "system": platform.system(),
        "python": platform.python_version(),
        "adapter": adapter,
        "date": date.today().isoformat(),
    }


def show(title: str, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Print a table, with rich where it is installed."""
    texts = [[_text(value) for value in row] for row in rows]
    try:
        from rich.console import Console
        from rich.table import Table
    except ImportError:
        lines = [list(columns), *texts]
        widths = [max(len(line[i]) for line in lines) for i in range(len(columns))]
        print(title)
        for line in lines:
            cells = [
                cell.rjust(width) if i else cell.ljust(width)
                for i, (cell, width) in enumerate(zip(line, widths, strict=True))
            ]
            print("  " + "  ".join(cells).rstrip())
        return
    table = Table(title=title, title_justify="left")
    for i, name in enumerate(columns):
        table.add_column(name, justify="right" if i else "left", no_wrap=not i)
    for row in texts:
        table.add_row(*row)
    Console(width=120).print(table)


def _text(value: object) -> str:
    if value is None:
        return "–"
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def write_json(path: Path | None, figures: Figures) -> None:
    """Write the figures, if there is a path."""
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(figures, indent=2) + "\n")


def markdown(tables: Tables) -> str:
    """Tables and notes as Markdown."""
    parts = []
    for title, columns, rows in tables[0]:
        lines = [
            columns,
            ["---"] * len(columns),
            *([_text(value) for value in row] for row in rows),
        ]
        parts.append("\n".join([f"{title}:", "", *(f"| {' | '.join(line)} |" for line in lines)]))
    return "\n\n".join([*parts, *tables[1]]) + "\n"


def add_figure_options(parser: argparse.ArgumentParser, drawn: str) -> None:
    """Options for what becomes of the figures; `drawn` says what a plot shows of them."""
    parser.add_argument("--json", type=Path, help="write the figures there")
    parser.add_argument("--markdown", type=Path, help="write the tables there")
    parser.add_argument("--plot", type=Path, help=f"draw {drawn} there (.svg, .png)")
    parser.add_argument("--from-json", type=Path, help="read the figures, measure nothing")


def measured_or_read(
    options: argparse.Namespace,
    measure: Callable[[], Figures],
    tables: Callable[[Figures], Tables],
    plot: Callable[[Figures, Path], None],
) -> Figures:
    """Figures as `add_figure_options` asks for them: measured or read, printed, written, drawn."""
    if options.from_json is not None:
        figures: Figures = json.loads(options.from_json.read_text())
    else:
        figures = measure()
        write_json(options.json, figures)
    found = tables(figures)
    for title, columns, rows in found[0]:
        show(title, columns, rows)
    for note in found[1]:
        print(note)
    if options.markdown is not None:
        options.markdown.parent.mkdir(parents=True, exist_ok=True)
        options.markdown.write_text(markdown(found))
    if options.plot is not None:
        plot(figures, options.plot)
    return figures


def new_drawing(width: float, height: float) -> Any:
    """A figure of matplotlib's, sizes in inches; the program ends where that is not installed."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        sys.exit("the plot needs matplotlib: pip install 'webnn-py[bench]', then --from-json")
    return Figure(figsize=(width, height), layout="constrained")


def draw_bars(
    axes: Any, cases: Sequence[str], series: Mapping[str, Sequence[float | None]]
) -> None:
    """Horizontal bars by case, one of each series that has values, on a logarithmic axis."""
    drawn = {name: values for name, values in series.items() if any(values)}
    height = 0.8 / max(len(drawn), 1)
    for number, (name, values) in enumerate(drawn.items()):
        places = [place + (number + 0.5) * height - 0.4 for place in range(len(cases))]
        axes.barh(places, [value or 0 for value in values], height, label=name)
    from matplotlib.ticker import LogLocator

    axes.set_xscale("log")
    axes.xaxis.set_major_formatter("{x:g}")
    axes.xaxis.set_minor_locator(LogLocator(subs=(2, 5)))
    axes.xaxis.set_minor_formatter("{x:g}")
    axes.set_yticks(range(len(cases)), cases)
    axes.invert_yaxis()
    if drawn:
        below = {"loc": "upper center", "bbox_to_anchor": (0.5, -0.08), "frameon": False}
        axes.legend(ncols=min(len(drawn), 5), **below)


def plot_rows(
    figures: Figures,
    path: Path,
    name: str,
    columns: Mapping[str, str],
    label: str,
    size: tuple[float, float],
) -> None:
    """Draw the figures' rows as bars; what `path` ends in says in which format.

    Args:
        figures: With `rows`, and the adapter of the machine.
        path: The file.
        name: The key of what a row is called.
        columns: Titles, and keys of the rows' figures.
        label: What the bars tell.
        size: Width in inches, and height of each row.
    """
    rows = figures["rows"]
    drawing = new_drawing(size[0], 1 + size[1] * len(rows))
    axes = drawing.subplots()
    series = {title: [row.get(key) for row in rows] for title, key in columns.items()}
    draw_bars(axes, [row[name] for row in rows], series)
    axes.set_xlabel(f"{label} (less is better)")
    axes.set_title(figures["machine"]["adapter"])
    save_drawing(drawing, path, dpi=120)


def save_drawing(drawing: Any, path: Path, **options: Any) -> None:
    """Write a figure; what `path` ends in says in which format."""
    path.parent.mkdir(parents=True, exist_ok=True)
    drawing.savefig(path, **options)

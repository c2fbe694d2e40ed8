"""Models and operators on a CPU: our engines, ONNX Runtime and OpenVINO called directly, pywebnn.

    python -m benchmarks cpu [--cases relu resnet50] [--rounds 9] [--json FILE] [--plot FILE]
    python -m benchmarks cpu --from-json FILE --plot FILE       # draw it elsewhere

Milliseconds of a run, medians; ratios to ONNX Runtime are medians of the rounds' ratios. All peers
run the same ONNX model, in turn. A turn begins when no thread of the one before spins any more,
with a run that is not counted, and then has several. Results are compared. `build` is from a
model's bytes to what can run, by ONNX Runtime and by the engine that `auto` stands for, each time
in a process of its own.
"""

from __future__ import annotations

import argparse
import functools
import os
import statistics
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import report
from benchmarks.cases import CASES
from benchmarks.cpu_builds import builds
from benchmarks.cpu_peers import ORT, Run, case, compared_case, peers
from webnn_py.engines.registry import default_engine

Array = np.ndarray[Any, Any]
MOST_BUILDS = 5


def measure(name: str, rounds: int, threads: int | None, reference: bool) -> report.Figures:
    """One row: milliseconds, ratios and build times by peer; None where a peer fails."""
    given, compared = case(name), compared_case(name)
    runs: dict[str, Run] = {}
    row: report.Figures = {"case": name, "ms": {}, "ratio": {}, "build": {}, "failed": {}}
    wanted: Array | None = None
    built = [ORT, default_engine()]
    row["build"] = builds(given, built, threads, min(rounds, MOST_BUILDS))
    for peer, load in peers(reference)[0].items():
        try:
            got = load(compared, threads)()
            run = load(given, threads)
            wanted = got if wanted is None else wanted
            apart = float(np.abs(got - wanted).max() / np.abs(wanted).max())
        except Exception as error:  # whatever a peer raises
            row["failed"][peer] = f"{type(error).__name__}: {error}"[:200]
            continue
        if apart <= 1e-2:
            runs[peer] = run
        else:
            row["failed"][peer] = f"its result is {apart:.2g} apart"
    taken = report.interleaved(
        {peer: functools.partial(report.turn, run) for peer, run in runs.items()}, rounds
    )
    counted = {peer: [seconds for _, seconds in turns] for peer, turns in taken.items()}
    for peer, seconds in counted.items():
        row["ms"][peer] = statistics.median(seconds) * 1e3
        row["ratio"][peer] = report.ratio(seconds, counted[ORT])
    return row


def tables(figures: report.Figures) -> report.Tables:
    """Milliseconds, ratios, and what builds take."""
    rows = figures["rows"]
    names = list(dict.fromkeys(peer for row in rows for peer in row["ms"]))
    made: list[tuple[str, list[str], list[list[object]]]] = [
        (title, ["case", *names], [[r["case"], *(r[key].get(n) for n in names)] for r in rows])
        for title, key in (("milliseconds", "ms"), (f"ratio to {ORT}", "ratio"))
    ]
    built = list(dict.fromkeys(peer for row in rows for peer in row["build"]))
    title = "milliseconds to build: the median, least and most, and its ratio"
    made.append((title, ["case", *built, "ratio"], [_builds_of(row, built) for row in rows]))
    failed = [
        f"{row['case']}, {peer}: {why}" for row in rows for peer, why in row["failed"].items()
    ]
    return made, failed + figures["notes"]


def _builds_of(row: report.Figures, names: list[str]) -> list[object]:
    taken = [row["build"][name] for name in names]
    texts = [f"{statistics.median(ms):,.0f} ({min(ms):,.0f} to {max(ms):,.0f})" for ms in taken]
    return [row["case"], *texts, report.ratio(taken[-1], taken[0])]


def plot(figures: report.Figures, path: Path) -> None:
    """Draw the ratios; what `path` ends in says in which format."""
    rows = figures["rows"]
    names = [n for n in dict.fromkeys(n for row in rows for n in row["ratio"]) if n != ORT]
    drawing = report.new_drawing(8, 0.6 + 0.5 * len(rows))
    axes = drawing.add_subplot()
    axes.axvline(1, color="black", linewidth=1)
    ratios = {name: [row["ratio"].get(name) for row in rows] for name in names}
    report.draw_bars(axes, [row["case"] for row in rows], ratios)
    axes.set_xlabel("time, as a multiple of ONNX Runtime's called directly (less is better)")
    axes.set_title(f"{figures['machine']['cores']} cores")
    report.save_drawing(drawing, path, dpi=120)


def main(arguments: list[str] | None = None) -> report.Figures:
    """Measure or read, print, write, draw."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--cases", nargs="+", default=list(CASES), metavar="CASE", choices=CASES)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--threads", type=int, help="of each run; else as many as each takes")
    parser.add_argument("--reference", action="store_true", help="the reference engine, too")
    report.add_figure_options(parser, "the ratios")
    options = parser.parse_args(arguments)

    def measured() -> report.Figures:
        os.environ["WEBNN_CACHE"] = "0"  # what `fastest` found before, it found of other code
        notes = peers(options.reference)[1]
        rows = []
        for name in options.cases:
            rows.append(measure(name, options.rounds, options.threads, options.reference))
            print(name, {k: round(v, 3) for k, v in rows[-1]["ratio"].items()}, flush=True)
        return {
            "machine": report.machine(),
            "threads": options.threads,
            "notes": notes,
            "rows": rows,
        }

    return report.measured_or_read(options, measured, tables, plot)


if __name__ == "__main__":
    main()

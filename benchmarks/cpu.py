"""Models and operators on a CPU: our engines, ONNX Runtime and OpenVINO called directly, pywebnn.

    python -m benchmarks cpu [--cases relu resnet50] [--rounds 9] [--json FILE] [--plot FILE]
    python -m benchmarks cpu --from-json FILE --plot FILE       # draw it elsewhere

Milliseconds of a run, medians; ratios to ONNX Runtime are medians of the rounds' ratios. All peers
run the same ONNX model, in turn. A turn begins when no thread of the one before spins any more,
with a run that is not counted, and then has several. Results are compared. `build` is from the
model in memory to what can run, `fastest` with its measurements.
"""

from __future__ import annotations

import argparse
import functools
import statistics
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from benchmarks.cpu_peers import ORT, Run, peers
from benchmarks.models import ENCODER, LIGHT, model
from benchmarks.report import (
    Figures,
    add_figure_options,
    interleaved,
    machine,
    measured_or_read,
    new_drawing,
    ratio,
    save_drawing,
    show,
)
from webnn_py import MLGraphBuilder, MLOperand, ml
from webnn_py.engines.profile import wait_for_threads
from webnn_py.onnx import to_onnx

Array = np.ndarray[Any, Any]
SECONDS = 0.03
"""Of one peer's turn, about; but at least two runs."""
MOST_RUNS = 200


def built(record: Callable[[MLGraphBuilder], MLOperand]) -> onnx.ModelProto:
    """A graph as a model."""
    with ml.create_context_sync(engine="reference") as context:
        b = MLGraphBuilder(context)
        return to_onnx(b.build_sync({"y": record(b)}))


def floats(b: MLGraphBuilder, *shape: int) -> MLOperand:
    return b.constant(np.random.default_rng(0).normal(0, 0.1, shape).astype(np.float32))


OPERATORS: dict[str, Callable[[MLGraphBuilder], MLOperand]] = {
    "relu, 4 floats": lambda b: b.relu(b.input("x", "float32", [4])),
    "softmax 64x1024": lambda b: b.softmax(b.input("x", "float32", [64, 1024]), 1),
    "layer norm 512x768": lambda b: b.layer_normalization(
        b.input("x", "float32", [512, 768]), scale=floats(b, 768), bias=floats(b, 768), axes=[1]
    ),
    "conv 3x3 64, 56x56": lambda b: b.conv2d(
        b.input("x", "float32", [1, 64, 56, 56]), floats(b, 64, 64, 3, 3), padding=[1, 1, 1, 1]
    ),
    "depthwise 3x3 144, 56x56": lambda b: b.conv2d(
        b.input("x", "float32", [1, 144, 56, 56]),
        floats(b, 144, 1, 3, 3),
        padding=[1, 1, 1, 1],
        groups=144,
    ),
    "matmul 1024": lambda b: b.matmul(b.input("x", "float32", [1024, 1024]), floats(b, 1024, 1024)),
}
CASES: dict[str, Callable[[], onnx.ModelProto]] = {
    **{name: functools.partial(built, record) for name, record in OPERATORS.items()},
    **{name: functools.partial(model, name) for name in (ENCODER, *LIGHT)},
}


def turn(run: Run) -> float:
    """Seconds of a run, the median of a turn's."""
    wait_for_threads()
    run()
    times: list[float] = []
    end = time.perf_counter() + SECONDS
    while len(times) < 2 or (time.perf_counter() < end and len(times) < MOST_RUNS):
        begin = time.perf_counter()
        run()
        times.append(time.perf_counter() - begin)
    return statistics.median(times)


def measure(name: str, rounds: int, threads: int | None, reference: bool) -> Figures:
    """One row: milliseconds, ratios and build times by peer; None where a peer fails."""
    given = CASES[name]()
    runs: dict[str, Run] = {}
    row: Figures = {"case": name, "ms": {}, "ratio": {}, "build": {}, "failed": {}}
    wanted: Array | None = None
    for peer, load in peers(reference)[0].items():
        begin = time.perf_counter()
        try:
            run = load(given, threads)
            row["build"][peer] = (time.perf_counter() - begin) * 1e3
            got = run()
            wanted = got if wanted is None else wanted
            apart = float(np.abs(got - wanted).max() / np.abs(wanted).max())
        except Exception as error:  # whatever a peer raises
            row["failed"][peer] = f"{type(error).__name__}: {error}"[:200]
            continue
        if apart < 1e-2:
            runs[peer] = run
        else:
            row["failed"][peer] = f"its result is {apart:.2g} apart"
    taken = interleaved({peer: functools.partial(turn, run) for peer, run in runs.items()}, rounds)
    for peer, seconds in taken.items():
        row["ms"][peer] = statistics.median(seconds) * 1e3
        row["ratio"][peer] = ratio(seconds, taken[ORT])
    return row


def report(figures: Figures) -> None:
    """Print the tables."""
    names = list(dict.fromkeys(peer for row in figures["rows"] for peer in row["build"]))
    for title, key in (
        ("milliseconds", "ms"),
        (f"ratio to {ORT}", "ratio"),
        ("milliseconds to build", "build"),
    ):
        rows = [[row["case"], *(row[key].get(n) for n in names)] for row in figures["rows"]]
        show(title, ["case", *names], rows)
    for row in figures["rows"]:
        for peer, why in row["failed"].items():
            print(f"{row['case']}, {peer}: {why}")
    print(*figures["notes"], sep="\n")


def plot(figures: Figures, path: Path) -> None:
    """Draw the ratios; what `path` ends in says in which format."""
    rows: list[Mapping[str, Any]] = figures["rows"]
    names = [n for n in dict.fromkeys(n for row in rows for n in row["ratio"]) if n != ORT]
    drawing = new_drawing(8, 0.6 + 0.5 * len(rows))
    axes = drawing.add_subplot()
    height = 0.8 / max(len(names), 1)
    for number, name in enumerate(names):
        places = [place + (number + 0.5) * height - 0.4 for place in range(len(rows))]
        axes.barh(places, [row["ratio"].get(name, 0) for row in rows], height, label=name)
    axes.axvline(1, color="black", linewidth=1)
    axes.set_xscale("log")
    axes.set_yticks(range(len(rows)), [row["case"] for row in rows])
    axes.invert_yaxis()
    axes.set_xlabel("time, as a multiple of ONNX Runtime's called directly (less is better)")
    axes.set_title(f"{figures['machine']['cores']} cores")
    axes.legend()
    save_drawing(drawing, path, dpi=120)


def main(arguments: list[str] | None = None) -> Figures:
    """Measure or read, print, write, draw."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--cases", nargs="+", default=list(CASES), metavar="CASE", choices=CASES)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--threads", type=int, help="of each run; else as many as each takes")
    parser.add_argument("--reference", action="store_true", help="the reference engine, too")
    add_figure_options(parser, "the ratios")
    options = parser.parse_args(arguments)

    def measured() -> Figures:
        notes = peers(options.reference)[1]
        rows = []
        for name in options.cases:
            rows.append(measure(name, options.rounds, options.threads, options.reference))
            print(name, {k: round(v, 3) for k, v in rows[-1]["ratio"].items()}, flush=True)
        return {"machine": machine(), "threads": options.threads, "notes": notes, "rows": rows}

    return measured_or_read(options, measured, report, plot)


if __name__ == "__main__":
    main()

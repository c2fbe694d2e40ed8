"""One graph, run by several threads at once: how many times as many runs as by one thread.

    python -m benchmarks threads [--cases squeezenet encoder12] [--threads 2] [--rounds 7]

Each run is computed by one thread (`engine_options={"threads": 1}`): with as many cores as threads,
the best is as many times as many. ONNX Runtime called directly shows what the machine gives.
"""

from __future__ import annotations

import argparse
import functools
import statistics
import threading
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks.cases import CASES
from benchmarks.cpu_peers import ORT, Load, Run, case, installed, load_onnxruntime, ours
from benchmarks.report import Figures, interleaved, machine, show, write_json
from webnn_py.engines.profile import wait_for_threads

SECONDS = 0.3
"""Of a turn of one peer, about."""


def runs_a_second(run: Run, threads: int) -> float:
    """By so many threads together."""
    counts = [0] * threads
    begin = threading.Barrier(threads)
    spans: list[tuple[float, float]] = []

    def work(number: int) -> None:
        run()  # what is made once for each thread
        begin.wait()
        first = time.perf_counter()
        while time.perf_counter() - first < SECONDS or not counts[number]:
            run()
            counts[number] += 1
        spans.append((first, time.perf_counter()))

    workers = [threading.Thread(target=work, args=(number,)) for number in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    first, last = min(first for first, _ in spans), max(last for _, last in spans)
    return sum(counts) / (last - first)


def turn(run: Run, threads: int) -> tuple[float, float]:
    """Runs a second by one thread, and by several."""
    wait_for_threads()
    return runs_a_second(run, 1), runs_a_second(run, threads)


def peers() -> dict[str, Load]:
    """Those whose runs may be called by several threads."""
    return {ORT: load_onnxruntime} | {name: ours(name) for name in installed()}


def measure(name: str, threads: int, rounds: int) -> Figures:
    """One row: by peer, runs a second by one thread, and the gain by several."""
    given = case(name)
    turns: dict[str, Callable[[], tuple[float, float]]] = {
        peer: functools.partial(turn, load(given, 1), threads) for peer, load in peers().items()
    }
    taken = interleaved(turns, rounds)
    return {
        "case": name,
        "alone": {p: statistics.median(one for one, _ in found) for p, found in taken.items()},
        "gain": {p: statistics.median(b / a for a, b in found) for p, found in taken.items()},
    }


def main(arguments: list[str] | None = None) -> Figures:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--cases", nargs="+", default=list(CASES), metavar="CASE", choices=CASES)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--json", type=Path, help="write the figures there")
    options = parser.parse_args(arguments)
    rows = [measure(name, options.threads, options.rounds) for name in options.cases]
    names = list(peers())
    for title, key in (
        ("runs a second, one thread", "alone"),
        (f"times as many by {options.threads} threads", "gain"),
    ):
        show(title, ["case", *names], [[r["case"], *(r[key][n] for n in names)] for r in rows])
    figures: Figures = {"machine": machine(), "threads": options.threads, "rows": rows}
    write_json(options.json, figures)
    return figures


if __name__ == "__main__":
    main()

"""Language models: milliseconds a token, of our engines and of others, and what many clients get.

    python -m benchmarks language [--models smollm2 smollm2-int4 15M-int4] [--filled 64 2000]
        [--engines onnxruntime openvino] [--threads 1] [--cpu-time] [--json FILE]

Each step reads one token behind a text of so many tokens, in a cache of 2,048, and takes the most
likely next one; all peers take turns in one process. Then, of engine `onnxruntime` alone: tokens a
second of four clients against one, and the event loop's longest stall meanwhile; and in a process
each, the time until the first token and the memory, against ONNX Runtime's.
"""

from __future__ import annotations

import argparse
import asyncio
import functools
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import report
from benchmarks.async_latency import stall
from benchmarks.language_models import LENGTH, folder_of
from benchmarks.language_peers import LLAMA, ORT, OnnxRuntime, Ours, peers
from benchmarks.language_tokens import resident_mb
from webnn_py import MLDecoder
from webnn_py.engines.profile import wait_for_threads

MODELS = ("smollm2", "smollm2-int4", "15M", "15M-int4")
JOINED = 4
"""Number of simultaneous clients."""
STEPS = 4
"""Steps of a peer's turn."""
TOKENS = 24
"""Tokens that each client generates."""


def text(vocabulary: int, count: int) -> list[int]:
    """Token ids that stand for a text."""
    return [int(token) for token in np.random.default_rng(count).integers(3, vocabulary, count)]


def steps(
    name: str, filled: int, options: argparse.Namespace, clock: report.Clock
) -> report.Figures:
    """One row: milliseconds a token by peer."""
    path, _ = folder_of(name)
    made, notes = peers(name, path, options.threads, options.engines)
    row: report.Figures = {"model": name, "filled": filled, "ms": {}, "ratio": {}, "notes": notes}
    ours = [peer for peer in made.values() if isinstance(peer, Ours)]
    ids = text(ours[0].decoder.vocabulary, filled)
    for peer in made.values():
        peer.fill(ids)
    tokens = {key: peer.step() for key, peer in made.items() if key != LLAMA}
    row["notes"] += [
        f"{name}: {key} takes token {token}, ONNX Runtime {tokens[ORT]}"
        for key, token in tokens.items()
        if token != tokens[ORT]
    ]

    def turn(peer: Any) -> float:
        wait_for_threads()
        peer.step()
        begun = clock()
        for _ in range(STEPS):
            peer.step()
        return (clock() - begun) / STEPS

    turns = {key: functools.partial(turn, peer) for key, peer in made.items()}
    taken = report.interleaved(turns, options.rounds)
    for key, seconds in taken.items():
        row["ms"][key] = statistics.median(seconds) * 1e3
        row["ratio"][key] = report.ratio(seconds, taken[ORT])
    for peer in ours:
        peer.close()
        peer.decoder.destroy()
        peer.context.destroy()
    return row


async def clients(decoder: MLDecoder, ids: list[int], count: int) -> None:
    """Generate for so many clients at once."""

    async def client() -> None:
        async for _ in decoder.generate(ids, max_tokens=TOKENS):
            pass

    await asyncio.gather(*(client() for _ in range(count)))


async def in_thread(peer: OnnxRuntime) -> None:
    """Have a thread take as many steps as one client."""
    for _ in range(TOKENS):
        await asyncio.to_thread(peer.step)


def joined(name: str, options: argparse.Namespace, clock: report.Clock) -> report.Figures:
    """One row: tokens a second of one and of four clients, and the event loop's longest stall."""
    path, _ = folder_of(name)
    peer = Ours(path, options.engines[0], options.threads)
    ids = text(peer.decoder.vocabulary, 16)
    other = OnnxRuntime(path, options.threads)
    other.fill(ids)
    stalls: list[float] = []
    others: list[float] = []
    idle: list[float] = []

    def turn(count: int) -> float:
        begun = clock()
        _, seconds, longest = asyncio.run(_stalled(clients(peer.decoder, ids, count)))
        rate = count * TOKENS / (clock() - begun)
        stalls.append(longest * 1e3)
        others.append(1e3 * asyncio.run(_stalled(in_thread(other)))[2])
        idle.append(1e3 * asyncio.run(_stalled(asyncio.sleep(seconds)))[2])
        return rate

    for count in (1, JOINED):
        turn(count)
    for times in (stalls, others, idle):
        times.clear()
    rates = report.interleaved(
        {count: functools.partial(turn, count) for count in (1, JOINED)}, options.rounds
    )
    return {
        "model": name,
        "one": statistics.median(rates[1]),
        "four": statistics.median(rates[JOINED]),
        "gain": report.ratio(rates[JOINED], rates[1]),
        "stall, ms": statistics.median(stalls),
        "of ONNX Runtime in a thread, ms": statistics.median(others),
        "of an idle loop, ms": statistics.median(idle),
    }


async def _stalled(work: Coroutine[Any, Any, None]) -> tuple[None, float, float]:
    return await stall(work)


def load(peer: str, name: str, threads: int | None) -> None:
    """Print the seconds until a first token, and the memory; in a process of its own."""
    path, _ = folder_of(name)
    import onnxruntime  # noqa: F401  # which all peers use

    import webnn_py.onnx.decoder_import  # noqa: F401

    before, begun, used = resident_mb(), time.perf_counter(), time.process_time()
    one = OnnxRuntime(path, threads) if peer == ORT else Ours(path, peer, threads)
    one.fill([5])
    seconds, processor = time.perf_counter() - begun, time.process_time() - used
    for _ in range(8):
        one.step()
    print(json.dumps({"s": seconds, "cpu s": processor, "MB": resident_mb() - before}))


def loads(name: str, options: argparse.Namespace) -> report.Figures:
    """One row: time until the first token, and memory, of ours and of ONNX Runtime."""
    folder_of(name)
    key = "cpu s" if options.cpu_time else "s"
    row: report.Figures = {"model": name}

    def measured(peer: str) -> report.Figures:
        command = [sys.executable, "-m", "benchmarks.language", "--load", peer, "--models", name]
        command += ["--threads", str(options.threads)] if options.threads else []
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        found: report.Figures = json.loads(done.stdout.splitlines()[-1])
        return found

    ends = (ORT, options.engines[0])
    taken = report.interleaved({peer: functools.partial(measured, peer) for peer in ends}, 3)
    for unit in (key, "MB"):
        values = {peer: [one[unit] for one in taken[peer]] for peer in ends}
        row |= {f"{peer}, {unit}": statistics.median(values[peer]) for peer in ends}
        row[f"{unit}, ratio"] = report.ratio(values[ends[1]], values[ORT])
    return row


def tables(figures: report.Figures) -> report.Tables:
    """All tables."""
    made: list[tuple[str, list[str], list[list[object]]]] = []
    rows = figures["steps"]
    names = list(dict.fromkeys(key for row in rows for key in row["ms"]))
    for title, key in (("milliseconds a token", "ms"), (f"ratio to {ORT}", "ratio")):
        cells = [[r["model"], r["filled"], *(r[key].get(n) for n in names)] for r in rows]
        made.append((title, ["model", "text", *names], cells))
    for title, key in (("clients", "joined"), ("loading", "loads")):
        if figures[key]:
            columns = list(figures[key][0])
            made.append((title, columns, [list(row.values()) for row in figures[key]]))
    notes = [note for row in rows for note in row["notes"]]
    return made, list(dict.fromkeys([*notes, *figures["notes"]]))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--models", nargs="+", default=list(MODELS), choices=MODELS)
    parser.add_argument("--filled", nargs="+", type=int, default=[64, LENGTH - 48])
    parser.add_argument("--engines", nargs="+", default=["onnxruntime", "openvino"])
    parser.add_argument("--threads", type=int)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--cpu-time", action="store_true", help="processor time, on busy machines")
    parser.add_argument("--load", metavar="PEER", help=argparse.SUPPRESS)
    report.add_figure_options(parser, "the ratios")
    options = parser.parse_args()
    if options.load:
        load(options.load, options.models[0], options.threads)
        return
    clock = time.process_time if options.cpu_time else time.perf_counter
    notes = ["processor time"] if options.cpu_time else []

    def measured() -> report.Figures:
        return {
            "machine": report.machine(),
            "threads": options.threads,
            "notes": notes,
            "steps": [steps(m, n, options, clock) for m in options.models for n in options.filled],
            "joined": [joined(name, options, clock) for name in options.models],
            "loads": [loads(name, options) for name in options.models],
        }

    report.measured_or_read(options, measured, tables, plot)


def plot(figures: report.Figures, path: Path) -> None:
    """Draw the ratios; what `path` ends in says in which format."""
    rows = figures["steps"]
    names = [n for n in dict.fromkeys(n for row in rows for n in row["ratio"]) if n != ORT]
    drawing = report.new_drawing(8, 0.6 + 0.5 * len(rows))
    axes = drawing.add_subplot()
    axes.axvline(1, color="black", linewidth=1)
    ratios = {name: [row["ratio"].get(name) for row in rows] for name in names}
    report.draw_bars(axes, [f"{row['model']}, {row['filled']}" for row in rows], ratios)
    axes.set_xlabel("time a token, as a multiple of ONNX Runtime's (less is better)")
    report.save_drawing(drawing, path, dpi=120)


if __name__ == "__main__":
    main()

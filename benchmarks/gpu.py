"""Models on a GPU: awaited, recorded, in float16; what else runs them beside.

    python -m benchmarks gpu [--models squeezenet resnet50] [--runs 9] [--json FILE] [--plot FILE]
    python -m benchmarks gpu --from-json FILE --markdown FILE --plot FILE

Milliseconds, medians. All take turns of several runs; the first of a turn, behind other peers', is
told apart. `await` uploads, runs and reads back, `call` does so with tensors on the thread that
waits; `GPU` is one dispatch of many in a recording, by timestamps. ONNX Runtime is measured where
the package onnxruntime-webgpu is installed in the place of onnxruntime, wonnx where it is
installed, PyTorch where it has a CUDA device: as a CUDA graph that is replayed, without tf32.
Before that, each computes the model's logits, the values before its last softmax. A second table
has their largest error, as a part of the largest value, from what a CPU context computes. What
models take to start: `gpu_builds`.
"""

from __future__ import annotations

import argparse
import asyncio
import copy
import functools
import statistics
import time
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import numpy as np
import onnx

import webnn_py.onnx
from benchmarks import report
from benchmarks.cases import CASES, OPERATORS, built
from benchmarks.gpu_peers import PEERS, Array, Arrays, CudaGraph, by_torch, missing_torch
from benchmarks.graph_matmul import open_device, stamp, stamped_seconds
from benchmarks.models import ENCODER, LIGHT, half, inputs_of, logits
from webnn_py import (
    MLAwaitedExecution,
    MLCommandEncoder,
    MLContext,
    MLExecution,
    MLGraph,
    ml,
)
from webnn_py.engines.profile import until_steady

MOST_RECORDED = 20
"""Dispatches in a recording."""
SECONDS = 0.1
"""Of GPU time in a recording, about; but at least one dispatch."""
ROUNDS = 5
"""Of recordings."""
WAKE = 0.1
"""Seconds of runs that do not count, by which a GPU's clock is up: of awaits in each turn."""
LARGE = {"": 0.01, "16": 0.1}
"""Errors, as a part of the largest value, that are no matter of rounding; in float16 behind it."""
PRODUCT, SIDE = "matmul 4096", 4096
MODELS: dict[str, Callable[[], onnx.ModelProto]] = CASES | {
    PRODUCT: lambda: built(
        lambda b: b.matmul(*(b.input(name, "float32", [SIDE, SIDE]) for name in "xy"))
    )
}
COLUMNS = {
    "ORT await": "ort",
    "wonnx": "wonnx",
    "await": "await",
    "call": "call",
    "ORT first": "first_ort",
    "await first": "first_await",
    "GPU": "gpu",
    "CUDA graph": "cuda",
    "await f16": "await16",
    "GPU f16": "gpu16",
    "CUDA f16": "cuda16",
}
"""Titles, and keys of the rows' figures."""
ERRORS = {
    "ORT": "ort",
    "wonnx": "wonnx",
    "webnn_py": "await",
    "CUDA": "cuda",
    "webnn_py f16": "await16",
    "CUDA f16": "cuda16",
}
"""Titles, and keys of the rows' errors."""


class Recorded:
    """A graph that is recorded again and again, with tensors of its own."""

    def __init__(self, context: MLContext, graph: MLGraph, inputs: Arrays) -> None:
        self._context, self._graph = context, graph
        self._given, self._made = {}, {}
        for name, descriptor in graph.inputs.items():
            self._given[name] = context.create_tensor_sync(descriptor, writable=True)
            context.write_tensor(self._given[name], inputs[name])
        for name, descriptor in graph.outputs.items():
            self._made[name] = context.create_tensor_sync(descriptor, readable=True)
        self._queries = context.device.create_query_set(type="timestamp", count=2)

    def seconds(self, count: int) -> float:
        """GPU time that one dispatch of `count` in a recording takes."""
        device = self._context.device
        commands = device.create_command_encoder()
        recorder = MLCommandEncoder(self._context, encoder=commands)
        stamp(commands, self._queries, 0)
        for _ in range(count):
            recorder.dispatch(self._graph, self._given, self._made)
        stamp(commands, self._queries, 1)
        return stamped_seconds(device, commands, self._queries) / count

    def results(self) -> Arrays:
        """All outputs."""
        self._context.dispatch(self._graph, self._given, self._made)
        return {name: self._context.read_tensor_sync(made) for name, made in self._made.items()}


def called(context: MLContext, graph: MLGraph, inputs: Arrays) -> Callable[[], Array]:
    """Runs a graph from arrays to an array, on the thread that waits."""
    given = {n: context.create_tensor_sync(d, writable=True) for n, d in graph.inputs.items()}
    made = {n: context.create_tensor_sync(d, readable=True) for n, d in graph.outputs.items()}

    def call() -> Array:
        for name, tensor in given.items():
            context.write_tensor(tensor, inputs[name])
        context.dispatch(graph, given, made)
        return next(context.read_tensor_sync(tensor) for tensor in made.values())

    return call


def recorded_times(cases: dict[str, Recorded | CudaGraph]) -> report.Figures:
    """Milliseconds of GPU time by case, with the GPU awake."""

    def count_in(once: float) -> int:
        return max(1, min(MOST_RECORDED, int(SECONDS / max(once, 1e-6))))

    def one(case: Recorded | CudaGraph) -> float:
        once, awake = case.seconds(1), time.perf_counter() + WAKE
        while time.perf_counter() < awake:
            once = case.seconds(1)
        return case.seconds(count_in(once))

    first = next(iter(cases.values()))
    until_steady(functools.partial(first.seconds, count_in(first.seconds(1))))
    taken = report.interleaved(
        {key: functools.partial(one, case) for key, case in cases.items()}, ROUNDS
    )
    return {key: statistics.median(seconds) * 1e3 for key, seconds in taken.items()}


def awaited_times(
    cases: dict[str, Callable[[], Any]], turns: int, clock: report.Clock = time.perf_counter
) -> report.Figures:
    """Milliseconds by case, and those of the first run of a turn."""
    for case in cases.values():
        case()
    works = {key: functools.partial(report.turn, case, clock, WAKE) for key, case in cases.items()}
    figures: report.Figures = {}
    for key, taken in report.interleaved(works, turns).items():
        first, later = (statistics.median(seconds) * 1e3 for seconds in zip(*taken, strict=True))
        figures |= {key: later, f"first_{key}": first}
    return figures


def apart(got: Array, expected: Array) -> float:
    """The largest difference, as a part of the largest value."""
    difference = np.abs(got.astype(np.float64) - expected).max()
    return float(difference / np.abs(expected).max())


def _first(cpu: MLContext, model: onnx.ModelProto, inputs: Arrays) -> Array:
    """The first output of a model on a CPU context."""
    graph = webnn_py.onnx.load(model, cpu)
    return next(iter(MLExecution(cpu).compute(graph, inputs).values()))


class Row:
    """The measuring of one model; `figures` has what is known so far."""

    def __init__(
        self, context: MLContext, name: str, runs: int, clock: report.Clock = time.perf_counter
    ) -> None:
        self.figures: report.Figures = {"model": name, "failed": {}, "errors": {}}
        self._context, self._runs, self._clock = context, runs, clock
        self._models = {"": MODELS[name]()}
        self._models["16"] = half(copy.deepcopy(self._models[""]))
        self._compared = {kind: logits(model) for kind, model in self._models.items()}
        self._inputs = {kind: inputs_of(model) for kind, model in self._models.items()}
        with ml.create_context_sync(device_type="cpu") as cpu:
            self._expected = {
                kind: _first(cpu, model, self._inputs[kind])
                for kind, model in self._compared.items()
            }

    def measure(self, peers: Collection[str], torch: bool) -> None:
        """Everything, with these of PEERS, and PyTorch."""
        execution, loop = MLAwaitedExecution(self._context), asyncio.new_event_loop()

        def awaited(graph: MLGraph, inputs: Arrays) -> Array:
            results = loop.run_until_complete(execution.compute(graph, inputs))
            return next(iter(results.values()))

        recordings: dict[str, Recorded | CudaGraph] = {}
        awaits: dict[str, Callable[[], Array]] = {}
        for kind, model in self._models.items():
            inputs = self._inputs[kind]
            graph = webnn_py.onnx.load(model, self._context)
            compared = webnn_py.onnx.load(self._compared[kind], self._context)
            self._compare(f"await{kind}", kind, awaited(compared, inputs))
            compared.destroy()
            awaits[f"await{kind}"] = functools.partial(awaited, graph, inputs)
            recordings[f"gpu{kind}"] = Recorded(self._context, graph, inputs)
            if not kind:
                awaits["call"] = called(self._context, graph, inputs)
                sessions = {peer: self._session(peer) for peer in peers}
                awaits |= {peer: session for peer, session in sessions.items() if session}
            if torch and (replayed := self._torch(kind)):
                recordings[f"cuda{kind}"] = replayed
        self.figures |= recorded_times(recordings)
        self.figures |= awaited_times(awaits, self._runs, self._clock)
        loop.close()

    def _session(self, peer: str) -> Callable[[], Array] | None:
        _, load = PEERS[peer]
        try:
            self._compare(peer, "", load(self._compared[""], self._inputs[""])())
            return load(self._models[""], self._inputs[""])
        except Exception as error:  # whatever it raises
            self._fails(peer, error)
            return None

    def _torch(self, kind: str) -> CudaGraph | None:
        inputs = self._inputs[kind]
        try:
            compared = CudaGraph(by_torch(self._compared[kind]), inputs)
            self._compare(f"cuda{kind}", kind, compared.result())
            return CudaGraph(by_torch(self._models[kind]), inputs)
        except Exception as error:  # whatever it raises
            self._fails(f"cuda{kind}", error)
            return None

    def _compare(self, who: str, kind: str, got: Array) -> None:
        """Note a contender's error, and whether it is too large."""
        expected = self._expected[kind]
        error = apart(got.reshape(expected.shape), expected.astype(np.float64))
        self.figures["errors"][who] = error
        if not error <= LARGE[kind]:
            self.figures["failed"][who] = f"WRONG: its logits are off by {error:.2g}"

    def _fails(self, peer: str, error: Exception) -> None:
        self.figures["failed"][peer] = f"{type(error).__name__}: {error}"[:200]


def tables(figures: report.Figures) -> report.Tables:
    """Milliseconds and errors by model, and TFLOP/s of the product."""
    rows = figures["rows"]
    lines = [[row["model"], *(row.get(key) for key in COLUMNS.values())] for row in rows]
    title = f"milliseconds, {figures['machine']['adapter']}"
    notes = list(figures["notes"])
    for row in rows:
        notes += [f"{row['model']}, {peer}: {why}" for peer, why in row["failed"].items()]
        if row["model"] == PRODUCT:
            rates = {
                name: 2 * SIDE**3 / row[key] / 1e9
                for name, key in COLUMNS.items()
                if key.startswith(("gpu", "cuda")) and key in row
            }
            told = ", ".join(f"{name} {rate:.1f}" for name, rate in rates.items())
            notes.append(f"{PRODUCT}, TFLOP/s: {told}")
    off = [
        [row["model"], *(_error(row, who) for who in ERRORS.values())]
        for row in rows
        if row.get("errors")
    ]
    errors = ("largest error of the logits, of the largest value", ["model", *ERRORS], off)
    return [(title, ["model", *COLUMNS], lines), *([errors] if off else [])], notes


def _error(row: report.Figures, who: str) -> str | None:
    """A contender's error, for the table."""
    error = row["errors"].get(who)
    wrong = " WRONG" if row["failed"].get(who, "").startswith("WRONG") else ""
    return None if error is None else f"{error:.1e}{wrong}"


def plot(figures: report.Figures, path: Path) -> None:
    """Draw what is awaited, and GPU time; what `path` ends in says in which format."""
    rows = figures["rows"]
    drawing = report.new_drawing(11, 1 + 0.6 * len(rows))
    panels = {
        "awaited: upload, run, readback": ("ort", "wonnx", "await", "await16"),
        "GPU time": ("cuda", "gpu", "cuda16", "gpu16"),
    }
    names = {key: name for name, key in COLUMNS.items()}
    for axes, (title, keys) in zip(drawing.subplots(1, 2), panels.items(), strict=True):
        series = {names[key]: [row.get(key) for row in rows] for key in keys}
        report.draw_bars(axes, [row["model"] for row in rows], series)
        axes.set_xlabel("milliseconds (less is better)")
        axes.set_title(title)
    drawing.suptitle(figures["machine"]["adapter"])
    report.save_drawing(drawing, path, dpi=120)


def main(arguments: list[str] | None = None) -> report.Figures:
    """Measure or read, print, write, draw."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    default = [*LIGHT, ENCODER, PRODUCT]
    parser.add_argument("--models", nargs="+", default=default, metavar="MODEL", choices=MODELS)
    parser.add_argument("--operators", action="store_true", help="single operators, too")
    parser.add_argument("--runs", type=int, default=9, help="turns of each, of several runs")
    parser.add_argument(
        "--processor-time",
        action="store_true",
        help="what awaits and calls take of all cores, for software adapters",
    )
    report.add_figure_options(parser, "them")
    options = parser.parse_args(arguments)

    def measured() -> report.Figures:
        missing = {peer: why for peer, (find, _) in PEERS.items() if (why := find())}
        torch = missing_torch()
        clock = time.process_time if options.processor_time else time.perf_counter
        device = open_device()
        rows = []
        with ml.create_context_sync(device) as context:
            for name in [*(OPERATORS if options.operators else ()), *options.models]:
                row = Row(context, name, options.runs, clock)
                row.measure(PEERS.keys() - missing.keys(), torch is None)
                rows.append(row.figures)
                known = {k: round(v, 3) for k, v in row.figures.items() if isinstance(v, float)}
                print(name, known, flush=True)
        notes = [*missing.values(), *([torch] if torch else ())]
        if options.processor_time:
            notes.append("Awaits, calls, wonnx: processor time.")
        return {
            "machine": report.machine(device.adapter.info["device"]),
            "notes": notes,
            "rows": rows,
        }

    return report.measured_or_read(options, measured, tables, plot)


if __name__ == "__main__":
    main()

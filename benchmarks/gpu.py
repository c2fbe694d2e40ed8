"""Models on a GPU: awaited, recorded, in float16; what else runs them beside.

    python -m benchmarks gpu [--models squeezenet resnet50] [--all] [--json FILE] [--plot FILE]
    python -m benchmarks gpu --from-json FILE --markdown FILE --plot FILE

Milliseconds, medians. All take turns of several runs; the first of a turn, behind other peers', is
told apart. `await` uploads, runs and reads back, `call` does so with tensors on the thread that
waits; `GPU` is one dispatch of many in a recording, by timestamps. ONNX Runtime is measured where
the package onnxruntime-webgpu is installed in the place of onnxruntime, wonnx where it is
installed, Dawn where it finds an adapter, PyTorch where it has a CUDA device: as a CUDA graph that
is replayed, with the faster order of channels. Before that, each computes the model's logits, the
values before its last softmax. A last table has their largest error, as a part of the largest
value, from what a CPU context computes in float32; from what the first of them computes where the
model is of float16. What models take to start: `gpu_builds`.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import copy
import functools
import statistics
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import onnx

import webnn_py.onnx
from benchmarks import report
from benchmarks.cases import CASES, OPERATORS, built
from benchmarks.gpu_peers import PEERS, Array, Arrays, CudaGraph, by_torch, missing_torch
from benchmarks.graph_matmul import open_device, stamp, stamped_seconds
from benchmarks.models import LIGHT, batched, half, inputs_of, light, logits
from benchmarks.networks import NETWORKS
from webnn_py import (
    MLAwaitedExecution,
    MLCommandEncoder,
    MLContext,
    MLError,
    MLExecution,
    MLGraph,
    ml,
)
from webnn_py.engines.profile import until_steady

T = TypeVar("T")
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
PRODUCTS = {f"matmul {side}": side for side in (4096, 8192)}
"""Products of squares, by name."""


def _product(side: int) -> onnx.ModelProto:
    return built(lambda b: b.matmul(*(b.input(name, "float32", [side, side]) for name in "xy")))


MODELS: dict[str, Callable[[], onnx.ModelProto]] = {
    **CASES,
    "resnet50, batch 32": lambda: batched(light("resnet50"), 32),
    "resnet50, batch 128": lambda: batched(light("resnet50"), 128),
    **NETWORKS,
    **{name: functools.partial(_product, side) for name, side in PRODUCTS.items()},
}
HEAVY = (
    "resnet50, batch 128",
    "SD 1.5 UNet, batch 2",
    "SD 1.5 VAE decoder, 512",
    "Llama 1B, prefill 512",
    "Llama 1B, prefill 2048",
    "matmul 8192",
)
"""Models that take long to make and to build."""
ROWS = [*LIGHT, "resnet50, batch 32", "resnet50, batch 128", *NETWORKS, *PRODUCTS]
OURS = {
    "gpu": ("webgpu", ""),
    "gpu16": ("webgpu", "16"),
    "medium": ("medium", ""),
    "dawn16": ("dawn", "16"),
}
"""Context, and data type of the model ("" for float32), by figure."""
AWAITS = {"gpu": "await", "gpu16": "await16", "dawn16": "dawn_await16"}
"""Figures of awaited runs, by the figure of the GPU time."""
CUDA = {"cuda": ("", False), "tf32": ("", True), "cuda16": ("16", False)}
"""Data type of a CUDA graph's model, "" for float32, and whether it may use tf32, by figure."""
Columns = dict[str, str | tuple[str, str]]
"""A figure by the title of its column, or two figures whose ratio the column shows."""
GPU_COLUMNS: Columns = {
    "f32": "gpu",
    "CUDA graph": "cuda",
    "ratio": ("gpu", "cuda"),
    "medium": "medium",
    "tf32": "tf32",
    "ratio tf32": ("medium", "tf32"),
    "f16": "gpu16",
    "Dawn f16": "dawn16",
    "CUDA f16": "cuda16",
    "ratio f16": ("dawn16", "cuda16"),
}
AWAIT_COLUMNS: Columns = {
    "ORT": "ort",
    "wonnx": "wonnx",
    "await": "await",
    "call": "call",
    "ORT first": "first_ort",
    "await first": "first_await",
    "await f16": "await16",
    "Dawn f16": "dawn_await16",
    "without the GPU": "dawn_rest16",
}
ERRORS = {
    "ORT": "ort",
    "wonnx": "wonnx",
    "f32": "gpu",
    "medium": "medium",
    "CUDA": "cuda",
    "tf32": "tf32",
    "f16": "gpu16",
    "Dawn f16": "dawn16",
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

    first = next(iter(cases.values()), None)
    if first is None:
        return {}
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


@contextlib.contextmanager
def opened() -> Iterator[tuple[dict[str, MLContext], list[str]]]:
    """Open the contexts that `OURS` names, and say which cannot be."""
    with contextlib.ExitStack() as stack:
        contexts = {"webgpu": stack.enter_context(ml.create_context_sync(open_device()))}
        notes = []
        try:
            dawn = stack.enter_context(ml.create_context_sync(device_type="gpu", engine="dawn"))
            medium = ml.create_context_sync(dawn.device, float32_precision="medium")
            contexts |= {"dawn": dawn, "medium": stack.enter_context(medium)}
        except MLError as error:
            notes.append(f"Dawn is left out: {error}")
        yield contexts, notes


class Row:
    """The measuring of one model; `figures` has what is known so far.

    Args:
        contexts: Some of those that `OURS` names.
        name: One of `MODELS`.
        runs: Turns of awaits.
        clock: What times them.
    """

    def __init__(
        self,
        contexts: Mapping[str, MLContext],
        name: str,
        runs: int,
        clock: report.Clock = time.perf_counter,
    ) -> None:
        self.figures: report.Figures = {"model": name, "failed": {}, "errors": {}}
        self._contexts, self._runs, self._clock = contexts, runs, clock
        model = MODELS[name]()
        is_half = inputs_of(model).popitem()[1].dtype == np.float16
        self._models = {"16": model if is_half else half(copy.deepcopy(model))}
        if not is_half:
            self._models[""] = model
        self._compared = {kind: logits(model) for kind, model in self._models.items()}
        self._inputs = {kind: inputs_of(model) for kind, model in self._models.items()}
        self._expected: Array | None = None
        if not is_half:
            with ml.create_context_sync(device_type="cpu") as cpu:
                self._expected = _first(cpu, self._compared[""], self._inputs[""])

    def measure(self, peers: Collection[str], torch: bool) -> None:
        """Everything, with these of PEERS, and PyTorch."""
        with contextlib.closing(asyncio.new_event_loop()) as self._loop:
            self._measure(peers, torch)

    def _measure(self, peers: Collection[str], torch: bool) -> None:
        recordings: dict[str, Recorded | CudaGraph] = {}
        awaits: dict[str, Callable[[], Array]] = {}
        for key, (kind, _) in CUDA.items() if torch else ():
            if replayed := self._attempt(key, kind, self._torch):
                recordings[key] = replayed
        for peer in peers:
            if session := self._attempt(peer, "", self._session):
                awaits[peer] = session
        for key, (place, kind) in OURS.items():
            graph = self._attempt(key, kind, self._ours) if place in self._contexts else None
            if graph is None:
                continue
            context, inputs = self._contexts[place], self._inputs[kind]
            recordings[key] = Recorded(context, graph, inputs)
            if key in AWAITS:
                awaits[AWAITS[key]] = self._awaited(context, graph, inputs)
            if key == "gpu":
                awaits["call"] = called(context, graph, inputs)
        # Awaited runs of a graph that has been recorded are submitted whole.
        self.figures |= awaited_times(awaits, self._runs, self._clock)
        self.figures |= recorded_times(recordings)
        if {"dawn16", "dawn_await16"} <= self.figures.keys():
            self.figures["dawn_rest16"] = self.figures["dawn_await16"] - self.figures["dawn16"]

    def _attempt(self, key: str, kind: str, load: Callable[[str, str], T]) -> T | None:
        """Load a contender; None if it fails, with a note, or if there is no such model."""
        try:
            return load(key, kind) if kind in self._models else None
        except Exception as error:  # whatever it raises
            self.figures["failed"][key] = f"{type(error).__name__}: {error}"[:200]
            return None

    def _awaited(self, context: MLContext, graph: MLGraph, inputs: Arrays) -> Callable[[], Array]:
        execution = MLAwaitedExecution(context)

        def run() -> Array:
            results = self._loop.run_until_complete(execution.compute(graph, inputs))
            return next(iter(results.values()))

        return run

    def _ours(self, key: str, kind: str) -> MLGraph:
        context, inputs = self._contexts[OURS[key][0]], self._inputs[kind]
        graph = compared = webnn_py.onnx.load(self._models[kind], context)
        if self._compared[kind] is not self._models[kind]:
            compared = webnn_py.onnx.load(self._compared[kind], context)
        self._compare(key, kind, self._awaited(context, compared, inputs)())
        if compared is not graph:
            compared.destroy()
        return graph

    def _session(self, peer: str, kind: str) -> Callable[[], Array]:
        _, load = PEERS[peer]
        self._compare(peer, kind, load(self._compared[kind], self._inputs[kind])())
        return load(self._models[kind], self._inputs[kind])

    def _torch(self, key: str, kind: str) -> CudaGraph:
        """Capture the model with both orders of channels; return the faster."""
        inputs, model, compared = self._inputs[kind], self._models[kind], self._compared[kind]
        _, tf32 = CUDA[key]
        has_images = any(node.op_type == "Conv" for node in model.graph.node)
        graphs = [
            CudaGraph(by_torch(model, channels_last), inputs, tf32)
            for channels_last in ((False, True) if has_images else (False,))
        ]
        best = min(graphs, key=lambda graph: min(graph.seconds(2) for _ in range(5)))
        logits = best if compared is model else CudaGraph(by_torch(compared), inputs, tf32)
        self._compare(key, kind, logits.result())
        return best

    def _compare(self, who: str, kind: str, got: Array) -> None:
        """Note a contender's error, and whether it is too large."""
        if self._expected is None:
            self._expected = got
        expected = self._expected
        error = apart(got.reshape(expected.shape), expected.astype(np.float64))
        self.figures["errors"][who] = error
        if not error <= LARGE["16" if who in ("medium", "tf32") else kind]:
            self.figures["failed"][who] = f"WRONG: its logits are off by {error:.2g}"


def _value(row: report.Figures, key: str | tuple[str, str]) -> Any:
    """A figure of a row, or the ratio of two; None where it has none."""
    if isinstance(key, str):
        return row.get(key)
    ours, theirs = map(row.get, key)
    return ours / theirs if ours and theirs else None


def _table(rows: list[report.Figures], columns: Columns) -> list[list[object]]:
    """Lines of the table, the last with the medians of all ratios."""
    lines: list[list[object]] = [
        [row["model"], *(_value(row, key) for key in columns.values())] for row in rows
    ]
    medians = [
        statistics.median(values)
        if isinstance(key, tuple) and (values := [v for row in rows if (v := _value(row, key))])
        else None
        for key in columns.values()
    ]
    return [*lines, ["median of the ratios", *medians]] if any(medians) else lines


def tables(figures: report.Figures) -> report.Tables:
    """GPU time, awaits and errors by model, and TFLOP/s of the products."""
    rows, adapter = figures["rows"], figures["machine"]["adapter"]
    notes = list(figures["notes"])
    for row in rows:
        notes += [f"{row['model']}, {peer}: {why}" for peer, why in row["failed"].items()]
        if row["model"] in PRODUCTS:
            rates = {
                name: 2 * PRODUCTS[row["model"]] ** 3 / row[key] / 1e9
                for name, key in GPU_COLUMNS.items()
                if key in row
            }
            told = ", ".join(f"{name} {rate:.1f}" for name, rate in rates.items())
            notes.append(f"{row['model']}, TFLOP/s: {told}")
    found = [
        (f"{title}, milliseconds, {adapter}", ["model", *columns], _table(rows, columns))
        for title, columns in (("GPU time", GPU_COLUMNS), ("awaits", AWAIT_COLUMNS))
    ]
    off: list[list[object]] = [
        [row["model"], *(_error(row, who) for who in ERRORS.values())]
        for row in rows
        if row.get("errors")
    ]
    errors = ("largest error of the logits, of the largest value", ["model", *ERRORS], off)
    return [*found, *([errors] if off else [])], notes


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
        "GPU time": (GPU_COLUMNS, ("cuda", "gpu", "cuda16", "dawn16")),
        "awaited: upload, run, readback": (AWAIT_COLUMNS, ("ort", "await", "dawn_await16")),
    }
    for axes, (title, (columns, keys)) in zip(drawing.subplots(1, 2), panels.items(), strict=True):
        names = {key: name for name, key in columns.items()}
        series = {names[key]: [row.get(key) for row in rows] for key in keys}
        report.draw_bars(axes, [row["model"] for row in rows], series)
        axes.set_xlabel("milliseconds (less is better)")
        axes.set_title(title)
    drawing.suptitle(figures["machine"]["adapter"])
    report.save_drawing(drawing, path, dpi=120)


def main(arguments: list[str] | None = None) -> report.Figures:
    """Measure or read, print, write, draw."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    light = [name for name in ROWS if name not in HEAVY]
    parser.add_argument("--models", nargs="+", default=light, metavar="MODEL", choices=MODELS)
    parser.add_argument(
        "--all",
        dest="models",
        action="store_const",
        const=ROWS,
        help="models that take long to make, too",
    )
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
        with opened() as (contexts, notes):
            adapter = contexts["webgpu"].device.adapter.info["device"]
            notes += [*missing.values(), *([torch] if torch else ())]
            if options.processor_time:
                notes.append("Awaits, calls, wonnx: processor time.")
            rows: list[report.Figures] = []
            figures = {"machine": report.machine(adapter), "notes": notes, "rows": rows}
            for name in [*(OPERATORS if options.operators else ()), *options.models]:
                row = Row(contexts, name, options.runs, clock)
                row.measure(PEERS.keys() - missing.keys(), torch is None)
                rows.append(row.figures)
                report.write_json(options.json, figures)  # a run that is cut short keeps its rows
                known = {k: round(v, 3) for k, v in row.figures.items() if isinstance(v, float)}
                print(name, known, flush=True)
        return figures

    return report.measured_or_read(options, measured, tables, plot)


if __name__ == "__main__":
    main()

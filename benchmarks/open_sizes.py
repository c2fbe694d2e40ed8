"""Models with open dimensions on a GPU: what a run takes for sizes that were not met before.

    python -m benchmarks open_sizes [--lengths 60] [--rest SECONDS] [--json FILE] [--plot FILE]

Milliseconds of an await, upload and readback included: of the first one for a length, and of the
median of more for the same. The encoder's lengths are drawn at random from 8 to 256; the decoder
has a token more behind it with each step. Behind the first length all may rest, as a service does
that has warmed up. The caches of drivers and of this package are off. ONNX
Runtime's WebGPU takes turns with us, where the package onnxruntime-webgpu is installed in the place
of onnxruntime.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from benchmarks import report
from benchmarks.gpu_builds import COLD
from benchmarks.gpu_peers import PROVIDER, Arrays, missing_onnxruntime
from benchmarks.graph_matmul import open_device
from benchmarks.models import decoder, encoder
from webnn_py import MLAwaitedExecution, ml
from webnn_py.onnx import load

Compute = Callable[[Arrays], Mapping[str, Any]]
MORE = 5
"""Runs for a length behind the first one."""
PERIODS = {
    "first": (0, 1),
    "second": (1, 2),
    "3 to 10": (2, 10),
    "11 to 30": (10, 30),
    "31 and more": (30, 10**9),
}
"""Which of the lengths a column tells of."""
PEERS = {"ort": "ONNX Runtime WebGPU", "ours": "await"}


def webnn(model: onnx.ModelProto) -> Compute:
    """What computes a model by this package."""
    context = ml.create_context_sync(open_device())
    execution, graph = MLAwaitedExecution(context), load(model, context)
    return lambda inputs: asyncio.run(execution.compute(graph, inputs))


def onnxruntime(model: onnx.ModelProto) -> Compute:
    """What computes it by ONNX Runtime."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=[PROVIDER, "CPUExecutionProvider"]
    )
    if PROVIDER not in session.get_providers():
        raise RuntimeError("ONNX Runtime's WebGPU takes no adapter of this machine")
    names = [value.name for value in model.graph.output]
    return lambda inputs: dict(zip(names, session.run(None, inputs), strict=True))


def inputs_at(model: onnx.ModelProto, length: int) -> Arrays:
    """Random inputs; their open dimensions are `length`."""
    rng = np.random.default_rng(length)
    shapes = {
        value.name: [d.dim_value or length for d in value.type.tensor_type.shape.dim]
        for value in model.graph.input
    }
    return {name: rng.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}


def measured(
    name: str, model: onnx.ModelProto, lengths: Iterable[int], rest: float
) -> report.Figures:
    """Milliseconds of the first and of further runs for each length, of each peer.

    Args:
        name: The model's.
        model: With open dimensions.
        lengths: What they are, one after the other.
        rest: Seconds behind the first one.
    """
    peers = {"ours": webnn(model)}
    if missing_onnxruntime() is None:
        peers["ort"] = onnxruntime(model)
    rows = []
    for length in lengths:
        row: dict[str, Any] = {"length": length}
        inputs, found = inputs_at(model, length), {}
        for peer, compute in peers.items():
            times = []
            for _ in range(1 + MORE):
                begin = time.perf_counter()
                found[peer] = compute(inputs)["y"]
                times.append((time.perf_counter() - begin) * 1e3)
            row[peer] = {"first": times[0], "again": statistics.median(times[1:])}
        if len(found) > 1:
            row["difference"] = float(np.abs(found["ours"] - found["ort"]).max())
        rows.append(row)
        print(name, row, flush=True)
        if len(rows) == 1:
            time.sleep(rest)
    return {"model": name, "rows": rows}


def tables(figures: report.Figures) -> report.Tables:
    """Medians of the lengths of each period, and sums."""
    lines: list[list[object]] = []
    for model in figures["models"]:
        for peer, title in PEERS.items():
            rows = [row[peer] for row in model["rows"] if peer in row]
            if not rows:
                continue
            medians: list[object] = [
                statistics.median(row["first"] for row in part) if (part := rows[a:b]) else None
                for a, b in PERIODS.values()
            ]
            again = statistics.median(row["again"] for row in rows)
            total = sum(row["first"] for row in rows) / 1e3
            lines.append([f"{model['model']}, {title}", *medians, again, total])
    columns = ["first run for a length", *PERIODS, "met before", "sum, s"]
    title = f"milliseconds by which length it is, {figures['machine']['adapter']}"
    return [(title, columns, lines)], figures["notes"]


def plot(figures: report.Figures, path: Path) -> None:
    """Draw what the first runs for all lengths so far took together."""
    drawing = report.new_drawing(9, 4)
    models = figures["models"]
    for axes, model in zip(drawing.subplots(1, len(models)), models, strict=True):
        for peer, title in PEERS.items():
            firsts = [row[peer]["first"] / 1e3 for row in model["rows"] if peer in row]
            if firsts:
                axes.plot(range(1, len(firsts) + 1), np.cumsum(firsts), label=title)
        axes.set_title(model["model"])
        axes.set_xlabel("lengths met")
        axes.set_ylabel("seconds of first runs, in all")
        axes.legend(frameon=False)
    report.save_drawing(drawing, path, dpi=120)


def main(arguments: list[str] | None = None) -> report.Figures:
    """Measure or read, print, write, draw."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--lengths", type=int, default=60, help="how many of each model")
    parser.add_argument("--layers", type=int, default=12, help="of each model")
    parser.add_argument("--rest", type=float, default=0, help="seconds behind the first length")
    report.add_figure_options(parser, "them")
    options = parser.parse_args(arguments)

    def measure() -> report.Figures:
        os.environ.update(COLD)
        rng = np.random.default_rng(0)
        drawn = [int(length) for length in rng.permutation(np.arange(8, 257))]
        steps = range(16, 16 + options.lengths)
        models = [
            measured(name, model, lengths, options.rest)
            for name, model, lengths in (
                ("encoder", encoder(options.layers, length="length"), drawn[: options.lengths]),
                ("decoder", decoder(options.layers), steps),
            )
        ]
        missing = missing_onnxruntime()
        notes = [missing] if missing else []
        adapter = open_device().adapter.info["device"]
        return {"machine": report.machine(adapter), "notes": notes, "models": models}

    return report.measured_or_read(options, measure, tables, plot)


if __name__ == "__main__":
    main()

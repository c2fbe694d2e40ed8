"""Models with open dimensions on a GPU: what a run takes for sizes that were not met before.

    python -m benchmarks open_sizes [--count 60] [--rest SECONDS] [--json FILE] [--plot FILE]

Milliseconds of an await, upload and readback included: of the first one for some sizes, and of the
median of more for the same. The encoder's lengths are drawn at random from 8 to 256, and so are
those of up to 16 texts at once, behind a short one alone; the decoder has a token more behind it
with each step. Behind the first sizes all may rest, as a service does that has warmed up. The
caches of drivers and of this package are off. ONNX Runtime's WebGPU takes turns with us, where the
package onnxruntime-webgpu is installed in the place of onnxruntime.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import os
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
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

Sizes = Mapping[str, int]
Compute = Callable[[Arrays], Mapping[str, Any]]
MORE = 5
"""Runs for the same sizes behind the first one."""
PERIODS = {
    "first": (0, 1),
    "second": (1, 2),
    "3 to 10": (2, 10),
    "11 to 30": (10, 30),
    "31 and more": (30, 10**9),
}
"""Which of the sets of sizes a column tells of."""
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


def inputs_at(model: onnx.ModelProto, sizes: Sizes) -> Arrays:
    """Random inputs of some sizes, by the names of open dimensions."""
    rng = np.random.default_rng([*sizes.values()])
    shapes = {
        value.name: [d.dim_value or sizes[d.dim_param] for d in value.type.tensor_type.shape.dim]
        for value in model.graph.input
    }
    return {name: rng.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}


def measured(
    name: str, model: onnx.ModelProto, met: Iterable[Sizes], rest: float
) -> report.Figures:
    """Milliseconds of the first and of further runs for each set of sizes, of each peer.

    Args:
        name: The model's.
        model: With open dimensions.
        met: The sizes, one set after the other.
        rest: Seconds behind the first one.
    """
    peers = {"ours": webnn(model)}
    if missing_onnxruntime() is None:
        peers["ort"] = onnxruntime(model)
    rows = []
    for sizes in met:
        row: dict[str, Any] = {"sizes": sizes}
        inputs, found = inputs_at(model, sizes), {}
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
    """Medians of the sets of sizes of each period, and sums."""
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
    columns = ["first run for some sizes", *PERIODS, "met before", "sum, s"]
    title = f"milliseconds by which set of sizes it is, {figures['machine']['adapter']}"
    return [(title, columns, lines)], figures["notes"]


def plot(figures: report.Figures, path: Path) -> None:
    """Draw what the first runs for all sizes so far took together."""
    drawing = report.new_drawing(12, 4)
    models = figures["models"]
    for axes, model in zip(drawing.subplots(1, len(models)), models, strict=True):
        for peer, title in PEERS.items():
            firsts = [row[peer]["first"] / 1e3 for row in model["rows"] if peer in row]
            if firsts:
                axes.plot(range(1, len(firsts) + 1), np.cumsum(firsts), label=title)
        axes.set_title(model["model"])
        axes.set_xlabel("sets of sizes met")
        axes.set_ylabel("seconds of first runs, in all")
        axes.legend(frameon=False)
    report.save_drawing(drawing, path, dpi=120)


def _lengths() -> Iterator[Sizes]:
    """Those of one text after the other."""
    drawn = np.random.default_rng(0).permutation(np.arange(8, 257))
    return ({"length": int(length)} for length in drawn)


def _texts() -> Iterator[Sizes]:
    """A short one, and then up to 16 at once."""
    rng = np.random.default_rng(0)
    yield {"batch": 1, "length": 12}
    while True:
        yield {"batch": int(rng.integers(1, 17)), "length": int(rng.integers(8, 257))}


def main(arguments: list[str] | None = None) -> report.Figures:
    """Measure or read, print, write, draw."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--count", type=int, default=60, help="sets of sizes of each model")
    parser.add_argument("--layers", type=int, default=12, help="of each model")
    parser.add_argument("--rest", type=float, default=0, help="seconds behind the first sizes")
    report.add_figure_options(parser, "them")
    options = parser.parse_args(arguments)

    def measure() -> report.Figures:
        os.environ.update(COLD)
        layers = options.layers
        models = [
            measured(name, model, itertools.islice(met, options.count), options.rest)
            for name, model, met in (
                ("encoder", encoder(layers, length="length"), _lengths()),
                ("encoder, texts", encoder(layers, length="length", batch="batch"), _texts()),
                ("decoder", decoder(layers), ({"past": past} for past in itertools.count(16))),
            )
        ]
        missing = missing_onnxruntime()
        notes = [missing] if missing else []
        adapter = open_device().adapter.info["device"]
        return {"machine": report.machine(adapter), "notes": notes, "models": models}

    return report.measured_or_read(options, measure, tables, plot)


if __name__ == "__main__":
    main()

"""Single operators at large sizes on a GPU: what they take and move, and PyTorch beside them.

    python -m benchmarks gpu_operators [--cases softmax attention] [--data-type float16]
        [--json FILE] [--plot FILE]

Milliseconds of GPU time of one dispatch of many in a recording, by timestamps, and of one replay of
a CUDA graph, without tf32, where PyTorch has a CUDA device. GB/s are of inputs and outputs, each
moved once, TFLOP/s of products alone. Results are compared with PyTorch's, by the largest.
"""

from __future__ import annotations

import argparse
import functools
import math
from pathlib import Path

import numpy as np

from benchmarks import report
from benchmarks.gpu import Recorded, apart, recorded_times
from benchmarks.gpu_peers import Array, Arrays, CudaGraph, missing_torch
from benchmarks.graph_matmul import open_device
from benchmarks.large_operators import CASES, drawn
from webnn_py import MLContext, MLGraphBuilder, MLOperandDescriptor, ml
from webnn_py.core.dtypes import from_numpy

COLUMNS = {
    "ms": "gpu",
    "GB/s": "gb_s",
    "TFLOP/s": "tflop_s",
    "CUDA graph, ms": "cuda",
    "ratio": "ratio",
    "apart": "apart",
}
"""Titles, and keys of the rows' figures."""
BARS = {"ours": "gpu", "CUDA graph": "cuda"}


def measure(context: MLContext, name: str, data_type: str, torch: bool) -> report.Figures:
    """A row of the table."""
    case, b = CASES[name], MLGraphBuilder(context)
    arrays = drawn(case, data_type)
    given, weights = arrays[: len(arrays) - case.weights], arrays[len(arrays) - case.weights :]
    inputs: Arrays = {f"x{i}": array for i, array in enumerate(given)}
    operands = [b.input(key, _described(array)) for key, array in inputs.items()]
    y = case.build(b, *operands, *map(b.constant, weights))
    recorded = Recorded(context, b.build_sync({"y": y}), inputs)
    measured: dict[str, Recorded | CudaGraph] = {"gpu": recorded}
    row: report.Figures = {"case": name}
    if torch and case.torch is not None:
        import torch as pytorch

        compute = functools.partial(case.torch, pytorch)
        everything = inputs | {f"w{i}": array for i, array in enumerate(weights)}
        replayed = CudaGraph(lambda tensors: compute(*tensors.values()), everything)
        row["apart"] = apart(recorded.results()["y"], replayed.result())
        measured["cuda"] = replayed
    row |= recorded_times(measured)
    moved = sum(array.nbytes for array in arrays)
    moved += math.prod(y.shape) * np.dtype(y.data_type).itemsize
    row["gb_s"] = moved / row["gpu"] / 1e6
    if case.flop:
        row["tflop_s"] = case.flop / row["gpu"] / 1e9
    if "cuda" in row:
        row["ratio"] = row["gpu"] / row["cuda"]
    return row


def _described(array: Array) -> MLOperandDescriptor:
    return MLOperandDescriptor(from_numpy(array.dtype), array.shape)


def tables(figures: report.Figures) -> report.Tables:
    """A row for each case."""
    lines = [[row["case"], *(row.get(key) for key in COLUMNS.values())] for row in figures["rows"]]
    title = f"{figures['data_type']} at large sizes, {figures['machine']['adapter']}"
    return [(title, ["case", *COLUMNS], lines)], figures["notes"]


def plot(figures: report.Figures, path: Path) -> None:
    """Draw the times as bars."""
    report.plot_rows(figures, path, "case", BARS, "milliseconds", (9, 0.3))


def main(arguments: list[str] | None = None) -> report.Figures:
    """Measure or read, print, write, draw."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--cases", nargs="+", default=list(CASES), metavar="CASE", choices=CASES)
    parser.add_argument("--data-type", default="float32", choices=["float32", "float16"])
    report.add_figure_options(parser, "them")
    options = parser.parse_args(arguments)

    def measure_all() -> report.Figures:
        device, missing, rows = open_device(), missing_torch(), []
        with ml.create_context_sync(device) as context:
            for name in options.cases:
                rows.append(measure(context, name, options.data_type, missing is None))
                known = {k: float(f"{v:.3g}") for k, v in rows[-1].items() if k != "case"}
                print(name, known, flush=True)
        notes = [missing] if missing else []
        return {
            "machine": report.machine(device.adapter.info["device"]),
            "data_type": options.data_type,
            "notes": notes,
            "rows": rows,
        }

    return report.measured_or_read(options, measure_all, tables, plot)


if __name__ == "__main__":
    main()

"""What models take to start on a GPU: from an ONNX file to the first result, in new processes.

    python -m benchmarks gpu_builds [--models squeezenet resnet50] [--rounds 3] [--json FILE]

Milliseconds, medians; processes take turns. `cold` has nothing that processes before have kept: the
driver's caches and ours are off, for peers alike. `again` is the same program started once more,
with both caches as a first start left them. Each process has opened its device and run one small
operator before, so that all is imported that a build needs. ONNX Runtime is measured where the
package onnxruntime-webgpu is installed in the place of onnxruntime.
"""

from __future__ import annotations

import argparse
import asyncio
import functools
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import onnx

import webnn_py.onnx
from benchmarks import report
from benchmarks.cases import CASES
from benchmarks.gpu import MODELS
from benchmarks.gpu_peers import Arrays, load_onnxruntime, missing_onnxruntime
from benchmarks.graph_matmul import open_device
from benchmarks.models import ENCODER, LIGHT, inputs_of
from webnn_py import MLAwaitedExecution, ml

SMALL = "relu, 4 floats"
COLD = {"__GL_SHADER_DISK_CACHE": "0", "MESA_SHADER_CACHE_DISABLE": "true", "WEBNN_CACHE": "0"}
"""What turns off the caches of NVIDIA's drivers, of Mesa, and ours."""
FOLDERS = ("__GL_SHADER_DISK_CACHE_PATH", "MESA_SHADER_CACHE_DIR", "WEBNN_CACHE")
"""What names the folders of the same caches."""
COLUMNS = {"ONNX Runtime, cold": "ort", "cold": "cold", "again": "again"}
"""Titles, and keys of the rows' figures."""


def webnn() -> Callable[[Path, Arrays], object]:
    """What starts a model with a device that is open."""
    context = ml.create_context_sync(open_device())
    execution = MLAwaitedExecution(context)
    return lambda path, inputs: asyncio.run(
        execution.compute(webnn_py.onnx.load(path, context), inputs)
    )


def onnxruntime() -> Callable[[Path, Arrays], object]:
    """What starts a model; the package opens its device with the first one."""
    return lambda path, inputs: load_onnxruntime(path, inputs)()


def milliseconds(peer: str, small: Path, path: Path) -> float:
    """What a peer takes in this process to start the model of a file, after that of another."""
    start = onnxruntime() if peer == "ort" else webnn()
    start(small, inputs_of(onnx.load(small)))
    inputs = inputs_of(onnx.load(path))
    begin = time.perf_counter()
    start(path, inputs)
    return (time.perf_counter() - begin) * 1e3


def in_process(peer: str, small: Path, path: Path, caches: Mapping[str, str]) -> float:
    """The same in a process of its own, with environment variables that say where caches are.

    Raises:
        RuntimeError: It failed, with its last line.
    """
    command = [sys.executable, "-m", "benchmarks.gpu_builds", "--one", peer, str(small), str(path)]
    ended = subprocess.run(
        command, env={**os.environ, **caches}, capture_output=True, text=True, check=False
    )
    if ended.returncode:
        raise RuntimeError((ended.stderr.strip() or "no message").splitlines()[-1])
    return float(ended.stdout.splitlines()[-1])


def measured_row(name: str, rounds: int, peer: bool) -> report.Figures:
    """The medians of a model's processes, in turns."""
    with tempfile.TemporaryDirectory() as folder:
        small, path = Path(folder, "small.onnx"), Path(folder, "model.onnx")
        onnx.save(CASES[SMALL](), small)
        onnx.save(MODELS[name](), path)
        kept = {variable: str(Path(folder, variable)) for variable in FOLDERS}
        for cache in kept.values():
            Path(cache).mkdir()
        start = functools.partial(in_process, small=small, path=path)
        cases = {
            **({"ort": functools.partial(start, "ort", caches=COLD)} if peer else {}),
            "cold": functools.partial(start, "cold", caches=COLD),
            "again": functools.partial(start, "again", caches=kept),
        }
        cases["again"]()  # the first start
        taken = report.interleaved(cases, rounds)
    return {"model": name, **{key: statistics.median(times) for key, times in taken.items()}}


def tables(figures: report.Figures) -> report.Tables:
    """Milliseconds by model, and the ratio of cold starts."""
    lines = [
        [
            row["model"],
            *(row.get(key) for key in COLUMNS.values()),
            row["cold"] / row["ort"] if "ort" in row else None,
        ]
        for row in figures["rows"]
    ]
    title = f"from the file to the first result, milliseconds, {figures['machine']['adapter']}"
    return [(title, ["model", *COLUMNS, "ratio"], lines)], figures["notes"]


def plot(figures: report.Figures, path: Path) -> None:
    """Draw all starts; what `path` ends in says in which format."""
    label = "milliseconds to the first result"
    report.plot_rows(figures, path, "model", COLUMNS, label, (7, 0.6))


def main(arguments: list[str] | None = None) -> report.Figures:
    """Measure or read, print, write, draw."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    default = [*LIGHT, ENCODER]
    parser.add_argument("--models", nargs="+", default=default, metavar="MODEL", choices=MODELS)
    parser.add_argument("--rounds", type=int, default=3, help="processes of each")
    parser.add_argument("--one", nargs=3, help=argparse.SUPPRESS)
    report.add_figure_options(parser, "them")
    options = parser.parse_args(arguments)
    if options.one:
        peer, small, path = options.one
        print(milliseconds(peer, Path(small), Path(path)))
        return {}

    def measured() -> report.Figures:
        missing = missing_onnxruntime()
        rows = []
        for name in options.models:
            rows.append(measured_row(name, options.rounds, missing is None))
            print(rows[-1], flush=True)
        notes = [missing] if missing else []
        adapter = open_device().adapter.info["device"]
        return {"machine": report.machine(adapter), "notes": notes, "rows": rows}

    return report.measured_or_read(options, measured, tables, plot)


if __name__ == "__main__":
    main()

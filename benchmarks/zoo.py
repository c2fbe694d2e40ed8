"""ONNX files as they come: which of them map, what they return, and what they take.

    python -m benchmarks zoo FOLDER... [--rounds 5] [--engine auto] [--cpu-time] [--json FILE]

Each file runs in a process of its own, with one thread, in turn with ONNX Runtime. Inputs are read
from NAME.npz beside NAME.onnx; without one they are drawn, at the first open sizes at which ONNX
Runtime runs the model. A model that does not map with open sizes is loaded for those of the inputs,
then with its scalar inputs as constants; `as` tells which.

`load` is from the file to the first result, in new processes that have run a small model before.
`apart` is the largest difference of a result, as a part of its largest magnitude or of 1.
"""

from __future__ import annotations

import argparse
import functools
import multiprocessing
import os
import statistics
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime

import webnn_py.onnx
from benchmarks import cpu_peers, report
from benchmarks.cpu_builds import SMALL
from webnn_py import MLExecution, MLGraph, ml

Array = np.ndarray[Any, Any]
Inputs = Mapping[str, Array]
OPEN_SIZES = (64, 32, 224, 16, 512, 576, 1024, 640)
"""Sizes that open dimensions beyond the first get, in the order in which they are tried."""
WAYS = ("open", "fixed", "constants")
"""How a model is loaded: with open sizes, with those of the inputs, with scalars as constants."""
LOADS = 3
MAX_DRAWN = 2048
"""Random numbers along a dimension that contents decide."""
MAX_SECONDS = 240.0
"""Most seconds that a file may take."""
DTYPES = {
    "tensor(float)": "float32",
    "tensor(float16)": "float16",
    "tensor(double)": "float64",
    "tensor(int64)": "int64",
    "tensor(int32)": "int32",
    "tensor(bool)": "bool",
    "tensor(uint8)": "uint8",
    "tensor(int8)": "int8",
}


def title(path: Path) -> str:
    """Return the name of a file's row."""
    return f"{path.parent.name}/{path.stem}"


def session(path: Path) -> Any:
    """Return ONNX Runtime's session of one thread."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    providers = ["CPUExecutionProvider"]
    return onnxruntime.InferenceSession(str(path), options, providers=providers)


def drawn(ends: Any, size: int) -> Inputs:
    """Draw inputs; open dimensions are 1 in front and `size` elsewhere."""
    rng = np.random.default_rng(0)
    made = {}
    for end in ends:
        dtype = np.dtype(DTYPES[end.type])
        sizes = [n if isinstance(n, int) else size if i else 1 for i, n in enumerate(end.shape)]
        if dtype.kind == "f":
            made[end.name] = (rng.standard_normal(sizes) * 0.5).astype(dtype)
        elif "length" in end.name and len(sizes) == 1:
            made[end.name] = np.full(sizes, size, dtype)
        else:
            least = 1 if "mask" in end.name else 0
            made[end.name] = rng.integers(least, 2, sizes).astype(dtype)
    return made


def inputs_of(path: Path, model: Any) -> Inputs:
    """Return the inputs in the file beside the model, or the first ones drawn that it accepts."""
    beside = path.with_suffix(".npz")
    if beside.exists():
        return dict(np.load(beside))
    error: Exception | None = None
    for size in OPEN_SIZES:
        inputs = drawn(model.get_inputs(), size)
        try:
            model.run(None, inputs)
        except Exception as failure:  # ONNX Runtime has its own exception classes
            error = failure
        else:
            return inputs
    raise RuntimeError(f"it accepts no inputs that were drawn: {error}")


def ours(path: Path, engine: str, inputs: Inputs, way: str) -> Any:
    """Return a function that runs the model on one thread; `way` is one of `WAYS`."""
    context = ml.create_context_sync(engine=engine, engine_options={"threads": 1})
    as_held = {name: x.astype(np.uint8) if x.dtype == bool else x for name, x in inputs.items()}
    scalars = {name: x for name, x in inputs.items() if x.ndim == 0 and way == "constants"}
    others = {name: x for name, x in as_held.items() if name not in scalars}
    shapes = {} if way == "open" else {name: x.shape for name, x in others.items()}
    graph = webnn_py.onnx.load(path, context, input_shapes=shapes, constants=scalars)
    execution = MLExecution(context)
    given = {name: others[name] for name in graph.inputs if name in others}
    given |= silence(graph, given)
    return lambda: execution.compute(graph, given)


def silence(graph: MLGraph, given: Inputs) -> Inputs:
    """Return zeros for inputs that take the place of random numbers."""
    sizes = {
        str(size): number
        for name, array in given.items()
        for size, number in zip(graph.inputs[name].shape, array.shape, strict=True)
    }
    return {
        name: np.zeros(
            [n if isinstance(n, int) else sizes.get(str(n), MAX_DRAWN) for n in end.shape],
            end.data_type,
        )
        for name, end in graph.inputs.items()
        if name not in given
    }


def first_way(path: Path, engine: str, inputs: Inputs) -> tuple[str, Any]:
    """Return the first of `WAYS` in which the model maps and runs, and what runs it.

    Raises:
        Exception: It does in none; the error is that of the first way.
    """
    errors = []
    for way in WAYS:
        try:
            run = ours(path, engine, inputs, way)
            run()
        except Exception as error:  # whatever the import raises is what the table shows
            errors.append(error)
        else:
            return way, run
    raise errors[0]


def apart(got: Array, wanted: Array) -> float:
    """Return the largest difference, as a part of the largest magnitude or of 1."""
    if got.shape != wanted.shape or not wanted.size:
        return 0.0 if got.shape == wanted.shape else float("inf")
    a, b = got.astype(np.float64), wanted.astype(np.float64)
    finite = np.isfinite(b)
    if np.isnan(a[finite]).any() or not np.array_equal(a[~finite], b[~finite], equal_nan=True):
        return float("inf")
    a, b = a[finite], b[finite]
    return float(np.abs(a - b).max(initial=0) / np.abs(b).max(initial=1))


def load_seconds(
    path: str, engine: str, inputs: Inputs, way: str, directly: bool, clock: report.Clock
) -> float:
    """Return seconds from the file to the first result, of ours or of ONNX Runtime directly."""
    cpu_peers.ours(engine)(small := cpu_peers.case(SMALL), 1)
    cpu_peers.load_onnxruntime(small, 1)
    begin = clock()
    if directly:
        session(Path(path)).run(None, inputs)
    else:
        ours(Path(path), engine, inputs, way)()
    return clock() - begin


def measured(path: str, engine: str, rounds: int, clock: report.Clock) -> report.Figures:
    """Return the row of a file, but for `load`, and the inputs."""
    row: report.Figures = {"case": title(Path(path))}
    try:
        theirs = session(Path(path))
        row["inputs"] = inputs = inputs_of(Path(path), theirs)
    except Exception as error:  # ONNX Runtime has its own exception classes
        return row | {"failed": f"ONNX Runtime: {error}"}
    names = [end.name for end in theirs.get_outputs()]
    wanted = dict(zip(names, theirs.run(None, inputs), strict=True))
    try:
        row["as"], run = first_way(Path(path), engine, inputs)
        got = run()
    except Exception as error:  # whatever the import raises is what the table is to show
        return row | {"failed": f"{type(error).__name__}: {error}"}
    pairs = [(np.asarray(got[name]), np.asarray(wanted[name])) for name in names if name in wanted]
    row["apart"] = max(apart(*pair) for pair in pairs)
    turns = report.interleaved(
        {
            "ort": lambda: report.turn(lambda: theirs.run(None, inputs), clock),
            "ours": lambda: report.turn(run, clock),
        },
        rounds,
    )
    seconds = {name: [later for _, later in taken] for name, taken in turns.items()}
    row["ms"] = {name: statistics.median(taken) * 1e3 for name, taken in seconds.items()}
    row["ratio"] = report.ratio(seconds["ours"], seconds["ort"])
    return row


def measure(path: Path, engine: str, rounds: int, clock: report.Clock) -> report.Figures:
    """Measure a file in processes of its own."""
    context = multiprocessing.get_context("spawn")
    with context.Pool(1, maxtasksperchild=1) as pool:
        row: report.Figures

        def call(function: Any, *arguments: Any) -> Any:
            return pool.apply_async(function, arguments).get(MAX_SECONDS)

        try:
            row = call(measured, str(path), engine, rounds, clock)
            inputs = row.pop("inputs", {})
            if "failed" in row:
                return row
            cases = {
                name: functools.partial(
                    call, load_seconds, str(path), engine, inputs, row["as"], name == "ort", clock
                )
                for name in ("ort", "ours")
            }
            loads = report.interleaved(cases, LOADS)
        except multiprocessing.TimeoutError:
            return {"case": title(path), "failed": f"no result in {MAX_SECONDS:g} s"}
    row["load"] = {name: statistics.median(taken) * 1e3 for name, taken in loads.items()}
    row["load_ratio"] = report.ratio(loads["ours"], loads["ort"])
    return row


def tables(figures: report.Figures) -> report.Tables:
    """Return the table of the files that map, and a line for each of the others."""
    rows = [
        [
            row["case"],
            row["as"],
            row["apart"],
            row["ms"]["ort"],
            row["ms"]["ours"],
            row["ratio"],
            row["load"]["ort"],
            row["load"]["ours"],
            row["load_ratio"],
        ]
        for row in figures["rows"]
        if "failed" not in row
    ]
    columns = ["file", "as", "apart", "ort ms", "ours ms", "ratio", "load ms", "ours ms", "ratio"]
    failed = [f"{row['case']}: {row['failed']}" for row in figures["rows"] if "failed" in row]
    return [(f"{len(rows)} files run, {len(failed)} do not", columns, rows)], failed


def files(places: list[Path]) -> list[Path]:
    """Return the models among files and folders."""
    found = [p for place in places for p in (place.rglob("*.onnx") if place.is_dir() else [place])]
    return sorted(found)


def main(arguments: list[str] | None = None) -> report.Figures:
    """Measure the files, print a table and write it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("places", nargs="*", type=Path, help="models, or folders of them")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--engine", default="auto")
    parser.add_argument("--cpu-time", action="store_true", help="processor time, on busy machines")
    report.add_figure_options(parser, "the ratios")
    options = parser.parse_args(arguments)
    clock = time.process_time if options.cpu_time else time.perf_counter

    def measure_all() -> report.Figures:
        os.environ["WEBNN_CACHE"] = "0"  # a load from the cache would not be the first
        rows = []
        for path in files(options.places):
            rows.append(row := measure(path, options.engine, options.rounds, clock))
            shown = row.get("failed") or (row["apart"], row["ratio"], row["load_ratio"])
            print(row["case"], shown, flush=True)
        return {"machine": report.machine(), "engine": options.engine, "rows": rows}

    def plot(figures: report.Figures, path: Path) -> None:
        columns = {"run": "ratio", "load": "load_ratio"}
        label = "time, as a multiple of ONNX Runtime's"
        report.plot_rows(figures, path, "case", columns, label, (8, 0.3))

    return report.measured_or_read(options, measure_all, tables, plot)


if __name__ == "__main__":
    main()

"""`webnn-py run`: run a model in one of the three modes, time, compare and profile it."""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from webnn_py.api.ml import GPU_ENGINES
from webnn_py.api.view.formats import format_shape, format_value
from webnn_py.cli import benchmark, compare, inputs, outputs
from webnn_py.cli.benchmark import Clock, Load
from webnn_py.cli.models import add_context, add_model, context_of
from webnn_py.cli.modes import MODES, Arrays, Mode
from webnn_py.cli.printing import print_facts, print_json, print_table
from webnn_py.cli.progress import Progress
from webnn_py.cli.runnable import Runnable, load_runnable
from webnn_py.core.errors import DataError
from webnn_py.core.files import open_regular
from webnn_py.ir import Array

MAX_CLASSES = 5
"""Best classes to print with `--labels`."""
DEFAULT_PROFILE_RUNS = 8
"""Runs of `--profile` without `--benchmark`."""
MAX_PRINTED_ELEMENTS = 4
"""Elements of an output to print."""
STATISTICS: Mapping[str, Callable[[Array], Any]] = {
    "min": np.min,
    "max": np.max,
    "mean": lambda array: np.mean(array, dtype=np.float64),
}


STATUS_DIFFERENT = 1
"""Exit status if `--compare` finds a difference."""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    add_model(parser, programs=True)
    add_context(parser)
    parser.add_argument(
        "--mode",
        choices=list(MODES),
        help="MLExecution (default on a CPU), MLAwaitedExecution (on a GPU), MLCommandEncoder",
    )
    inputs.add_options(parser)
    outputs.add_option(parser)
    parser.add_argument(
        "--labels", type=Path, metavar="FILE", help="names of classes, one a line, or a JSON list"
    )
    benchmark.add_options(parser)
    parser.add_argument("--profile", action="store_true", help="say where time and memory go")
    parser.add_argument(
        "--trace",
        type=_trace_path,
        metavar="FILE.json",
        help="write the profile as a trace that https://ui.perfetto.dev opens",
    )
    compare.add_options(parser)


def _trace_path(text: str) -> Path:
    path = Path(text)
    if path.suffix != ".json" or not path.parent.is_dir():
        raise argparse.ArgumentTypeError(f"got {text!r}, expected a file .json in a folder")
    return path


def run(options: argparse.Namespace) -> int:
    """Run the model and print its outputs; return the exit status."""
    contents = inputs.read(options.input)
    labels = None if options.labels is None else _labels(options.labels)
    profiling = options.profile or options.trace is not None
    load = Load.of(options) or (Load(DEFAULT_PROFILE_RUNS, None, 1, 1) if profiling else None)
    expected = None
    if isinstance(options.compare, Path):
        expected = outputs.read_arrays(options.compare)
    profile = None
    with context_of(options) as context:
        model = load_runnable(options, context, contents)
        outputs.check_names(options.output, model.outputs)
        if expected is not None:
            compare.check_expected(options.compare, expected, model.outputs)
        arrays = model.arrays(contents, options)
        with model.mode(options.mode, 1 if load is None else load.concurrency) as mode:
            with Progress("first run"):
                first, results = _timed(mode, arrays)
            clock = None if load is None else _benchmark(mode, arrays, load)
        if profiling:
            runs = (load and load.runs) or DEFAULT_PROFILE_RUNS
            with Progress("profiling"):
                profile = model.profile(arrays, runs)
    outputs.write(options.output, results)
    report: dict[str, Any] = {
        "model": str(options.model),
        "mode": mode.name,
        "outputs": {name: _described(array) for name, array in results.items()},
    }
    if labels is not None:
        report["classes"] = _classes(results, labels)
    if load is not None and clock is not None:
        report["seconds"] = benchmark.summary(
            model.seconds, first, clock.times, clock.elapsed, load.concurrency
        )
    if profile is not None:
        report["profile"] = profile.as_json()
        if options.trace is not None:
            profile.measured.save_trace(options.trace)
    found = []
    if options.compare is not None:
        if expected is None:
            expected = _results_of(options.compare, options, contents, arrays)
        found = compare.differences(results, expected, options)
        report["differences"] = [each.as_json() for each in found]
    if options.json:
        print_json(report)
    else:
        _print(report)
        if found:
            compare.print_differences(f"compared with {options.compare}", found)
        if profile is not None:
            print_facts("profile", profile.summary)
            print(profile.measured)
    return 0 if all(each.equal for each in found) else STATUS_DIFFERENT


def _timed(mode: Mode, arrays: Mapping[str, Array]) -> tuple[float, Arrays]:
    start = time.perf_counter()
    results = mode.compute(arrays)
    return time.perf_counter() - start, results


def _benchmark(mode: Mode, arrays: Mapping[str, Array], load: Load) -> Clock:
    with Progress("warming up"):
        for _ in range(load.warmup - 1):
            mode.compute(arrays)
    with Progress("runs", load.runs) as progress:
        clock = Clock(load, progress)
        mode.repeat(arrays, clock, load.concurrency)
    return clock


def _results_of(
    engine: str, options: argparse.Namespace, contents: inputs.Contents, arrays: Arrays
) -> Arrays:
    """Run the model on another engine."""
    device = "gpu" if engine in GPU_ENGINES else "cpu"
    others = {"engine": engine, "device": device, "adapter": None, "threads": None}
    with (
        Progress(f"running on {engine}"),
        context_of(argparse.Namespace(**{**vars(options), **others})) as context,
    ):
        model: Runnable = load_runnable(options, context, contents)
        with model.mode(None, 1) as mode:
            return mode.compute(arrays)


def _described(array: Array) -> dict[str, Any]:
    shape = list(array.shape)
    facts: dict[str, Any] = {"data_type": str(array.dtype), "shape": shape}
    if array.size:
        facts |= {name: _number(find(array)) for name, find in STATISTICS.items()}
        facts["first"] = [_number(value) for value in array.reshape(-1)[:MAX_PRINTED_ELEMENTS]]
    return facts


def _number(value: Any) -> float | int | str:
    """Convert a NumPy number for JSON; NaN and infinities become strings."""
    number: float | int = value.item()
    return number if math.isfinite(number) else str(number)


def _labels(path: Path) -> list[str]:
    with open_regular(path) as file:
        contents = file.read()
    try:
        text = contents.decode()
        found = json.loads(text) if path.suffix == ".json" else text.splitlines()
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path} holds no labels: {error}") from error
    if not isinstance(found, list) or not found:
        raise DataError(f"{path} holds no list of labels")
    return [str(label).strip() for label in found]


def _classes(
    results: Mapping[str, Array], labels: Sequence[str]
) -> dict[str, list[dict[str, Any]]]:
    """Return the best classes of each output that has one score for each label.

    Raises:
        DataError: There is no such output.
    """
    found = {}
    for name, array in results.items():
        if array.size == max(array.shape, default=0) == len(labels):
            scores = array.reshape(-1).astype(np.float64)
            best = np.argsort(-scores, kind="stable")[:MAX_CLASSES]
            found[name] = [{"label": labels[i], "score": float(scores[i])} for i in best]
    if not found:
        raise DataError(f"--labels: no output has {len(labels)} scores, one for each label")
    return found


def _print(report: Mapping[str, Any]) -> None:
    rows = []
    for name, facts in report["outputs"].items():
        values = [format_value(facts.get(key, "")) for key in STATISTICS]
        head = ", ".join(map(format_value, facts.get("first", ())))
        rows.append((name, f"{facts['data_type']}{format_shape(facts['shape'])}", *values, head))
    print_table("outputs", ("name", "type", *STATISTICS, "first elements"), rows)
    for name, best in report.get("classes", {}).items():
        pairs = [(each["label"], f"{each['score']:.4g}") for each in best]
        print_table(f"{name}: best classes", ("class", "score"), pairs)
    if "seconds" in report:
        benchmark.print_summary(report["seconds"])

"""`webnn-py run`: run a model in one of the three modes, and time it."""

from __future__ import annotations

import argparse
import json
import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from webnn_py.api.compiled import compiled_of
from webnn_py.api.graph import MLGraph
from webnn_py.api.profile import MOST_RUNS, MLProfile
from webnn_py.cli import inputs
from webnn_py.cli.facts import Facts, facts_of
from webnn_py.cli.images import Preparation
from webnn_py.cli.models import add_context, add_model, load, open_context
from webnn_py.cli.modes import MODES, Arrays, Compute
from webnn_py.cli.printing import (
    format_duration,
    format_shape,
    print_facts,
    print_json,
    print_table,
    shown,
)
from webnn_py.cli.progress import Progress
from webnn_py.core.errors import DataError, ValidationError
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


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    add_model(parser)
    add_context(parser)
    parser.add_argument(
        "--mode",
        choices=list(MODES),
        help="MLExecution (default on a CPU), MLAwaitedExecution (on a GPU), MLCommandEncoder",
    )
    inputs.add_options(parser)
    parser.add_argument(
        "--output",
        action="append",
        default=[],
        type=inputs.named_file,
        metavar="NAME=FILE.npy",
        help="write an output to a file. Without NAME=, the only output",
    )
    parser.add_argument(
        "--labels", type=Path, metavar="FILE", help="names of classes, one a line, or a JSON list"
    )
    parser.add_argument(
        "--benchmark", type=_count, default=0, metavar="N", help="run N more times and time that"
    )
    parser.add_argument("--profile", action="store_true", help="say where time and memory go")


def _count(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= MOST_RUNS:
        raise argparse.ArgumentTypeError(f"got {text!r}, expected a number from 1 to {MOST_RUNS}")
    return int(text)


def run(options: argparse.Namespace) -> int:
    """Run the model and print its outputs; return the exit status."""
    contents = inputs.read(options.input)
    labels = None if options.labels is None else _labels(options.labels)
    mode = options.mode or ("execution" if options.device == "cpu" else "awaited")
    runs = options.benchmark or (DEFAULT_PROFILE_RUNS if options.profile else 0)
    with open_context(options.device, options.engine) as context:
        loaded = load(options, context, inputs.shapes_of(contents))
        graph, sizes = loaded.graph, loaded.sizes
        arrays = inputs.arrays(contents, graph.inputs, sizes, Preparation.of(options))
        _check_sizes(sizes, dict(compiled_of(graph).fixed(arrays)[1]))
        with MODES[mode](context, graph) as compute:
            with Progress("first run"):
                first, results = _timed(compute, arrays)
            times = _benchmark(compute, arrays, runs)
        profile = _profile(graph, arrays, runs) if options.profile else None
    _write(options.output, results)
    report: dict[str, Any] = {
        "model": str(options.model),
        "mode": mode,
        "outputs": {name: _described(array) for name, array in results.items()},
    }
    if labels is not None:
        report["classes"] = _classes(results, labels)
    if times:
        report["seconds"] = _seconds(loaded.seconds, first, times)
    if profile is not None:
        report["profile"] = profile.as_json()
    if options.json:
        print_json(report)
    else:
        _print(report)
        if profile is not None:
            print_facts("profile", profile.facts.summary())
            print(profile.measured)
    return 0


def _check_sizes(said: Mapping[str, int], given: Mapping[str, int]) -> None:
    for name, size in given.items():
        if said.get(name, size) != size:
            raise ValidationError(f"--shape: {name} is {said[name]}, and {size} by the inputs")


def _timed(compute: Compute, arrays: Mapping[str, Array]) -> tuple[float, Arrays]:
    start = time.perf_counter()
    results = compute(arrays)
    return time.perf_counter() - start, results


def _benchmark(compute: Compute, arrays: Mapping[str, Array], runs: int) -> list[float]:
    times = []
    with Progress("runs", runs) as progress:
        for progress.done in range(runs):
            times.append(_timed(compute, arrays)[0])
    return times


def _seconds(loading: float, first: float, times: Sequence[float]) -> dict[str, float | int]:
    return {
        "load": loading,
        "first run": first,
        "median run": statistics.median(times),
        "fastest run": min(times),
        "slowest run": max(times),
        "runs": len(times),
    }


@dataclass(frozen=True)
class Profile:
    """The profile of a graph.

    Attributes:
        facts: Its nodes, kernels and memory.
        measured: The times of its steps.
    """

    facts: Facts
    measured: MLProfile

    def as_json(self) -> dict[str, Any]:
        """Return the profile as data for JSON."""
        return {
            "nodes": len(self.facts.nodes),
            "kernels": len(self.facts.steps),
            "constant_bytes": self.facts.constant_bytes,
            "intermediate_bytes": self.facts.intermediate_bytes,
            "milliseconds": self.measured.milliseconds,
            "clock": self.measured.clock,
            "peak_flops": self.measured.peak_flops,
            "peak_bytes": self.measured.peak_bytes,
            "steps": [asdict(row) for row in self.measured],
        }


def _profile(graph: MLGraph, arrays: Mapping[str, Array], runs: int) -> Profile:
    with Progress("profiling"):
        _, sizes = compiled_of(graph).fixed(arrays)
        facts = facts_of(graph, dict(sizes))
        return Profile(facts, graph.profile(arrays, runs=runs))


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


def _write(pairs: Sequence[tuple[str, str]], results: Mapping[str, Array]) -> None:
    for name, file in pairs:
        if not name and len(results) != 1:
            raise ValidationError(f"--output: say which one: NAME=FILE; {', '.join(results)}")
        if name and name not in results:
            raise ValidationError(f"--output: there is no {name!r}, but {', '.join(results)}")
        with open(file, "wb") as stream:
            np.save(stream, results[name or next(iter(results))])


def _print(report: Mapping[str, Any]) -> None:
    rows = []
    for name, facts in report["outputs"].items():
        values = [shown(facts.get(key, "")) for key in STATISTICS]
        head = ", ".join(map(shown, facts.get("first", ())))
        rows.append((name, f"{facts['data_type']}{format_shape(facts['shape'])}", *values, head))
    print_table("outputs", ("name", "", *STATISTICS, "first elements"), rows)
    for name, best in report.get("classes", {}).items():
        pairs = [(each["label"], f"{each['score']:.4g}") for each in best]
        print_table(f"{name}: best classes", ("class", "score"), pairs)
    if "seconds" in report:
        times = {n: t if n == "runs" else format_duration(t) for n, t in report["seconds"].items()}
        print_facts("time", times)

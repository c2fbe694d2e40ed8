"""`webnn-py tune`: measure what runs a model fastest and remember it for later builds.

On a CPU that is the engine for `engine="fastest"`. On a GPU it is the tiles of products and
convolutions, for every build on this adapter.
"""

from __future__ import annotations

import argparse
from typing import Any

from webnn_py.api.compiled import compiled_of
from webnn_py.api.context import MLContext
from webnn_py.api.ml import GPU_ENGINES
from webnn_py.api.session import Session
from webnn_py.api.view.formats import format_duration, format_shape
from webnn_py.cli.models import DEVICES, Loaded, add_model, load, open_context
from webnn_py.cli.printing import print_facts, print_json, print_table
from webnn_py.cli.progress import Progress
from webnn_py.core.errors import ValidationError
from webnn_py.engines.registry import fastest_engine
from webnn_py.engines.webgpu.runtime.executable import WebGPUExecutable
from webnn_py.engines.webgpu.runtime.tuning import Tuning, tune
from webnn_py.ir import Node


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    add_model(parser)
    parser.add_argument("--device", choices=DEVICES, default="cpu", help="what is tuned for it")
    parser.add_argument(
        "--engine", choices=GPU_ENGINES, default="auto", help="the library of a GPU: wgpu or Dawn"
    )


def run(options: argparse.Namespace) -> int:
    """Measure and print the results; return the exit status."""
    if options.device == "gpu":
        return _tune_tiles(options)
    if options.engine != "auto":
        raise ValidationError(f"engine {options.engine!r} runs on GPUs: it needs --device gpu")
    engine = fastest_engine({}, anew=True)
    with MLContext(Session(engine, "cpu")) as context:
        loaded = load(options, context)
        loaded.graph.prepare_sync(loaded.all_sizes)
        medians = dict(sorted(engine.medians.items(), key=lambda item: item[1]))
    if options.json:
        print_json({"model": str(options.model), "engine": engine.name, "seconds": medians})
        return 0
    rows = [(name, f"{seconds * 1e3:.3g}") for name, seconds in medians.items()]
    print_table(f"runs of {options.model.name}", ("engine", "milliseconds"), rows)
    return 0


def _tune_tiles(options: argparse.Namespace) -> int:
    with open_context("gpu", options.engine) as context:
        loaded = load(options, context)
        executable = _executable(loaded)
        with (
            Progress(f"measuring {options.model.name}") as progress,
            compiled_of(loaded.graph).session.queue.loss(),
        ):
            found = tune(executable.loaded.gpu, executable.compiled.graph, progress.reached)
        device = context.device.adapter.info["device"]
    if options.json:
        print_json({"model": str(options.model), "device": device, **_as_json(found)})
    else:
        _print(options.model.name, device, found)
    return 0


def _executable(loaded: Loaded) -> WebGPUExecutable:
    compiled = compiled_of(loaded.graph)
    sizes = tuple(sorted(loaded.all_sizes.items()))
    executable = compiled.executable(compiled.session, sizes=sizes)
    assert isinstance(executable, WebGPUExecutable)
    return executable


def _as_json(found: Tuning) -> dict[str, Any]:
    return {
        "kept": found.kept,
        "before": found.before,
        "after": found.after,
        "kernels": [
            {
                "operator": each.node.op,
                "operands": [list(value.shape) for value in each.node.operands],
                "count": each.count,
                "tile": each.tile,
                "before": each.before,
                "after": each.after,
            }
            for each in found.found
        ],
    }


def _title(node: Node) -> str:
    return f"{node.op} {' · '.join(format_shape(value.shape) for value in node.operands)}"


def _print(name: str, device: str, found: Tuning) -> None:
    rows = [
        (
            _title(each.node),
            each.count,
            format_duration(each.before),
            format_duration(each.after),
            each.tile or "as it is",
        )
        for each in sorted(found.found, key=lambda each: each.after - each.before)
    ]
    columns = ("operator and operands", "alike", "before", "after", "tile")
    if not rows:
        print(f"{name} has no products or convolutions to tune")
        return
    print_table(f"products and convolutions of {name}", columns, rows)
    facts = {
        "device": device,
        "whole graph before": format_duration(found.before),
        "whole graph after": format_duration(found.after),
        "remembered": "yes" if found.kept else "no: the graph is not faster with them",
    }
    print_facts(name, facts)

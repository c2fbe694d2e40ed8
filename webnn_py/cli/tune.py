"""`webnn-py tune`: which engine runs a model fastest here; `engine="fastest"` remembers it."""

from __future__ import annotations

import argparse

from webnn_py.api.context import MLContext
from webnn_py.api.session import Session
from webnn_py.cli.models import add_model, all_sizes_of, given_shapes, load
from webnn_py.cli.printing import print_json, print_table
from webnn_py.engines.registry import fastest_engine


def add_options(parser: argparse.ArgumentParser) -> None:
    """What it takes."""
    add_model(parser)


def run(options: argparse.Namespace) -> int:
    """Measure, and print what was found; returns the exit status."""
    shapes = given_shapes(options)
    engine = fastest_engine({}, anew=True)
    with MLContext(Session(engine, "cpu")) as context:
        graph = load(options.model, context, shapes).graph
        graph.prepare_sync(all_sizes_of(graph, shapes))
        medians = dict(sorted(engine.medians.items(), key=lambda item: item[1]))
    if options.json:
        print_json({"model": str(options.model), "engine": engine.name, "seconds": medians})
        return 0
    rows = [(name, f"{seconds * 1e3:.3g}") for name, seconds in medians.items()]
    print_table(f"runs of {options.model.name}", ("engine", "milliseconds"), rows)
    return 0

"""`webnn-py convert`: writes a model as another file."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from pathlib import Path

from webnn_py import onnx
from webnn_py.api.graph import MLGraph
from webnn_py.cli.models import (
    PROGRAM,
    SAVED,
    Shapes,
    add_model,
    all_sizes_of,
    given_shapes,
    load,
    open_context,
    open_names,
    sizes_of,
)
from webnn_py.cli.printing import in_bytes, print_json
from webnn_py.cli.progress import Progress
from webnn_py.core.errors import NotSupportedError
from webnn_py.storage.archive import replacing


def add_options(parser: argparse.ArgumentParser) -> None:
    """What it takes."""
    add_model(parser)
    parser.add_argument(
        "output", type=Path, metavar="OUT", help=f"the file to write: {', '.join(WRITERS)}"
    )


def run(options: argparse.Namespace) -> int:
    """Read, write, say so; returns the exit status."""
    write = WRITERS.get(options.output.suffix)
    if write is None:
        raise NotSupportedError(
            f"{options.output}: its ending says the format, one of {', '.join(WRITERS)}"
        )
    with open_context("cpu", "reference") as context:
        shapes = given_shapes(options)
        graph = load(options.model, context, shapes).graph
        with Progress(f"writing {options.output.name}"):
            write(graph, options.output, shapes)
    size = options.output.stat().st_size
    if options.json:
        print_json({"model": str(options.model), "output": str(options.output), "bytes": size})
    else:
        print(f"{options.output}: {in_bytes(size)}")
    return 0


def _write_onnx(graph: MLGraph, path: Path, shapes: Shapes) -> None:
    _check_stays_open(graph, shapes)
    contents = onnx.to_onnx(graph).SerializeToString()
    with replacing(path) as stream:
        stream.write(contents)


def _write_graph(graph: MLGraph, path: Path, shapes: Shapes) -> None:
    _check_stays_open(graph, shapes)
    graph.save(path)


def _check_stays_open(graph: MLGraph, shapes: Shapes) -> None:
    said = [name for name in open_names(graph) if name in sizes_of(graph, shapes)]
    if said:
        raise NotSupportedError(
            f"--shape: a saved graph keeps its open dimension {said[0]}; give the size when it"
            f" runs, write a {PROGRAM}, or convert the ONNX model that it was made from"
        )


def _write_program(graph: MLGraph, path: Path, shapes: Shapes) -> None:
    graph.compile_to(path, all_sizes_of(graph, shapes))


WRITERS: Mapping[str, Callable[[MLGraph, Path, Shapes], None]] = {
    ".onnx": _write_onnx,
    SAVED: _write_graph,
    PROGRAM: _write_program,
}
"""By a file's ending."""

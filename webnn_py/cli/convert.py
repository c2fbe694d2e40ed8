"""`webnn-py convert`: writes a model as another file."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from pathlib import Path

from webnn_py import onnx
from webnn_py.api.graph import MLGraph
from webnn_py.cli.models import SAVED, add_model, given_shapes, load, open_context
from webnn_py.cli.printing import in_bytes, print_json
from webnn_py.cli.progress import Progress
from webnn_py.core.errors import NotSupportedError


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
        graph = load(options.model, context, given_shapes(options)).graph
        with Progress(f"writing {options.output.name}"):
            write(graph, options.output)
    size = options.output.stat().st_size
    if options.json:
        print_json({"model": str(options.model), "output": str(options.output), "bytes": size})
    else:
        print(f"{options.output}: {in_bytes(size)}")
    return 0


def _write_onnx(graph: MLGraph, path: Path) -> None:
    path.write_bytes(onnx.to_onnx(graph).SerializeToString())


WRITERS: Mapping[str, Callable[[MLGraph, Path], None]] = {
    ".onnx": _write_onnx,
    SAVED: MLGraph.save,
    ".mlprogram": MLGraph.compile_to,
}
"""By a file's ending."""

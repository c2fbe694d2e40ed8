"""`webnn-py convert`: write a model in another file format."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from pathlib import Path

from webnn_py import onnx
from webnn_py.api.view.formats import format_bytes
from webnn_py.cli.models import (
    PROGRAM,
    SAVED,
    Loaded,
    add_model,
    load,
    open_context,
)
from webnn_py.cli.printing import print_json
from webnn_py.cli.progress import Progress
from webnn_py.core.errors import NotSupportedError, ValidationError
from webnn_py.storage.archive import replacing


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    add_model(parser)
    parser.add_argument(
        "output", type=Path, metavar="OUT", help=f"the file to write: {', '.join(WRITERS)}"
    )


def run(options: argparse.Namespace) -> int:
    """Read the model, write the file, report its size; return the exit status."""
    write = WRITERS.get(options.output.suffix)
    if write is None:
        raise NotSupportedError(
            f"{options.output}: its ending says the format, one of {', '.join(WRITERS)}"
        )
    if options.output.exists() and options.output.samefile(options.model):
        raise ValidationError(f"{options.output} is the model itself: name another file")
    with open_context("cpu", "reference") as context:
        loaded = load(options, context)
        with Progress(f"writing {options.output.name}"):
            write(loaded, options.output)
    size = options.output.stat().st_size
    if options.json:
        print_json({"model": str(options.model), "output": str(options.output), "bytes": size})
    else:
        print(f"{options.output}: {format_bytes(size)}")
    return 0


def _write_onnx(loaded: Loaded, path: Path) -> None:
    _check_stays_open(loaded)
    contents = onnx.to_onnx(loaded.graph).SerializeToString()
    with replacing(path) as stream:
        stream.write(contents)


def _write_graph(loaded: Loaded, path: Path) -> None:
    _check_stays_open(loaded)
    loaded.graph.save(path)


def _check_stays_open(loaded: Loaded) -> None:
    said = [name for name in loaded.open_names if name in loaded.sizes]
    if said:
        raise NotSupportedError(
            f"--shape: a saved graph keeps its open dimension {said[0]}; give the size when it"
            f" runs, write a {PROGRAM}, or convert the ONNX model that it was made from"
        )


def _write_program(loaded: Loaded, path: Path) -> None:
    loaded.graph.compile_to(path, loaded.all_sizes)


WRITERS: Mapping[str, Callable[[Loaded, Path], None]] = {
    ".onnx": _write_onnx,
    SAVED: _write_graph,
    PROGRAM: _write_program,
}
"""The writers by file extension."""

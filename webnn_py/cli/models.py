"""Shared parts of the commands that read a model: options, context and loading."""

from __future__ import annotations

import argparse
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from webnn_py import onnx
from webnn_py.api.context import MLContext
from webnn_py.api.graph import MLGraph
from webnn_py.api.ml import GPU_ENGINES, ml
from webnn_py.cli.benchmark import count
from webnn_py.cli.info import GPU_LIBRARIES, version_of
from webnn_py.cli.progress import Progress
from webnn_py.cli.standard_input import SAVED_GRAPH_SUFFIX, SAVED_PROGRAM_SUFFIX, file_path
from webnn_py.core.dimensions import multiple_of, symbols_of
from webnn_py.core.errors import DataError, NotSupportedError, ValidationError
from webnn_py.core.polynomials import Symbol

Shapes = dict[str, list[int] | int]
"""Shapes by input names, and sizes by dimension names."""
NO_SHAPES: Mapping[str, list[int]] = {}

DEVICES = ("cpu", "gpu")
SAVED, PROGRAM = SAVED_GRAPH_SUFFIX, SAVED_PROGRAM_SUFFIX
MAX_THREADS = 1024


def add_model(parser: argparse.ArgumentParser, programs: bool = False) -> None:
    """Add the options for the model and its sizes; say whether saved programs are accepted."""
    parser.add_argument(
        "model",
        type=_model_path,
        metavar="MODEL",
        help=f"an ONNX model, a saved graph ({SAVED}){f' or program ({PROGRAM})' * programs},"
        " or - for standard input",
    )
    parser.add_argument(
        "--shape",
        action="append",
        default=[],
        type=shape,
        metavar="NAME=SIZE",
        help="the size of an open dimension (batch=1) or the shape of an input (x=1,3,224,224)",
    )


def _model_path(text: str) -> Path:
    return file_path(text, ".onnx")


def add_context(parser: argparse.ArgumentParser) -> None:
    """Add the options for device, engine, adapter and threads."""
    parser.add_argument(
        "--device", choices=DEVICES, help="where it runs (default cpu; a program: gpu)"
    )
    parser.add_argument("--engine", default="auto", help="an engine that `info` lists")
    parser.add_argument(
        "--adapter",
        metavar="NAME|NUMBER",
        help="the GPU: part of its name, or its number as `info` lists it",
    )
    parser.add_argument(
        "--threads", type=count(MAX_THREADS), metavar="N", help="threads of an engine of the CPU"
    )


def is_program(options: argparse.Namespace) -> bool:
    """Return whether the model of `add_model` is a saved program."""
    return bool(options.model.suffix == PROGRAM)


def context_of(options: argparse.Namespace) -> MLContext:
    """Create a context for the options of `add_model` and `add_context`.

    Raises:
        ValidationError: The options contradict each other.
        NotSupportedError: There is no such engine or adapter.
    """
    device = options.device or (
        "gpu" if is_program(options) or options.adapter is not None else "cpu"
    )
    if is_program(options) and device == "cpu":
        raise ValidationError(f"{options.model}: a saved program runs on GPUs: --device gpu")
    if device == "gpu":
        if options.threads is not None:
            raise ValidationError("--threads: engines of GPUs have no threads to set")
        return _gpu_context(options.engine, options.adapter)
    if options.adapter is not None:
        raise ValidationError("--adapter names a GPU: it needs --device gpu")
    threads = {} if options.threads is None else {"threads": options.threads}
    return ml.create_context_sync(device_type="cpu", engine=options.engine, engine_options=threads)


def _gpu_context(engine: str, wanted: str | None) -> MLContext:
    if wanted is None or engine not in GPU_ENGINES:
        return ml.create_context_sync(device_type="gpu", engine=engine)
    from webnn_py.engines.webgpu.runtime.devices.adapters import all_adapters, open_device

    names: list[str] = []
    for library_engine, library in GPU_LIBRARIES.items():
        if version_of(library) is None:
            continue
        for adapter in all_adapters(library_engine):
            info = adapter.info
            is_it = wanted == str(len(names)) or _is_called(adapter, wanted)
            names.append(
                f"{len(names)} {info['device']} ({info['backend_type']}, {library_engine})"
            )
            if is_it and engine in ("auto", library_engine):
                device = open_device(adapter, library_engine)
                return ml.create_context_sync(device, engine=library_engine)
    listed = "; ".join(names) or "none"
    raise NotSupportedError(
        f"--adapter: there is no {wanted!r} for engine {engine!r}, but {listed}"
    )


def _is_called(adapter: Any, part: str) -> bool:
    return not part.isdecimal() and part.lower() in adapter.summary.lower()


def shape(text: str) -> tuple[str, list[int] | int]:
    """Parse a name and a size, or a shape with commas between or behind its numbers."""
    name, found, sizes = text.partition("=")
    try:
        numbers = [int(size) for size in sizes.removesuffix(",").split(",")]
    except ValueError:
        found = ""
    if not name or not found or min(numbers) < 1:
        raise argparse.ArgumentTypeError(
            f"got {text!r}, expected a size (batch=1) or a shape (x=1,3,224,224; x=5, for a list)"
        )
    return name, numbers if "," in sizes else numbers[0]


def open_context(device: str, engine: str) -> MLContext:
    """Create a context on "cpu" or "gpu" with an engine."""
    return ml.create_context_sync(device_type="gpu" if device == "gpu" else "cpu", engine=engine)


@dataclass(frozen=True)
class Loaded:
    """A loaded model.

    Attributes:
        graph: The graph.
        seconds: The time of loading.
        said: The shapes and sizes of `--shape`.
    """

    graph: MLGraph
    seconds: float
    said: Shapes

    @property
    def open_names(self) -> list[str]:
        """Return the names of the graph's open dimensions."""
        return [*symbols_of(descriptor.shape for descriptor in self.graph.inputs.values())]

    @property
    def sizes(self) -> dict[str, int]:
        """Return the sizes of open dimensions that `--shape` determines; raise as `sizes_of`."""
        return sizes_of(self.graph, self.said)

    @property
    def all_sizes(self) -> dict[str, int]:
        """Return the sizes of all open dimensions.

        Raises:
            ValidationError: `--shape` leaves a dimension open, or does not fit.
        """
        said, names = self.sizes, self.open_names
        for name in names:
            if name not in said:
                raise ValidationError(f"dimension {name} is open: give --shape {name}=SIZE")
        return {name: said[name] for name in names}


def load(
    options: argparse.Namespace, context: MLContext, shapes: Mapping[str, list[int]] = NO_SHAPES
) -> Loaded:
    """Load a saved graph (.mlgraph) or an ONNX model.

    Args:
        options: The options of `add_model`.
        context: The context of the graph.
        shapes: Shapes of inputs besides those of `--shape`. They fix open dimensions of an ONNX
            model; a saved graph keeps them open until it runs.

    Raises:
        MLError: The errors of `webnn_py.onnx.load` and `MLContext.load_graph_sync`.
        DataError: The file is a saved program.
        ValidationError: `--shape` names something twice, or an unknown input or dimension.
    """
    path, said = options.model, _said(options.shape)
    given: Shapes = {**shapes, **said}
    if path.suffix == PROGRAM:
        raise DataError(
            f"{path} is a saved program, expected a graph: `run` and `inspect` take programs"
        )
    start = time.perf_counter()
    with Progress(f"reading {path.name}") as progress:
        if path.suffix == SAVED:
            graph = context.load_graph_sync(path, progress=progress.reached)
        else:
            graph = onnx.load(path, context, given, progress=progress.reached)
    loaded = Loaded(graph, time.perf_counter() - start, said)
    if path.suffix == SAVED:
        _check_names(loaded, said)
    return loaded


def _check_names(loaded: Loaded, shapes: Shapes) -> None:
    known = [*loaded.graph.inputs, *loaded.open_names]
    for name in shapes:
        if name not in known:
            raise ValidationError(
                f"--shape: there is no input or open dimension {name!r}, but {', '.join(known)}"
            )


def sizes_of(graph: MLGraph, shapes: Shapes) -> dict[str, int]:
    """Return the sizes of a graph's open dimensions that `shapes` determines.

    Args:
        graph: The graph.
        shapes: Shapes by input names, and sizes by dimension names.

    Raises:
        ValidationError: A shape does not fit its input, or a size exceeds its bounds.
    """
    sizes = {name: size for name, size in shapes.items() if isinstance(size, int)}
    for name, said in shapes.items():
        if isinstance(said, int) or name not in graph.inputs:
            continue
        wanted = graph.inputs[name].shape
        found = [multiple_of(size) for size in wanted]
        if len(said) != len(wanted) or not all(map(_fits, said, wanted, found)):
            raise ValidationError(f"--shape: got {said} for input {name}, which is {list(wanted)}")
        pairs = zip(said, found, strict=True)
        sizes |= {one[0].name: n // one[1] for n, one in pairs if one is not None}
    for name, symbol in symbols_of(one.shape for one in graph.inputs.values()).items():
        if not symbol.low <= sizes.get(name, symbol.low) <= symbol.high:
            raise ValidationError(
                f"--shape: {name} is {sizes[name]}, expected {symbol.low}..{symbol.high}"
            )
    return sizes


def _fits(number: int, size: int, multiple: tuple[Symbol, int] | None) -> bool:
    return number == size if multiple is None else number % multiple[1] == 0


def _said(pairs: Sequence[tuple[str, list[int] | int]]) -> Shapes:
    shapes = dict(pairs)
    if len(shapes) < len(pairs):
        raise ValidationError("--shape: a name stands twice")
    return shapes

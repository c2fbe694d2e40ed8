"""What commands about a model have in common: its options, its context, how it is read."""

from __future__ import annotations

import argparse
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from webnn_py import onnx
from webnn_py.api.context import MLContext
from webnn_py.api.graph import MLGraph
from webnn_py.api.ml import ml
from webnn_py.cli.progress import Progress
from webnn_py.core.dimensions import multiple_of, symbols_of
from webnn_py.core.errors import DataError, ValidationError
from webnn_py.core.polynomials import Symbol

Shapes = dict[str, list[int] | int]
"""Shapes by inputs, sizes by dimensions."""
NO_SHAPES: Mapping[str, list[int]] = {}

DEVICES = ("cpu", "gpu")
SAVED = ".mlgraph"
"""The ending of saved graphs."""
PROGRAM = ".mlprogram"
"""The ending of saved programs."""


def add_model(parser: argparse.ArgumentParser) -> None:
    """The model and its sizes."""
    parser.add_argument(
        "model", type=Path, metavar="MODEL", help="an ONNX model, or a saved graph (.mlgraph)"
    )
    parser.add_argument(
        "--shape",
        action="append",
        default=[],
        type=shape,
        metavar="NAME=SIZE",
        help="the size of an open dimension (batch=1) or the shape of an input (x=1,3,224,224)",
    )


def add_context(parser: argparse.ArgumentParser) -> None:
    """Where it runs."""
    parser.add_argument("--device", choices=DEVICES, default="cpu", help="where it runs")
    parser.add_argument("--engine", default="auto", help="an engine that `info` lists")


def shape(text: str) -> tuple[str, list[int] | int]:
    """A name and a size, or sizes with commas between and behind them."""
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
    """A context as the options ask for it; for `with`."""
    return ml.create_context_sync(device_type="gpu" if device == "gpu" else "cpu", engine=engine)


@dataclass(frozen=True)
class Loaded:
    """A model that was read and compiled.

    Attributes:
        graph: What it became.
        seconds: How long that took.
        said: What `--shape` says.
    """

    graph: MLGraph
    seconds: float
    said: Shapes

    @property
    def open_names(self) -> list[str]:
        """The names of its open dimensions."""
        return [*symbols_of(descriptor.shape for descriptor in self.graph.inputs.values())]

    @property
    def sizes(self) -> dict[str, int]:
        """The sizes of its open dimensions that are said; errors as of `sizes_of`."""
        return sizes_of(self.graph, self.said)

    @property
    def all_sizes(self) -> dict[str, int]:
        """As `sizes`, of all open dimensions, and of nothing else.

        Raises:
            ValidationError: One is not said, too.
        """
        said, names = self.sizes, self.open_names
        for name in names:
            if name not in said:
                raise ValidationError(f"dimension {name} is open: give --shape {name}=SIZE")
        return {name: said[name] for name in names}


def load(
    options: argparse.Namespace, context: MLContext, shapes: Mapping[str, list[int]] = NO_SHAPES
) -> Loaded:
    """Read a model and compile it; one that is no saved graph is an ONNX model.

    Args:
        options: As `add_model` has them.
        context: Where it will run.
        shapes: Those of inputs that `--shape` need not say. What an ONNX model leaves open has
            these sizes; a saved graph keeps it open, until it runs.

    Raises:
        MLError: As `webnn_py.onnx.load` and `MLContext.load_graph_sync`.
        DataError: It is a saved program.
        ValidationError: `--shape` says something twice, or of what is not there.
    """
    path, said = options.model, _said(options.shape)
    given: Shapes = {**shapes, **said}
    if path.suffix == PROGRAM:
        raise DataError(
            f"{path}: a saved program is run from Python, by MLContext.load_program_sync"
        )
    start = time.perf_counter()
    with Progress(f"reading {path.name}") as progress:
        if path.suffix == SAVED:
            graph = context.load_graph_sync(path, progress=progress.reached)
        else:
            graph = onnx.load(path, context, given, progress=progress.reached)
    loaded = Loaded(graph, time.perf_counter() - start, said)
    if path.suffix == SAVED:
        _check_names(loaded, given)
    return loaded


def _check_names(loaded: Loaded, shapes: Shapes) -> None:
    known = [*loaded.graph.inputs, *loaded.open_names]
    for name in shapes:
        if name not in known:
            raise ValidationError(
                f"--shape: there is no input or open dimension {name!r}, but {', '.join(known)}"
            )


def sizes_of(graph: MLGraph, shapes: Shapes) -> dict[str, int]:
    """The sizes of a graph's open dimensions that are said.

    Raises:
        ValidationError: The shape of an input does not fit it, or a size its bounds.
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

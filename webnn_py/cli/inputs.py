"""What a model is run on: files, images, or random numbers."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from webnn_py.api.descriptor import MLOperandDescriptor
from webnn_py.cli.images import Image, Preparation, read_image
from webnn_py.core import dtypes
from webnn_py.core.dimensions import is_dimension
from webnn_py.core.errors import DataError, ValidationError
from webnn_py.core.files import open_regular
from webnn_py.core.messages import describe_error
from webnn_py.ir import Array

RANDOM = "random"
SEED = 0
Given = Mapping[str, "Array | Image | None"]
"""By input, what its file holds; None for random numbers."""


def add_options(parser: argparse.ArgumentParser) -> None:
    """The inputs, and how images become tensors."""
    parser.add_argument(
        "--input",
        action="append",
        default=[],
        type=named_file,
        metavar="NAME=FILE",
        help="an array (.npy), an ONNX tensor (.pb), an image, or `random`: 0 to 1, integers 0 or"
        " 1; what is left out is random. Without NAME=, the only input",
    )
    Preparation.add_options(parser)


def named_file(text: str) -> tuple[str, str]:
    """A name, empty for the only input, and a file."""
    name, found, file = text.partition("=")
    if not found:
        name, file = "", text
    if not file:
        raise argparse.ArgumentTypeError(f"got {text!r}, expected NAME=FILE")
    return name, file


def read(pairs: Sequence[tuple[str, str]]) -> Given:
    """Read the files.

    Raises:
        DataError: A file holds neither an array nor an image.
        OSError: It cannot be read.
        ValidationError: An input stands twice.
    """
    given: dict[str, Array | Image | None] = {}
    for name, file in pairs:
        if name in given:
            raise ValidationError(f"--input: {name or 'the only input'} stands twice")
        given[name] = None if file == RANDOM else _read(Path(file))
    return given


def _read(path: Path) -> Array | Image:
    if path.suffix == ".npy":
        try:
            with open_regular(path) as file:
                found = np.load(file, allow_pickle=False)
        except (OSError, MemoryError, DataError):
            raise
        except Exception as error:  # of whatever a damaged header is taken for
            raise DataError(f"{path} holds no array: {describe_error(error)}") from error
        if not isinstance(found, np.ndarray):
            raise DataError(f"{path} holds no array, but {type(found).__name__}")
        return found
    if path.suffix == ".pb":
        from webnn_py.onnx.tensor_files import read_tensor

        return read_tensor(path)
    return read_image(path)


def shapes_of(given: Given) -> dict[str, list[int]]:
    """The shapes of the inputs that arrays are given for."""
    return {n: list(a.shape) for n, a in given.items() if n and isinstance(a, np.ndarray)}


def arrays(
    given: Given,
    inputs: Mapping[str, MLOperandDescriptor],
    sizes: Mapping[str, int],
    preparation: Preparation,
) -> dict[str, Array]:
    """An array for each input of a graph.

    Args:
        given: What is given, by name.
        inputs: The graph's.
        sizes: Open sizes that are known.
        preparation: How images become tensors.

    Raises:
        ValidationError: There is no such input, or a size is not known.
        DataError: An image does not fit its input.
    """
    wanted = dict(given)
    if "" in wanted:
        only = _only(inputs)
        if only in wanted:
            raise ValidationError(f"--input: {only} stands twice")
        wanted[only] = wanted.pop("")
    for name in wanted:
        if name not in inputs:
            raise ValidationError(f"--input: there is no input {name!r}, but {', '.join(inputs)}")
    made = {}
    random = np.random.default_rng(SEED)
    for name, descriptor in inputs.items():
        value = wanted.get(name)
        if isinstance(value, np.ndarray):
            made[name] = value
        elif isinstance(value, Image):
            made[name] = preparation.tensor(value, name, descriptor, sizes)
        else:
            made[name] = _random(random, name, descriptor, sizes)
    return made


def _only(inputs: Mapping[str, Any]) -> str:
    if len(inputs) != 1:
        raise ValidationError(f"--input: say for which input: NAME=FILE; {', '.join(inputs)}")
    return next(iter(inputs))


def _random(
    random: np.random.Generator,
    name: str,
    descriptor: MLOperandDescriptor,
    sizes: Mapping[str, int],
) -> Array:
    shape = [_known(size, name, sizes) for size in descriptor.shape]
    info = dtypes.DTYPES[descriptor.data_type]
    if info.kind == "f":
        return random.random(shape, np.float32).astype(info.numpy)
    return random.integers(0, 2, shape).astype(info.numpy)


def _known(size: int, name: str, sizes: Mapping[str, int]) -> int:
    if not is_dimension(size):
        return size
    missing = [each for each in size.names if each not in sizes]
    if missing:
        raise ValidationError(
            f"input {name} has the open dimension {missing[0]}: give --shape {missing[0]}=SIZE,"
            f" or an array by --input {name}=FILE.npy"
        )
    return size.evaluate(sizes)

"""Inputs of `run`: arrays and images from files, or random numbers."""

from __future__ import annotations

import argparse
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from webnn_py.api.descriptor import MLOperandDescriptor
from webnn_py.cli.images import Image, Preparation, read_image
from webnn_py.cli.outputs import ARRAYS, read_arrays
from webnn_py.cli.standard_input import file_path
from webnn_py.core import dtypes
from webnn_py.core.dimensions import is_dimension
from webnn_py.core.errors import DataError, ValidationError
from webnn_py.core.messages import shown
from webnn_py.ir import Array

RANDOM = "random"
SEED = 0
Contents = Mapping[str, "Array | Image | None"]
"""The contents of each input's file; None for random numbers."""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of inputs and of images."""
    parser.add_argument(
        "--input",
        action="append",
        default=[],
        type=named_file,
        metavar="NAME=FILE",
        help="an array (.npy), an ONNX tensor (.pb), an image, - for one of these on standard"
        " input, or `random`: 0 to 1, integers 0 or 1; what is left out is random. Without NAME=,"
        " the only input, or arrays by name (.npz)",
    )
    parser.add_argument(
        "--seed", type=_seed, default=SEED, metavar="N", help=f"of random inputs (default {SEED})"
    )
    Preparation.add_options(parser)


def _seed(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"got {text!r}, expected a number from 0")
    return int(text)


def named_file(text: str) -> tuple[str, str]:
    """Parse `NAME=FILE`; the name is empty for the only input."""
    name, found, file = text.partition("=")
    if not found:
        name, file = "", text
    if not file:
        raise argparse.ArgumentTypeError(f"got {text!r}, expected NAME=FILE")
    return name, str(file_path(file, ""))


def read(pairs: Sequence[tuple[str, str]]) -> Contents:
    """Read the files of inputs.

    Args:
        pairs: Names and files.

    Raises:
        DataError: A file holds neither an array nor an image.
        OSError: A file cannot be read.
        ValidationError: An input occurs twice.
    """
    contents: dict[str, Array | Image | None] = {}
    for name, file in pairs:
        for each, found in _named_contents(name, file).items():
            if each in contents:
                raise ValidationError(f"--input: {each or 'the only input'} stands twice")
            contents[each] = found
    return contents


def _named_contents(name: str, file: str) -> Mapping[str, Array | Image | None]:
    path = Path(file)
    if file == RANDOM:
        return {name: None}
    if path.suffix != ARRAYS:
        return {name: _read(path)}
    found = read_arrays(path)
    if not name:
        return found
    if name not in found:
        raise DataError(f"{path} has no array {shown(name)}, but {', '.join(map(shown, found))}")
    return {name: found[name]}


def _read(path: Path) -> Array | Image:
    if path.suffix == ".npy":
        found = read_arrays(path)
        if "" not in found:
            raise DataError(f"{path} holds several arrays, expected one; name it {ARRAYS}")
        return found[""]
    if path.suffix == ".pb":
        from webnn_py.onnx.tensor_files import read_tensor

        return read_tensor(path)
    return read_image(path)


def shapes_of(contents: Contents) -> dict[str, list[int]]:
    """Return the shapes of the named inputs whose files hold arrays."""
    return {n: list(a.shape) for n, a in contents.items() if n and isinstance(a, np.ndarray)}


def arrays_of(
    contents: Contents,
    inputs: Mapping[str, MLOperandDescriptor],
    sizes: Mapping[str, int],
    options: argparse.Namespace,
    optional: Collection[str] = (),
) -> dict[str, Array]:
    """Make an array for each input.

    Args:
        contents: The contents of files, by input.
        inputs: The inputs.
        sizes: Known sizes of open dimensions.
        options: The options of `add_options`.
        optional: Inputs that stay out unless a file has them.

    Raises:
        ValidationError: There is no such input, or a size is unknown.
        DataError: An image does not fit its input.
    """
    wanted = dict(contents)
    if "" in wanted:
        only = _only(inputs)
        if only in wanted:
            raise ValidationError(f"--input: {only} stands twice")
        wanted[only] = wanted.pop("")
    for name in wanted:
        if name not in inputs:
            raise ValidationError(f"--input: there is no input {name!r}, but {', '.join(inputs)}")
    tensors = {}
    preparation = Preparation.of(options)
    random = np.random.default_rng(options.seed)
    for name, descriptor in inputs.items():
        if name in optional and name not in wanted:
            continue
        value = wanted.get(name)
        if isinstance(value, np.ndarray):
            tensors[name] = value
        elif isinstance(value, Image):
            tensors[name] = preparation.tensor(value, name, descriptor, sizes)
        else:
            tensors[name] = _random(random, name, descriptor, sizes)
    return tensors


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

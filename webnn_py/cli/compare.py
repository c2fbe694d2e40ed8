"""`run --compare`: compare results with those of another engine, or with arrays in a file."""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from webnn_py.api.ml import GPU_ENGINES
from webnn_py.cli.printing import print_table
from webnn_py.core.errors import DataError, ValidationError
from webnn_py.core.messages import shown
from webnn_py.engines.registry import engine_names
from webnn_py.ir import Array

FILE_SUFFIXES = (".npy", ".npz")
TOLERANCES = {"float32": (1e-3, 1e-4), "float16": (1e-2, 1e-2)}
"""Default `--rtol` and `--atol` by data type; integers are to be equal."""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of the comparison."""
    group = parser.add_argument_group(
        "comparison", "Equal is |result - expected| <= atol + rtol * |expected|; else status 1."
    )
    group.add_argument(
        "--compare",
        type=_expected,
        metavar="ENGINE|FILE",
        help="with another engine's results, or with arrays by output name (.npz) or one (.npy)",
    )
    for number, name in enumerate(("rtol", "atol")):
        defaults = ", ".join(f"{pair[number]:g} for {t}" for t, pair in TOLERANCES.items())
        group.add_argument(f"--{name}", type=_tolerance, help=f"default: {defaults}; else 0")


def _expected(text: str) -> str | Path:
    """Parse the name of an engine, or a path."""
    path = Path(text)
    if path.suffix in FILE_SUFFIXES:
        return path
    names = (*engine_names(), *GPU_ENGINES[1:])
    if text not in names:
        raise argparse.ArgumentTypeError(
            f"got {text!r}, expected a file ({', '.join(FILE_SUFFIXES)}) or an engine:"
            f" {', '.join(names)}"
        )
    return text


def _tolerance(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not 0 <= number < math.inf:
        raise argparse.ArgumentTypeError(f"got {text!r}, expected a number from 0")
    return number


def check_expected(path: Path, expected: Mapping[str, Array], outputs: Iterable[str]) -> None:
    """Raise a DataError unless there is an array for each output."""
    names = list(outputs)
    if "" in expected and len(names) == 1:
        return
    missing = [name for name in names if name not in expected]
    if missing:
        raise DataError(
            f"--compare: {path} has no array {shown(missing[0])}, but"
            f" {', '.join(map(shown, expected)) or 'none'}"
        )


@dataclass(frozen=True)
class Difference:
    """The difference of one output.

    Attributes:
        output: Its name.
        equal: Whether all elements are within the tolerances.
        different: Number of elements that are not.
        max_absolute: Largest absolute difference; NaN where only one result is a number.
        max_relative: Largest difference divided by the expected magnitude.
        rtol: The relative tolerance.
        atol: The absolute tolerance.
    """

    output: str
    equal: bool
    different: int
    max_absolute: float
    max_relative: float
    rtol: float
    atol: float

    def as_json(self) -> dict[str, Any]:
        """Return the difference as data for JSON, where infinities and NaN are strings."""
        values = asdict(self)
        return {
            name: str(value) if isinstance(value, float) and not math.isfinite(value) else value
            for name, value in values.items()
        }


def differences(
    results: Mapping[str, Array], expected: Mapping[str, Array], options: argparse.Namespace
) -> list[Difference]:
    """Compare results.

    Args:
        results: The outputs by name.
        expected: Expected arrays by the same names, or one without a name.
        options: The options of `add_options`.

    Raises:
        ValidationError: An expected array has another shape.
    """
    return [
        _difference(name, array, expected.get(name, expected.get("")), options)
        for name, array in results.items()
    ]


def _difference(
    name: str, result: Array, expected: Array | None, options: argparse.Namespace
) -> Difference:
    assert expected is not None  # checked before the run
    if result.shape != expected.shape:
        raise ValidationError(
            f"--compare: output {shown(name)} is {list(result.shape)}, expected"
            f" {list(expected.shape)}"
        )
    rtol, atol = TOLERANCES.get(str(result.dtype), (0.0, 0.0))
    rtol = rtol if options.rtol is None else options.rtol
    atol = atol if options.atol is None else options.atol
    if result.dtype.kind == "f" or expected.dtype.kind == "f":
        a, b = result.astype(np.float64), expected.astype(np.float64)
    else:
        a, b = result.astype(object), expected.astype(object)  # of 64 bits, too
    with np.errstate(all="ignore"):
        same = (a == b) | ((a != a) & (b != b))
        distance = np.where(same, 0, np.abs(a - b)).astype(np.float64)
        magnitude = np.abs(b).astype(np.float64)
        equal = same | (distance <= atol + rtol * magnitude)
        relative = np.where(distance == 0, 0.0, distance / magnitude)
    different = int(equal.size - np.count_nonzero(equal))
    return Difference(
        name,
        not different,
        different,
        float(distance.max(initial=0.0)),
        float(relative.max(initial=0.0)),
        rtol,
        atol,
    )


def print_differences(title: str, found: Iterable[Difference]) -> None:
    """Print a table of differences."""
    rows = [
        (
            each.output,
            "yes" if each.equal else "NO",
            each.different,
            f"{each.max_absolute:.3g}",
            f"{each.max_relative:.3g}",
            f"{each.rtol:g}",
            f"{each.atol:g}",
        )
        for each in found
    ]
    columns = ("output", "equal", "different", "largest", "relative", "rtol", "atol")
    print_table(title, columns, rows)

"""The JSON form of the WebNN web-platform-tests: where it lies and how its values are written.

Names and types of the operators come from `spec/operators.json`; there is no table here.
"""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

Array: TypeAlias = np.ndarray[Any, Any]

ROOT = Path(__file__).parents[2]
DEFAULT_FOLDER = ROOT.parent / "shared" / "wpt"
NO_DATA = (
    "the WebNN web-platform-tests are not here: give their folder with --wpt DIR or in WPT_DATA"
    f" (looked in {DEFAULT_FOLDER})"
)
WORDS = {"NaN": np.nan, "Infinity": np.inf, "-Infinity": -np.inf, "-0": -0.0}


class FormatError(ValueError):
    """The data does not have the form that the runner understands."""


def data_folder(option: Path | None = None) -> Path | None:
    """The folder of the test data, or None where none is given and the usual place is empty."""
    given = option or os.environ.get("WPT_DATA")
    folder = Path(given) if given else DEFAULT_FOLDER
    if (folder / "conformance").is_dir():
        return folder
    if given:
        raise FormatError(f"{folder} has no folder conformance/ with the test data")
    return None


def number(value: Any) -> Any:
    """A number; what JSON cannot hold is written as a string."""
    if not isinstance(value, str):
        return value
    return WORDS[value] if value in WORDS else int(value)


def array(entry: Mapping[str, Any]) -> Array:
    """The tensor of an input or expected output; a bare number fills the shape."""
    descriptor, data = entry["descriptor"], entry["data"]
    dtype, shape = np.dtype(descriptor["dataType"]), tuple(descriptor["shape"])
    with np.errstate(over="ignore"):
        if not isinstance(data, list):
            return np.full(shape, number(data), dtype)
        if len(data) != np.prod(shape, dtype=int):
            raise FormatError(f"{len(data)} values for shape {shape}")
        return np.array([number(value) for value in data], dtype).reshape(shape)


@dataclass(frozen=True)
class Signature:
    """How an operator is called.

    Attributes:
        python: Name of the builder method.
        positional: IDL types by IDL name of the operands and arguments, in order.
        options: IDL types by IDL name of the members of the options dictionary.
        keywords: Python names by IDL name of the members of the options dictionary.
        returns_list: Whether the method returns a list.
    """

    python: str
    positional: Mapping[str, str]
    options: Mapping[str, str]
    keywords: Mapping[str, str]
    returns_list: bool


def _signature(operator: Mapping[str, Any]) -> Signature:
    def operand_type(entry: Mapping[str, Any]) -> str:
        return "sequence<MLOperand>" if entry.get("sequence") else "MLOperand"

    positional = {entry["name"]: operand_type(entry) for entry in operator["operands"]}
    positional |= {entry["name"]: entry["type"] for entry in operator["arguments"]}
    options = {entry["name"]: operand_type(entry) for entry in operator["option_operands"]}
    options |= {entry["name"]: entry["type"] for entry in operator["options"]}
    keywords = {
        entry["name"]: entry["python"]
        for entry in (*operator["option_operands"], *operator["options"])
    }
    returns_list = operator["returns"] == "list"
    return Signature(operator["python"], positional, options, keywords, returns_list)


@functools.cache
def signatures() -> dict[str, Signature]:
    """The operators of the specification by IDL name."""
    data = json.loads((ROOT / "spec" / "operators.json").read_text(encoding="utf-8"))
    return {operator["name"]: _signature(operator) for operator in data["operators"]}


Lookup: TypeAlias = Callable[[str], Any]


def argument(value: Any, idl_type: str, operand: Lookup) -> Any:
    """An argument for the Python method; names of operands are looked up."""
    if idl_type == "MLOperand":
        return operand(value)
    if idl_type == "sequence<MLOperand>":
        return [operand(name) for name in value]
    if idl_type in ("MLNumber", "double"):
        return number(value)
    return value


@dataclass(frozen=True)
class Step:
    """One operator of a test graph."""

    idl_name: str
    arguments: tuple[tuple[str, Any], ...]
    outputs: tuple[str, ...]

    @property
    def signature(self) -> Signature:
        return signatures()[self.idl_name]

    def call(self, operand: Lookup) -> tuple[list[Any], dict[str, Any]]:
        """Positional and keyword arguments of the builder method."""
        positional: list[Any] = []
        keywords: dict[str, Any] = {}
        expected = iter(self.signature.positional.items())
        for name, value in self.arguments:
            if name == "options":
                for option, given in value.items():
                    idl_type = self.signature.options[option]
                    keyword = self.signature.keywords[option]
                    keywords[keyword] = argument(given, idl_type, operand)
                continue
            idl_name, idl_type = next(expected)
            if name != idl_name:
                raise FormatError(f"{self.idl_name}: argument {name!r}, expected {idl_name!r}")
            positional.append(argument(value, idl_type, operand))
        return positional, keywords


@dataclass(frozen=True)
class Case:
    """One conformance case: a graph, its inputs and what it must compute."""

    file: str
    name: str
    inputs: Mapping[str, Mapping[str, Any]]
    steps: tuple[Step, ...]
    expected: Mapping[str, Mapping[str, Any]]
    metric: str
    tolerance: float

    @property
    def operator(self) -> str:
        """Python name of the operator under test, or the file's name for a mixed graph."""
        names = {step.signature.python for step in self.steps}
        return names.pop() if len(names) == 1 else self.file

    def constants(self) -> Iterator[str]:
        """Names of the inputs that are constants of the graph."""
        return (name for name, entry in self.inputs.items() if entry.get("constant"))


def _case(file: str, raw: Mapping[str, Any]) -> Case:
    graph, tolerance = raw["graph"], raw["tolerance"]
    steps = []
    for operator in graph["operators"]:
        arguments = tuple(pair for entry in operator["arguments"] for pair in entry.items())
        outputs = operator["outputs"]
        names = (outputs,) if isinstance(outputs, str) else tuple(outputs)
        steps.append(Step(operator["name"], arguments, names))
    return Case(
        file,
        raw["name"],
        graph["inputs"],
        tuple(steps),
        graph["expectedOutputs"],
        tolerance["metricType"],
        number(tolerance["value"]),
    )


def case_files(folder: Path) -> list[Path]:
    """The files of conformance cases."""
    return sorted((folder / "conformance").glob("*.json"))


def trace_files(folder: Path) -> list[Path]:
    """The files of validation traces."""
    return sorted((folder / "validation").glob("*.json"))


def read_cases(path: Path) -> list[Case]:
    """The cases of a conformance file."""
    data = json.loads(path.read_text(encoding="utf-8"))
    return [_case(path.stem, raw) for raw in data["cases"]]

"""ONNX's own backend test suite: its cases, and what running one of them gives."""

from __future__ import annotations

import glob
import os
import tomllib
import warnings
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx.backend.test.runner import Runner

from webnn_py.onnx.backend import PreparedModel, prepare

Prepare = Callable[[Any], PreparedModel]
"""Makes a model ready to run, somewhere."""

EXCLUDES = Path(__file__).with_name("excluded.toml")

Case = tuple[str, Any, list[tuple[list[Any], list[Any]]], float, float]


def excluded(engine: str | None = None) -> dict[str, str]:
    """Names of cases that are not supposed to pass on any engine, or but for one, with reasons."""
    groups = tomllib.loads(EXCLUDES.read_text(encoding="utf-8"))["excluded"]
    found = {}
    for group in groups:
        if group.get("engine", engine) != engine:
            continue
        for name in group["cases"]:
            assert name not in found, f"{name} is excluded twice"
            found[name] = group["reason"]
    return found


def cases(kind: str) -> Iterator[Case]:
    """Name, model, pairs of inputs and outputs, and tolerances."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the suite's generators divide by zero
        from onnx.backend.test.loader import load_model_tests

        found = load_model_tests(kind=kind)
    for case in found:
        if case.model_dir is None:
            pairs = [([_array(x) for x in i], [_array(x) for x in o]) for i, o in case.data_sets]
            yield case.name, case.model, pairs, case.rtol, case.atol
            continue
        model = onnx.load(os.path.join(case.model_dir, "model.onnx"))
        pairs = [
            (_read(folder, "input", model.graph.input), _read(folder, "output", model.graph.output))
            for folder in sorted(glob.glob(os.path.join(case.model_dir, "test_data_set*")))
        ]
        yield case.name, model, pairs, case.rtol, case.atol


def light_case(path: Path) -> Case:
    """A well-known network with weights that are made up, and its published output."""
    model = onnx.load(path)
    weights = {tensor.name for tensor in model.graph.initializer}
    inputs = [
        Runner.generate_dummy_data(value)
        for value in model.graph.input
        if value.name not in weights
    ]
    output = onnx.load_tensor(path.with_name(f"{path.stem}_output_0.pb"))
    return path.stem, model, [(inputs, [onnx.numpy_helper.to_array(output)])], 1e-3, 1e-7


def _array(value: Any) -> Any:
    return onnx.numpy_helper.to_array(value) if isinstance(value, onnx.TensorProto) else value


def _read(folder: str, kind: str, values: Any) -> list[Any]:
    contents: list[Any] = []
    for i in range(len(glob.glob(os.path.join(folder, f"{kind}_*.pb")))):
        path = os.path.join(folder, f"{kind}_{i}.pb")
        if values[i].type.HasField("tensor_type"):
            contents.append(onnx.numpy_helper.to_array(onnx.load_tensor(path)))
        else:
            contents.append([])
    return contents


def run(case: Case, prepared_by: Prepare = prepare) -> None:
    """Run a case and compare, as the official runner does.

    Raises:
        Exception: It does not pass.
    """
    _, model, pairs, rtol, atol = case
    prepared = prepared_by(model)
    for inputs, expected in pairs:
        got = prepared.run(inputs)
        with np.errstate(all="ignore"):
            Runner.assert_similar_outputs(expected, got, rtol, atol)


def failures(
    found: Iterable[Case], prepared_by: Prepare = prepare
) -> tuple[dict[str, Exception], list[str]]:
    """What fails, by name, and the names of all cases."""
    failed: dict[str, Exception] = {}
    names = []
    for case in found:
        names.append(case[0])
        try:
            run(case, prepared_by)
        except Exception as error:
            failed[case[0]] = error
    return failed, names

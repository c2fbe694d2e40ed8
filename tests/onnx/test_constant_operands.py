"""Constant operands give the same bits as inputs: every operator, all ways to mix the two.

The cases are those of ONNX's node tests whose operator the importer maps, with their own values and
with hostile ones.
"""

from __future__ import annotations

import functools
import zlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import onnx
import pytest

from tests.onnx import official, test_fused
from tests.onnx.own_operators import alone
from webnn_py import DataError, MLContext, MLExecution, MLGraphBuilder, NotSupportedError, ml
from webnn_py.api.builder import recorded
from webnn_py.engines.reference import evaluate
from webnn_py.ir import Graph, Value
from webnn_py.onnx.load_impl import Importer, Inputs, Model, outputs
from webnn_py.onnx.registry import HANDLERS

FLOATS = [np.nan, np.inf, -np.inf, -0.0, 0.0, 300.7, -300.7, 3e9, -3e9, 65504, 6e4, 1e-8, 0.5, -2.5]
INTEGERS = [0, 1, -1, 2, 127, -128, 1 << 31, 1 << 34, (1 << 63) - 1, -(1 << 63)]

THOROUGH_CASES = 3
"""Cases of an operator that are also compared in float16 and with their own values."""

BAD_INDEX = "is not one of"
"""What is said of a constant index that is out of range; one that is computed is clamped."""

REWRITTEN = {"DFT": "a pass multiplies the scale of an inverse into its matrix, which is rounded"}
"""Operators that passes compute otherwise where the operands are inputs."""

Arrays = dict[str, Any]
Case = tuple[Any, Arrays]
"""A model and its inputs."""


def retyped(case: Case, old: type[np.generic], new: type[np.generic]) -> Case | None:
    """A case with inputs of another type; None if it has none of the old type."""
    model, arrays = case
    if not any(array.dtype == old for array in arrays.values()):
        return None
    made = onnx.ModelProto()
    made.CopyFrom(model)
    for value in made.graph.input:
        if arrays[value.name].dtype == old:
            elem = onnx.helper.np_dtype_to_tensor_dtype(np.dtype(new))
            value.type.tensor_type.elem_type = elem
    for value in made.graph.output:
        value.ClearField("type")
    with np.errstate(all="ignore"):
        changed = {n: a.astype(new) if a.dtype == old else a for n, a in arrays.items()}
    return made, changed


@functools.cache
def cases() -> dict[str, list[tuple[str, Case]]]:
    """By operator: names and cases of one node; of float32 where ONNX has float64."""
    found: dict[str, list[tuple[str, Case]]] = {}
    for name, model, pairs, _, _ in official.cases("node"):
        node = model.graph.node[0]
        if len(model.graph.node) != 1 or (node.domain, node.op_type) not in HANDLERS:
            continue
        names = [value.name for value in model.graph.input]
        values = dict(zip(names, pairs[0][0], strict=True))
        if all(isinstance(value, np.ndarray | np.generic) for value in values.values()):
            arrays = {name: np.asarray(value) for name, value in values.items()}
            found.setdefault(node.op_type, []).append(
                (name, retyped((model, arrays), np.float64, np.float32) or (model, arrays))
            )
    return found


def hostile(arrays: Arrays, fixed: frozenset[str], seed: int) -> Arrays:
    """Hard values of the same shapes and types, but for inputs that shapes follow from."""
    rng = np.random.default_rng(seed)
    made = dict(arrays)
    for name, array in arrays.items():
        if name in fixed or array.dtype.kind not in "fiu":
            continue
        values = FLOATS if array.dtype.kind == "f" else INTEGERS
        with np.errstate(all="ignore"):
            chosen = np.array(values, object)[rng.integers(len(values), size=array.shape)]
            if array.dtype.kind == "f":
                made[name] = np.asarray(chosen, np.float64).astype(array.dtype)
            else:
                made[name] = np.asarray(chosen).astype(np.int64).astype(array.dtype)
        made[name] = made[name].reshape(array.shape)
    return made


class UnmappedError(Exception):
    """A model that is not mapped; which inputs it needs as constants."""

    def __init__(self, needed: frozenset[str], reason: str) -> None:
        super().__init__(reason)
        self.needed = needed


def computed(context: MLContext, model: Any, arrays: Arrays, fixed: frozenset[str]) -> Arrays:
    """The outputs, of inputs but for those that are constants."""
    source, builder = Model(model), MLGraphBuilder(context)
    shapes = {name: list(a.shape) for name, a in arrays.items() if name not in fixed}
    importer = Importer(builder, source)
    try:
        found = importer.run({n: arrays[n] for n in fixed}, Inputs(source.inputs, shapes))
    except NotSupportedError as error:
        raise UnmappedError(frozenset(importer.needed), str(error)) from error
    named = outputs(builder, found)
    if REWRITTEN.keys() & {node.op_type for node in model.graph.node}:
        return _as_recorded(recorded(builder, named), arrays)
    graph = builder.build_sync(named)
    feeds = {n: np.ascontiguousarray(_as_uint8(arrays[n])) for n in graph.inputs}
    feeds = {n: a.reshape(arrays[n].shape) for n, a in feeds.items()}
    return dict(MLExecution(context, allow_blocking=True).compute(graph, feeds))


def _as_recorded(graph: Graph, arrays: Arrays) -> Arrays:
    """The outputs of a graph that no pass has rewritten."""
    values: dict[Value | None, Any] = {None: None, **graph.constants}
    values |= {value: _as_uint8(arrays[value.name]) for value in graph.inputs}
    for node in graph.nodes:
        made = evaluate(node, [values[value] for value in node.inputs])
        values.update(zip(node.outputs, made, strict=True))
    return {name: values[value] for name, value in graph.outputs}


def _as_uint8(array: Any) -> Any:
    return array.view(np.uint8) if array.dtype == np.bool_ else array


def needed(context: MLContext, model: Any, arrays: Arrays) -> frozenset[str]:
    """The inputs that must be constants, as shapes and axes must.

    Raises:
        UnmappedError: The model cannot be mapped, whatever is constant.
    """
    fixed: frozenset[str] = frozenset()
    while True:
        try:
            computed(context, model, arrays, fixed)
        except UnmappedError as error:
            if error.needed <= fixed:
                raise
            fixed |= error.needed
        else:
            return fixed


def differences(
    context: MLContext, model: Any, arrays: Arrays, fixed: frozenset[str]
) -> Iterator[str]:
    """What differs between the ways to mix constants and inputs."""
    expected = computed(context, model, arrays, fixed)
    singles = [fixed | {name} for name in arrays if name not in fixed]
    for constants in dict.fromkeys([*singles, frozenset(arrays)]):
        try:
            got = computed(context, model, arrays, constants)
        except DataError as error:
            if BAD_INDEX not in str(error):
                yield f"{sorted(constants)}: {error}"
            continue
        for name, value in expected.items():
            if value.dtype != got[name].dtype or value.tobytes() != got[name].tobytes():
                yield f"{sorted(constants)}: {name}: {value} computed, {got[name]} of constants"


OPERATORS = sorted(name for domain, name in HANDLERS if domain == "")


@pytest.fixture(scope="module")
def reference() -> Iterator[MLContext]:
    with ml.create_context_sync(engine="reference") as context:
        yield context


@pytest.mark.parametrize("operator", OPERATORS)
def test_constants_give_the_bits_of_inputs(operator: str, reference: MLContext) -> None:
    refused, compared = [], 0
    for number, (name, case) in enumerate(cases().get(operator, ())):
        is_more = number < THOROUGH_CASES
        halves = retyped(case, np.float32, np.float16) if is_more else None
        for used, given in filter(None, (case, halves)):
            try:
                fixed = needed(reference, used, given)
            except (UnmappedError, DataError) as error:
                refused.append(f"{name}: {error}")
                continue
            hard = hostile(given, fixed, zlib.crc32(name.encode()))
            for values in (given, hard) if used is case[0] and is_more else (hard,):
                assert list(differences(reference, used, values, fixed)) == [], name
                compared += 1
    if not compared:
        pytest.skip("; ".join(refused) or "ONNX has no case of one node with tensors alone")


@pytest.mark.parametrize("name", test_fused.CASES)
def test_operators_of_onnx_runtime(name: str, reference: MLContext) -> None:
    kind, given, _, attributes = test_fused.CASES[name]
    operands = [test_fused.floats(*test_fused.X), *given]
    case = alone(kind, [None if isinstance(o, str) else o for o in operands], 1, attributes)
    fixed = needed(reference, *case)
    assert list(differences(reference, *case, fixed)) == []


def test_most_operators_are_compared() -> None:
    assert len(cases().keys() & {*OPERATORS}) > 0.85 * len(OPERATORS)

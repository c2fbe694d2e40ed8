"""Files that are cut off or changed: a clear MLError or a right result, and nothing else.

WEBNN_RANDOM_CASES=5000 damages so many files, and measures the memory of every import.
"""

from __future__ import annotations

import contextlib
import os
import random
import tracemalloc
import warnings
from typing import Any

import numpy as np
import onnx
import pytest

from tests.onnx.exports import MODELS, Dynamo, Script
from tests.onnx.models import small_network
from tests.onnx.test_exporter import session_of
from tests.onnx.test_open_models import inputs_of
from webnn_py import MLContext, MLError, MLExecution
from webnn_py.onnx import load

SEEDS = int(os.environ.get("WEBNN_RANDOM_CASES", "200"))
MEASURED = 1 if "WEBNN_RANDOM_CASES" in os.environ else 5
PARTS = 4
WHOLE = [
    small_network().SerializeToString(),
    *(make(kind()).SerializeToString() for make in MODELS.values() for kind in (Script, Dynamo)),
]
MEMORY = 2 << 20
"""Bytes that an import may take besides three times the file."""


def damaged(seed: int) -> bytes:
    rng = random.Random(seed)
    whole = WHOLE[seed // 3 % len(WHOLE)]
    if seed % 3 == 0:
        return whole[: rng.randrange(len(whole))]
    if seed % 3 == 1:
        contents = bytearray(whole)
        for _ in range(rng.randrange(1, 4)):
            contents[rng.randrange(len(contents))] ^= 1 << rng.randrange(8)
        return bytes(contents)
    model = onnx.load_from_string(whole)
    for _ in range(rng.randrange(1, 3)):
        rng.choice(CHANGES)(rng, model)
    return bytes(model.SerializeToString())


def change_attribute(rng: random.Random, model: Any) -> None:
    found = [a for n in model.graph.node for a in n.attribute if a.HasField("i") or a.ints]
    attribute = rng.choice(found)
    number = rng.choice([0, 1, 2, 3, -1, -2, 7, 255, 2**31, -(2**63)])
    if attribute.ints:
        attribute.ints[rng.randrange(len(attribute.ints))] = number
    else:
        attribute.i = number


def change_constant(rng: random.Random, model: Any) -> None:
    found = [n.attribute[0].t for n in model.graph.node if n.op_type == "Constant"]
    tensors = [t for t in [*found, *model.graph.initializer] if t.data_type == t.INT64]
    tensor = rng.choice(tensors or [model.graph.initializer[0]])
    array = onnx.numpy_helper.to_array(tensor).copy()
    array.reshape(-1)[rng.randrange(array.size)] = rng.choice([0, 1, 2, 3, -1, 5, 100, 2**31])
    tensor.CopyFrom(onnx.numpy_helper.from_array(array, tensor.name))


def change_operator(rng: random.Random, model: Any) -> None:
    one, other = (rng.choice(model.graph.node) for _ in range(2))
    one.op_type = rng.choice([other.op_type, "Add", "Mul", "MatMul", "Relu", "Transpose"])


def change_operand(rng: random.Random, model: Any) -> None:
    node = rng.choice([node for node in model.graph.node if node.input])
    names = [name for other in model.graph.node for name in (*other.input, *other.output)]
    node.input[rng.randrange(len(node.input))] = rng.choice(names)


def change_dimension(rng: random.Random, model: Any) -> None:
    values = [value.type.tensor_type.shape.dim for value in model.graph.input]
    place = rng.choice(rng.choice([*values, *([w] for w in model.graph.initializer)]))
    if not isinstance(place, onnx.TensorProto):
        place.dim_value = rng.choice([1, 2, 3, 4, 8, 16])
    elif place.dims:
        place.dims[rng.randrange(len(place.dims))] = rng.choice([0, 1, 2, 4, 16, -1, 2**40])


def change_version(rng: random.Random, model: Any) -> None:
    model.opset_import[0].version = rng.randrange(1, 26)


def leave_out_a_node(rng: random.Random, model: Any) -> None:
    del model.graph.node[rng.randrange(len(model.graph.node))]


CHANGES = [
    change_attribute,
    change_constant,
    change_constant,
    change_operator,
    change_operand,
    change_dimension,
    change_version,
    leave_out_a_node,
]


def expected(contents: bytes, inputs: dict[str, Any]) -> list[Any] | None:
    """What ONNX Runtime computes, if it takes the model and its inputs."""
    try:
        session = session_of(onnx.load_from_string(contents))
        names = {value.name for value in session.get_inputs()}
        return list(session.run(None, {k: v for k, v in inputs.items() if k in names}))
    except Exception:
        return None


def imported(context: MLContext, contents: bytes, is_measured: bool) -> Any:
    """A file's graph."""
    if not is_measured:
        return load(contents, context)
    with contextlib.suppress(MLError):
        load(contents, context)  # what is imported late is not measured
    tracemalloc.start()
    try:
        return load(contents, context)
    finally:
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert peak < 3 * len(contents) + MEMORY


def outcome(context: MLContext, seed: int) -> str:
    """What comes of a file."""
    contents = damaged(seed)
    try:
        graph = imported(context, contents, not seed % MEASURED)
    except MLError:
        return "refused"
    model = onnx.load_from_string(contents)
    inputs = inputs_of(model, {"height": 9, "width": 9, "sequence": 3, "time": 3})
    given = {name: inputs[name] for name in graph.inputs}
    try:
        results = MLExecution(context).compute(graph, given)
    except MLError:
        return "refused when it ran"
    wanted = expected(contents, inputs)
    if wanted is None:
        return "ours alone"
    for value, array in zip(model.graph.output, wanted, strict=True):
        np.testing.assert_allclose(results[value.name], array, rtol=1e-3, atol=1e-4)
    return "right"


@pytest.mark.parametrize("part", range(PARTS))
def test_damage_is_an_error_or_does_no_harm(cpu: MLContext, part: int) -> None:
    load(WHOLE[0], cpu)  # what is made once and kept is not an import's
    came = []
    for seed in range(part, SEEDS, PARTS):
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            came.append(outcome(cpu, seed))
    assert {"refused", "right"} <= set(came)

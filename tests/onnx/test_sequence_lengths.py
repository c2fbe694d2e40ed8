"""Recurrent networks over sequences of different lengths, as ONNX Runtime computes them."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper

from webnn_py import MLContext, MLExecution, NotSupportedError
from webnn_py.onnx import load

SIZE, WIDTH = 5, 3
GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
LENGTHS = {4: ([4, 2, 1], [1, 0, 3]), 6: ([2, 6, 5],)}


def network(
    kind: str, direction: str, states: bool, known: list[int] | None = None, **attributes: Any
) -> onnx.ModelProto:
    """One recurrent node; the lengths are an input unless they are known."""
    rng = np.random.default_rng(0)
    ways, rows = 1 + (direction == "bidirectional"), GATES[kind] * SIZE
    weights = {
        "w": rng.normal(size=(ways, rows, WIDTH)).astype(np.float32),
        "r": rng.normal(size=(ways, rows, SIZE)).astype(np.float32),
        "b": rng.normal(size=(ways, 2 * rows)).astype(np.float32),
    }
    batch = "n" if known is None else len(known)
    shapes: dict[str, list[Any]] = {"x": ["t", batch, WIDTH]}
    own = ["h", "c"][: 2 if kind == "LSTM" else 1] if states else []
    shapes |= {name: [ways, batch, SIZE] for name in own}
    values = [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in shapes.items()]
    if known is None:
        values.append(helper.make_tensor_value_info("lengths", TensorProto.INT32, [batch]))
    else:
        weights["lengths"] = np.asarray(known, np.int32)
    outputs = ["y", "last", "cell"][: 3 if kind == "LSTM" else 2]
    node = helper.make_node(
        kind,
        ["x", "w", "r", "b", "lengths", *own],
        outputs,
        hidden_size=SIZE,
        direction=direction,
        **attributes,
    )
    graph = helper.make_graph(
        [node],
        "g",
        values,
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, None) for n in outputs],
        [onnx.numpy_helper.from_array(v, n) for n, v in weights.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 14)], ir_version=8)


@pytest.mark.parametrize("known", [False, True])
@pytest.mark.parametrize("states", [False, True])
@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize("kind", GATES)
def test_each_sequence_ends_where_it_does(
    cpu: MLContext, kind: str, direction: str, states: bool, known: bool
) -> None:
    """What lies behind the end, NaN even, changes nothing."""
    rng = np.random.default_rng(1)
    attributes = {"linear_before_reset": 1} if kind == "GRU" and states else {}
    model, graph = None, None
    for steps, choices in LENGTHS.items():
        for lengths in choices:
            if model is None or known:
                fixed = lengths if known else None
                model = network(kind, direction, states, fixed, **attributes)
                graph = load(model, cpu)
            assert graph is not None
            x = rng.normal(size=(steps, 3, WIDTH)).astype(np.float32)
            for place, length in enumerate(lengths):
                x[length:, place] = np.nan
            given = {"x": x, "lengths": np.asarray(lengths, np.int32)}
            for name in {"h", "c"} & graph.inputs.keys():
                shape = (1 + (direction == "bidirectional"), 3, SIZE)
                given[name] = rng.normal(size=shape).astype(np.float32)
            given = {name: given[name] for name in graph.inputs}
            session = onnxruntime.InferenceSession(model.SerializeToString())
            results = MLExecution(cpu).compute(graph, given)
            for value, wanted in zip(session.get_outputs(), session.run(None, given), strict=True):
                np.testing.assert_allclose(results[value.name], wanted, rtol=1e-4, atol=1e-5)


def test_batches_first(cpu: MLContext) -> None:
    lengths = [4, 2, 1]
    model = network("GRU", "bidirectional", False, layout=1)
    plain = network("GRU", "bidirectional", False)
    x = np.random.default_rng(1).normal(size=(4, 3, WIDTH)).astype(np.float32)
    given = {"x": x, "lengths": np.asarray(lengths, np.int32)}
    wanted = onnxruntime.InferenceSession(plain.SerializeToString()).run(None, given)
    turned = given | {"x": np.ascontiguousarray(x.swapaxes(0, 1))}
    model.graph.input[0].type.CopyFrom(
        helper.make_tensor_type_proto(TensorProto.FLOAT, ["n", "t", WIDTH])
    )
    results = MLExecution(cpu).compute(load(model, cpu), turned)
    np.testing.assert_allclose(results["y"], wanted[0].transpose(2, 0, 1, 3), atol=1e-5)
    np.testing.assert_allclose(results["last"], wanted[1].swapaxes(0, 1), atol=1e-5)


def test_cells_that_cannot_be_kept(cpu: MLContext) -> None:
    model = network("LSTM", "forward", False, activations=["relu", "tanh", "tanh"])
    with pytest.raises(NotSupportedError, match="gates by other functions than sigmoid"):
        load(model, cpu)

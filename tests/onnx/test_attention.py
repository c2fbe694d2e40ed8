"""ONNX's Attention becomes one operator, wherever that says the same."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from onnx import helper

from tests.onnx.models import model
from webnn_py import MLContext, MLExecution, ml
from webnn_py.onnx import load

COMPOSITE = "scaled_dot_product_attention"
ROWS, KEYS, HEADS, SHARED, SIZE = 6, 6, 4, 2, 8
QUERY, KEY = [2, HEADS, ROWS, SIZE], [2, SHARED, KEYS, SIZE]
PAST = [2, SHARED, 3, SIZE]
FLAT = {"q": [2, ROWS, HEADS * SIZE], "k": [2, KEYS, SHARED * SIZE], "v": [2, KEYS, SHARED * SIZE]}
SPLIT = {"q": QUERY, "k": KEY, "v": KEY}
WITH_PAST = SPLIT | {"past_key": PAST, "past_value": PAST}
ONE: dict[str, tuple[dict[str, list[int]], dict[str, Any]]] = {
    "grouped heads": (SPLIT, {}),
    "rows of all heads": (FLAT, {"q_num_heads": HEADS, "kv_num_heads": SHARED}),
    "causal": (SPLIT, {"is_causal": 1}),
    "causal behind a past": (WITH_PAST, {"is_causal": 1}),
    "causal from the first of more keys": (
        SPLIT | {"k": [2, SHARED, 9, SIZE], "v": [2, SHARED, 9, SIZE]},
        {"is_causal": 1, "scale": 0.3, "softcap": 2.0},
    ),
    "mask": (SPLIT | {"attn_mask": [ROWS, KEYS]}, {}),
    "causal with a mask, from the first of more keys": (
        SPLIT
        | {"k": [2, SHARED, 9, SIZE], "v": [2, SHARED, 9, SIZE], "attn_mask": [2, 1, ROWS, 9]},
        {"is_causal": 1},
    ),
}
NAMES = ("q", "k", "v", "attn_mask", "past_key", "past_value")


def attention(shapes: dict[str, list[int]], attributes: dict[str, Any], opset: int = 24) -> Any:
    names = [name if name in shapes else "" for name in NAMES]
    node = helper.make_node("Attention", names, ["y"], **attributes)
    return model([node], shapes, ["y"], opset=opset)


@pytest.fixture
def reference() -> Iterator[MLContext]:
    with ml.create_context_sync(engine="reference") as context:
        yield context


def expected(inputs: dict[str, Any], attributes: dict[str, Any]) -> Any:
    """Return attention by NumPy, in float64."""
    q, k, v = (inputs[name].astype(np.float64) for name in "qkv")
    if q.ndim == 3:
        q, k, v = (
            x.reshape(*x.shape[:2], heads, SIZE).swapaxes(1, 2)
            for x, heads in ((q, HEADS), (k, SHARED), (v, SHARED))
        )
    past = inputs["past_key"].shape[2] if "past_key" in inputs else 0
    if past:
        k, v = (
            np.concatenate([inputs[name], x], 2) for name, x in (("past_key", k), ("past_value", v))
        )
    k, v = (x.repeat(HEADS // SHARED, 1) for x in (k, v))
    scores = attributes.get("scale", SIZE**-0.5) * q @ k.swapaxes(2, 3)
    if cap := attributes.get("softcap"):
        scores = cap * np.tanh(scores / cap)
    scores = scores + inputs.get("attn_mask", 0)
    if attributes.get("is_causal"):
        rows, keys = scores.shape[2:]
        scores = np.where(np.arange(keys) <= np.arange(rows)[:, None] + past, scores, -np.inf)
    weights = np.exp(scores - scores.max(3, keepdims=True))
    made = weights / weights.sum(3, keepdims=True) @ v
    flat = made.swapaxes(1, 2).reshape(2, ROWS, HEADS * SIZE)
    return flat if inputs["q"].ndim == 3 else made


@pytest.mark.parametrize("name", ONE)
def test_it_is_one_operator(reference: MLContext, name: str) -> None:
    shapes, attributes = ONE[name]
    rng = np.random.default_rng(0)
    inputs = {key: rng.standard_normal(shape).astype(np.float32) for key, shape in shapes.items()}
    graph = load(attention(shapes, attributes), reference)
    assert str(graph).count(f" = {COMPOSITE}(") == 1
    assert "softmax(" not in str(graph)
    made = MLExecution(reference).compute(graph, inputs)["y"]
    np.testing.assert_allclose(made, expected(inputs, attributes), atol=1e-5)


@pytest.mark.parametrize(
    ("shapes", "attributes", "opset"),
    [
        (SPLIT | {"attn_mask": [ROWS, KEYS - 2]}, {}, 24),
        (SPLIT, {"left_window_size": 2}, 25),
    ],
)
def test_what_the_operator_lacks_is_spelled_out(
    reference: MLContext, shapes: dict[str, list[int]], attributes: dict[str, Any], opset: int
) -> None:
    graph = load(attention(shapes, attributes, opset), reference)
    assert COMPOSITE not in str(graph)
    assert "softmax(" in str(graph)

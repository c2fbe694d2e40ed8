"""Rotary embeddings and attention of groups of queries, against ONNX Runtime."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx.reference import ReferenceEvaluator

from tests.onnx.own_operators import alone, by_onnx_runtime
from webnn_py import DataError, MLContext, MLExecution, NotSupportedError, ml
from webnn_py.onnx import load

RNG = np.random.default_rng(5)
PLACES = np.asarray([[0, 1, 2, 3, 4], [3, 9, 5, 6, 7]])


def floats(*shape: int) -> Any:
    return RNG.normal(size=shape).astype(np.float32)


X3, X4 = floats(2, 5, 24), floats(2, 3, 5, 8)
ROTATED: dict[str, tuple[list[Any], dict[str, Any]]] = {
    "halves": ([X3, PLACES], {}),
    "side by side": ([X3, PLACES], {"interleaved": 1}),
    "behind a place": ([X3, np.asarray([7])], {}),
    "by heads": ([X4, PLACES], {}),
    "by heads, side by side": ([X4, np.asarray([7])], {"interleaved": 1}),
    "of a part": ([X3, PLACES], {"num_heads": 3, "rotary_embedding_dim": 4}),
    "of a part by heads": ([X4, PLACES], {"num_heads": 3, "rotary_embedding_dim": 4}),
    "scale is not read": ([X3, PLACES], {"scale": 0.5}),
}


@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize("name", ROTATED)
def test_rotary_embeddings(cpu: MLContext, name: str, half: bool) -> None:
    (x, positions), attributes = ROTATED[name]
    pairs = attributes.get("rotary_embedding_dim", 8) // 2
    kind = np.float16 if half else np.float32
    given = [x.astype(kind), positions, *(floats(16, pairs).astype(kind) for _ in range(2))]
    made, feeds = alone("RotaryEmbedding", given, 1, attributes)
    wanted = by_onnx_runtime(made, feeds)
    found = MLExecution(cpu).compute(load(made, cpu), feeds)
    tolerance = 5e-3 if half else 1e-5
    np.testing.assert_allclose(found["y0"], wanted["y0"], rtol=tolerance, atol=tolerance)
    with ml.create_context_sync(engine="reference") as reference:  # which keeps it whole
        assert str(load(made, reference)).count(" = rotary_embedding(") == 1


HEADS, SHARED, EACH = 4, 2, 16


def group_query(
    new: int,
    past: int,
    ends: list[int],
    total: int,
    extra: list[Any] | None = None,
    packed: bool = False,
    known: bool = True,
    kind: Any = np.float32,
    **attributes: Any,
) -> tuple[Any, dict[str, Any]]:
    """A model of one node; `ends` are the keys of each batch, and `known` says that `total` is."""
    batch = len(ends)
    widths = [HEADS + 2 * SHARED] if packed else [HEADS, SHARED, SHARED]
    given: list[Any] = [floats(batch, new, width * EACH).astype(kind) for width in widths]
    given += [None] * (3 - len(given))
    cache = (batch, SHARED, past, EACH)
    given += [floats(*cache).astype(kind) if past else None for _ in range(2)]
    given += [np.asarray(ends, np.int32) - 1, np.asarray(total, np.int32)]
    angles = [floats(32, EACH // 2).astype(kind) for _ in range(2)]
    given += angles if attributes.get("do_rotary") else [None, None]
    given += [
        one.astype(kind) if one is not None and one.dtype.kind == "f" else one
        for one in extra or []
    ]
    attributes |= {"num_heads": HEADS, "kv_num_heads": SHARED}
    return alone("GroupQueryAttention", given, 3, attributes, known=[6, 7, 8] if known else [7, 8])


BIASES = {"of all": (1, 1), "of each head": (1, HEADS), "of each batch": (2, 1)}
CASES: dict[str, dict[str, Any]] = {
    "prompt": {"new": 5, "past": 0, "ends": [5, 5], "total": 5},
    "packed": {"new": 5, "past": 0, "ends": [5, 5], "total": 5, "packed": True, "do_rotary": 1},
    "padded prompt": {"new": 5, "past": 0, "ends": [5, 3], "total": 5, "do_rotary": 1},
    "step": {"new": 1, "past": 4, "ends": [5, 5], "total": 5, "do_rotary": 1},
    "step of one": {"new": 1, "past": 4, "ends": [5], "total": 5, "do_rotary": 1},
    "padded step": {"new": 1, "past": 4, "ends": [5, 3], "total": 5, "do_rotary": 1},
    "total of the graph": {"new": 1, "past": 4, "ends": [5, 3], "total": 5, "known": False},
    "buffer's prompt": {"new": 5, "past": 8, "ends": [5, 3], "total": 5, "do_rotary": 1},
    "buffer's step": {"new": 1, "past": 8, "ends": [6, 4], "total": 6, "do_rotary": 1},
    "several new": {"new": 3, "past": 4, "ends": [7], "total": 7, "rotary_interleaved": 1,
                    "do_rotary": 1},
    "window": {"new": 5, "past": 0, "ends": [5, 5], "total": 5, "local_window_size": 2},
    "window of a step": {"new": 1, "past": 6, "ends": [7], "total": 7, "local_window_size": 2},
    "window of padded": {"new": 1, "past": 6, "ends": [7, 4], "total": 7, "local_window_size": 2},
    "softcap": {"new": 5, "past": 0, "ends": [5, 5], "total": 5, "softcap": 0.5, "scale": 0.7},
    "smooth softmax": {"new": 5, "past": 0, "ends": [5, 5], "total": 5, "smooth_softmax": 1},
    "sink": {"new": 5, "past": 0, "ends": [5, 5], "total": 5, "extra": [None, None, floats(HEADS)]},
    "sink of a step": {"new": 1, "past": 4, "ends": [5, 3], "total": 5,
                       "extra": [None, None, floats(HEADS)]},
    **{
        f"bias {name}": {"new": 5, "past": 0, "ends": [5, 5], "total": 5,
                         "extra": [None, floats(*shape, 5, 5)]}
        for name, shape in BIASES.items()
    },
    "places of a prompt": {"new": 5, "past": 0, "ends": [5, 5], "total": 5, "do_rotary": 1,
                           "extra": [PLACES]},
    "places": {"new": 3, "past": 4, "ends": [7], "total": 7, "do_rotary": 1,
               "extra": [PLACES[1:, :3]]},
    "not causal": {"new": 5, "past": 0, "ends": [5, 3], "total": 5, "causal": 0},
    "float16": {"new": 5, "past": 0, "ends": [5, 5], "total": 5, "kind": np.float16},
    "step of float16": {"new": 1, "past": 4, "ends": [5, 3], "total": 5, "kind": np.float16},
}  # fmt: skip


def assert_valid_alike(found: Any, wanted: Any, axis: int, ends: list[int], half: bool) -> None:
    """Equal where there is no padding."""
    assert found.shape == wanted.shape
    tolerance = 1e-2 if half else 1e-5
    for row, other, end in zip(found, wanted, ends, strict=True):
        first, second = (np.take(one, range(end), axis - 1) for one in (row, other))
        np.testing.assert_allclose(first, second, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("name", CASES)
def test_groups_of_queries(cpu: MLContext, name: str) -> None:
    case = CASES[name]
    made, feeds = group_query(**case)
    graph = load(made, cpu)
    wanted = by_onnx_runtime(made, feeds)
    feeds = {name: one for name, one in feeds.items() if name in graph.inputs}
    found = MLExecution(cpu).compute(graph, feeds)
    ends, new, half = case["ends"], case["new"], "kind" in case
    assert_valid_alike(found["y0"], wanted["y0"], 1, [min(end, new) for end in ends], half)
    for name in ("y1", "y2"):
        assert_valid_alike(found[name], wanted[name], 2, ends, half)


def test_scores_of_float16_do_not_overflow(cpu: MLContext) -> None:
    """Queries and keys whose products are out of its range, and scores within."""
    made, feeds = group_query(5, 0, [5, 5], 5, kind=np.float16)
    feeds |= {name: feeds[name] * np.float16(120) for name in ("x0", "x1")}
    wanted = by_onnx_runtime(made, feeds)["y0"]
    feeds = {name: feeds[name] for name in ("x0", "x1", "x2")}
    for context in (cpu, ml.create_context_sync(engine="reference")):
        found = MLExecution(context).compute(load(made, context), feeds)["y0"]
        np.testing.assert_allclose(found, wanted, rtol=1e-2, atol=1e-2)


REFUSED: dict[str, dict[str, Any]] = {
    "k_quant_type": {"k_quant_type": "PER_TENSOR"},
    "qk_output": {"qk_output": 1},
    "sliding_window_cache": {"sliding_window_cache": 1, "local_window_size": 4},
    "query_seqlens": {"extra": [None] * 7 + [np.asarray([1, 1], np.int32)]},
    "q_norm_weight": {"extra": [None] * 5 + [floats(EACH), floats(EACH)]},
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_done_is_named(cpu: MLContext, name: str) -> None:
    made, _ = group_query(5, 0, [5, 5], 5, **REFUSED[name])
    with pytest.raises(NotSupportedError, match=rf"GroupQueryAttention \[n\]: {name}"):
        load(made, cpu)


def test_a_total_that_no_cache_has(cpu: MLContext) -> None:
    made, _ = group_query(1, 4, [7, 7], 7)
    with pytest.raises(DataError, match="total_sequence_length is 7, of 4 keys before and 1 new"):
        load(made, cpu)


@pytest.mark.parametrize("interleaved", [0, 1])
@pytest.mark.parametrize("width", [0, 4])
@pytest.mark.parametrize("by", ["positions", "rows", "one axis"])
def test_rotary_embeddings_of_onnx_with_open_sizes(
    cpu: MLContext, by: str, width: int, interleaved: int
) -> None:
    """Against ONNX's reference; equal sizes may have several names."""
    rng = np.random.default_rng(1)
    batch, count, length, each = 2, 3, 5, 8
    pairs = (width or each) // 2
    x = rng.normal(size=(batch, count, length, each)).astype(np.float32)
    angles = rng.normal(size=(9, pairs) if by == "positions" else (batch, length, pairs))
    feeds = {"x": x, "cos": np.cos(angles).astype(np.float32), "sin": np.sin(angles).astype("f")}
    shapes: dict[str, list[Any]] = {"x": ["batch", count, "a + 1", each]}
    shapes |= {key: ["batch", "b + 1", pairs] for key in ("cos", "sin")}
    options: dict[str, int] = {"interleaved": interleaved}
    if width:
        options["rotary_embedding_dim"] = width
    if by == "positions":
        feeds["p"] = rng.integers(0, 9, (batch, length))
        shapes |= {"cos": ["rows", pairs], "sin": ["rows", pairs], "p": ["batch", "c"]}
    if by == "one axis":
        options["num_heads"] = count
        feeds["x"] = x.transpose(0, 2, 1, 3).reshape(batch, length, count * each)
        shapes["x"] = ["batch", "a + 1", count * each]
    node = onnx.helper.make_node("RotaryEmbedding", list(feeds), ["y"], **options)
    ends = [
        onnx.helper.make_tensor_value_info(n, np_type(feeds[n]), shape)
        for n, shape in shapes.items()
    ]
    result = onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, None)
    made = onnx.helper.make_model(
        onnx.helper.make_graph([node], "g", ends, [result]),
        opset_imports=[onnx.helper.make_opsetid("", 23)],
        ir_version=10,
    )
    graph = load(made, cpu)
    assert str(graph).count(" = rotary_embedding(") == 1
    (wanted,) = ReferenceEvaluator(made).run(None, feeds)
    found = MLExecution(cpu).compute(graph, feeds)["y"]
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)


def np_type(array: np.ndarray[Any, Any]) -> int:
    return int(onnx.helper.np_dtype_to_tensor_dtype(array.dtype))

"""MultiHeadAttention and Attention of ONNX Runtime's own domain, against ONNX Runtime."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.onnx.own_operators import alone, by_onnx_runtime
from webnn_py import DataError, MLContext, MLExecution, NotSupportedError
from webnn_py.onnx import load

RNG = np.random.default_rng(6)
BATCH, ROWS, LENGTH, HEADS, EACH, WIDTH, PAST, INPUT = 2, 3, 5, 2, 8, 4, 4, 12
HIDDEN = HEADS * EACH
Case = tuple[list[Any], int, dict[str, Any]]


def floats(*shape: int) -> Any:
    return RNG.normal(size=shape).astype(np.float32)


def flags(*rows: Any) -> Any:
    return np.asarray(rows, np.int32)


Q, K, V = floats(BATCH, ROWS, HIDDEN), floats(BATCH, LENGTH, HIDDEN), floats(BATCH, LENGTH, 8)
SELF = [floats(BATCH, ROWS, HIDDEN) for _ in range(3)]
CACHE = [floats(BATCH, HEADS, PAST, EACH) for _ in range(2)]
KV = floats(BATCH, HEADS, LENGTH, EACH), floats(BATCH, HEADS, LENGTH, EACH)
LEFT = flags([0, 1, 1], [0, 0, 0])
TRIANGLE = np.tril(np.ones([BATCH, ROWS, ROWS], np.int32))


def multi(*given: Any, outputs: int = 1, **attributes: Any) -> Case:
    return list(given), outputs, {"num_heads": HEADS, **attributes}


MULTI: dict[str, Case] = {
    "plain": multi(Q, K, V),
    "keys and values": multi(Q, K, V, outputs=3),
    "bias": multi(Q, K, V, floats(2 * HIDDEN + 8)),
    "ends": multi(Q, K, V, None, flags(5, 3)),
    "ends and more": multi(Q, K, V, None, flags(5, 3, 0, 3, 6, 0, 5, 8)),
    "mask of keys": multi(Q, K, V, None, flags([1, 1, 1, 1, 0], [1, 1, 0, 0, 0])),
    "mask of all": multi(Q, K, V, None, RNG.integers(0, 2, [BATCH, ROWS, LENGTH], np.int32)),
    "filler": multi(Q, K, V, None, flags(5, 3), mask_filter_value=-2.5),
    "scores": multi(Q, K, V, None, None, floats(1, HEADS, ROWS, LENGTH)),
    "scores and mask": multi(Q, K, V, None, flags(5, 3), floats(BATCH, 1, ROWS, LENGTH)),
    "unidirectional": multi(*SELF, unidirectional=1),
    "unidirectional, masked": multi(*SELF, None, LEFT, unidirectional=1, scale=0.3),
    "of heads already": multi(Q, *KV, floats(3 * HIDDEN)),
    "cache": multi(Q, K, floats(BATCH, LENGTH, HIDDEN), None, None, None, *CACHE, outputs=3),
    "cache and mask": multi(
        *SELF, None, flags([0, 0, 1, 1, 1, 1, 1], [1] * 7), None, *CACHE, outputs=3
    ),
    "unidirectional cache": multi(*SELF, *[None] * 3, *CACHE, outputs=3, unidirectional=1),
    "step": multi(*(x[:, :1] for x in SELF), *[None] * 3, *CACHE, outputs=3, unidirectional=1),
    "float16": multi(*(x.astype(np.float16) for x in (Q, K, V))),
}


def of_input(
    mask: Any = None,
    past: Any = None,
    scores: Any = None,
    bias: bool = True,
    outputs: int = 1,
    sizes: tuple[int, ...] = (HIDDEN,) * 3,
    **attributes: Any,
) -> Case:
    columns = sum(sizes)
    given = [floats(BATCH, ROWS, INPUT), floats(INPUT, columns), floats(columns) if bias else None]
    attributes |= {"num_heads": HEADS}
    if sizes != (HIDDEN,) * 3:
        attributes["qkv_hidden_sizes"] = list(sizes)
    return [*given, mask, past, scores], outputs, attributes


OF_INPUT: dict[str, Case] = {
    "plain": of_input(),
    "without a bias": of_input(bias=False),
    "sizes": of_input(sizes=(16, 16, 8)),
    "keys and values": of_input(outputs=2),
    "cache": of_input(past=floats(2, *CACHE[0].shape), outputs=2),
    "unidirectional cache": of_input(
        past=floats(2, *CACHE[0].shape), outputs=2, unidirectional=1
    ),
    "ends": of_input(flags(3, 2)),
    "ends and starts": of_input(flags(3, 2, 0, 1)),
    "ends and more": of_input(flags(3, 2, 0, 3, 5, 0, 3, 5)),
    "ends of nothing": of_input(flags(0, 2), unidirectional=1),
    "mask of keys": of_input(flags([1, 1, 0], [0, 1, 1])),
    "mask of none": of_input(LEFT),
    "numbers that are no flags": of_input(flags([-1, 2, 1], [0, 1, 1])),
    "mask of all": of_input(TRIANGLE),
    "mask of nothing": of_input(flags([0], [0])),
    "filler": of_input(LEFT, mask_filter_value=-2.5, scale=0.4),
    "unidirectional": of_input(LEFT, unidirectional=1),
    "scores": of_input(scores=floats(1, HEADS, ROWS, ROWS)),
}  # fmt: skip
CASES = [("MultiHeadAttention", name, case) for name, case in MULTI.items()] + [
    ("Attention", name, case) for name, case in OF_INPUT.items()
]


def trimmed(given: list[Any]) -> list[Any]:
    """Without what is left out at the end."""
    last = max(i for i, one in enumerate(given) if one is not None)
    return given[: last + 1]


@pytest.mark.parametrize(
    ("kind", "name", "case"), CASES, ids=lambda one: one if isinstance(one, str) else ""
)
def test_attention(cpu: MLContext, kind: str, name: str, case: Case) -> None:
    given, outputs, attributes = case
    made, feeds = alone(kind, trimmed(given), outputs, attributes)
    graph = load(made, cpu)
    found = MLExecution(cpu).compute(
        graph, {name: one for name, one in feeds.items() if name in graph.inputs}
    )
    tolerance = 5e-3 if name == "float16" else 2e-5
    for output, wanted in by_onnx_runtime(made, feeds).items():
        np.testing.assert_allclose(found[output], wanted, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("whole", [False, True])
def test_operands_that_are_packed(cpu: MLContext, whole: bool) -> None:
    """As the same operands apart, which ONNX Runtime has kernels for on CPUs."""
    parts = [x.reshape(BATCH, ROWS, HEADS, 1, EACH) for x in SELF]
    joined = [np.concatenate(parts, 3)] if whole else [SELF[0], np.concatenate(parts[1:], 3)]
    made, feeds = alone("MultiHeadAttention", joined, 1, {"num_heads": HEADS})
    found = MLExecution(cpu).compute(load(made, cpu), feeds)["y0"]
    apart = alone("MultiHeadAttention", SELF, 1, {"num_heads": HEADS})
    np.testing.assert_allclose(found, by_onnx_runtime(*apart)["y0"], rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("name", ["plain", "ends", "cache", "columns"])
def test_projections_of_8_bit_integers(cpu: MLContext, name: str) -> None:
    by_columns = name == "columns"
    scale = np.abs(floats(3 * HIDDEN)) * 0.01 if by_columns else np.asarray(0.03, np.float32)
    kind: Any = np.int8 if by_columns else np.uint8
    given = [
        RNG.integers(0, 256, [BATCH, ROWS, INPUT]).astype(np.uint8),
        RNG.integers(0, 256, [INPUT, 3 * HIDDEN]).astype(kind),
        floats(3 * HIDDEN),
        np.asarray(0.02, np.float32),
        scale,
        flags(3, 2) if name == "ends" else None,
        np.asarray(120, np.uint8),
        np.zeros(3 * HIDDEN, kind) if by_columns else np.asarray(130, kind),
        floats(2, *CACHE[0].shape) if name == "cache" else None,
    ]
    attributes = {"num_heads": HEADS, "unidirectional": int(name == "cache")}
    outputs = 2 if name == "cache" else 1
    made, feeds = alone("QAttention", trimmed(given), outputs, attributes, [1, 2])
    found = MLExecution(cpu).compute(load(made, cpu), feeds)
    for output, wanted in by_onnx_runtime(made, feeds).items():
        np.testing.assert_allclose(found[output], wanted, rtol=1e-4, atol=1e-4)


REFUSED: dict[str, tuple[str, Case]] = {
    "do_rotary": ("Attention", of_input(do_rotary=1)),
    "past_present_share_buffer": ("Attention", of_input(past_present_share_buffer=1)),
    "a mask of rank 4": ("Attention", of_input(np.ones([BATCH, 1, 8, 8], np.int32))),
    r"a mask of shape \[5\] for 2 batches": ("Attention", of_input(flags(1, 2, 3, 4, 5))),
    "side by side in three dimensions": ("MultiHeadAttention", multi(floats(2, 3, 3 * HIDDEN))),
    "a bias of operands that are packed": (
        "MultiHeadAttention",
        multi(floats(BATCH, ROWS, HEADS, 3, EACH), None, None, floats(3 * HIDDEN)),
    ),
}


@pytest.mark.parametrize("why", REFUSED)
def test_what_cannot_be_done_is_named(cpu: MLContext, why: str) -> None:
    kind, (given, outputs, attributes) = REFUSED[why]
    made, _ = alone(kind, trimmed(given), outputs, attributes)
    with pytest.raises(NotSupportedError, match=rf"{kind} \[n\]: .*{why}"):
        load(made, cpu)


def test_sizes_that_do_not_fit(cpu: MLContext) -> None:
    given, outputs, attributes = of_input()
    made, _ = alone("Attention", trimmed(given), outputs, attributes | {"num_heads": 3})
    with pytest.raises(DataError, match="hidden size is 16, expected a multiple of 3"):
        load(made, cpu)


MISTAKEN: dict[str, tuple[str, list[Any]]] = {
    "past_key has rank 3, expected 4": (
        "MultiHeadAttention",
        [Q, K, V, None, None, None, CACHE[0][0], CACHE[1][0]],
    ),
    "query has rank 2, expected 3": ("MultiHeadAttention", [Q[0], K, V]),
    "it lacks its input 'weights'": ("Attention", [Q, None, floats(48)]),
    "past has rank 4, expected 5": ("Attention", [*of_input()[0][:3], None, CACHE[0]]),
}


@pytest.mark.parametrize("why", MISTAKEN)
def test_what_no_model_has_is_told(cpu: MLContext, why: str) -> None:
    kind, given = MISTAKEN[why]
    made, _ = alone(kind, given, 1, {"num_heads": HEADS})
    with pytest.raises(DataError, match=f"{kind}.*: {why}"):
        load(made, cpu)


def buckets_of_t5(apart: Any, both_ways: bool, count: int, most: int) -> Any:
    """As T5 has them: near ones each for itself, farther ones by the logarithm."""
    found = np.zeros_like(apart)
    if both_ways:
        count //= 2
        found += (apart > 0) * count
        far = abs(apart)
    else:
        far = -np.minimum(apart, 0)
    near = count // 2
    with np.errstate(divide="ignore"):
        part = np.log(far.astype(np.float32) / near) / np.log(most / near) * (count - near)
    beyond = np.minimum(near + np.where(far < near, 0, part).astype(np.int64), count - 1)
    return found + np.where(far < near, far, beyond)


@pytest.mark.parametrize("both_ways", [False, True])
def test_biases_by_distance(cpu: MLContext, both_ways: bool) -> None:
    """ONNX Runtime has no kernel for them on CPUs; its table lies in memory by heads."""
    table, lengths = floats(16, 3), [np.asarray(n, np.int64) for n in (40, 50)]
    attributes = {"max_distance": 30, "is_bidirectional": int(both_ways)}
    made, _ = alone("RelativePositionBias", [table, *lengths], 1, attributes, [1, 2])
    found = MLExecution(cpu).compute(load(made, cpu), {"x0": table})["y0"]
    apart = np.arange(50)[None] - np.arange(40)[:, None]
    wanted = table.reshape(3, 16)[:, buckets_of_t5(apart, both_ways, 16, 30)]
    np.testing.assert_array_equal(found, wanted[None])

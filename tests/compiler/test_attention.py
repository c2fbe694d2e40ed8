"""Which graphs are attention that one kernel computes, and which are not."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.attention_cases import Attention
from tests.compiler.compiled import kernels, legal, legalized, optimized
from tests.graphs import Build, build
from tests.internals import recipe_of
from webnn_py import MLGraphBuilder, MLOperand, ml
from webnn_py.engines.webgpu.compiler.kernel_list import kernels_of
from webnn_py.engines.webgpu.compiler.legalize.attention import (
    ATTENTION,
    MAX_KEYS,
    MAX_STORED_BYTES,
    Change,
)
from webnn_py.engines.webgpu.compiler.shape_generic import CompiledForSizes
from webnn_py.engines.webgpu.program.storage import Features, MatrixShape

Outputs = dict[str, MLOperand]
GPU = Features()


def names(what: Callable[[MLGraphBuilder], Outputs], features: Features = GPU) -> list[str]:
    return [kernel.name for kernel in kernels(what, features)]


def changes(what: Callable[[MLGraphBuilder], Outputs]) -> tuple[Change, ...]:
    (node,) = (node for node in legal(what, GPU).nodes if node.op == ATTENTION)
    found: tuple[Change, ...] = node.attrs["what"].changes
    return found


def spelled(
    change: Callable[[MLGraphBuilder, MLOperand], MLOperand],
    softmax: Callable[[MLGraphBuilder, MLOperand], MLOperand] = lambda b, x: b.softmax(x, 2),
) -> Callable[[MLGraphBuilder], Outputs]:
    """Attention with other changes of its scores, and another softmax."""

    def what(b: MLGraphBuilder) -> Outputs:
        q, v = (b.input(name, "float32", [2, 32, 16]) for name in "qv")
        k = b.input("k", "float32", [2, 16, 32])
        return {"y": b.matmul(softmax(b, change(b, b.matmul(q, k))), v)}

    return what


def by_hand(b: MLGraphBuilder, x: MLOperand) -> MLOperand:
    raised = b.exp(b.sub(x, b.reduce_max(x, axes=[2], keep_dimensions=True)))
    return b.div(raised, b.reduce_sum(raised, axes=[2], keep_dimensions=True))


def number(b: MLGraphBuilder, value: float) -> MLOperand:
    return b.constant(np.array(value, np.float32))


SPELLED: dict[str, tuple[Callable[[MLGraphBuilder], Outputs], tuple[Change, ...]]] = {
    "nothing": (spelled(lambda b, x: x), ()),
    "softmax by hand": (spelled(lambda b, x: x, by_hand), ()),
    "divided": (spelled(lambda b, x: b.div(x, number(b, 8))), (Change("scale", 0.125),)),
    "masked before": (
        spelled(lambda b, x: b.mul(b.add(b.input("m", "float32", [32]), x), number(b, 3))),
        (Change("add"), Change("scale", 3)),
    ),
    "kept": (
        spelled(lambda b, x: b.where(b.input("m", "uint8", [32, 32]), x, number(b, -1e9))),
        (Change("keep", float(np.float32(-1e9))),),
    ),
    "dropped": (
        spelled(lambda b, x: b.where(b.input("m", "uint8", [32]), number(b, -np.inf), x)),
        (Change("drop", -np.inf),),
    ),
}


@pytest.mark.parametrize("name", SPELLED)
def test_how_it_may_be_spelled(name: str) -> None:
    what, expected = SPELLED[name]
    assert changes(what) == expected
    assert names(what) == ["attention"]


def shown(read: str) -> Callable[[MLGraphBuilder], Outputs]:
    """Attention of which a value in the middle is read elsewhere, too."""

    def what(b: MLGraphBuilder) -> Outputs:
        q, v = (b.input(name, "float32", [2, 32, 16]) for name in "qv")
        scores = b.matmul(q, b.input("k", "float32", [2, 16, 32]))
        weights = b.softmax(scores, 2)
        others = {"scores": scores, "weights": weights, "read": b.reduce_sum(weights)}
        return {"y": b.matmul(weights, v), "z": others[read]}

    return what


OTHERS: dict[str, Callable[[MLGraphBuilder], Outputs]] = {
    "scores that are an output": shown("scores"),
    "weights that are an output": shown("weights"),
    "weights that are read elsewhere": shown("read"),
    "another axis": spelled(lambda b, x: x, lambda b, x: b.softmax(x, 1)),
    "changes of another kind": spelled(lambda b, x: b.tanh(x)),
    "a mask that makes more of them": spelled(
        lambda b, x: b.reshape(
            b.add(b.reshape(x, [1, 2, 32, 32]), b.input("m", "float32", [3, 1, 1, 1])), [6, 32, 32]
        ),
        lambda b, x: b.slice(b.softmax(x, 2), [0, 0, 0], [2, 32, 32]),
    ),
    "few rows": Attention(rows=8),
    "few keys": Attention(columns=8),
    "deep rows": Attention(depth=300),
    "wide values": Attention(width=300),
    "many keys and few workgroups": Attention(batch=(), columns=4096),
}


@pytest.mark.parametrize("name", OTHERS)
def test_what_is_not(name: str) -> None:
    assert "attention" not in names(OTHERS[name])


def test_devices_that_gain_nothing() -> None:
    assert "attention" not in names(Attention(), Features(kind="cpu"))
    assert "attention" not in names(Attention(), Features(workgroup_bytes=8192))
    halves = Attention(data_type="float16")
    assert names(halves) == ["attention"]
    assert "attention" not in names(halves, Features(f16=False))


def test_a_large_matrix_is_not_stored() -> None:
    side = 1 << 10
    case = Attention(batch=(8,), rows=side, columns=side, depth=64, width=64)
    assert names(dataclasses.replace(case, data_type="float16")) == ["attention"]
    assert "attention" not in names(case)
    assert 8 * side * side * 4 < MAX_STORED_BYTES
    assert names(dataclasses.replace(case, batch=(33,))) == ["attention"]


def test_parts_of_scores_are_stored_one_by_one() -> None:
    """Scores of 1 GiB, in parts of as many bytes as a binding takes."""
    with ml.create_context_sync(engine="reference") as context:
        graph = legalized(recipe_of(build(context, composite((2, 8, 4096, 40), "float32"))), GPU)
    sizes = [value.byte_length for node in graph.nodes for value in node.outputs]
    assert max(sizes) == MAX_STORED_BYTES


def test_a_matrix_that_is_stored_stays_small() -> None:
    """Also for other sizes that its kernels serve."""

    def what(b: MLGraphBuilder) -> Outputs:
        q, v = (b.input(name, "float32", [8, "length", 80]) for name in "qv")
        k = b.input("k", "float32", [8, 80, "length"])
        return {"y": b.matmul(b.softmax(b.matmul(q, k), 2), v)}

    with ml.create_context_sync(device_type="cpu") as context:
        graph = optimized(recipe_of(build(context, what)), GPU)
    compiled = CompiledForSizes(GPU, lambda template: True)
    for_many = compiled.compile_ahead(graph, {"length": 300})
    assert for_many is not None
    assert "attention" not in [kernel.name for kernel in for_many.kernels]
    most = math.isqrt(MAX_STORED_BYTES // 4 // 8)
    assert compiled.known({"length": most}) is not None
    assert compiled.known({"length": most + 1}) is None
    one_kernel = compiled.compile_ahead(graph, {"length": most + 1})
    assert one_kernel is not None
    assert "attention" in [kernel.name for kernel in one_kernel.kernels]
    assert compiled.known({"length": 3 * most}) is not None


def composite(shape: tuple[int, ...], data_type: Any = "float16", **options: Any) -> Build:
    def what(b: MLGraphBuilder) -> Outputs:
        operands = (b.input(name, data_type, shape) for name in "qkv")
        return {"y": b.scaled_dot_product_attention(*operands, **options)}

    return what


@pytest.mark.parametrize("matrix", [None, MatrixShape(16, 16, 16)])
def test_no_scores_of_long_sequences_are_stored(matrix: MatrixShape | None) -> None:
    """32,768 tokens of 12 heads: their scores would take 24 GiB."""
    features = Features(workgroup_bytes=32768, invocations=1024, f16_matrix=matrix)
    with ml.create_context_sync(engine="reference") as context:  # which compiles nothing
        recipe = recipe_of(build(context, composite((1, 12, 32768, 64), causal=True)))
    (kernel,) = kernels_of(legalized(recipe, features), features)
    assert ("subgroupMatrixMultiplyAccumulate" in kernel.code) == (matrix is not None)
    assert {part.value.shape for part in (*kernel.reads, *kernel.writes)} == {(1, 12, 32768, 64)}


@pytest.mark.parametrize("depth", [64, 128, 256])
@pytest.mark.parametrize("kind", ["gpu", "cpu"])
def test_loops_over_the_most_keys_are_bounded(kind: str, depth: int) -> None:
    """Else `NotSupportedError` says so."""
    made = kernels(composite((1, 1, MAX_KEYS, depth), "float32"), Features(kind=kind))
    assert [kernel.name for kernel in made] == ["attention"]


def test_more_keys_are_decomposed_unless_rows_are_few() -> None:
    def what(b: MLGraphBuilder, rows: int) -> Outputs:
        key = b.input("key", "float32", [1, 1, 2 * MAX_KEYS, 4])
        query = b.input("query", "float32", [1, 1, rows, 4])
        return {"y": b.scaled_dot_product_attention(query, key, key)}

    assert set(names(lambda b: what(b, 1))) == {"attention"}
    assert "attention" not in names(lambda b: what(b, 16))


MATRICES = Features(workgroup_bytes=32768, f16_matrix=MatrixShape(16, 16, 16))
WHOLE: dict[str, tuple[int, Any, dict[str, Any], Features, bool]] = {
    # Tokens, data type, options; the device; whether one kernel is faster than three.
    "few keys": (197, "float32", {}, GPU, True),
    "more keys": (512, "float32", {}, GPU, False),
    "half of the keys": (512, "float32", {"causal": True}, GPU, True),
    "halves": (512, "float16", {}, GPU, True),
    "halves by matrices": (2000, "float16", {}, MATRICES, True),
    "scores in parts": (2048, "float32", {}, GPU, False),
    "too many scores": (8192, "float32", {}, GPU, True),
    "software": (512, "float32", {"causal": True}, Features(kind="cpu"), False),
    "too many for software": (2048, "float32", {}, Features(kind="cpu"), True),
}


@pytest.mark.parametrize("name", WHOLE)
def test_the_composite_is_whole_where_that_is_faster(name: str) -> None:
    tokens, data_type, options, features, whole = WHOLE[name]
    with ml.create_context_sync(engine="reference") as context:
        graph = build(context, composite((1, 12, tokens, 64), data_type, **options))
    made = legalized(recipe_of(graph), features)
    assert any(node.op == ATTENTION for node in made.nodes) == whole

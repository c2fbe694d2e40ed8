"""What is computed in ONNX Runtime's blocks of channels, and that it is right."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx
import pytest

from tests.unit.passes.test_blocks import means
from webnn_py import MLContext, MLExecution, MLGraph, MLGraphBuilder, MLOperand, ml

onnxruntime = pytest.importorskip("onnxruntime")

DOMAIN = "com.microsoft.nchwc"
Body = Callable[[MLGraphBuilder, MLOperand], MLOperand]


def normalized(
    b: MLGraphBuilder, x: MLOperand, before: int = 2, behind: int = 2, k: Any = 1.5
) -> MLOperand:
    """As the importer writes it."""
    squares = means(b, b.mul(x, x), before, behind)
    summand = b.constant(np.array(k, np.float32))
    root = b.sqrt(b.add(b.mul(squares, b.constant(0.3, "float32")), summand))
    return b.div(x, b.mul(root, b.sqrt(root)))


def convolved(
    b: MLGraphBuilder, x: MLOperand, outer: int, size: int = 1, **options: Any
) -> MLOperand:
    inner = x.shape[1] // options.get("groups", 1)
    rng = np.random.default_rng([outer, inner, size])
    weights = rng.normal(0, 0.2, (outer, inner, size, size)).astype(np.float32)
    bias = b.constant(rng.normal(0, 0.2, outer).astype(np.float32))
    return b.conv2d(x, b.constant(weights), bias=bias, **options)


def stem(b: MLGraphBuilder, x: MLOperand) -> MLOperand:
    """As in inception_v1."""
    first = b.relu(convolved(b, x, 64, 3, strides=[2, 2], padding=[1, 1, 1, 1]))
    pooled = b.max_pool2d(first, window_dimensions=[3, 3], strides=[2, 2])
    third = b.relu(convolved(b, normalized(b, pooled), 96, 3, padding=[1, 1, 1, 1]))
    small = b.max_pool2d(normalized(b, third), window_dimensions=[2, 2], strides=[2, 2])
    return b.add(convolved(b, small, 16), convolved(b, small, 16))


def grouped(b: MLGraphBuilder, x: MLOperand) -> MLOperand:
    """As in alexnet, and channels by themselves."""
    first = convolved(b, b.relu(convolved(b, x, 64)), 64, 3, groups=64)
    second = b.relu(convolved(b, first, 64, groups=2))
    pooled = b.average_pool2d(normalized(b, second), window_dimensions=[2, 2])
    return b.softmax(pooled, 1)


def read_elsewhere(b: MLGraphBuilder, x: MLOperand) -> MLOperand:
    """What others read is laid out for them, too."""
    first = convolved(b, x, 64)
    second = normalized(b, b.relu(first))
    return b.concat([second, b.softmax(first, 1), second], 2)


def weights(b: MLGraphBuilder, *shape: int, seed: int = 0) -> MLOperand:
    rng = np.random.default_rng([seed, *shape])
    return b.constant(rng.normal(0, 0.05, shape).astype(np.float32))


def encoder(b: MLGraphBuilder, x: MLOperand) -> MLOperand:
    """A layer's: heads, and two products in a row."""
    batch, length, width = x.shape

    def heads(seed: int, order: list[int]) -> MLOperand:
        made = b.add(b.matmul(x, weights(b, width, width, seed=seed)), weights(b, width))
        return b.transpose(b.reshape(made, [batch, length, 8, width // 8]), permutation=order)

    scores = b.softmax(b.matmul(heads(0, [0, 2, 1, 3]), heads(1, [0, 2, 3, 1])), 3)
    mixed = b.matmul(scores, heads(2, [0, 2, 1, 3]))
    y = b.reshape(b.transpose(mixed, permutation=[0, 2, 1, 3]), x.shape)
    wide = b.gelu(b.add(b.matmul(y, weights(b, width, 1600)), weights(b, 1600)))
    return b.add(b.matmul(wide, weights(b, 1600, width)), y)


def connected(b: MLGraphBuilder, x: MLOperand) -> MLOperand:
    """As at the end of alexnet."""
    row = b.relu(b.gemm(x, weights(b, 1024, 1024), c=weights(b, 1024), b_transpose=True))
    return b.gemm(b.relu(b.gemm(row, weights(b, 1024, 512))), weights(b, 512, 1000))


def channels_last(b: MLGraphBuilder, x: MLOperand) -> MLOperand:
    """What lies otherwise is no image in blocks, though its second dimension would fill some."""
    before = b.transpose(b.exp(x), permutation=[0, 3, 1, 2])
    behind = b.transpose(b.relu(normalized(b, before)), permutation=[0, 2, 3, 1])
    return b.softmax(b.sqrt(behind), 3)


def turned(b: MLGraphBuilder, x: MLOperand) -> MLOperand:
    """The same values, their second dimension as channels and their last one."""
    first = b.relu(convolved(b, x, 64, 1))
    other = normalized(b, b.transpose(first, permutation=[0, 3, 1, 2]))
    return b.add(normalized(b, first), b.transpose(other, permutation=[0, 2, 3, 1]))


def windows(b: MLGraphBuilder, x: MLOperand) -> MLOperand:
    """With other options than most."""
    window = {"padding": [1, 0, 2, 1], "dilations": [2, 1], "strides": [1, 2]}
    first = convolved(b, convolved(b, x, 64, 3, **window), 64, 3, **window)
    pool = {"window_dimensions": [3, 2], "padding": [1, 1, 0, 1], "dilations": [1, 2]}
    pooled = b.average_pool2d(b.max_pool2d(first, **pool), **{**pool, "dilations": [1, 1]})
    return normalized(b, pooled)


def built(context: MLContext, body: Body, shape: Sequence[int | str]) -> MLGraph:
    builder = MLGraphBuilder(context, dimensions={"batch": (1, 8)} if "batch" in shape else {})
    return builder.build_sync({"y": body(builder, builder.input("x", "float32", shape))})


def given(body: Body, shape: Sequence[int]) -> Any:
    """The model that ONNX Runtime is given of a graph, which it may not know itself."""
    with pytest.MonkeyPatch.context() as patch, ml.create_context_sync(engine="onnxruntime") as on:
        models: list[bytes] = []
        session = onnxruntime.InferenceSession

        def noted(model: Any, *more: Any, **options: Any) -> Any:
            models.append(bytes(model))
            return session(model, *more, **options)

        patch.setattr(onnxruntime, "InferenceSession", noted)
        built(on, body, shape)
        return onnx.load_model_from_string(models[-1]).graph


def in_blocks(graph: Any) -> Counter[str]:
    """How many nodes of each kind compute in blocks."""
    return Counter(node.op_type for node in graph.node if node.domain == DOMAIN)


def _block_size() -> int:
    """How many channels a block has on this processor, of 8 or 16; 1 where there are none."""
    small, large = (bool(in_blocks(given(normalized, (1, c, 2, 2)))) for c in (16, 96))
    return 1 if not large else 8 if small else 16


BLOCK = _block_size()
needs_blocks = pytest.mark.skipif(BLOCK == 1, reason="ONNX Runtime has no blocks on this processor")
SHAPE = (2, 3, 17, 14)
ONE = {"ReorderInput": 1, "Conv": 1, "ReorderOutput": 1}
CASES: dict[str, tuple[Body, tuple[int, ...], dict[str, int]]] = {
    "stem": (stem, SHAPE, {"Conv": 4, "MaxPool": 2, "ReorderOutput": 1}),
    "groups": (grouped, SHAPE, {"Conv": 4, "AveragePool": 1, "ReorderOutput": 1}),
    "read elsewhere": (read_elsewhere, SHAPE, {"Conv": 2, "ReorderOutput": 2}),
    "channels last": (channels_last, (2, 16, 16, 96), ONE),
    "turned": (turned, (1, 3, 32, 64), {"ReorderInput": 2, "Conv": 3, "ReorderOutput": 3}),
    "windows": (
        windows,
        (2, 16, 17, 14),
        {"ReorderInput": 1, "Conv": 3, "MaxPool": 1, "AveragePool": 1, "ReorderOutput": 1},
    ),
    "alone": (normalized, (1, 128, 3, 5), ONE),
    "few channels": (normalized, (2, 32, 3, 5), ONE),
    "far behind": (lambda b, x: normalized(b, x, 0, BLOCK - 1), (1, 96, 2, 2), ONE),
    "encoder": (
        encoder,
        (2, 5, 384),
        {"ReorderInput": 2, "Conv": 5, "ReorderOutput": 4},
    ),
    "rows": (connected, (1, 1024), {"ReorderInput": 2, "Conv": 2, "ReorderOutput": 2}),
    "before": (lambda b, x: normalized(b, x, 3, 0), (1, 80, 2, 2), ONE),
}
OTHERS: dict[str, tuple[Body, tuple[int, ...]]] = {
    "a window of more than two blocks": (
        lambda b, x: normalized(b, x, 0, BLOCK),
        (1, 96, 2, 2),
    ),
    "channels that fill no blocks": (normalized, (1, 90, 2, 2)),
    "one block": (normalized, (1, BLOCK, 2, 2)),
    "not all sums with the same summand": (
        lambda b, x: normalized(b, x, k=np.arange(1, 97).reshape(96, 1, 1)),
        (1, 96, 2, 2),
    ),
    "few weights": (
        lambda b, x: b.transpose(
            b.reshape(b.matmul(x, weights(b, 256, 256)), [x.shape[0], 5, 4, 64]),
            permutation=[0, 2, 1, 3],
        ),
        (2, 5, 256),
    ),
    "convolutions of images of one column": (
        lambda b, x: convolved(b, b.relu(convolved(b, x, 512)), 512),
        (1, 512, 4, 1),
    ),
    "no sums": (lambda b, x: b.sqrt(b.abs(convolved(b, x, 64))), SHAPE),
}


@needs_blocks
@pytest.mark.parametrize("name", CASES)
def test_these_are_in_blocks(name: str) -> None:
    body, shape, wanted = CASES[name]
    assert in_blocks(given(body, shape)) == wanted


@needs_blocks
@pytest.mark.parametrize("name", OTHERS)
def test_others_are_not(name: str) -> None:
    assert not in_blocks(given(*OTHERS[name]))


@needs_blocks
def test_convolutions_take_activations_along() -> None:
    """Where nothing else reads what these are computed from."""
    for body, left in ((stem, 0), (read_elsewhere, 1)):
        kinds = [node.op_type for node in given(body, SHAPE).node]
        assert kinds.count("Relu") == left


@pytest.mark.parametrize("name", [*CASES, *OTHERS])
@pytest.mark.parametrize("batch", [None, "batch"])
def test_results_are_those_of_the_reference(name: str, batch: str | None) -> None:
    body, shape, *_ = (CASES | OTHERS)[name]
    x = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    made = []
    for engine in ("reference", "onnxruntime"):
        context = ml.create_context_sync(engine=engine)
        graph = built(context, body, (batch or shape[0], *shape[1:]))
        made.append(MLExecution(context).compute(graph, {"x": x})["y"])
    np.testing.assert_allclose(made[1], made[0], rtol=1e-4, atol=1e-5)


def test_filters_that_are_no_longer_read_are_left_out() -> None:
    graph = given(stem, SHAPE)
    read = {name for node in graph.node for name in node.input}
    assert {tensor.name for tensor in graph.initializer} <= read

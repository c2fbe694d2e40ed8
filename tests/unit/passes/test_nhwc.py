"""Convolutions and poolings with interleaved channels: transposes are left at the ends alone."""

from __future__ import annotations

import numpy as np
import pytest

from tests.unit.passes.internal_listings import (
    TARGET,
    TENSOR_CORES,
    Record,
    after,
    assert_keeps,
    nodes,
    recorded,
    results,
    tensor,
)
from tests.unit.passes.test_blocks import means
from webnn_py import MLGraphBuilder, MLOperand
from webnn_py.passes import Target
from webnn_py.passes.nhwc import to_nhwc

SHAPE = (2, 4, 6, 8)


def convolved(b: MLGraphBuilder, x: MLOperand, outs: int) -> MLOperand:
    shape = (outs, x.shape[1], 3, 3)
    weights = np.random.default_rng(outs).normal(size=shape).astype(np.float32)
    return b.conv2d(x, b.constant(weights), padding=[1, 1, 1, 1])


def chained(b: MLGraphBuilder, x: MLOperand) -> MLOperand:
    y = convolved(b, convolved(b, b.relu(convolved(b, x, 8)), 4), 4)
    return b.average_pool2d(y, window_dimensions=[2, 2])


def joined(b: MLGraphBuilder, x: MLOperand) -> MLOperand:
    pooled = b.max_pool2d(convolved(b, x, 4), window_dimensions=[3, 3], padding=[1, 1, 1, 1])
    rest = b.add(b.relu(convolved(b, x, 4)), pooled)
    y = b.concat([convolved(b, x, 8), rest], axis=1)
    scale = b.constant(np.arange(12, dtype=np.float32).reshape(12, 1, 1))
    return convolved(b, b.mul(y, scale), 4)


def normalized(b: MLGraphBuilder, x: MLOperand) -> MLOperand:
    y = convolved(b, x, 8)
    y = b.mul(y, means(b, b.mul(y, y), before=1, behind=2))
    for _ in range(4):
        y = convolved(b, y, 4)
    return y


def shuffled(b: MLGraphBuilder, x: MLOperand) -> MLOperand:
    parts = b.reshape(convolved(b, x, 12), [2, 3, 4, 6, 8])
    dealt = b.transpose(parts, permutation=[0, 2, 1, 3, 4])
    y = convolved(b, b.reshape(dealt, [2, 12, 6, 8]), 4)
    return convolved(b, convolved(b, y, 8), 4)


def grouped(b: MLGraphBuilder, x: MLOperand, groups: int = 4) -> MLOperand:
    """Groups of channels of their own mean and deviation, as importers write them."""
    rows = b.reshape(x, [x.shape[0], groups, 1, x.size // x.shape[0] // groups])
    centered = b.sub(rows, b.reduce_mean(rows, axes=[2, 3], keep_dimensions=True))
    variance = b.reduce_mean(b.mul(centered, centered), axes=[2, 3], keep_dimensions=True)
    return b.reshape(b.div(centered, b.sqrt(variance)), x.shape)


def regrouped(b: MLGraphBuilder, x: MLOperand) -> MLOperand:
    for outs in (12, 8):
        x = b.add(grouped(b, convolved(b, x, outs)), b.constant(np.float32([1])))
        x = convolved(b, convolved(b, x, 4), 4)
    return convolved(b, x, 4)


def resized(b: MLGraphBuilder, x: MLOperand) -> MLOperand:
    """Channels in two halves, one of them doubled in size."""
    y, rest = b.split(b.relu(convolved(b, x, 8)), 2, axis=1)
    y = convolved(b, b.resample2d(y, scales=[2, 2]), 4)
    return b.add(b.max_pool2d(y, window_dimensions=[2, 2], strides=[2, 2]), convolved(b, rest, 4))


def attended(b: MLGraphBuilder, x: MLOperand) -> MLOperand:
    """Pixels that are rows of a matrix between two convolutions."""
    y = convolved(b, x, 8)
    rows = b.transpose(b.relu(b.reshape(y, [2, 8, 48])), permutation=[0, 2, 1])
    rows = b.softmax(rows, 2)
    y = b.reshape(b.transpose(rows, permutation=[0, 2, 1]), [2, 8, 6, 8])
    return convolved(b, b.relu(convolved(b, y, 4)), 4)


@pytest.mark.parametrize("record", [chained, joined, normalized, regrouped, resized, attended])
def test_transposes_at_the_ends(record: Record) -> None:
    graph = recorded(record, SHAPE)
    made = after(to_nhwc, graph)
    order = [line.partition(" = ")[2].partition("(")[0] for line in nodes(made)]
    assert order.count("transpose") == 2
    assert (order[0], order[-1]) == ("transpose", "transpose")
    x = np.random.default_rng(1).normal(size=SHAPE).astype(np.float32)
    np.testing.assert_allclose(results(made, x)[0], results(graph, x)[0], rtol=1e-5, atol=1e-5)


def test_shuffled_channels() -> None:
    graph = recorded(shuffled, SHAPE)
    made = after(to_nhwc, graph)
    permutations = [n.attrs["permutation"] for n in made.nodes if n.op == "transpose"]
    assert sorted(map(tuple, permutations)) == [(0, 1, 2, 4, 3), (0, 2, 3, 1), (0, 3, 1, 2)]
    x = np.random.default_rng(2).normal(size=SHAPE).astype(np.float32)
    np.testing.assert_allclose(results(made, x)[0], results(graph, x)[0], rtol=1e-5, atol=1e-5)


def test_other_reshapes_stay() -> None:
    """Those that do not shuffle channels, beside a convolution."""

    def body(b: MLGraphBuilder, x: MLOperand) -> MLOperand:
        rows = b.transpose(b.reshape(x, [2, 4, 2, 3, 8]), permutation=[0, 1, 3, 2, 4])
        columns = b.transpose(b.reshape(x, [2, 2, 2, 6, 8]), permutation=[0, 2, 1, 3, 4])
        y = convolved(b, b.add(b.reshape(rows, SHAPE), b.reshape(columns, SHAPE)), 4)
        return convolved(b, convolved(b, y, 8), 4)

    graph = recorded(body, SHAPE)
    made = after(to_nhwc, graph)
    x = np.random.default_rng(3).normal(size=SHAPE).astype(np.float32)
    np.testing.assert_allclose(results(made, x)[0], results(graph, x)[0], rtol=1e-5, atol=1e-5)


def test_large_groups_are_reduced_in_parts() -> None:
    """But images in another order are not."""

    def body(b: MLGraphBuilder, x: MLOperand) -> MLOperand:
        for _ in range(2):
            x = convolved(b, grouped(b, x, 2), 4)
        for _ in range(6):
            x = convolved(b, x, 4)
        return x

    shape = (2, 4, 72, 64)
    graph = recorded(body, shape)
    made = after(to_nhwc, graph)
    means = [next(n.operands).shape for n in made.nodes if n.op == "reduce_mean"]
    in_parts = [(2, 96, 48, 4), (2, 96, 2, 2)]
    assert means == [(2, 4608, 2, 2), (2, 4608, 2, 2), *in_parts, *in_parts]
    x = np.random.default_rng(5).normal(size=shape).astype(np.float32)
    np.testing.assert_allclose(results(made, x)[0], results(graph, x)[0], rtol=1e-3, atol=1e-3)


def test_groups_that_others_read_stay() -> None:
    """Rows of groups of which a node outside makes something else."""

    def body(b: MLGraphBuilder, x: MLOperand) -> MLOperand:
        rows = b.reshape(convolved(b, x, 8), [2, 4, 1, 96])
        mean = b.reduce_mean(rows, axes=[2, 3], keep_dimensions=True)
        y = b.add(b.reshape(b.sub(rows, mean), [2, 8, 6, 8]), b.reduce_sum(b.softmax(rows, 3)))
        return convolved(b, convolved(b, convolved(b, y, 4), 8), 4)

    graph = recorded(body, SHAPE)
    made = after(to_nhwc, graph)
    assert [node.output.shape for node in made.nodes if node.op == "reduce_mean"] == [(2, 4, 1, 1)]
    x = np.random.default_rng(4).normal(size=SHAPE).astype(np.float32)
    np.testing.assert_allclose(results(made, x)[0], results(graph, x)[0], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("data_type", "target", "moves"),
    [("float16", TARGET, True), ("float32", TARGET, False), ("float32", TENSOR_CORES, True)],
)
def test_groups_move_where_halves_are_multiplied(
    data_type: str, target: Target, moves: bool
) -> None:
    def body(b: MLGraphBuilder, x: MLOperand) -> MLOperand:
        for _ in range(3):
            x = b.conv2d(x, b.constant(tensor(4, 4, 1, 1, data_type=data_type)))
            x = b.cast(grouped(b, b.cast(x, "float32")), data_type)
        return x

    graph = recorded(body, SHAPE, data_type)
    layouts = {
        n.attrs["input_layout"] for n in after(to_nhwc, graph, target).nodes if n.op == "conv2d"
    }
    assert layouts == {"nhwc" if moves else "nchw"}


def test_odd_channels_stay() -> None:
    def body(b: MLGraphBuilder, x: MLOperand) -> MLOperand:
        return convolved(b, convolved(b, convolved(b, convolved(b, x, 6), 4), 4), 4)

    assert_keeps(to_nhwc, recorded(body, SHAPE))


def test_few_convolutions_stay() -> None:
    def body(b: MLGraphBuilder, x: MLOperand) -> MLOperand:
        return convolved(b, convolved(b, x, 8), 4)

    assert_keeps(to_nhwc, recorded(body, SHAPE))


def test_graphs_without_convolutions_stay() -> None:
    def pooled(b: MLGraphBuilder, x: MLOperand) -> MLOperand:
        return b.max_pool2d(x, window_dimensions=[2, 2])

    assert_keeps(to_nhwc, recorded(pooled, SHAPE))

"""Graphs with open dimensions: built, listed, and recorded for sizes."""

from __future__ import annotations

import pickle
import re
from typing import Any

import numpy as np
import pytest

from webnn_py import (
    DataError,
    MLContext,
    MLDimension,
    MLExecution,
    MLGraph,
    MLGraphBuilder,
    MLOperand,
    MLOperandDescriptor,
    ValidationError,
    ml,
)


def attention(b: MLGraphBuilder, ids: MLOperand) -> dict[str, MLOperand]:
    """Embedding, one head of attention, the first positions."""
    table = b.constant(np.ones((100, 16), np.float32), name="table")
    x = b.gather(table, ids)
    weights = b.softmax(b.matmul(x, b.transpose(x, permutation=[0, 2, 1])), 2)
    mixed = b.layer_normalization(b.add(b.matmul(weights, x), x), axes=[2])
    flat = b.reshape(mixed, [x.shape[0], x.shape[1] * 16])
    return {"first": b.slice(flat, [0, 0], [x.shape[0], 16]), "pooled": b.reduce_mean(mixed)}


LISTING = """\
graph(%ids: int64[batch,length]) {
  %table: float32[100,16] constant
  %0: float32[batch,length,16] = gather(%table, %ids, axis=0)
  %1: float32[batch,16,length] = transpose(%0, permutation=[0, 2, 1])
  %2: float32[batch,length,length] = matmul(%0, %1)
  %3: float32[batch,length,length] = softmax(%2, axis=2)
  %4: float32[batch,length,16] = matmul(%3, %0)
  %5: float32[batch,length,16] = add(%4, %0)
  %6: float32[batch,length,16] = layer_normalization(%5, axes=[2], epsilon=9.999999747378752e-06)
  %7: float32[batch,16*length] = reshape(%6, new_shape=[batch, 16*length])
  %8: float32[batch,16] = slice(%7, starts=[0, 0], sizes=[batch, 16], strides=[1, 1])
  %9: float32[] = reduce_mean(%6, axes=[0, 1, 2], keep_dimensions=false)
  return first=%8, pooled=%9
}"""


@pytest.fixture(scope="module")
def reference() -> MLContext:
    return ml.create_context_sync(engine="reference")


@pytest.fixture(scope="module")
def encoder(reference: MLContext) -> MLGraph:
    b = MLGraphBuilder(reference, dimensions={"batch": (1, 64)})
    return b.build_sync(attention(b, b.input("ids", "int64", ["batch", "length"])))


def computed(graph: MLGraph, reference: MLContext, **inputs: Any) -> dict[str, Any]:
    return MLExecution(reference).compute(graph, inputs)


def test_listings_show_open_dimensions(encoder: MLGraph) -> None:
    assert str(encoder) == LISTING
    assert [str(size) for size in encoder.inputs["ids"].shape] == ["batch", "length"]


def test_a_graph_runs_at_any_sizes(reference: MLContext, encoder: MLGraph) -> None:
    b = MLGraphBuilder(reference)
    fixed = b.build_sync(attention(b, b.input("ids", "int64", [4, 7])))
    sizes = {"batch": 4, "length": 7}
    assert encoder.output_shapes(sizes) == {"first": (4, 16), "pooled": ()}
    encoder.prepare_sync(sizes)
    ids = np.arange(28).reshape(4, 7)
    made, wanted = (computed(graph, reference, ids=ids) for graph in (encoder, fixed))
    for name, array in wanted.items():
        np.testing.assert_array_equal(made[name], array)
    fixed.prepare_sync({})
    with pytest.raises(ValidationError, match="'batch' is no open dimension of the graph"):
        fixed.prepare_sync({"batch": 4})


def test_sizes_out_of_bounds_are_refused(reference: MLContext, encoder: MLGraph) -> None:
    with pytest.raises(DataError, match=r"input 'ids' .*: dimension batch is 65, expected 1\.\.64"):
        computed(encoder, reference, ids=np.zeros((65, 7), np.int64))
    with pytest.raises(ValidationError, match=r"sizes: batch: got 65, expected 1\.\.64"):
        encoder.output_shapes({"batch": 65, "length": 7})
    with pytest.raises(ValidationError, match=r"matmul: .*elements"):
        encoder.prepare_sync({"batch": 64, "length": 2**18})


def test_shapes_pickle_with_their_dimensions(encoder: MLGraph) -> None:
    shape = encoder.inputs["ids"].shape
    assert pickle.loads(pickle.dumps(shape)) == shape


def test_a_name_is_one_size_wherever_it_recurs(reference: MLContext) -> None:
    b = MLGraphBuilder(reference)
    a = b.input("a", "float32", ["n", 4])
    c = b.input("c", MLOperandDescriptor("float32", [4, "n"]))
    n = a.shape[0]
    assert isinstance(n, MLDimension)
    assert b.matmul(a, c).shape == (n, n)
    assert (a.size, a.rank) == (4 * n, 2)
    graph = b.build_sync({"y": b.matmul(a, c)})
    arrays = {"a": np.zeros((3, 4), np.float32), "c": np.zeros((4, 5), np.float32)}
    with pytest.raises(
        DataError,
        match=re.escape(
            "input 'c' of shape [4, 5]: dimension n is 5, expected 3, as n is 3 by input 'a' of"
            " shape [3, 4]"
        ),
    ):
        computed(graph, reference, **arrays)


def test_sizes_without_a_name_are_different_ones(reference: MLContext) -> None:
    b = MLGraphBuilder(reference)
    a, c = b.input("a", "float32", [-1, -1]), b.input("c", "float32", [-1, 3])
    assert [str(size) for size in (*a.shape, *c.shape)] == ["?0", "?1", "?2", "3"]
    with pytest.raises(
        ValidationError, match=r"whether `\?1 == \?2` is not known .* both one name"
    ):
        b.matmul(a, c)
    graph = b.build_sync({"y": b.concat([b.reshape(a, [a.size]), b.reshape(c, [c.size])], 0)})
    assert graph.outputs["y"].shape == (a.size + c.size,)
    assert graph.output_shapes({"?0": 2, "?1": 3, "?2": 4}) == {"y": (18,)}


def test_a_size_in_place_of_bounds_closes_a_name(reference: MLContext) -> None:
    b = MLGraphBuilder(reference, dimensions={"n": 4, "m": (3, 3)})
    x = b.input("x", "float32", ["n", "m"])
    assert x.shape == (4, 3)
    assert b.build_sync({"y": b.relu(x)}).outputs["y"].shape == (4, 3)


def test_inputs_may_be_expressions_of_sizes(reference: MLContext) -> None:
    b = MLGraphBuilder(reference, dimensions={"past": (1, 100), "step": (1, 8)})
    past = b.input("past", "float32", ["past", 4])
    step = b.input("step", "float32", ["step", 4])
    mask = b.input("mask", "float32", ["step", past.shape[0] + step.shape[0]])
    keys = b.concat([past, step], 0)
    scores = b.add(b.matmul(step, b.transpose(keys)), mask)
    assert scores.shape == mask.shape
    graph = b.build_sync({"y": b.matmul(b.softmax(scores, 1), keys)})
    assert str(scores.shape) == "(step, past + step)"
    fits = {"past": (5, 4), "step": (2, 4), "mask": (2, 7)}
    given = {name: np.ones(shape, np.float32) for name, shape in fits.items()}
    assert computed(graph, reference, **given)["y"].shape == (2, 4)
    with pytest.raises(DataError, match=r"'mask' .*: dimension past \+ step is 8, expected 7"):
        computed(graph, reference, **given | {"mask": np.ones((2, 8), np.float32)})


def test_an_input_that_alone_tells_a_size_is_kept(reference: MLContext) -> None:
    b = MLGraphBuilder(reference)
    x = b.input("x", "float32", ["n"])
    like, other = b.input("like", "float32", ["m", 2]), b.input("other", "float32", ["m"])
    assert other.shape[0] == like.shape[0]
    graph = b.build_sync({"y": b.expand(b.reduce_sum(x), [other.shape[0]])})
    assert list(graph.inputs) == ["x", "like"]
    assert graph.output_shapes({"n": 2, "m": 5}) == {"y": (5,)}


def test_descriptors_hold_open_dimensions() -> None:
    made = MLOperandDescriptor("float32", ["batch", -1, 3])
    batch, anonymous, three = made.shape
    assert [str(batch), str(anonymous), three] == ["batch", "?", 3]
    assert made == MLOperandDescriptor("float32", made.shape)
    assert repr(made) == "MLOperandDescriptor('float32', [batch, ?, 3])"
    for wrong in (["a b"], [-2], "batch", [None]):
        with pytest.raises(ValidationError, match="shape"):
            MLOperandDescriptor("float32", wrong)  # type: ignore[arg-type]


def test_a_size_to_be_inferred_is_told(reference: MLContext) -> None:
    b = MLGraphBuilder(reference)
    x = b.input("x", "float32", ["batch", "length", 64])
    for new_shape, told in (
        ([x.shape[0], -1], "[batch, 64*length]"),
        ([-1, np.int64(64)], "[batch*length, 64]"),
        ([x.shape[0], x.shape[1], -1, 16], "[batch, length, 4, 16]"),
    ):
        with pytest.raises(ValidationError, match=rf"not inferred: give {re.escape(told)}$"):
            b.reshape(x, new_shape)
    for new_shape in ([7, -1], [x.shape[0] - 1, -1], [-1, -1, x.shape[0]]):
        with pytest.raises(ValidationError, match=r"got -1, expected an integer in 0..4294967295$"):
            b.reshape(x, new_shape)
    with pytest.raises(ValidationError, match="axes count from 0"):
        b.softmax(x, -1)


def test_causal_masks_and_pooling_of_what_is_open(reference: MLContext) -> None:
    b = MLGraphBuilder(reference)
    x = b.input("x", "float32", [1, 3, "h", "w"])
    h: Any = x.shape[2]
    half = b.max_pool2d(x, window_dimensions=[2, 2], strides=[2, 2], padding=[0, 1, 0, 1])
    assert str(half.shape) == "(1, 3, (h + 1) // 2, (w + 1) // 2)"
    assert b.average_pool2d(x).shape == (1, 3, 1, 1)
    assert (
        b.conv2d(x, b.input("k", "float32", [8, 3, 3, 3]), padding=[1] * 4).shape[2:]
        == (x.shape[2:])
    )
    up = b.resample2d(x, scales=[2.0, 1.5])
    assert str(up.shape) == "(1, 3, 2*h, w + w // 2)"
    square = b.input("square", "float32", ["h", "h"])
    assert b.triangular(square, upper=False, diagonal=h - 1).shape == (h, h)

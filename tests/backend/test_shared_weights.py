"""The contents of one constant tensor are held once on the device, whatever graphs use it."""

from __future__ import annotations

import gc
import time
import weakref
from typing import Any

import numpy as np
import pytest

from tests.backend.tensors import LONG
from tests.graphs import awaited, build, normal
from tests.threads import in_threads
from webnn_py import MLContext, MLGraph, MLGraphBuilder, MLOperand, ml

SIDE = 512
WEIGHTS = normal(SIDE, SIDE)
X = normal(1, SIDE, seed=1)
Buffers = list[tuple[int, weakref.ref[Any]]]


@pytest.fixture
def made(gpu: MLContext, monkeypatch: pytest.MonkeyPatch) -> Buffers:
    """A list of the buffers of a megabyte or more that are made from now on, with their sizes."""
    found: Buffers = []
    devices = type(gpu.device)
    make = devices.create_buffer

    def counted(device: Any, **given: Any) -> Any:
        buffer = make(device, **given)
        if buffer.size >= 1 << 20:
            found.append((buffer.size, weakref.ref(buffer)))
        return buffer

    monkeypatch.setattr(devices, "create_buffer", counted)
    return found


def assert_held(made: Buffers, expected: int) -> None:
    """So many bytes of the large buffers are still there, once threads let go of what they did."""
    end = time.monotonic() + LONG
    while True:
        gc.collect()
        found = sum(size for size, buffer in made if buffer() is not None)
        if found == expected or time.monotonic() > end:
            assert found == expected
            return


def product(context: MLContext, weights: Any) -> MLGraph:
    """y = x @ w."""

    def what(builder: MLGraphBuilder) -> dict[str, MLOperand]:
        x, w = builder.input("x", "float32", [1, SIDE]), builder.constant(weights)
        return {"y": builder.matmul(x, w)}

    return build(context, what)


def assert_right(graph: MLGraph, expected: Any) -> None:
    np.testing.assert_allclose(awaited(graph, {"x": X})["y"], expected, rtol=1e-3, atol=1e-3)


def test_two_graphs_over_one_constant_tensor(gpu: MLContext, made: Buffers) -> None:
    tensor = gpu.create_constant_tensor_sync(WEIGHTS)
    one, other = product(gpu, tensor), product(gpu, tensor)
    assert [size for size, _ in made] == [1 << 20]
    tensor.destroy()
    assert_right(one, X @ WEIGHTS)
    one.destroy()
    del one
    assert_held(made, 1 << 20)
    assert_right(other, X @ WEIGHTS)
    other.destroy()
    del other
    assert_held(made, 0)


def test_what_passes_make_of_a_constant_tensor_is_held_once(
    plain: MLContext, made: Buffers
) -> None:
    """float32 of a float16 that the device lacks, as long as a graph has it."""
    tensor = plain.create_constant_tensor_sync(WEIGHTS.astype(np.float16))

    def what(builder: MLGraphBuilder) -> dict[str, MLOperand]:
        x = builder.input("x", "float16", [1, SIDE])
        return {"y": builder.matmul(x, builder.constant(tensor))}

    graphs = [build(plain, what) for _ in range(3)]
    assert [size for size, _ in made] == [1 << 20]
    x = X.astype(np.float16)
    expected = X @ WEIGHTS
    for graph in graphs:
        np.testing.assert_allclose(awaited(graph, {"x": x})["y"], expected, rtol=2e-2, atol=0.1)
    graphs.clear()
    del graph
    assert_held(made, 0)


def test_one_tensor_twice_in_a_graph(gpu: MLContext, made: Buffers) -> None:
    tensor = gpu.create_constant_tensor_sync(WEIGHTS)

    def what(builder: MLGraphBuilder) -> dict[str, MLOperand]:
        x = builder.input("x", "float32", [1, SIDE])
        first = builder.matmul(x, builder.constant(tensor))
        return {"y": builder.matmul(first, builder.constant(tensor))}

    graph = build(gpu, what)
    assert [size for size, _ in made] == [1 << 20]
    assert_right(graph, X @ WEIGHTS @ WEIGHTS)


def test_other_contents_are_held_apart(gpu: MLContext, made: Buffers) -> None:
    one = product(gpu, gpu.create_constant_tensor_sync(WEIGHTS))
    other = product(gpu, gpu.create_constant_tensor_sync(WEIGHTS * 2))
    assert_held(made, 2 << 20)
    assert_right(one, X @ WEIGHTS)
    assert_right(other, X @ WEIGHTS * 2)


def test_an_array_that_the_user_changes_is_read_at_each_build(gpu: MLContext) -> None:
    array = WEIGHTS.copy()
    before = product(gpu, array)
    array *= 2
    assert_right(product(gpu, array), X @ WEIGHTS * 2)
    assert_right(before, X @ WEIGHTS)


def test_each_device_holds_its_own(gpu: MLContext) -> None:
    with ml.create_context_sync(device_type="gpu") as context:
        for each in (gpu, context):
            assert_right(product(each, each.create_constant_tensor_sync(WEIGHTS)), X @ WEIGHTS)


def test_graphs_built_at_once(gpu: MLContext, made: Buffers) -> None:
    tensor = gpu.create_constant_tensor_sync(WEIGHTS)
    graphs: list[MLGraph] = []
    in_threads(*[lambda: graphs.append(product(gpu, tensor))] * 4)
    assert [size for size, _ in made] == [1 << 20]
    for graph in graphs:
        assert_right(graph, X @ WEIGHTS)
    graphs.clear()
    del graph
    assert_held(made, 0)


def test_passes_keep_what_they_do_not_change(gpu: MLContext, made: Buffers) -> None:
    tensor = gpu.create_constant_tensor_sync(WEIGHTS)

    def what(builder: MLGraphBuilder) -> dict[str, MLOperand]:
        """A composite, constants that are folded, nodes that do nothing or are dead."""
        x, w = builder.input("x", "float32", [1, SIDE]), builder.constant(tensor)
        two = builder.mul(builder.constant(1.0, "float32"), builder.constant(2.0, "float32"))
        builder.exp(w)
        return {"y": builder.gemm(builder.mul(builder.identity(x), two), w)}

    one, other = product(gpu, tensor), build(gpu, what)
    assert [size for size, _ in made] == [1 << 20]
    assert_right(one, X @ WEIGHTS)
    assert_right(other, X @ WEIGHTS * 2)

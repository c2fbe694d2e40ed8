"""The contents of one constant tensor are held once on the device, whatever graphs use it."""

from __future__ import annotations

import functools
import gc
import threading
import time
import weakref
from typing import Any

import numpy as np
import pytest

from tests.backend.tensors import LONG
from tests.graphs import awaited, build, normal
from tests.internals import engine_of, executable_of
from tests.threads import in_threads
from webnn_py import MLContext, MLGraph, MLGraphBuilder, MLOperand, ml
from webnn_py.engines.webgpu.runtime.constants import SHARED_BUFFER_WEIGHT_BYTES
from webnn_py.engines.webgpu.runtime.devices.binding import Weights

SIDE = 512
WEIGHTS = normal(SIDE, SIDE)
X = normal(1, SIDE, seed=1)
Buffers = list[tuple[int, weakref.ref[Any]]]


@pytest.fixture
def made(gpu: MLContext, monkeypatch: pytest.MonkeyPatch) -> Buffers:
    """A list of the buffers of a megabyte or more that are made from now on, with their sizes."""
    found: Buffers = []
    device = type(engine_of(gpu).gpu)
    make = device.buffer

    def counted(self: Any, size: int, *args: Any, **kwargs: Any) -> Any:
        buffer = make(self, size, *args, **kwargs)
        if buffer.size >= 1 << 20:
            found.append((buffer.size, weakref.ref(buffer)))
        return buffer

    monkeypatch.setattr(device, "buffer", counted)
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


class Made:
    """In place of a buffer."""


def test_arrays_with_the_identity_of_one_that_is_gone() -> None:
    """Its buffer may still be there."""
    weights, shared = Weights(), (np.zeros(3, np.float32), "float32")
    before = np.ones(3, np.float32)
    number = id(before)
    kept = weights.get([(before, "float32"), shared], Made)
    del before
    others = [np.zeros(3, np.float32)]
    while id(others[-1]) != number:
        assert len(others) < 1000
        others.append(np.zeros(3, np.float32))
    alone = weights.get([(others[-1], "float32")], Made)
    made = weights.get([(others[-1], "float32"), shared], Made)
    assert len({kept, alone, made}) == 3
    assert weights.get([(others[-1], "float32"), shared], Made) is made


def test_weights_are_uploaded_by_several_threads() -> None:
    """Each waits in its upload for the other one's."""
    weights, barrier = Weights(), threading.Barrier(2, timeout=30)
    arrays = [np.zeros(3, np.float32) for _ in range(2)]

    def upload() -> Made:
        barrier.wait()
        return Made()

    contents = [[(array, "float32")] for array in arrays]
    in_threads(*[functools.partial(weights.get, each, upload) for each in contents])


def test_small_constants_of_a_graph_lie_in_one_buffer(gpu: MLContext) -> None:
    """Each at a place of its own, whatever they take; a graph over the same ones has it, too."""
    arrays = [
        np.arange(7, dtype=np.int8),
        np.full((3, 1), 2, np.float32),
        np.arange(1 << 12, dtype=np.float32),
        normal(SIDE, SIDE, seed=2),
        np.arange(5, dtype=np.float16),
        np.arange(9, dtype=np.int32),
    ]
    tensors = [gpu.create_constant_tensor_sync(array) for array in arrays]

    def what(builder: MLGraphBuilder) -> dict[str, MLOperand]:
        zero = builder.input("zero", "float32", [])
        return {
            f"y{i}": builder.add(builder.constant(tensor), builder.cast(zero, tensor.data_type))
            for i, tensor in enumerate(tensors)
        }

    graphs = [build(gpu, what) for _ in range(2)]
    for graph in graphs:
        results = awaited(graph, {"zero": np.zeros((), np.float32)})
        for i, array in enumerate(arrays):
            np.testing.assert_array_equal(results[f"y{i}"], array)
    small, large = zip(*map(_buffers, graphs), strict=True)
    assert [len(buffers) for buffers in small] == [1, 1]
    assert [len(buffers) for buffers in large] == [1, 1]
    assert len(set().union(*small, *large)) == 2


def _buffers(graph: MLGraph) -> tuple[set[int], set[int]]:
    """Those of small constants, and of large ones."""
    loaded = executable_of(graph).loaded
    found: tuple[set[int], set[int]] = set(), set()
    for value in loaded.compiled.constants:
        found[value.byte_length > SHARED_BUFFER_WEIGHT_BYTES].add(
            id(loaded.places_of([value])[value].buffer)
        )
    return found

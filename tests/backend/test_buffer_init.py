"""Constants on the device: how they are copied there, and which share a buffer."""

from __future__ import annotations

import functools
import threading
from typing import Any

import numpy as np
import pytest

from tests.backend.webgpu import WAITING
from tests.graphs import awaited, build, normal
from tests.internals import bindings_of, engine_of, executable_of
from tests.threads import in_threads
from webnn_py import ContextLostError, MLContext, MLGraph, MLGraphBuilder, MLOperand, ml
from webnn_py.engines.webgpu.runtime.constants import SHARED_BUFFER_WEIGHT_BYTES
from webnn_py.engines.webgpu.runtime.devices import buffer_init, device
from webnn_py.engines.webgpu.runtime.devices.binding import Weights
from webnn_py.engines.webgpu.runtime.devices.buffer_init import LargeConstants

KINDS = ("float32", "float16", "uint8", "int64")
SIDE = 512
SIZE = SHARED_BUFFER_WEIGHT_BYTES + 3
"""Of constants with a buffer of their own, of which those of single bytes end within a word."""


@pytest.fixture
def pieces(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Where pieces begin of what is copied by them, which is all that has a buffer of its own."""
    found: list[int] = []
    monkeypatch.setattr(buffer_init, "MIN_STAGED_BYTES", SHARED_BUFFER_WEIGHT_BYTES)
    monkeypatch.setattr(buffer_init, "STAGING_BYTES", 1 << 12)
    write = LargeConstants._write_piece

    def writing(large: LargeConstants, buffer: Any, contents: Any, start: int) -> None:
        found.append(start)
        write(large, buffer, contents, start)

    monkeypatch.setattr(LargeConstants, "_write_piece", writing)
    return found


def constants(context: MLContext) -> MLGraph:
    """Each as it is."""
    b = MLGraphBuilder(context)
    x = b.input("x", "float32", [])
    made = {}
    for kind in KINDS:
        contents = b.constant(np.arange(SIZE).astype(kind))
        made[kind] = b.add(contents, b.cast(x, kind)) if kind != "int64" else contents
    return b.build_sync({kind: b.identity(value) for kind, value in made.items()})


@pytest.mark.parametrize("waiting", [True, False])
def test_all_kinds(
    gpu: MLContext, pieces: list[int], monkeypatch: pytest.MonkeyPatch, waiting: bool
) -> None:
    if waiting and not WAITING.is_available:
        pytest.skip("needs mapped buffers")
    if not waiting:
        monkeypatch.setattr(WAITING, "missing", "for a test")
    got = awaited(constants(gpu), {"x": np.zeros([], np.float32)})
    for kind in KINDS:
        np.testing.assert_array_equal(got[kind], np.arange(SIZE).astype(kind))
    assert bool(pieces) == waiting


@pytest.mark.skipif(not WAITING.is_available, reason="needs mapped buffers")
def test_a_device_that_is_destroyed_meanwhile(
    pieces: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    write = LargeConstants._write_piece
    with ml.create_context_sync(device_type="gpu") as context:

        def writing(large: LargeConstants, *given: Any) -> None:
            if len(pieces) == 2:
                engine_of(context).device.destroy()
            write(large, *given)

        monkeypatch.setattr(LargeConstants, "_write_piece", writing)
        with pytest.raises(ContextLostError):
            constants(context)


def test_contents_of_new_buffers_are_submitted(
    gpu: MLContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    life = engine_of(gpu).gpu.life
    monkeypatch.setattr(device, "MAX_UNSUBMITTED_BYTES", 4 * SIZE)
    before = life.submissions
    graph = constants(gpu)
    assert life.submissions > before
    monkeypatch.setattr(device, "MIN_COPY_COST_BYTES", device.MAX_UNSUBMITTED_BYTES)
    before, small = life.submissions, MLGraphBuilder(gpu)
    x = small.input("x", "float32", [])
    small.build_sync({"y": small.add(x, small.constant(np.arange(3, dtype=np.float32)))})
    assert life.submissions > before
    monkeypatch.setattr(device, "MAX_UNSUBMITTED_BYTES", 1 << 30)
    before = life.submissions
    got = awaited(constants(gpu), {"x": np.zeros([], np.float32)})
    assert life.submissions == before + 1
    assert all((awaited(graph, {"x": np.zeros([], np.float32)})[k] == got[k]).all() for k in KINDS)


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
            id(bindings_of(loaded, [value])[value].buffer)
        )
    return found

"""Constants that are copied to the device piece by piece, and those that are not."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.backend.webgpu import WAITING
from tests.graphs import awaited
from tests.internals import engine_of
from webnn_py import ContextLostError, MLContext, MLGraph, MLGraphBuilder, ml
from webnn_py.engines.webgpu.runtime.constants import SHARED_BUFFER_WEIGHT_BYTES
from webnn_py.engines.webgpu.runtime.devices import buffer_init, device
from webnn_py.engines.webgpu.runtime.devices.buffer_init import LargeConstants

KINDS = ("float32", "float16", "uint8", "int64")
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

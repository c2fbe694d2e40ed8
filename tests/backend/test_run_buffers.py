"""Buffers that runs for all sizes of a graph share."""

from __future__ import annotations

from typing import Any

import pytest
import wgpu

from tests.internals import engine_of
from webnn_py import MLContext
from webnn_py.engines.webgpu.runtime.device_graph import RunBuffers


@pytest.fixture
def buffers(gpu: MLContext) -> RunBuffers:
    return RunBuffers(engine_of(gpu).gpu)


def test_a_buffer_is_the_same_while_it_is_large_enough(buffers: RunBuffers) -> None:
    first = buffers.get("a", 100, "one")
    assert first.size == 100
    assert buffers.get("b", 100, "another") is not first
    assert all(buffers.get("a", size, "one") is first for size in (100, 4, 96))


def test_buffers_grow_in_a_few_steps(buffers: RunBuffers) -> None:
    made = [buffers.get("a", size, "one") for size in range(100, 2000, 4)]
    assert [*dict.fromkeys(buffer.size for buffer in made)] == [
        *(100, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048)
    ]
    assert len(set(map(id, made))) == 10


def test_no_buffer_is_larger_than_the_device_allows(
    buffers: RunBuffers, gpu: MLContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    buffers.get("a", 100, "one")
    monkeypatch.setattr(engine_of(gpu).gpu, "max_buffer_bytes", 140)
    assert buffers.get("a", 132, "one").size == 140


def test_a_buffer_is_as_large_as_needed_where_there_is_no_more_memory(
    buffers: RunBuffers, gpu: MLContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    create = gpu.device.create_buffer

    def scarce(**given: Any) -> Any:
        if given["size"] > 132:
            raise wgpu.GPUOutOfMemoryError("Not enough memory left.")
        return create(**given)

    buffers.get("a", 100, "one")
    monkeypatch.setitem(vars(gpu.device), "create_buffer", scarce)
    assert buffers.get("a", 132, "one").size == 132

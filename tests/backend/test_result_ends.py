"""Results whose bytes do not fill their last word leave what lies behind them as it is."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import wgpu

from tests.backend.buffers import COPIES, STORAGE, Array, empty_buffer, read, run_recorded
from tests.graphs import awaited, build
from webnn_py import DataError, MLContext, MLGraph, MLGraphBuilder, MLOperand

pytestmark = pytest.mark.kernels

BEHIND = 0x55
TYPES = ("int8", "uint8", "float16")
SIZES = (1, 5, 259)


def negation(context: MLContext, data_type: str, size: int, outputs: int = 1) -> MLGraph:
    """0 - x, as several outputs."""

    def what(builder: MLGraphBuilder) -> dict[str, MLOperand]:
        x = builder.input("x", data_type, [size])
        y = builder.sub(builder.constant(0, data_type), x)
        return {f"y{i}": y for i in range(outputs)}

    return build(context, what)


def filled(device: Any, size: int, usage: int = STORAGE | COPIES) -> Any:
    """A buffer full of what must stay."""
    data = np.full(size, BEHIND, np.uint8)
    return device.create_buffer_with_data(data=data, usage=usage)


def numbers(data_type: str, size: int) -> Array:
    return (np.arange(size) % 100 + 1).astype(data_type)


def assert_holds(buffer: Any, start: int, result: Array) -> None:
    """The result from `start`, and before and behind it what was there."""
    wanted = np.full(buffer.size, BEHIND, np.uint8)
    wanted[start : start + result.nbytes] = result.view(np.uint8)
    np.testing.assert_array_equal(read(buffer, dtype=np.uint8), wanted)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("data_type", TYPES)
def test_a_buffer(each_device: MLContext, data_type: str, size: int) -> None:
    device = each_device.device
    graph = negation(each_device, data_type, size)
    x = numbers(data_type, size)
    for offset in (0, 256, 4):  # an offset of 4 bytes cannot be bound, and is copied to
        target = filled(device, 1024)
        given = {"buffer": target, "offset": offset}
        run_recorded(graph, {"x": x}, {"y0": given})
        assert_holds(target, offset, 0 - x)
        target = filled(device, 1024)
        awaited(graph, {"x": x}, {"y0": given | {"buffer": target, "size": x.nbytes}})
        assert_holds(target, offset, 0 - x)


@pytest.mark.parametrize("data_type", TYPES)
def test_a_buffer_for_copies(each_device: MLContext, data_type: str) -> None:
    graph = negation(each_device, data_type, 5)
    x = numbers(data_type, 5)
    target = filled(each_device.device, 16, COPIES)
    run_recorded(graph, {"x": x}, {"y0": target})
    assert_holds(target, 0, 0 - x)


@pytest.mark.parametrize("data_type", TYPES)
def test_one_result_in_two_buffers(each_device: MLContext, data_type: str) -> None:
    graph = negation(each_device, data_type, 5, outputs=2)
    x = numbers(data_type, 5)
    first, second = filled(each_device.device, 16), filled(each_device.device, 16)
    run_recorded(graph, {"x": x}, {"y0": first, "y1": second})
    assert_holds(first, 0, 0 - x)
    assert_holds(second, 0, 0 - x)


@pytest.mark.parametrize("data_type", TYPES)
@pytest.mark.parametrize("offset", [0, 4])
def test_an_input_ends_within_a_word(each_device: MLContext, data_type: str, offset: int) -> None:
    graph = negation(each_device, data_type, 5)
    x = numbers(data_type, 5)
    source = filled(each_device.device, 32)
    data = np.full(32, BEHIND, np.uint8)
    data[offset : offset + x.nbytes] = x.view(np.uint8)
    each_device.device.queue.write_buffer(source, 0, data)
    given = {"buffer": source, "offset": offset, "size": x.nbytes}
    np.testing.assert_array_equal(awaited(graph, {"x": given})["y0"], 0 - x)


def test_what_cannot_be_kept_is_refused(gpu: MLContext) -> None:
    graph = negation(gpu, "int8", 5)
    x = numbers("int8", 5)
    target = empty_buffer(gpu.device, 8, wgpu.BufferUsage.COPY_DST)
    with pytest.raises(DataError, match="COPY_SRC, to keep the bytes behind the result"):
        run_recorded(graph, {"x": x}, {"y0": target})
    short = empty_buffer(gpu.device, 5)
    with pytest.raises(DataError, match=r"least 5 \(and 8 to the buffer's end: whole words\)"):
        run_recorded(graph, {"x": x}, {"y0": short})
    with pytest.raises(DataError, match=r"expected at least 5 \("):
        run_recorded(graph, {"x": x}, {"y0": {"buffer": filled(gpu.device, 8), "size": 4}})

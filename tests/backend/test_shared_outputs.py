"""Two outputs of one run may not share memory, in any mode."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import wgpu

from tests.backend.buffers import empty_buffer, read, run_recorded
from tests.backend.tensors import tensor
from tests.graphs import ONES, awaited, build
from webnn_py import (
    DataError,
    MLContext,
    MLExecution,
    MLGraph,
    MLGraphBuilder,
    MLOperand,
    ValidationError,
)

SHARED = "outputs 'a' and 'b' share memory"
INPUTS = {"x": ONES}
TEXTURE = wgpu.TextureUsage.STORAGE_BINDING | wgpu.TextureUsage.COPY_SRC


def two(context: MLContext, aliased: bool = False) -> MLGraph:
    """a = x + x, b = x * x, or both names for one value."""

    def what(builder: MLGraphBuilder) -> dict[str, MLOperand]:
        x = builder.input("x", "float32", [2, 3])
        a = builder.add(x, x)
        return {"a": a, "b": a if aliased else builder.mul(x, x)}

    return build(context, what)


def overlapping() -> list[tuple[Any, Any]]:
    memory = np.zeros(12, np.float32)
    raw = bytearray(24)
    square = np.zeros((4, 6), np.float32)
    return [
        (memory[:6].reshape(2, 3), memory[:6].reshape(2, 3)),
        (memory[:6], memory[5:11]),
        (raw, raw),
        (raw, np.frombuffer(raw, np.float32)),
        (square[:2, ::2], square[1:3, ::2]),
    ]


@pytest.mark.parametrize("aliased", [False, True])
def test_arrays(context: MLContext, aliased: bool) -> None:
    graph = two(context, aliased)
    for a, b in overlapping():
        with pytest.raises(DataError, match=SHARED):
            awaited(graph, INPUTS, {"a": a, "b": b})
        if context.device_type == "cpu":
            with pytest.raises(DataError, match=SHARED):
                MLExecution(context).compute(graph, INPUTS, {"a": a, "b": b})
        assert not np.frombuffer(bytes(a), np.uint8).any()


def test_arrays_beside_each_other(context: MLContext) -> None:
    graph = two(context)
    memory, square = np.zeros(12, np.float32), np.zeros((2, 6), np.float32)
    for a, b in (
        (memory[:6], memory[6:]),
        (memory[6:], memory),  # the result takes only the beginning of a larger array
        (square[:, ::2], square[:, 1::2]),
    ):
        awaited(graph, INPUTS, {"b": b, "a": a})
        np.testing.assert_array_equal(a.reshape(2, 3), ONES * 2)
        np.testing.assert_array_equal(b.reshape(-1)[:6] if b is memory else b.ravel(), np.ones(6))


def test_tensors(context: MLContext) -> None:
    x, y = tensor(context, ONES), tensor(context)
    for graph in (two(context), two(context, aliased=True)):
        with pytest.raises(DataError, match=SHARED):
            awaited(graph, INPUTS, {"a": y, "b": y})
        with pytest.raises(ValidationError, match=SHARED):
            context.dispatch(graph, {"x": x}, {"a": y, "b": y})
    np.testing.assert_array_equal(context.read_tensor_sync(y), ONES * 0)


def test_tensors_over_one_array(cpu: MLContext) -> None:
    memory = np.zeros((2, 3), np.float32)
    one, other = cpu.from_dlpack(memory), cpu.from_dlpack(memory)
    with pytest.raises(DataError, match=SHARED):
        awaited(two(cpu), INPUTS, {"a": one, "b": memory})
    with pytest.raises(ValidationError, match=SHARED):
        cpu.dispatch(two(cpu), {"x": tensor(cpu, ONES)}, {"a": one, "b": other})


def test_buffers(gpu: MLContext) -> None:
    graph, buffer = two(gpu), empty_buffer(gpu.device, 1024)
    y = tensor(gpu, exportable=True)
    with gpu.export_to_gpu(y) as lent:
        pass
    for a, b in (
        (buffer, buffer),
        (buffer, {"buffer": buffer, "offset": 20}),
        ({"buffer": buffer, "offset": 256}, {"buffer": buffer, "offset": 236}),
        (y, lent),
    ):
        with pytest.raises(DataError, match=SHARED):
            awaited(graph, INPUTS, {"a": a, "b": b})
        with pytest.raises(DataError, match=SHARED):
            run_recorded(graph, INPUTS, {"a": a, "b": b})
    assert not read(buffer).any()


def test_parts_of_one_buffer_beside_each_other(gpu: MLContext) -> None:
    graph, buffer = two(gpu), empty_buffer(gpu.device, 1024)
    for offset in (24, 256):
        run_recorded(graph, INPUTS, {"a": buffer, "b": {"buffer": buffer, "offset": offset}})
        np.testing.assert_array_equal(read(buffer, 6), [2] * 6)
        np.testing.assert_array_equal(read(buffer, 6, offset=offset), [1] * 6)


def test_textures(gpu: MLContext) -> None:
    graph = two(gpu)
    one, other = (
        gpu.device.create_texture(size=(3, 2, 1), format="r32float", usage=TEXTURE)
        for _ in range(2)
    )
    for again in (one, one.create_view()):
        with pytest.raises(DataError, match=SHARED):
            run_recorded(graph, INPUTS, {"a": one, "b": again})
        with pytest.raises(DataError, match=SHARED):
            awaited(graph, INPUTS, {"a": again, "b": one})
    run_recorded(graph, INPUTS, {"a": one, "b": other})


def test_two_names_of_one_value_have_targets_of_their_own(context: MLContext) -> None:
    a, b = np.zeros((2, 3), np.float32), np.zeros((2, 3), np.float32)
    awaited(two(context, aliased=True), INPUTS, {"a": a, "b": b})
    np.testing.assert_array_equal([a, b], [ONES * 2] * 2)

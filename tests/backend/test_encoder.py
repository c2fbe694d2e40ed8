"""MLCommandEncoder: graphs between the user's own passes, with one submit and no readback."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest
import wgpu

from tests.backend.buffers import (
    COPIES,
    STORAGE,
    buffer_of,
    empty_buffer,
    read,
    run_recorded,
    submit,
)
from tests.graphs import ONES, TWOS, assert_awaits, awaited, build, doubling, expected, normal
from webnn_py import (
    DataError,
    InvalidStateError,
    MLCommandEncoder,
    MLContext,
    MLGraphBuilder,
    MLOperand,
)

SCALE = """
@group(0) @binding(0) var<storage, read_write> data: array<f32>;
@compute @workgroup_size(1) fn main(@builtin(global_invocation_id) at: vec3<u32>) {
  data[at.x] = data[at.x] * 10.0 + 1.0;
}
"""


@functools.cache
def scaling(device: Any) -> Any:
    module = device.create_shader_module(code=SCALE)
    return device.create_compute_pipeline(
        layout="auto", compute={"module": module, "entry_point": "main"}
    )


def record_own_pass(device: Any, commands: Any, buffer: Any, count: int) -> None:
    """A pass of the user's: each element becomes 10 times itself plus 1."""
    pipeline = scaling(device)
    binding = {"buffer": buffer, "offset": 0, "size": buffer.size}
    group = device.create_bind_group(
        layout=pipeline.get_bind_group_layout(0), entries=[{"binding": 0, "resource": binding}]
    )
    compute = commands.begin_compute_pass()
    compute.set_pipeline(pipeline)
    compute.set_bind_group(0, group)
    compute.dispatch_workgroups(count)
    compute.end()


def dense(builder: MLGraphBuilder) -> dict[str, MLOperand]:
    """y = relu(x @ w + bias); w is an input too."""
    x = builder.input("x", "float32", [4, 16])
    w = builder.input("w", "float32", [16, 8])
    return {"y": builder.relu(builder.add(builder.matmul(x, w), builder.constant(normal(8))))}


def two_outputs(builder: MLGraphBuilder) -> dict[str, MLOperand]:
    """The second output is computed from the first."""
    x = builder.input("x", "float32", [3, 5])
    total = builder.add(x, builder.constant(1.0, "float32"))
    return {"plus": total, "sums": builder.reduce_sum(total, axes=[1])}


def assert_close(found: Any, wanted: Any) -> None:
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)


# In the queue


def test_a_recording_of_its_own(gpu: MLContext) -> None:
    x, y = buffer_of(gpu.device, ONES), empty_buffer(gpu.device, 24)
    encoder = MLCommandEncoder(gpu)
    encoder.dispatch(doubling(gpu), {"x": x}, {"y": y})
    commands = encoder.finish(label="mine")
    assert isinstance(commands, wgpu.GPUCommandBuffer)
    assert commands.label == "mine"
    assert not read(y).any()  # nothing runs before it is submitted
    gpu.device.queue.submit([commands])
    np.testing.assert_array_equal(read(y, (2, 3)), TWOS)


def test_between_the_user_s_own_passes(gpu: MLContext) -> None:
    x, y = buffer_of(gpu.device, ONES), empty_buffer(gpu.device, 24)
    commands = gpu.device.create_command_encoder()
    record_own_pass(gpu.device, commands, x, 6)
    encoder = MLCommandEncoder(gpu, encoder=commands)
    encoder.dispatch(doubling(gpu), {"x": x}, {"y": y})
    record_own_pass(gpu.device, commands, y, 6)
    gpu.device.queue.submit([commands.finish()])
    assert read(y).tolist() == [(1 * 10 + 1) * 2 * 10 + 1] * 6


def test_one_graph_many_times_in_one_recording(gpu: MLContext) -> None:
    graph = doubling(gpu)
    sources = [buffer_of(gpu.device, ONES * n) for n in range(4)]
    targets = [empty_buffer(gpu.device, 24) for _ in range(4)]
    encoder = MLCommandEncoder(gpu)
    for x, y in zip(sources, targets, strict=True):
        encoder.dispatch(graph, {"x": x}, {"y": y})
    encoder.dispatch(graph, {"x": ONES * 9}, {"y": sources[0]})  # host memory, copied right now
    submit(encoder, gpu)
    for n, y in enumerate(targets):
        np.testing.assert_array_equal(read(y, (2, 3)), TWOS * n)
    np.testing.assert_array_equal(read(sources[0], (2, 3)), TWOS * 9)


def test_a_chain_through_one_buffer(gpu: MLContext) -> None:
    x, between, z = (empty_buffer(gpu.device, 24) for _ in range(3))
    gpu.device.queue.write_buffer(x, 0, ONES)
    first, second = doubling(gpu), doubling(gpu)
    encoder = MLCommandEncoder(gpu)
    encoder.dispatch(first, {"x": x}, {"y": between})
    encoder.dispatch(second, {"x": between}, {"y": z})
    encoder.dispatch(first, {"x": z}, {"y": between})
    submit(encoder, gpu)
    assert read(z).tolist() == [4] * 6
    assert read(between).tolist() == [8] * 6


def test_a_recording_submitted_after_later_work(gpu: MLContext) -> None:
    graph = build(gpu, dense)
    inputs = {"x": normal(4, 16, seed=1), "w": normal(16, 8, seed=2)}
    y = empty_buffer(gpu.device, 4 * 4 * 8)
    encoder = MLCommandEncoder(gpu)
    encoder.dispatch(graph, inputs, {"y": y})
    commands = encoder.finish()
    inputs["w"] = inputs["w"].copy()
    other = {"x": normal(4, 16, seed=3), "w": normal(16, 8, seed=4)}
    assert_close(awaited(graph, other)["y"], expected(dense, other)["y"])
    run_recorded(graph, other, {"y": y})
    gpu.device.queue.submit([commands])
    assert_close(read(y, (4, 8)), expected(dense, inputs)["y"])


def test_host_inputs_are_copied_when_recorded(gpu: MLContext) -> None:
    array, y = ONES.copy(), empty_buffer(gpu.device, 24)
    encoder = MLCommandEncoder(gpu)
    encoder.dispatch(doubling(gpu), {"x": array}, {"y": y})
    array[:] = 7
    submit(encoder, gpu)
    np.testing.assert_array_equal(read(y, (2, 3)), TWOS)


# initialize_graph


@pytest.mark.parametrize("kind", ["host", "buffer", "part", "unaligned", "resource"])
def test_constants_keep_what_they_were(gpu: MLContext, kind: str) -> None:
    graph = build(gpu, dense)
    inputs = {"x": normal(4, 16, seed=5), "w": normal(16, 8, seed=6)}
    x, y = buffer_of(gpu.device, inputs["x"]), empty_buffer(gpu.device, 128)
    start = {"part": 256, "unaligned": 4}.get(kind, 0)
    padded = np.concatenate([np.zeros(start // 4, np.float32), inputs["w"].ravel()])
    buffer = buffer_of(gpu.device, padded)
    given = {
        "host": inputs["w"],
        "buffer": buffer,
        "resource": {"resource": buffer, "dimensions": [16, 8]},
    }.get(kind, {"buffer": buffer, "offset": start})
    encoder = MLCommandEncoder(gpu)
    encoder.initialize_graph(graph, {"w": given})
    encoder.dispatch(graph, {"x": x}, {"y": y})
    submit(encoder, gpu)
    gpu.device.queue.write_buffer(buffer, 0, np.zeros_like(padded))
    assert_close(read(y, (4, 8)), expected(dense, inputs)["y"])
    run_recorded(graph, {"x": x}, {"y": y})  # constant for every later recording, and when awaited
    assert_close(read(y, (4, 8)), expected(dense, inputs)["y"])
    assert_close(awaited(graph, {"x": inputs["x"]})["y"], expected(dense, inputs)["y"])
    with pytest.raises(DataError, match="'w' was made a constant"):
        MLCommandEncoder(gpu).dispatch(graph, inputs, {"y": y})


def test_a_constant_tensor_s_later_contents_do_not_count(gpu: MLContext) -> None:
    graph = build(gpu, dense)
    inputs = {"x": normal(4, 16, seed=5), "w": normal(16, 8, seed=6)}
    tensor = gpu.create_tensor_sync("float32", [16, 8], writable=True)
    gpu.write_tensor(tensor, inputs["w"])
    encoder = MLCommandEncoder(gpu)
    encoder.initialize_graph(graph, {"w": tensor})
    submit(encoder, gpu)
    gpu.write_tensor(tensor, np.zeros((16, 8), np.float32))
    gpu.flush()
    assert_close(awaited(graph, {"x": inputs["x"]})["y"], expected(dense, inputs)["y"])


def test_a_graph_is_initialized_once(gpu: MLContext) -> None:
    graph = doubling(gpu)
    encoder = MLCommandEncoder(gpu)
    encoder.initialize_graph(graph)
    with pytest.raises(InvalidStateError, match="initialized already"):
        encoder.initialize_graph(graph)
    dispatched = doubling(gpu)
    encoder.dispatch(dispatched, {"x": ONES}, {"y": empty_buffer(gpu.device, 24)})
    with pytest.raises(InvalidStateError, match="initialized already"):
        encoder.initialize_graph(dispatched)


@pytest.mark.parametrize(
    ("constants", "message"),
    [
        ([ONES], "constants: got list"),
        ({"z": ONES}, "unknown input 'z'"),
        ({"x": ONES[0]}, "input 'x': shape"),
        ({"x": 3}, "input 'x': got int"),
    ],
)
def test_bad_constants_leave_the_graph_as_it_was(
    gpu: MLContext, constants: Any, message: str
) -> None:
    graph, y = doubling(gpu), empty_buffer(gpu.device, 24)
    encoder = MLCommandEncoder(gpu)
    with pytest.raises(DataError, match=message):
        encoder.initialize_graph(graph, constants)
    encoder.initialize_graph(graph)
    encoder.dispatch(graph, {"x": ONES}, {"y": y})
    submit(encoder, gpu)
    np.testing.assert_array_equal(read(y, (2, 3)), TWOS)


# One buffer for several


def shifted(builder: MLGraphBuilder) -> dict[str, MLOperand]:
    """Reads other elements than it writes: wrong if input and output lie over each other."""
    x = builder.input("x", "float32", [64])
    y = builder.input("y", "float32", [64])
    return {"sum": builder.add(builder.reverse(x), builder.mul(y, y))}


def test_an_output_over_an_input(gpu: MLContext) -> None:
    inputs = {"x": normal(64, seed=1), "y": normal(64, seed=2)}
    x, y = (buffer_of(gpu.device, array) for array in inputs.values())
    run_recorded(build(gpu, shifted), {"x": x, "y": y}, {"sum": x})
    assert_close(read(x), expected(shifted, inputs)["sum"])
    np.testing.assert_array_equal(read(y), inputs["y"])


def test_an_output_over_part_of_an_input(gpu: MLContext) -> None:
    data = normal(128, seed=3)
    both = buffer_of(gpu.device, data)
    bound = {"x": {"buffer": both, "size": 256}, "y": {"buffer": both, "offset": 256}}
    run_recorded(build(gpu, shifted), bound, {"sum": {"buffer": both, "offset": 128}})
    wanted = expected(shifted, {"x": data[:64], "y": data[64:]})["sum"]
    assert_close(read(both), np.concatenate([data[:32], wanted, data[96:]]))


def test_one_buffer_for_two_inputs(gpu: MLContext) -> None:
    data = normal(64, seed=4)
    both, total = buffer_of(gpu.device, data), empty_buffer(gpu.device, 256)
    run_recorded(build(gpu, shifted), {"x": both, "y": both}, {"sum": total})
    assert_close(read(total), expected(shifted, {"x": data, "y": data})["sum"])


@pytest.mark.parametrize("at", [(0, 256), (64, 0), (4, 100)])
def test_two_outputs_in_one_buffer(gpu: MLContext, at: tuple[int, int]) -> None:
    data = normal(3, 5)
    wanted = expected(two_outputs, {"x": data})
    target = empty_buffer(gpu.device, 512)
    plus, sums = ({"buffer": target, "offset": offset} for offset in at)
    run_recorded(build(gpu, two_outputs), {"x": data}, {"plus": plus, "sums": sums})
    assert_close(read(target, (3, 5), offset=at[0]), wanted["plus"])
    assert_close(read(target, 3, offset=at[1]), wanted["sums"])
    assert np.count_nonzero(read(target)) == 18


def test_one_operand_under_two_names(gpu: MLContext) -> None:
    def twice(builder: MLGraphBuilder) -> dict[str, MLOperand]:
        y = builder.neg(builder.input("x", "float32", [4]))
        return {"a": y, "b": y, "c": builder.identity(y)}

    a = empty_buffer(gpu.device, 512)
    b, c = empty_buffer(gpu.device, 16), {"buffer": a, "offset": 256}
    run_recorded(build(gpu, twice), {"x": np.arange(4, dtype=np.float32)}, {"a": a, "b": b, "c": c})
    for found in (read(a, 4), read(b), read(a, 4, offset=256)):
        assert found.tolist() == [0, -1, -2, -3]


def test_an_input_handed_through(gpu: MLContext) -> None:
    def through(builder: MLGraphBuilder) -> dict[str, MLOperand]:
        x = builder.input("x", "float32", [2, 3])
        return {"y": builder.identity(x), "z": builder.reshape(x, [6])}

    x, y = buffer_of(gpu.device, ONES, STORAGE), empty_buffer(gpu.device, 24)
    z = empty_buffer(gpu.device, 24)
    run_recorded(build(gpu, through), {"x": x}, {"y": y, "z": z})
    np.testing.assert_array_equal(read(y, (2, 3)), ONES)
    run_recorded(build(gpu, through), {"x": z}, {"y": z, "z": y})
    np.testing.assert_array_equal(read(z, (2, 3)), ONES)


def test_outputs_that_are_left_out(gpu: MLContext) -> None:
    x = np.arange(15, dtype=np.float32).reshape(3, 5)
    graph = build(gpu, two_outputs)
    plus, sums = empty_buffer(gpu.device, 60), empty_buffer(gpu.device, 12)
    run_recorded(graph, {"x": x}, {"sums": sums})
    run_recorded(graph, {"x": x + 1}, {"plus": plus})
    np.testing.assert_array_equal(read(sums), (x + 1).sum(1))
    np.testing.assert_array_equal(read(plus, (3, 5)), x + 2)


# Kinds of buffers


@pytest.mark.parametrize("offset", [4, 8, 20, 36, 252])
def test_unaligned_offsets_are_copied(gpu: MLContext, offset: int) -> None:
    data = np.arange(128, dtype=np.float32)
    x, y = buffer_of(gpu.device, data), empty_buffer(gpu.device, 512)
    run_recorded(
        doubling(gpu),
        {"x": {"buffer": x, "offset": offset, "size": 24}},
        {"y": {"buffer": y, "offset": offset}},
    )
    first = offset // 4
    wanted = np.zeros(128)
    wanted[first : first + 6] = data[first : first + 6] * 2
    np.testing.assert_array_equal(read(y), wanted)


def test_buffers_that_can_only_be_copied(gpu: MLContext) -> None:
    x, y = buffer_of(gpu.device, ONES, COPIES), empty_buffer(gpu.device, 24, COPIES)
    run_recorded(doubling(gpu), {"x": x}, {"y": y})
    np.testing.assert_array_equal(read(y, (2, 3)), TWOS)


def test_buffers_that_can_only_be_bound(gpu: MLContext) -> None:
    x, y = buffer_of(gpu.device, ONES, STORAGE), empty_buffer(gpu.device, 24, STORAGE)
    z = empty_buffer(gpu.device, 24)
    graph = doubling(gpu)
    run_recorded(graph, {"x": x}, {"y": y})
    run_recorded(graph, {"x": y}, {"y": z})
    np.testing.assert_array_equal(read(z, (2, 3)), TWOS * 2)


@pytest.mark.parametrize("size", [1, 4, 7, 1003])
def test_buffers_that_can_only_be_bound_are_copied_by_a_kernel(gpu: MLContext, size: int) -> None:
    def twice(builder: MLGraphBuilder) -> dict[str, MLOperand]:
        y = builder.add(builder.input("x", "uint8", [size]), builder.input("z", "uint8", [size]))
        return {"a": y, "b": y}

    def bound() -> Any:
        return buffer_of(
            gpu.device, np.full(1024, 9, np.uint8), STORAGE | wgpu.BufferUsage.COPY_SRC
        )

    data = (np.arange(1024) % 100).astype(np.uint8)
    graph, (a, b) = build(gpu, twice), (bound(), bound())
    encoder = MLCommandEncoder(gpu)
    encoder.initialize_graph(graph, {"z": buffer_of(gpu.device, data, STORAGE)})
    encoder.dispatch(graph, {"x": data[:size]}, {"a": a, "b": b})
    submit(encoder, gpu)
    for buffer in (a, b):
        found = read(buffer, dtype=np.uint8)
        np.testing.assert_array_equal(found[:size], 2 * data[:size])
        assert (found[size:] == 9).all()


def test_buffers_without_the_usage_that_is_needed(gpu: MLContext) -> None:
    graph = doubling(gpu)
    vertices = empty_buffer(gpu.device, 32, wgpu.BufferUsage.VERTEX)
    bound = {"buffer": empty_buffer(gpu.device, 32, STORAGE), "offset": 4}
    good = empty_buffer(gpu.device, 32)
    for bad, read_by, written_by in (
        (vertices, r"lacks STORAGE \(or COPY_SRC\)", r"lacks STORAGE \(or COPY_DST\)"),
        (bound, "offset 4 .*usage COPY_SRC", "offset 4 .*usage COPY_DST"),
    ):
        with pytest.raises(DataError, match=f"input 'x': .*{read_by}"):
            run_recorded(graph, {"x": bad}, {"y": good})
        with pytest.raises(DataError, match=f"output 'y': .*{written_by}"):
            run_recorded(graph, {"x": good}, {"y": bad})
    with pytest.raises(DataError, match=r"input 'x': .*lacks STORAGE \(or COPY_SRC\)"):
        MLCommandEncoder(gpu).initialize_graph(graph, {"x": vertices})
    assert_awaits(gpu)


def test_small_types_lie_in_whole_words(gpu: MLContext) -> None:
    def low(builder: MLGraphBuilder) -> dict[str, MLOperand]:
        x = builder.input("x", "uint8", [5])
        return {"y": builder.add(x, builder.constant(1, "uint8"))}

    graph = build(gpu, low)
    y = buffer_of(gpu.device, np.full(12, 9, np.uint8))
    run_recorded(
        graph, {"x": np.array([0, 1, 254, 255, 7], np.uint8)}, {"y": {"buffer": y, "size": 8}}
    )
    assert read(y, 12, np.uint8)[:5].tolist() == [1, 2, 255, 0, 8]
    assert read(y, 12, np.uint8)[8:].tolist() == [9] * 4
    with pytest.raises(DataError, match="5 bytes from offset 0 of a buffer of 5, expected at leas"):
        run_recorded(graph, {"x": empty_buffer(gpu.device, 5, STORAGE)}, {"y": y})

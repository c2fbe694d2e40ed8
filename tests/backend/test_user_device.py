"""Contexts on the user's GPUDevice: default limits, no features, small bindings."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import wgpu

from tests.adapters import need_limits, new_device
from tests.backend.buffers import STORAGE, buffer_of, empty_buffer, read
from tests.backend.tensors import tensor
from tests.graphs import (
    Arrays,
    Build,
    assert_awaits,
    awaited,
    build,
    doubling,
    expected,
    normal,
)
from tests.public import WHOLE_BYTES
from webnn_py import (
    ContextLostError,
    DataError,
    InvalidStateError,
    MLAwaitedExecution,
    MLCommandEncoder,
    MLContext,
    MLGraphBuilder,
    MLOperand,
    NotSupportedError,
    Timeline,
    ValidationError,
    ml,
)
from webnn_py.engines.webgpu.runtime.devices import adapters

SMALL = 1 << 20
"""Bytes of the largest binding of a small device."""


def device_with(**limits: int) -> Any:
    """A device with WebGPU's default limits but for some, and no features."""
    required = {name.replace("_", "-"): value for name, value in limits.items()}
    device = new_device(required_limits=required)
    need_limits(device, **limits)
    return device


@pytest.fixture(scope="module")
def plain(gpu: MLContext) -> Iterator[MLContext]:
    with ml.create_context_sync(device_with()) as context:
        yield context


@pytest.fixture(scope="module")
def small(gpu: MLContext) -> Iterator[MLContext]:
    with ml.create_context_sync(device_with(max_storage_buffer_binding_size=SMALL)) as context:
        yield context


def assert_like_reference(
    context: MLContext, what: Build, inputs: Arrays, rtol: float = 2e-4, atol: float = 1e-4
) -> None:
    results = awaited(build(context, what), inputs)
    for name, array in expected(what, inputs).items():
        assert results[name].dtype == array.dtype
        np.testing.assert_allclose(results[name], array, rtol=rtol, atol=atol, err_msg=name)


# Default limits


def test_a_context_on_a_device_of_the_user_s(gpu: MLContext) -> None:
    device = device_with()
    with ml.create_context_sync(device) as context:
        assert (context.device_type, context.device) == ("gpu", device)
        assert context.accelerated == (device.adapter.info["adapter_type"] != "CPU")
        assert_awaits(context)
    assert buffer_of(device, np.zeros(4)).size == 32  # the device is the user's, and lives on


def test_two_contexts_share_a_device(plain: MLContext) -> None:
    with ml.create_context_sync(plain.device) as other:
        y = empty_buffer(plain.device, 24)
        awaited(doubling(other), {"x": np.ones((2, 3), np.float32)}, {"y": y})
        assert awaited(doubling(plain), {"x": y})["y"].tolist() == [[4] * 3] * 2
    assert_awaits(plain)


def test_what_is_no_device(gpu: MLContext) -> None:
    for wrong in (gpu.device.adapter, gpu.device.queue, "gpu"):
        with pytest.raises(ValidationError, match=r"expected a wgpu\.GPUDevice"):
            ml.create_context_sync(wrong)


def test_a_device_that_was_destroyed_before(gpu: MLContext) -> None:
    fresh, known = device_with(), device_with()
    assert_awaits(ml.create_context_sync(known))
    for device in (fresh, known):
        device.destroy()
        with pytest.raises(ContextLostError, match="the GPUDevice is lost"):
            ml.create_context_sync(device)


def classifier(builder: MLGraphBuilder) -> dict[str, MLOperand]:
    """Convolution, pooling, matrix multiplication, softmax."""
    x = builder.input("x", "float32", [2, 3, 16, 16])
    hidden = builder.conv2d(
        x,
        builder.constant(normal(8, 3, 3, 3, seed=1)),
        bias=builder.constant(normal(8, seed=2)),
        padding=[1, 1, 1, 1],
    )
    pooled = builder.max_pool2d(builder.relu(hidden), window_dimensions=[2, 2], strides=[2, 2])
    flat = builder.reshape(pooled, [2, 512])
    scores = builder.gemm(flat, builder.constant(normal(512, 10, seed=3)))
    return {"p": builder.softmax(scores, 1), "top": builder.arg_max(scores, 1)}


def test_a_network_on_default_limits(plain: MLContext) -> None:
    assert_like_reference(plain, classifier, {"x": normal(2, 3, 16, 16)})


def test_a_network_recorded_on_default_limits(plain: MLContext) -> None:
    x = normal(2, 3, 16, 16, seed=4)
    p, top = empty_buffer(plain.device, 80), empty_buffer(plain.device, 80)
    encoder = MLCommandEncoder(plain)
    encoder.dispatch(build(plain, classifier), {"x": x}, {"p": p, "top": top})
    plain.device.queue.submit([encoder.finish()])
    wanted = expected(classifier, {"x": x})
    np.testing.assert_allclose(read(p, (2, 10)), wanted["p"], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("data_type", ["float16", "int64", "uint64", "int8", "uint8"])
def test_data_types_without_features(plain: MLContext, data_type: str) -> None:
    """Every data type that the context lists works; the others are refused by name."""
    rng = np.random.default_rng(0)
    array = rng.integers(0, 50, (6, 7)).astype(data_type)

    def what(builder: MLGraphBuilder) -> dict[str, MLOperand]:
        x = builder.input("x", data_type, [6, 7])
        return {
            "y": builder.mul(builder.add(x, x), builder.constant(2, data_type)),
            "t": builder.transpose(builder.slice(x, [1, 2], [4, 3])),
            "f": builder.cast(x, "float32"),
        }

    limits = plain.op_support_limits()
    if data_type in limits["mul"]["a"]["data_types"]:
        assert_like_reference(plain, what, {"x": array}, rtol=0, atol=0)
    else:
        with pytest.raises(NotSupportedError, match=data_type):
            build(plain, what)


@pytest.mark.parametrize("shape", [[], [3], [5, 7], [64]])
@pytest.mark.parametrize("data_type", WHOLE_BYTES)
def test_every_data_type_lies_in_buffers_as_in_memory(
    plain: MLContext, data_type: str, shape: list[int]
) -> None:
    def what(builder: MLGraphBuilder) -> dict[str, MLOperand]:
        x = builder.input("x", data_type, shape)
        return {"y": builder.add(x, x)}

    array = np.arange(np.prod(shape, dtype=int)).reshape(shape).astype(data_type)
    words = np.zeros(-(-array.nbytes // 4) * 4, np.uint8)
    words[: array.nbytes] = np.frombuffer(array.tobytes(), np.uint8)
    x, y = buffer_of(plain.device, words), empty_buffer(plain.device, 1024)
    graph = build(plain, what)
    encoder = MLCommandEncoder(plain)
    encoder.dispatch(graph, {"x": x}, {"y": {"buffer": y, "offset": 256}})
    plain.device.queue.submit([encoder.finish()])
    np.testing.assert_array_equal(read(y, shape, data_type, offset=256), array + array)
    np.testing.assert_array_equal(awaited(graph, {"x": x})["y"], array + array)


@pytest.mark.parametrize("count", [7, 8, 9, 40, 70])
def test_many_inputs(plain: MLContext, count: int) -> None:
    def what(builder: MLGraphBuilder) -> dict[str, MLOperand]:
        parts = [builder.input(f"x{i}", "float32", [2, i % 3 + 1]) for i in range(count)]
        total = parts[0]
        for part in parts[3::3]:
            total = builder.add(total, part)
        return {"all": builder.concat(parts, 1), "total": total}

    inputs = {f"x{i}": normal(2, i % 3 + 1, seed=i) for i in range(count)}
    assert_like_reference(plain, what, inputs)


# Tensors larger than a binding


def test_elementwise_in_parts(small: MLContext) -> None:
    def what(builder: MLGraphBuilder) -> dict[str, MLOperand]:
        x = builder.input("x", "float32", [600, 1001])  # 2.3 MiB, and no part ends with a row
        row = builder.input("row", "float32", [1001])
        return {"y": builder.relu(builder.add(builder.mul(x, x), row))}

    assert_like_reference(small, what, {"x": normal(600, 1001), "row": normal(1001, seed=1)})


def test_small_types_in_parts(small: MLContext) -> None:
    def what(builder: MLGraphBuilder) -> dict[str, MLOperand]:
        x = builder.input("x", "uint8", [3, 1000, 777])
        return {
            "y": builder.add(x, builder.constant(3, "uint8")),
            "z": builder.greater(x, builder.constant(100, "uint8")),
        }

    array = np.random.default_rng(0).integers(0, 250, (3, 1000, 777)).astype(np.uint8)
    assert_like_reference(small, what, {"x": array}, rtol=0, atol=0)


@pytest.mark.parametrize("axes", [[0], [1], [0, 1]])
def test_reductions_in_parts(small: MLContext, axes: list[int]) -> None:
    def what(builder: MLGraphBuilder) -> dict[str, MLOperand]:
        x = builder.input("x", "float32", [900, 701])
        return {
            "mean": builder.reduce_mean(x, axes=axes),
            "max": builder.reduce_max(x, axes=axes),
        }

    assert_like_reference(small, what, {"x": normal(900, 701)})


def test_a_softmax_in_parts(small: MLContext) -> None:
    def what(builder: MLGraphBuilder) -> dict[str, MLOperand]:
        return {"y": builder.softmax(builder.input("x", "float32", [5, 120_001]), 1)}

    assert_like_reference(small, what, {"x": normal(5, 120_001)}, atol=1e-8)


def test_movement_in_parts(small: MLContext) -> None:
    def what(builder: MLGraphBuilder) -> dict[str, MLOperand]:
        x = builder.input("x", "float32", [512, 1111])
        return {
            "t": builder.transpose(x),
            "parts": builder.split(x, 2, axis=0)[1],
            "wide": builder.concat([x, x], 1),
        }

    assert_like_reference(small, what, {"x": normal(512, 1111)}, rtol=0, atol=0)


def test_concat_in_parts(small: MLContext) -> None:
    sizes = (300_000, 5, 400_001, 17)

    def what(builder: MLGraphBuilder) -> dict[str, MLOperand]:
        parts = [builder.input(f"x{i}", "float32", [size]) for i, size in enumerate(sizes)]
        return {"y": builder.concat(parts, 0)}

    inputs = {f"x{i}": normal(size, seed=i) for i, size in enumerate(sizes)}
    assert_like_reference(small, what, inputs, rtol=0, atol=0)


def test_matmul_in_parts(small: MLContext) -> None:
    def what(builder: MLGraphBuilder) -> dict[str, MLOperand]:
        a = builder.input("a", "float32", [700, 70])
        b = builder.input("b", "float32", [70, 900])
        c = builder.matmul(a, b)  # 2.4 MiB
        return {"c": c, "d": builder.matmul(builder.transpose(c), a)}

    assert_like_reference(
        small, what, {"a": normal(700, 70), "b": normal(70, 900, seed=1)}, rtol=1e-3, atol=1e-2
    )


def test_a_convolution_in_parts(small: MLContext) -> None:
    def what(builder: MLGraphBuilder) -> dict[str, MLOperand]:
        x = builder.input("x", "float32", [1, 3, 450, 441])  # 2.3 MiB
        y = builder.conv2d(x, builder.constant(normal(4, 3, 3, 3, seed=1)), padding=[1, 1, 1, 1])
        return {"y": builder.relu(y)}

    assert_like_reference(small, what, {"x": normal(1, 3, 450, 441)})


def test_constants_in_parts(small: MLContext) -> None:
    def what(builder: MLGraphBuilder) -> dict[str, MLOperand]:
        table = builder.constant(normal(3000, 100, seed=1))
        indices = builder.input("i", "int32", [50])
        return {"rows": builder.gather(table, indices), "y": builder.relu(table)}

    indices = np.random.default_rng(2).integers(0, 3000, 50).astype(np.int32)
    assert_like_reference(small, what, {"i": indices}, rtol=0, atol=0)


def test_large_tensors_in_and_out_of_buffers(small: MLContext) -> None:
    def what(builder: MLGraphBuilder) -> dict[str, MLOperand]:
        return {"y": builder.neg(builder.input("x", "float32", [700_000]))}

    array = normal(700_000)
    x, y = buffer_of(small.device, array), empty_buffer(small.device, array.nbytes + 512)
    encoder = MLCommandEncoder(small)
    encoder.dispatch(build(small, what), {"x": x}, {"y": {"buffer": y, "offset": 256}})
    small.device.queue.submit([encoder.finish()])
    np.testing.assert_array_equal(read(y, 700_000, offset=256), -array)
    assert not read(y, 64).any()


@pytest.mark.parametrize(("data_type", "size"), [("float32", 700_000), ("uint8", 2_500_003)])
def test_large_tensors_in_buffers_that_can_only_be_bound(
    small: MLContext, data_type: Any, size: int
) -> None:
    def what(builder: MLGraphBuilder) -> dict[str, MLOperand]:
        y = builder.add(*(builder.input(name, data_type, [size]) for name in "xz"))
        return {"y": y, "again": y}

    data = np.resize(np.arange(100), -(-size // 4) * 4).astype(data_type)
    source, z = (buffer_of(small.device, data, STORAGE) for _ in range(2))
    outputs = {
        name: buffer_of(small.device, data, STORAGE | wgpu.BufferUsage.COPY_SRC)
        for name in ("y", "again")
    }
    encoder, graph = MLCommandEncoder(small), build(small, what)
    encoder.initialize_graph(graph, {"z": z})
    encoder.dispatch(graph, {"x": source}, outputs)
    small.device.queue.submit([encoder.finish()])
    for buffer in outputs.values():
        found = read(buffer, dtype=data_type)
        np.testing.assert_array_equal(found[:size], data[:size] + data[:size])
        np.testing.assert_array_equal(found[size:], data[size:])


def test_what_does_not_fit_says_what_is_missing(gpu: MLContext) -> None:
    def what(builder: MLGraphBuilder) -> dict[str, MLOperand]:
        return {"y": builder.neg(builder.input("x", "float32", [1 << 19]))}

    limits = {"max_storage_buffer_binding_size": 1 << 18, "max_buffer_size": 1 << 20}
    with ml.create_context_sync(device_with(**limits)) as context:
        assert context.op_support_limits()["max_tensor_byte_length"] == 1 << 20
        with pytest.raises(
            NotSupportedError, match=r"2097152 bytes; .* max-buffer-size is 1048576"
        ):
            build(context, what)
        assert_awaits(context)


def test_an_adapter_that_a_library_refuses_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    info = {"device": "old GPU", "backend_type": "Vulkan", "adapter_type": "CPU"}
    adapter = SimpleNamespace(info=info, summary="old GPU")
    by_engine = {"webgpu": [adapter], "dawn": []}
    monkeypatch.setattr(adapters, "all_adapters", lambda engine="webgpu": by_engine[engine])
    with pytest.raises(NotSupportedError, match=r"old GPU \(Vulkan\): engine 'dawn' refuses it"):
        adapters.request_device(engine="dawn")
    with pytest.raises(NotSupportedError, match=r"old GPU \(Vulkan\): it is software"):
        adapters.request_device(hardware=True)


def test_without_an_adapter_the_error_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEBNN_ADAPTER", "no adapter has this name")
    with pytest.raises(NotSupportedError, match=r"no GPU adapter: (.* excludes it; )?install a"):
        ml.create_context_sync(device_type="gpu")
    with ml.create_context_sync(accelerated=True) as context:
        assert context.device_type == "cpu"


def test_contexts_of_one_device_see_each_other_s_tensors(plain: MLContext) -> None:
    ones, other = np.ones((2, 3), np.float32), ml.create_context_sync(plain.device)
    ours, theirs = doubling(plain), doubling(other)
    x, y, z = tensor(plain), tensor(plain), tensor(plain)
    for number in range(1, 4):
        plain.write_tensor(x, ones * number)
        plain.dispatch(ours, {"x": x}, {"y": y})
        assert awaited(theirs, {"x": y}, {"y": z})["y"] is z
        assert plain.read_tensor_sync(z).tolist() == [[4 * number] * 3] * 2
    parked, reached = Timeline(), Timeline()
    plain.dispatch(ours, {"x": z}, {"y": y}, sync=[parked(wait=1), reached(signal=1)])
    with pytest.raises(InvalidStateError, match="another context: work on it waits for a timeline"):
        awaited(theirs, {"x": y})

    async def main() -> None:
        compute = MLAwaitedExecution(other).compute
        run = asyncio.create_task(compute(theirs, {"x": y}, sync=[reached(wait=1)]))
        await asyncio.sleep(0)
        parked.signal(1)
        assert (await run)["y"].tolist() == [[48] * 3] * 2

    asyncio.run(main())
    lost = tensor(other, ones)
    other.destroy()
    with pytest.raises(DataError, match="input 'x': the MLTensor's own context is lost"):
        awaited(ours, {"x": lost})
    assert awaited(ours, {"x": ones})["y"].tolist() == [[2] * 3] * 2


@pytest.mark.parametrize("name", ["arg_max", "arg_min"])
def test_positions_on_a_device_whose_workgroups_do_not_halve(gpu: MLContext, name: str) -> None:
    limits = ("max_compute_invocations_per_workgroup", "max_compute_workgroup_size_x")
    device = device_with(**dict.fromkeys(limits, 100))
    x = np.zeros((1, 9000), np.float32)
    x[0, 99] = 1 if name == "arg_max" else -1

    def position(b: MLGraphBuilder) -> dict[str, MLOperand]:
        return {"y": getattr(b, name)(b.input("x", "float32", x.shape), 1)}

    with ml.create_context_sync(device) as context:
        assert awaited(build(context, position), {"x": x})["y"].tolist() == [99]

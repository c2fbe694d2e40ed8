"""DLPack both ways: shared memory, who is asked for what, refusals, and how long memory lives."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.backend.libraries import Library, jax_library, numpy_library, torch_library
from tests.backend.tensors import LONG, ONES, SHAPE, broken, tensor
from tests.graphs import doubling
from webnn_py import (
    ContextLostError,
    DLPackError,
    MLContext,
    MLTensor,
    Timeline,
    ValidationError,
    ml,
)

TYPES = ("float32", "float16", "int32", "uint32", "int64", "uint64", "int8", "uint8")
WEBGPU = (15, 0)
CPU = (1, 0)


def address(made: MLTensor) -> int:
    """Where a CPU tensor lies, as NumPy has it from the capsule."""
    return int(np.from_dlpack(made).ctypes.data)


# Sharing


@pytest.mark.parametrize("data_type", TYPES)
def test_others_share_the_memory_of_a_cpu_tensor(
    cpu: MLContext, library: Library, data_type: str
) -> None:
    array = np.arange(6, dtype=data_type).reshape(2, 3)
    made = tensor(cpu, array)
    taken = library.take(made)
    assert library.address(taken) == address(made)
    np.testing.assert_array_equal(np.asarray(taken), array)
    cpu.write_tensor(made, array + 1)
    cpu.read_tensor_sync(made)
    np.testing.assert_array_equal(np.asarray(taken), array + 1)


@pytest.mark.parametrize("shape", [(), (1,), (5,), (3, 1, 7)])
def test_a_cpu_tensor_shares_the_memory_of_others(
    cpu: MLContext, library: Library, shape: tuple[int, ...]
) -> None:
    array = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    given = library.make(array)
    made = cpu.from_dlpack(given)
    assert (made.data_type, made.shape) == ("float32", shape)
    assert address(made) == library.address(given)
    np.testing.assert_array_equal(cpu.read_tensor_sync(made), array)


def test_what_a_graph_writes_is_seen_by_others(cpu: MLContext) -> None:
    for library in (numpy_library(), *([torch_library()] if _has("torch") else [])):
        given = library.make(np.zeros(SHAPE, np.float32))
        cpu.dispatch(doubling(cpu), {"x": tensor(cpu, ONES)}, {"y": cpu.from_dlpack(given)})
        cpu.read_tensor_sync(cpu.from_dlpack(given))
        done = Timeline()
        cpu.dispatch(doubling(cpu), {"x": tensor(cpu)}, {"y": tensor(cpu)}, sync=[done(signal=1)])
        done.wait_sync(1, timeout=LONG)
        np.testing.assert_array_equal(np.asarray(given), ONES * 2)


def _has(name: str) -> bool:
    return importlib.util.find_spec(name) is not None


def test_a_tensor_is_read_over_its_own_memory(cpu: MLContext) -> None:
    memory = np.arange(24, dtype=np.float32)
    made = cpu.from_dlpack(memory[8:12])
    cpu.read_tensor_sync(made, memory[8:16:2])
    np.testing.assert_array_equal(memory[8:16:2], [8, 9, 10, 11])


def test_contexts_share_memory_with_each_other(cpu: MLContext) -> None:
    with ml.create_context_sync(device_type="cpu") as other:
        made = tensor(cpu, ONES)
        shared = other.from_dlpack(made)
        assert address(shared) == address(made)
        other.write_tensor(shared, ONES * 3)
        other.read_tensor_sync(shared)
        np.testing.assert_array_equal(cpu.read_tensor_sync(made), ONES * 3)


def test_tensors_are_aligned_as_others_ask(cpu: MLContext) -> None:
    for count in range(1, 40):
        made = cpu.create_tensor_sync("int8", [count])
        assert address(made) % 64 == 0


@pytest.mark.filterwarnings("ignore:Setting the shape:DeprecationWarning")  # NumPy 2.5
def test_the_user_s_array_may_be_reshaped_meanwhile(cpu: MLContext) -> None:
    array = ONES.copy()
    made = cpu.from_dlpack(array)
    array.shape = (3, 2)
    assert made.shape == SHAPE
    np.testing.assert_array_equal(cpu.read_tensor_sync(made), ONES)


# Read-only memory


def test_read_only_memory_is_only_read(cpu: MLContext) -> None:
    array = ONES.copy()
    array.flags.writeable = False
    made, y = cpu.from_dlpack(array), tensor(cpu)
    cpu.dispatch(doubling(cpu), {"x": made}, {"y": y})
    np.testing.assert_array_equal(cpu.read_tensor_sync(y), ONES * 2)
    with pytest.raises(ValidationError, match="not created writable"):
        cpu.write_tensor(made, ONES)
    with pytest.raises(ValidationError, match="read-only"):
        cpu.dispatch(doubling(cpu), {"x": y}, {"y": made})


def test_the_memory_of_jax_is_only_read(cpu: MLContext) -> None:
    given = jax_library().make(ONES)
    made = cpu.from_dlpack(given)
    assert not made.writable
    with pytest.raises(ValidationError):
        cpu.dispatch(doubling(cpu), {"x": tensor(cpu)}, {"y": made})


def test_constant_tensors_are_handed_over_read_only(cpu: MLContext) -> None:
    constant = cpu.create_constant_tensor_sync(ONES)
    taken = np.from_dlpack(constant)
    np.testing.assert_array_equal(taken, ONES)
    assert not taken.flags.writeable
    # A consumer of before version 1 cannot be told so.
    with pytest.raises(DLPackError, match="read-only"):
        constant.__dlpack__()
    copied = np.from_dlpack(constant, copy=True)
    assert copied.flags.writeable


# What the protocol asks for


def test_the_device_is_told(context: MLContext) -> None:
    wanted = CPU if context.device_type == "cpu" else WEBGPU
    assert tensor(context).__dlpack_device__() == wanted


@pytest.mark.parametrize(
    ("version", "name"),
    [
        (None, "dltensor"),
        ((0, 8), "dltensor"),
        ((1, 0), "dltensor_versioned"),
        ((1, 1), "dltensor_versioned"),
        ((2, 0), "dltensor_versioned"),
    ],
)
def test_the_capsule_is_of_the_version_asked_for(cpu: MLContext, version: Any, name: str) -> None:
    capsule = tensor(cpu).__dlpack__(max_version=version)
    assert f'"{name}"' in repr(capsule)


@pytest.mark.parametrize("copy", [None, False, True])
@pytest.mark.parametrize("device", [None, CPU])
def test_memory_is_copied_if_asked_for(cpu: MLContext, copy: bool | None, device: Any) -> None:
    made = tensor(cpu, ONES)

    class Asks:
        def __dlpack__(self, **_: Any) -> Any:
            return made.__dlpack__(copy=copy, dl_device=device, max_version=(1, 0))

        def __dlpack_device__(self) -> tuple[int, int]:
            return made.__dlpack_device__()

    taken = np.from_dlpack(Asks())
    assert (taken.ctypes.data == address(made)) == (copy is not True)
    taken[:] = 5
    wanted = ONES if copy else ONES * 5
    np.testing.assert_array_equal(cpu.read_tensor_sync(made), wanted)


def test_numpy_asks_for_copies_and_devices(context: MLContext) -> None:
    made = tensor(context, ONES)
    copied = np.from_dlpack(made, device="cpu", copy=True)
    np.testing.assert_array_equal(copied, ONES)
    np.testing.assert_array_equal(np.from_dlpack(made, device="cpu"), ONES)
    if context.device_type == "gpu":
        with pytest.raises(BufferError, match="without a copy"):
            np.from_dlpack(made, device="cpu", copy=False)
    else:
        shared = np.from_dlpack(made, device="cpu", copy=False)
        assert shared.ctypes.data == address(made)


@pytest.mark.parametrize("data_type", TYPES)
def test_a_gpu_tensor_is_copied_to_the_cpu(gpu: MLContext, data_type: str) -> None:
    array = np.arange(6, dtype=data_type).reshape(2, 3)
    made = tensor(gpu, array)
    taken = np.from_dlpack(made, device="cpu")
    assert taken.dtype == array.dtype
    np.testing.assert_array_equal(taken, array)
    taken[:] = 9
    np.testing.assert_array_equal(gpu.read_tensor_sync(made), array)


def test_a_gpu_context_copies_what_it_is_given(gpu: MLContext, library: Library) -> None:
    given = library.make(ONES)
    made = gpu.from_dlpack(given)
    y = tensor(gpu)
    gpu.dispatch(doubling(gpu), {"x": made}, {"y": y})
    np.testing.assert_array_equal(gpu.read_tensor_sync(y), ONES * 2)
    gpu.write_tensor(made, ONES * 5)
    np.testing.assert_array_equal(gpu.read_tensor_sync(made), ONES * 5)
    np.testing.assert_array_equal(np.asarray(given), ONES)


# Refusals


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"stream": 1}, "stream"),
        ({"stream": -1}, "stream"),
        ({"stream": 0}, "stream"),
        ({"dl_device": (2, 0)}, r"device \(2, 0\)"),
        ({"dl_device": (1, 1)}, r"device \(1, 1\)"),
        ({"dl_device": "cpu"}, "dl_device"),
        ({"dl_device": 1}, "dl_device"),
        ({"dl_device": (None, 0)}, "dl_device"),
    ],
)
def test_requests_that_cannot_be_met(context: MLContext, options: Any, reason: str) -> None:
    with pytest.raises(BufferError, match=reason):
        tensor(context, ONES).__dlpack__(**options)


@pytest.mark.parametrize("version", ["1.0", (1,), 1])
def test_versions_that_are_none(cpu: MLContext, version: Any) -> None:
    with pytest.raises(BufferError, match="max_version"):
        tensor(cpu, ONES).__dlpack__(max_version=version)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({}, r"dl_device=\(1, 0\), or use export_to_gpu"),
        ({"dl_device": WEBGPU}, "export_to_gpu"),
        ({"dl_device": CPU, "copy": False}, "without a copy"),
    ],
)
def test_what_a_gpu_tensor_cannot_do(gpu: MLContext, options: Any, reason: str) -> None:
    with pytest.raises(BufferError, match=reason):
        tensor(gpu, ONES).__dlpack__(**options)


def test_a_cpu_tensor_is_on_no_gpu(cpu: MLContext) -> None:
    with pytest.raises(BufferError, match="CPU"):
        tensor(cpu, ONES).__dlpack__(dl_device=WEBGPU)


def test_what_cannot_be_handed_over_says_why(context: MLContext) -> None:
    gone = tensor(context, ONES)
    gone.destroy()
    for made, reason in ((gone, "destroyed"), (broken(context), "boom")):
        with pytest.raises(BufferError, match=reason):
            made.__dlpack__(dl_device=CPU)


def test_a_lost_context_hands_nothing_over(own: MLContext) -> None:
    made = tensor(own, ONES)
    own.destroy()
    with pytest.raises(BufferError, match=r"destroy\(\) was called"):
        made.__dlpack__(dl_device=CPU)
    with pytest.raises(ContextLostError):
        own.from_dlpack(ONES)


class Producer:
    """Gives what it is told to."""

    def __init__(self, device: Any = CPU, gives: Any = None) -> None:
        self.device = device
        self.gives = gives

    def __dlpack_device__(self) -> Any:
        if isinstance(self.device, Exception):
            raise self.device
        return self.device

    def __dlpack__(self, **_: Any) -> Any:
        if isinstance(self.gives, Exception):
            raise self.gives
        return self.gives


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (np.ones((2, 3)), "float64"),
        (np.ones(3, bool), "bool"),
        (np.ones((4, 4), np.float32)[::2], "strided"),
        (np.ones((2, 3), np.float32).T, "strided"),
        (np.ones((2, 3), np.float32)[:, ::-1], "strided"),
        (np.broadcast_to(np.float32(1), (3,)), "strided"),
        (np.ones((0, 3), np.float32), "dimension"),
        (np.ones(3, ">f4"), ">f4"),
        ([1.0, 2.0], "list does not speak DLPack"),
        (5, "int does not speak DLPack"),
        (bytes(4), "bytes does not speak DLPack"),
        (Producer(device=(2, 0)), "device type 2, expected the CPU"),
        (Producer(device=None), "TypeError"),
        (Producer(device=KeyError("cuda")), "KeyError"),
        (Producer(gives=5), "from_dlpack"),
        (Producer(gives=ValueError("not now")), "not now"),
        (Producer(gives=BufferError("not now")), "not now"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_no_tensor_can_be_made_of(context: MLContext, value: Any, reason: str) -> None:
    with pytest.raises(BufferError, match=reason):
        context.from_dlpack(value)


@pytest.mark.parametrize(
    "make",
    [
        lambda torch: torch.zeros(3, dtype=torch.bfloat16),
        lambda torch: torch.zeros(3, dtype=torch.float64),
        lambda torch: torch.zeros(3, dtype=torch.bool),
        lambda torch: torch.zeros(3, requires_grad=True),
        lambda torch: torch.zeros(3, dtype=torch.complex64).conj(),
        lambda torch: torch.zeros(3, 4).t(),
        lambda torch: torch.zeros(1).expand(5),
        lambda torch: torch.zeros(3, 4).to_sparse(),
        lambda torch: torch.zeros(3, device="meta"),
        lambda torch: torch.zeros(0),
    ],
)
def test_what_torch_cannot_hand_over(cpu: MLContext, make: Callable[[Any], Any]) -> None:
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    with pytest.raises(BufferError, match=r"from_dlpack: \w"):
        cpu.from_dlpack(make(torch))


def test_a_gpu_tensor_is_not_taken_for_cpu_memory(gpu: MLContext, cpu: MLContext) -> None:
    with pytest.raises(BufferError, match="device type 15"):
        cpu.from_dlpack(tensor(gpu, ONES))

"""Which threads read tensors back, submit beside others, and make buffers for large reads."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import numpy as np
import pytest

from tests.backend.buffers import buffer_of, copying, empty_buffer, read
from tests.backend.tensors import LONG, ONES, tensor
from tests.backend.tensors import SHAPE as SMALL
from tests.backend.webgpu import WEBGPU
from tests.internals import engine_of, session_of
from tests.threads import in_threads
from webnn_py import MLContext, MLGraphBuilder, OperationError
from webnn_py.engines.webgpu.runtime import fallback
from webnn_py.engines.webgpu.runtime.device_queue import DeviceQueue
from webnn_py.engines.webgpu.runtime.devices.staging import Staging
from webnn_py.ordering.operation import Operation

SHAPE = (1 << 10, 1 << 10)


@pytest.fixture
def makers(gpu: MLContext, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The threads that make buffers to read back."""
    pool = engine_of(gpu).gpu.staging._pool
    pool.clear()
    threads: list[int] = []

    def make(size: int, mapped: bool = False) -> Any:
        threads.append(threading.get_ident())
        return plain(size, mapped)

    plain = pool.make
    monkeypatch.setattr(pool, "make", make)
    return threads


def test_a_buffer_is_made_beside_the_loop(gpu: MLContext, makers: list[int]) -> None:
    """And in order: what is written behind the read is not read."""
    tensor = gpu.create_tensor_sync("float32", SHAPE, readable=True, writable=True)

    async def main() -> list[Any]:
        found = []
        for number in (1, 2, 3):
            gpu.write_tensor(tensor, np.full(SHAPE, number, np.float32))
            found.append(asyncio.ensure_future(gpu.read_tensor_async(tensor)))
            await asyncio.sleep(0)
        gpu.write_tensor(tensor, np.zeros(SHAPE, np.float32))
        return await asyncio.gather(*found)

    for number, array in enumerate(asyncio.run(main()), 1):
        np.testing.assert_array_equal(array, np.full(SHAPE, number, np.float32))
    assert makers
    assert threading.get_ident() not in makers


def test_the_next_read_has_it_already(gpu: MLContext, makers: list[int]) -> None:
    tensor = gpu.create_tensor_sync("float32", SHAPE, readable=True)

    async def main() -> None:
        for _ in range(3):
            assert not (await gpu.read_tensor_async(tensor)).any()

    asyncio.run(main())
    assert len(makers) == 1


def test_who_blocks_makes_it(gpu: MLContext, makers: list[int]) -> None:
    tensor = gpu.create_tensor_sync("float32", SHAPE, readable=True)
    assert not gpu.read_tensor_sync(tensor).any()
    assert makers == [threading.get_ident()]


def test_there_is_no_memory_for_it(gpu: MLContext, monkeypatch: pytest.MonkeyPatch) -> None:
    tensor = gpu.create_tensor_sync("float32", SHAPE, readable=True)
    pool = engine_of(gpu).gpu.staging._pool
    pool.clear()

    def make(size: int, mapped: bool = False) -> Any:
        raise OperationError("no memory is left")

    with monkeypatch.context() as patched:
        patched.setattr(pool, "make", make)
        with pytest.raises(OperationError, match="no memory is left"):
            asyncio.run(gpu.read_tensor_async(tensor))
    assert not asyncio.run(gpu.read_tensor_async(tensor)).any()


@pytest.mark.parametrize("soon", [True, False])
def test_who_reads_a_tensor(gpu: MLContext, soon: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who waits for it, if that is a moment, and on a thread that runs no event loop."""
    threads: list[bool] = []
    read = Staging.read

    def noted(self: Staging, *given: Any) -> None:
        threads.append(threading.current_thread() is threading.main_thread())
        read(self, *given)

    monkeypatch.setattr(Staging, "read", noted)
    for kind in (WEBGPU.BufferMapping, fallback.BufferMapping):
        monkeypatch.setattr(kind, "look_for", lambda mapping, seconds, meanwhile: soon)
    made = tensor(gpu, ONES)
    np.testing.assert_array_equal(gpu.read_tensor_sync(made), ONES)
    np.testing.assert_array_equal(asyncio.run(gpu.read_tensor_async(made)), ONES)
    assert threads == [soon, False]


def test_how_long_is_looked_for_the_end(gpu: MLContext) -> None:
    b = MLGraphBuilder(gpu)
    x = b.input("x", "float32", [384, 384])
    graph = b.build_sync({"y": b.matmul(b.matmul(x, x), x)})
    x, y = (gpu.create_tensor_sync("float32", [384, 384], readable=True) for _ in range(2))
    staging, queue = engine_of(gpu).gpu.staging, session_of(gpu).queue
    assert isinstance(queue, DeviceQueue)
    is_over = True
    for _ in range(50):  # this thread may be kept from its core for longer than a device computes
        for _ in range(20):
            gpu.dispatch(graph, {"x": x}, {"y": y})
        fence = staging.fence(queue.recorder.batch.encoder())
        gpu.flush()
        mapping = staging.mapping(fence)
        is_over = mapping.look_for(1e-5)
        assert mapping.look_for(LONG)
        if not is_over:
            break
    assert not is_over


@pytest.mark.parametrize("shared", [False, True], ids=["apart", "shared memory"])
def test_command_buffers_are_submitted_beside_work_of_other_threads(
    gpu: MLContext, shared: bool
) -> None:
    """What the user's own queue is given afterwards comes after them."""
    source, target = buffer_of(gpu.device, ONES), empty_buffer(gpu.device, 24)
    commands = copying(gpu, source, target)
    begun, go = threading.Event(), threading.Event()
    queue: Any = session_of(gpu).queue
    memory = queue.memory_of_commands([commands]) if shared else ()

    def work() -> None:
        begun.set()
        assert go.wait(LONG)

    queue.submit(Operation(work, print, slow=True, writes=memory))
    assert begun.wait(LONG)
    if not shared:  # else it waits for the work
        gpu.submit([commands])
        np.testing.assert_array_equal(read(target, SMALL), ONES)
        go.set()
    else:
        in_threads(lambda: gpu.submit([commands]), go.set)
        np.testing.assert_array_equal(read(target, SMALL), ONES)

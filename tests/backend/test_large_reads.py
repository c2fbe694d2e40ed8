"""Large tensors are read under an event loop, which makes no buffer for that itself."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import numpy as np
import pytest

from tests.internals import engine_of
from webnn_py import MLContext, OperationError

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

"""DLPack: what a consumer sees, and how long memory lives."""

from __future__ import annotations

import functools
import gc
import threading
import weakref
from typing import Any

import numpy as np
import pytest

from tests.backend.libraries import Library
from tests.backend.tensors import ONES, SHAPE, Parked, tensor
from tests.graphs import build, doubling
from tests.loops import Run
from tests.threads import in_threads
from webnn_py import MLContext, MLGraphBuilder, MLOperand, ml

TYPES = ("float32", "float16", "int32", "uint32", "int64", "uint64", "int8", "uint8")
WEBGPU = (15, 0)
CPU = (1, 0)


def collected(*things: weakref.ref[Any]) -> bool:
    """Whether all are gone, soon."""
    pause = threading.Event()
    for _ in range(50):
        gc.collect()
        if not any(thing() is not None for thing in things):
            return True
        pause.wait(0.02)
    return False


# Order


def test_what_was_submitted_before_is_seen(context: MLContext) -> None:
    parked = Parked(context)
    threading.Timer(0.05, parked.go).start()
    taken = np.from_dlpack(parked.target, device="cpu")
    np.testing.assert_array_equal(taken, ONES * 2)


def test_the_exchange_refuses_to_block_an_event_loop(context: MLContext, run: Run) -> None:
    parked, idle = Parked(context), tensor(context)
    context_is_cpu = context.device_type == "cpu"

    async def main() -> None:
        with pytest.raises(BufferError, match="event loop"):
            np.from_dlpack(parked.target, device="cpu")
        parked.go()
        await context.read_tensor_async(parked.target)
        await context.read_tensor_async(idle)
        if context_is_cpu:
            np.testing.assert_array_equal(np.from_dlpack(parked.target), ONES * 2)

    run(main)


# How long memory lives


def test_memory_outlives_tensor_and_context(library: Library) -> None:
    with ml.create_context_sync(device_type="cpu") as context:
        made = tensor(context, ONES * 7)
        taken = library.take(made)
        made.destroy()
    del made, context
    gc.collect()
    noise = [np.full(SHAPE, index, np.float32) for index in range(200)]
    np.testing.assert_array_equal(np.asarray(taken), ONES * 7)
    del noise


def test_a_tensor_keeps_what_it_was_made_of(cpu: MLContext, library: Library) -> None:
    made = cpu.from_dlpack(library.make(ONES * 7))
    gc.collect()
    noise = [library.make(np.full(SHAPE, index, np.float32)) for index in range(200)]
    np.testing.assert_array_equal(cpu.read_tensor_sync(made), ONES * 7)
    del noise


def test_queued_work_keeps_what_its_tensors_were_made_of(cpu: MLContext) -> None:
    parked, y = Parked(cpu), tensor(cpu)
    given = ONES * 7
    made = cpu.from_dlpack(given)
    cpu.dispatch(doubling(cpu), {"x": made}, {"y": y})
    made.destroy()
    del made, given
    gc.collect()
    noise = [np.full(SHAPE, index, np.float32) for index in range(200)]
    parked.go()
    np.testing.assert_array_equal(cpu.read_tensor_sync(y), ONES * 14)
    del noise


def test_nothing_is_kept_for_ever(context: MLContext) -> None:
    given = np.zeros(SHAPE, np.float32)
    made = context.from_dlpack(given)
    context.read_tensor_sync(made)
    alive = weakref.ref(given), weakref.ref(made)
    del given
    if context.device_type == "cpu":
        gc.collect()
        assert alive[0]() is not None
    made.destroy()
    del made
    assert collected(*alive)


def test_exchange_under_stress() -> None:
    """Tensors and contexts come and go on several threads while consumers hold their memory."""

    def what(builder: MLGraphBuilder) -> dict[str, MLOperand]:
        x = builder.input("x", "float32", [1000])
        return {"y": builder.add(x, x)}

    def work(seed: int) -> None:
        held: list[tuple[np.ndarray[Any, Any], float]] = []
        for turn in range(12):
            with ml.create_context_sync(device_type="cpu") as context:
                graph = build(context, what)
                for step in range(6):
                    value = float(seed * 1000 + turn * 10 + step)
                    x = context.from_dlpack(np.full(1000, value, np.float32))
                    y = context.create_tensor_sync("float32", [1000])
                    context.dispatch(graph, {"x": x}, {"y": y})
                    held.append((np.from_dlpack(y), 2 * value))
                    held.append((np.from_dlpack(x), value))
                    y.destroy()
            held = held[-20:]
            for array, wanted in held:
                np.testing.assert_array_equal(array, np.full(1000, wanted))

    in_threads(*[functools.partial(work, seed) for seed in range(4)])

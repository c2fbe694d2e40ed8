"""Work on a GPU that is interrupted at any function that it calls, as by Ctrl-C."""

from __future__ import annotations

import functools

import numpy as np

from tests.graphs import build
from tests.interrupts import Interrupt, interrupted, is_call
from tests.threads import in_threads
from webnn_py import MLContext, MLError, Timeline

X = np.arange(-4, 4, dtype=np.float32)


def test_work_goes_on_after_an_interrupt(gpu: MLContext) -> None:
    graph = build(gpu, lambda b: {"y": b.relu(b.input("x", "float32", [8]))})
    x, y = (gpu.create_tensor_sync("float32", [8], readable=True, writable=True) for _ in range(2))

    def work() -> None:
        done = Timeline()
        gpu.write_tensor(x, X)
        gpu.dispatch(graph, {"x": x}, {"y": y}, sync=[done(signal=1)])
        done.wait_sync(1)
        np.testing.assert_array_equal(gpu.read_tensor_sync(y), np.maximum(X, 0))

    def interrupt_each() -> None:
        work()
        number, came = 0, True
        while came:
            interrupt = Interrupt(functools.partial(is_call, number))
            interrupted(work, interrupt)
            came = interrupt.came
            number += 1
            try:
                work()
            except MLError:  # what was being recorded is not submitted
                work()

    in_threads(interrupt_each)


def test_an_interrupt_as_the_end_of_a_copy_is_told(gpu: MLContext) -> None:
    """It was dropped by cffi, together with what was told: the read never ended."""
    x = gpu.create_tensor_sync("float32", [8], readable=True, writable=True)
    gpu.write_tensor(x, X)

    def read() -> None:
        np.testing.assert_array_equal(gpu.read_tensor_sync(x), X)

    def interrupt() -> None:
        for _ in range(100):  # another thread is told where the device takes long
            interrupt = Interrupt(lambda name, _: name == "_ended")
            told = interrupted(read, interrupt)
            assert told == interrupt.came
            read()
            if told:
                return

    in_threads(interrupt)

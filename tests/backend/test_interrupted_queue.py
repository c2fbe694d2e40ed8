"""Work on a GPU that is interrupted at any function that it calls, as by Ctrl-C."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import numpy as np

import webnn_py
from tests.graphs import build
from tests.threads import in_threads
from webnn_py import MLContext, MLError, Timeline

FOLDER = webnn_py.__path__[0]
X = np.arange(-4, 4, dtype=np.float32)


class Interrupt:
    """Interrupts this thread at a call of a function of the package.

    Args:
        wanted: Says of a function's name and the number of its call whether it is that one.
    """

    def __init__(self, wanted: Callable[[str, int], bool]) -> None:
        self._wanted = wanted
        self._calls = 0
        self.came = False

    def __call__(self, frame: FrameType, event: str, argument: Any) -> None:
        code = frame.f_code
        ours = code.co_filename.startswith(FOLDER) and code.co_name != "__del__"
        if event == "call" and ours and not self.came:
            self.came = self._wanted(code.co_name, self._calls)
            self._calls += 1
            if self.came:
                raise KeyboardInterrupt


def is_call(number: int, _: str, call: int) -> bool:
    """Whether a call has this number."""
    return call == number


def interrupted(work: Callable[[], None], interrupt: Interrupt) -> bool:
    """Do some work and interrupt it; whether who did it was told."""
    before = sys.gettrace()
    sys.settrace(interrupt)
    try:
        work()
    except KeyboardInterrupt:
        return True
    except MLError:
        assert interrupt.came
    finally:
        sys.settrace(before)
    return False


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

"""What it takes to keep the order of passes of two threads that are far ahead of each other.

Counted in steps of the code of `webnn_py/ordering/`: twice the passes take about twice the steps.
"""

from __future__ import annotations

import gc
import random
import sys
from collections import deque
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import pytest

from tests.graphs import build
from webnn_py import MLContext, MLGraph, MLTensor, Timeline, TimelinePoint, ml

RING = 10
PASSES = 120
MOST = 2.6
"""What twice the passes may take more: the order of n things takes n log n."""


def adding(context: MLContext) -> MLGraph:
    return build(
        context,
        lambda b: {"z": b.add(b.input("x", "float32", [2]), b.input("y", "float32", [2]))},
    )


class Ring:
    """Passes that draw images of a ring, and passes that blend them, apart by two timelines."""

    def __init__(self, drawing: MLContext, blending: MLContext) -> None:
        self.contexts = drawing, blending
        self.graphs = adding(drawing), adding(blending)
        self.drawn, self.blended, self.go = Timeline(), Timeline(), Timeline()
        self.number = drawing.create_tensor_sync("float32", [2])
        self.images = self.tensors(drawing, RING)
        self.sums = self.tensors(blending, 2)
        self.read = self.images if drawing is blending else self.tensors(blending, RING)

    def tensors(self, context: MLContext, count: int) -> list[MLTensor]:
        return [context.create_tensor_sync("float32", [2]) for _ in range(count)]

    def draw(self, n: int) -> None:
        sync = [self.blended(wait=n - RING), self.drawn(signal=n)]
        self.submit(0, n, sync, [self.number, self.number], self.images[n % RING])

    def blend(self, n: int) -> None:
        sync = [self.drawn(wait=n), self.blended(signal=n)]
        operands = [self.read[n % RING], self.sums[n % 2]]
        self.submit(1, n, sync, operands, self.sums[(n + 1) % 2])

    def submit(
        self, side: int, n: int, sync: list[TimelinePoint], operands: list[MLTensor], out: MLTensor
    ) -> None:
        if n <= RING:
            sync.append(self.go(wait=1))
        inputs = dict(zip("xy", operands, strict=True))
        self.contexts[side].dispatch(self.graphs[side], inputs, {"z": out}, sync=sync)


def calls(ring: Ring, order: str, passes: int) -> Iterator[Callable[[], None]]:
    """What the two threads call, in the order in which it comes to be called."""
    draws = deque((ring.draw, n) for n in range(1, passes + 1))
    blends = deque((ring.blend, n) for n in range(1, passes + 1))
    both = [draws, blends] if order != "blends first" else [blends, draws]
    chance = random.Random(passes)
    while draws or blends:
        ahead = both[0] or both[1]
        if order == "in turn":
            ahead = max(draws, blends, key=len)
        count = chance.randint(1, passes // 4) if order == "in bursts" else 1
        if order == "in bursts":
            ahead = chance.choice([queue for queue in both if queue])
        for call, number in [ahead.popleft() for _ in range(min(count, len(ahead)))]:
            yield lambda call=call, number=number: call(number)  # type: ignore[misc]


def steps_of(run: Callable[[], None]) -> int:
    """The lines of the package's code that this thread executes."""
    steps = 0

    def count(frame: FrameType, event: str, arg: Any) -> Any:
        nonlocal steps
        steps += event == "line"
        return count

    def enter(frame: FrameType, event: str, arg: Any) -> Any:
        return count if "/ordering/" in frame.f_code.co_filename.replace("\\", "/") else None

    before = sys.gettrace()
    gc.disable()
    sys.settrace(enter)
    try:
        run()
    finally:
        sys.settrace(before)
        gc.enable()
    return steps


def passes_take(contexts: list[MLContext], order: str, passes: int) -> int:
    ring = Ring(contexts[0], contexts[-1])

    def run() -> None:
        for call in calls(ring, order, passes):
            call()

    steps = steps_of(run)
    assert ring.drawn.value == ring.blended.value == 0
    ring.go.signal(1)
    ring.blended.wait_sync(passes, timeout=20)
    return steps


@pytest.mark.parametrize("order", ["draws first", "in turn", "in bursts", "blends first"])
@pytest.mark.parametrize("contexts", [1, 2])
def test_twice_the_passes_take_twice_the_steps(contexts: int, order: str) -> None:
    made = [ml.create_context_sync(engine="reference") for _ in range(contexts)]
    few, many = (passes_take(made, order, n) for n in (PASSES, 2 * PASSES))
    for context in made:
        context.destroy()
    assert many < MOST * few, (few, many)


def test_reads_ahead_of_their_writes_may_come_in_any_order(cpu: MLContext) -> None:
    """Each write is compared with each read that comes before or after it, and no further."""
    graph = adding(cpu)
    image, *others = (cpu.create_tensor_sync("float32", [2]) for _ in range(PASSES + 1))

    def reads_take(numbers: list[int]) -> int:
        written, go, read = Timeline(), Timeline(), Timeline()

        def run() -> None:
            for n in numbers:
                sync = [go(wait=1), written(wait=n)]
                cpu.dispatch(graph, {"x": image, "y": image}, {"z": others[n - 1]}, sync=sync)
            for n in numbers:
                sync = [go(wait=1), written(signal=n)]
                cpu.dispatch(graph, {"x": others[-1], "y": others[-1]}, {"z": image}, sync=sync)

        steps = steps_of(run)
        go.signal(1)
        written.wait_sync(PASSES, timeout=20)
        cpu.dispatch(graph, {"x": others[0], "y": others[0]}, {"z": image}, sync=read(signal=1))
        read.wait_sync(1, timeout=20)  # by then all has been read
        return steps

    numbers = list(range(1, PASSES + 1))
    forwards, backwards = reads_take(numbers), reads_take(numbers[::-1])
    assert backwards < 1.5 * forwards, (forwards, backwards)

"""What it takes to keep the order of passes of two threads that are far ahead of each other.

Counted in steps of the code of `webnn_py/ordering/`: twice the passes take about twice the steps.
"""

from __future__ import annotations

import functools
import gc
import random
import sys
from collections import deque
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import pytest

from webnn_py import Timeline, TimelinePoint
from webnn_py.memory.overlap import Region
from webnn_py.ordering.operation import Executor, Operation, Run
from webnn_py.ordering.schedule import Schedule
from webnn_py.ordering.timeline import state_of

RING = 10
PASSES = 120
MOST = 2.6
"""What twice the passes may take more: the order of n things takes n log n."""


class Ring:
    """Passes that draw images of a ring, and passes that blend them, apart by two timelines."""

    def __init__(self, contexts: int) -> None:
        self.tasks: deque[Run] = deque()
        schedules = [Schedule(Executor(self.tasks.append)) for _ in range(contexts)]
        self.drawing, self.blending = schedules[0], schedules[-1]
        self.drawn, self.blended, self.go = Timeline(), Timeline(), Timeline()
        self.done: list[tuple[str, int]] = []

    def draw(self, number: int) -> None:
        sync = [self.blended(wait=number - RING), self.drawn(signal=number)]
        reads, writes = [part("numbers", number)], [part("images", number % RING)]
        self.submit(self.drawing, ("draw", number), sync, reads, writes)

    def blend(self, number: int) -> None:
        sync = [self.drawn(wait=number), self.blended(signal=number)]
        image = part("images" if self.drawing is self.blending else "copies", number % RING)
        reads, writes = [image, part("sums", number % 2)], [part("sums", (number + 1) % 2)]
        self.submit(self.blending, ("blend", number), sync, reads, writes)

    def submit(
        self,
        schedule: Schedule,
        name: tuple[str, int],
        sync: list[TimelinePoint],
        reads: list[Region],
        writes: list[Region],
    ) -> None:
        if name[1] <= RING:
            sync.append(self.go(wait=1))
        run = lambda: self.done.append(name)  # noqa: E731
        schedule.submit(Operation(run, _raise, tuple(sync), reads=reads, writes=writes))
        work(self.tasks)

    def finish(self) -> None:
        self.go.signal(1)
        work(self.tasks)


def _raise(error: BaseException) -> None:
    raise error


def work(tasks: deque[Run]) -> None:
    """What the worker does."""
    while tasks:
        tasks.popleft()()


def part(owner: str, number: int) -> Region:
    return Region(hash(owner), number, number + 1)


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
    """The lines of the package's code that are executed."""
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


def passes_take(contexts: int, order: str, passes: int) -> int:
    ring = Ring(contexts)

    def run() -> None:
        for call in calls(ring, order, passes):
            call()
        ring.finish()

    steps = steps_of(run)
    assert len(ring.done) == 2 * passes
    place = {name: index for index, name in enumerate(ring.done)}
    for n in range(1, passes + 1):
        assert place["draw", n] < place["blend", n]
        assert n == 1 or place["blend", n - 1] < place["blend", n]
        assert n <= RING or place["blend", n - RING] < place["draw", n]
    return steps


@pytest.mark.parametrize("order", ["draws first", "in turn", "in bursts", "blends first"])
@pytest.mark.parametrize("contexts", [1, 2])
def test_twice_the_passes_take_twice_the_steps(contexts: int, order: str) -> None:
    few, many = (passes_take(contexts, order, n) for n in (PASSES, 2 * PASSES))
    assert many < MOST * few, (few, many)


def test_reads_ahead_of_their_writes_may_come_in_any_order() -> None:
    """Each write is compared with each read that comes before or after it, and no further."""

    def reads_take(numbers: list[int]) -> int:
        tasks: deque[Run] = deque()
        schedule, written, go = Schedule(Executor(tasks.append)), Timeline(), Timeline()
        done: list[tuple[str, int]] = []
        image = [part("images", 0)]

        def submit(name: tuple[str, int], sync: TimelinePoint, **memory: Any) -> None:
            run = functools.partial(done.append, name)
            schedule.submit(Operation(run, _raise, (go(wait=1), sync), **memory))
            work(tasks)

        def run() -> None:
            for n in numbers:
                submit(("read", n), written(wait=n), reads=image)
            for n in numbers:
                submit(("write", n), written(signal=n), writes=image)
            go.signal(1)
            work(tasks)

        steps = steps_of(run)
        place = {name: index for index, name in enumerate(done)}
        assert all(place["write", n] < place["read", n] for n in numbers)
        return steps

    numbers = list(range(1, PASSES + 1))
    forwards, backwards = reads_take(numbers), reads_take(numbers[::-1])
    assert backwards < 1.5 * forwards, (forwards, backwards)


def test_a_chain_that_fails_takes_its_length_in_steps() -> None:
    def chain_takes(length: int) -> int:
        tasks: deque[Run] = deque()
        schedule, timeline = Schedule(Executor(tasks.append)), Timeline()
        failed: list[BaseException] = []

        def run() -> None:
            for n in range(1, length + 1):
                sync = (timeline(wait=n, signal=n + 1),)
                schedule.submit(Operation(lambda: None, failed.append, sync))
                work(tasks)
            state_of(timeline).fail(1, ValueError("boom"))
            work(tasks)

        steps = steps_of(run)
        assert len(failed) == length
        return steps

    few, many = chain_takes(PASSES), chain_takes(2 * PASSES)
    assert many < MOST * few, (few, many)

"""Work that nobody needs any more is left at a checkpoint."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator

import pytest

from tests.internals import recipe_of
from webnn_py import MLContext, MLGraphBuilder
from webnn_py.core import gil_yield
from webnn_py.ir import Graph
from webnn_py.ops.batch_axes import batch_axes
from webnn_py.ops.bind_sizes import fix


class Clock:
    """Time that is always up, and takes note of pauses.

    Args:
        pauses: Takes their seconds.
    """

    def __init__(self, pauses: list[float]) -> None:
        self.sleep = pauses.append
        self._seconds = itertools.count()

    def perf_counter(self) -> float:
        return next(self._seconds)


@pytest.fixture
def steps() -> list[int]:
    return []


def on_a_thread(work: list[int], needless: threading.Event, courteous: bool) -> bool:
    """Take 200 steps, of which the 20th makes them needless; whether it went on behind them."""
    ended: list[bool] = []

    def numbers() -> Iterator[int]:
        for number in range(200):
            if number == 20:
                needless.set()
            work.append(number)
            threading.Event().wait(gil_yield.YIELD_INTERVAL_S / 4)
            yield number

    def run() -> None:
        if courteous:
            gil_yield.enable()
        assert not gil_yield.is_in_background()
        with gil_yield.abandon_when(needless.is_set):
            assert gil_yield.is_in_background()
            for _ in gil_yield.checkpoints(numbers()):
                pass
        assert not gil_yield.is_in_background()
        ended.append(True)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    return bool(ended)


def test_what_is_needless_is_left(steps: list[int]) -> None:
    assert on_a_thread(steps, threading.Event(), courteous=True)
    assert 20 <= steps[-1] < 199


def test_threads_of_others_have_no_checkpoints(steps: list[int]) -> None:
    assert on_a_thread(steps, threading.Event(), courteous=False)
    assert steps[-1] == 199


def test_work_that_nobody_waits_for_pauses_longer_beside_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pauses: list[float] = []
    monkeypatch.setattr(gil_yield, "time", Clock(pauses))

    def run() -> None:
        gil_yield.enable()
        gil_yield.checkpoint()
        with gil_yield.abandon_when(lambda: False):
            gil_yield.checkpoint()
            with gil_yield.awaited(), gil_yield.awaited():
                gil_yield.checkpoint()
            gil_yield.checkpoint()

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    pause, long, longer = (
        gil_yield.YIELD_SLEEP_S,
        gil_yield.BACKGROUND_SLEEP_S,
        gil_yield.CONTENDED_SLEEP_S,
    )
    assert pauses == [pause, long, longer, long]


@pytest.mark.parametrize(
    "work",
    [lambda graph: fix(graph, {"batch": 2, "length": 3}), lambda graph: batch_axes(graph, "batch")],
    ids=["recorded for sizes", "examined"],
)
def test_the_interpreter_is_offered_before_each_node(
    cpu: MLContext, monkeypatch: pytest.MonkeyPatch, work: Callable[[Graph], object]
) -> None:
    b = MLGraphBuilder(cpu)
    x = b.input("x", "float32", ["batch", "length"])
    graph = recipe_of(b.build_sync({"y": b.relu(b.add(x, b.constant(1.0, "float32")))}))
    offers: list[None] = []
    monkeypatch.setattr(gil_yield, "checkpoint", lambda: offers.append(None))
    work(graph)
    assert len(offers) == 2

"""Calls that signal handlers do not interrupt."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from types import FrameType

import pytest

from webnn_py.core.completion import interrupts_own_call
from webnn_py.core.deferred_signals import call_uninterrupted

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Stopped(Exception):
    """What a handler raises."""


@pytest.fixture
def seen() -> Iterator[list[int]]:
    """Signals whose handlers have run; each raises `Stopped`."""
    numbers: list[int] = []

    def handle(number: int, frame: FrameType | None) -> None:
        numbers.append(number)
        raise Stopped

    before = [signal.signal(number, handle) for number in SIGNALS]
    yield numbers
    for number, handler in zip(SIGNALS, before, strict=True):
        assert signal.signal(number, handler) is handle


def test_handlers_run_after_the_call(seen: list[int]) -> None:
    during: list[int] = []

    def work() -> None:
        signal.raise_signal(signal.SIGTERM)
        during.extend([*seen, -1])

    with pytest.raises(Stopped):
        call_uninterrupted(work)
    assert (during, seen) == ([-1], [signal.SIGTERM])


def test_handlers_are_back_after_a_call_that_raises(seen: list[int]) -> None:
    def work() -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        call_uninterrupted(work)
    with pytest.raises(Stopped):
        signal.raise_signal(signal.SIGINT)
    assert seen == [signal.SIGINT]


def test_other_threads_just_call(seen: list[int]) -> None:
    called: list[int] = []
    thread = threading.Thread(target=lambda: call_uninterrupted(lambda: called.append(1)))
    thread.start()
    thread.join()
    assert (called, seen) == ([1], [])


def test_nobody_may_wait_for_the_call() -> None:
    class Finalized:
        def __del__(self) -> None:
            found.append(interrupts_own_call())

    found: list[bool] = []
    call_uninterrupted(lambda: Finalized.__del__(Finalized()))
    assert set(found) == {True}
    assert not interrupts_own_call()

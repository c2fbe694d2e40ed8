"""Threads that run what they are given: in order, to its end, and told apart from a parent's."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
import weakref

import pytest

from tests.threads import LONG
from webnn_py import ContextLostError, OperationError
from webnn_py.core.workers import Workers


def never(error: BaseException) -> None:
    raise AssertionError(error)


def test_one_thread_runs_work_in_order() -> None:
    workers, seen = Workers("test"), list[int]()
    for number in range(100):
        workers.submit(lambda number=number: seen.append(number), never)  # type: ignore[misc]
    workers.finish()
    workers.join()
    assert seen == list(range(100))


def test_a_thread_can_begin_before_there_is_work() -> None:
    workers, before = Workers("test"), set(threading.enumerate())
    workers.begin()
    workers.begin()
    (begun,) = set(threading.enumerate()) - before
    assert workers.run(threading.current_thread).wait(LONG) is begun
    workers.close()
    workers.begin()
    workers.join()
    assert not begun.is_alive()


def test_several_threads_run_at_once() -> None:
    workers, meeting = Workers("test", 3), threading.Barrier(3)
    done = [workers.run(lambda: meeting.wait(LONG)) for _ in range(3)]
    assert sorted(each.wait(LONG) for each in done) == [0, 1, 2]
    workers.finish()


def test_errors_are_told_and_the_thread_goes_on() -> None:
    workers, errors = Workers("test"), list[BaseException]()
    workers.submit(lambda: [][0], errors.append)
    assert workers.run(lambda: 1).wait(LONG) == 1
    assert [type(error) for error in errors] == [IndexError]
    with pytest.raises(ZeroDivisionError):
        workers.run(lambda: 1 // 0).wait(LONG)
    workers.finish()


def test_closing_fails_what_has_not_begun() -> None:
    workers, begun, go_on = Workers("test"), threading.Event(), threading.Event()

    def work() -> bool:
        begun.set()
        return go_on.wait(LONG)

    first, second = workers.run(work), workers.run(lambda: None)
    assert begun.wait(LONG)
    workers.close()
    with pytest.raises(ContextLostError, match="before this work ran"):
        second.wait(LONG)
    go_on.set()
    assert first.wait(LONG)
    with pytest.raises(ContextLostError):
        workers.submit(lambda: None, never)
    workers.join()


def test_they_are_idle_when_all_is_done() -> None:
    workers, go_on = Workers("test"), threading.Event()
    assert workers.idle
    done = workers.run(lambda: go_on.wait(LONG))
    assert not workers.idle
    go_on.set()
    done.wait(LONG)
    workers.finish()
    workers.join()
    assert workers.idle


def test_what_was_run_is_not_kept_alive() -> None:
    class Thing:
        def work(self) -> None:
            return

    workers, thing = Workers("test"), Thing()
    gone = weakref.ref(thing)
    workers.run(thing.work).wait(LONG)
    del thing
    workers.run(lambda: None).wait(LONG)
    gc.collect()
    assert gone() is None
    workers.finish()


@pytest.mark.parametrize("then", ["", "w.finish(); del w", "w.close(); del w"])
def test_python_ends_after_what_was_begun(then: str) -> None:
    code = (
        "import threading, time; from webnn_py.core.workers import Workers\n"
        "w = Workers('test'); begun = threading.Event()\n"
        "w.submit(lambda: (begun.set(), time.sleep(0.05), print('done')), print)\n"
        f"begun.wait(); {then}"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True, timeout=60
    )
    assert done.stdout == "done\n"


def test_what_is_given_runs_though_its_giver_is_interrupted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Ctrl-C finds a giver waiting for a new thread to begin."""
    start = threading.Thread.start

    def interrupted(thread: threading.Thread) -> None:
        start(thread)
        raise KeyboardInterrupt

    workers, done = Workers("interrupted"), threading.Event()
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", interrupted)
        with pytest.raises(KeyboardInterrupt):
            workers.submit(done.set, never)
    assert done.wait(LONG)
    assert workers.run(lambda: 7).wait() == 7
    workers.finish()
    workers.join()


def test_no_room_for_a_thread_leaves_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    workers, ran = Workers("full"), list[int]()
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", full)
        with pytest.raises(OperationError, match="new thread"):
            workers.submit(lambda: ran.append(1), never)
    assert workers.idle
    assert workers.run(lambda: 7).wait() == 7
    assert not ran
    workers.finish()
    workers.join()

"""Completions: results that another thread sets, awaited under asyncio and trio."""

from __future__ import annotations

import functools
import threading

import pytest

from tests.loops import Run, cancel_after, pause
from webnn_py import InvalidStateError, OperationError
from webnn_py.core.completion import Cancellation, Completion, check_may_block


def test_a_result_set_by_another_thread_is_awaited(run: Run) -> None:
    completion: Completion[int] = Completion()
    thread = threading.Timer(0.01, completion.set_result, [5])

    async def main() -> None:
        thread.start()
        assert await completion == 5
        assert await completion == 5

    run(main)
    thread.join()


def test_an_error_is_raised_by_every_await(run: Run) -> None:
    completion: Completion[int] = Completion()

    async def main() -> None:
        threading.Timer(0.01, completion.set_exception, [KeyError("x")]).start()
        for _ in range(2):
            with pytest.raises(KeyError):
                await completion

    run(main)


def test_the_first_result_stays() -> None:
    completion: Completion[int] = Completion()
    completion.set_result(1)
    completion.set_result(2)
    completion.set_exception(KeyError())
    assert completion.done
    assert completion.wait() == 1


def test_waiting_has_an_end() -> None:
    completion: Completion[int] = Completion()
    with pytest.raises(TimeoutError):
        completion.wait(0.001)
    assert not completion.done


def test_callbacks_are_called_once_done_and_at_once_after() -> None:
    completion: Completion[int] = Completion()
    seen: list[str] = []
    completion.on_done(lambda: seen.append("before"))
    assert seen == []
    completion.set_result(1)
    completion.on_done(lambda: seen.append("after"))
    assert seen == ["before", "after"]


def test_a_loop_that_is_closed_meanwhile_does_no_harm(run: Run) -> None:
    completion: Completion[int] = Completion()

    async def wait() -> None:
        await completion

    run(lambda: cancel_after(wait, pause))
    completion.set_result(1)
    assert completion.wait() == 1


def test_cancelled_work_keeps_nothing() -> None:
    completion, cancellation = Completion[int](), Cancellation()
    cancellation.cancel()
    with pytest.raises(OperationError) as caught:
        cancellation.check()
    assert caught.value.__traceback__ is not None
    completion.set_exception(caught.value)
    assert caught.value.__traceback__ is None
    with pytest.raises(OperationError, match="cancelled"):
        completion.wait()


def test_who_waits_no_more_is_forgotten(run: Run) -> None:
    completion: Completion[int] = Completion()

    async def wait() -> None:
        await completion

    async def settle() -> None:
        await completion.settled()

    for waiting in (wait, settle):
        run(functools.partial(cancel_after, waiting, pause))
    with pytest.raises(TimeoutError):
        completion.wait(0.001)
    assert not completion._callbacks


# Blocking


def test_blocking_is_refused_under_a_loop_alone(run: Run) -> None:
    async def main() -> None:
        with pytest.raises(InvalidStateError, match=r"it would block .*; use that"):
            check_may_block("it", "that")
        error: list[BaseException] = []
        thread = threading.Thread(target=catching, args=(error,))
        thread.start()
        thread.join()
        assert not error

    def catching(error: list[BaseException]) -> None:
        try:
            check_may_block("it", "that")
        except InvalidStateError as raised:
            error.append(raised)

    run(main)
    check_may_block("it", "that")

"""Generations and feeds of decoders wait for timelines and signal them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests.backend.tensors import ONES, tensor
from tests.conftest import KINDS, context_of
from tests.decoders import decoder_by_hand, logits_after, tokens_after
from tests.graphs import doubling
from tests.threads import LONG, in_threads
from webnn_py import InvalidStateError, MLContext, OperationError, Timeline, ValidationError
from webnn_py.api.decoding.timeline_turn import TimelineTurn
from webnn_py.ordering.operation import Operation

PROMPT = [3, 1, 4]


@pytest.fixture(scope="module", params=list(KINDS))
def each(request: pytest.FixtureRequest) -> Iterator[MLContext]:
    """A context of each engine."""
    with context_of(request, KINDS[request.param]) as context:
        yield context


def test_a_generation_waits_and_signals(each: MLContext) -> None:
    decoder, gate, done = decoder_by_hand(each), Timeline(), Timeline()
    found: list[int] = []

    def generate() -> None:
        points = [gate(wait=1), done(signal=3)]
        found.extend(decoder.generate_sync(PROMPT, max_tokens=6, sync=points))

    def open_gate() -> None:
        time.sleep(0.05)
        assert not found
        assert done.value == 0
        assert list(decoder.generate_sync(PROMPT, max_tokens=2)) == tokens_after(PROMPT, 2)
        gate.signal(1)

    in_threads(generate, open_gate)
    assert found == tokens_after(PROMPT, 6)
    done.wait_sync(3, LONG)


def test_generations_in_a_row(each: MLContext) -> None:
    """The second one waits for the first, and work on tensors for the second."""
    decoder, turn = decoder_by_hand(each), Timeline()
    x, y = tensor(each, ONES), tensor(each)

    async def tokens(before: int) -> list[int]:
        points = [turn(wait=before, signal=before + 1)]
        return [token async for token in decoder.generate(PROMPT, max_tokens=5, sync=points)]

    async def main() -> list[list[int]]:
        second = asyncio.ensure_future(tokens(1))
        await asyncio.sleep(0.02)
        assert turn.value == 0
        return [await tokens(0), await second]

    each.dispatch(doubling(each), {"x": x}, {"y": y}, sync=[turn(wait=2, signal=5)])
    assert asyncio.run(main()) == [tokens_after(PROMPT, 5)] * 2
    turn.wait_sync(5, LONG)
    np.testing.assert_array_equal(each.read_tensor_sync(y), ONES * 2)


def test_feeds(each: MLContext) -> None:
    decoder, turn = decoder_by_hand(each), Timeline()
    with decoder.sequence() as text:
        logits = text.feed_sync(PROMPT, sync=[turn(signal=1)])
        np.testing.assert_allclose(logits, logits_after(PROMPT), 1e-4, 1e-4)
        turn.wait_sync(1, LONG)

        async def main() -> None:
            feed = asyncio.ensure_future(text.feed_async([5], sync=[turn(wait=2, signal=3)]))
            await asyncio.sleep(0.02)
            assert not feed.done()
            turn.signal(2)
            np.testing.assert_allclose(await feed, logits_after([*PROMPT, 5]), 1e-4, 1e-4)

        asyncio.run(main())
        turn.wait_sync(3, LONG)


def test_leaving_the_loop_signals(each: MLContext) -> None:
    decoder, done = decoder_by_hand(each), Timeline()
    for _ in decoder.generate_sync(PROMPT, sync=[done(signal=1)]):
        break
    done.wait_sync(1, LONG)
    assert list(decoder.generate_sync(PROMPT, max_tokens=0, sync=[done(signal=2)])) == []
    done.wait_sync(2, LONG)


def test_work_that_never_begins_fails(each: MLContext) -> None:
    decoder, gate, done = decoder_by_hand(each), Timeline(), Timeline()

    async def cancelled() -> None:
        with decoder.sequence() as text:
            points = [gate(wait=1), done(signal=1)]
            feed = asyncio.ensure_future(text.feed_async(PROMPT, sync=points))
            await asyncio.sleep(0.02)
            feed.cancel()
            with pytest.raises(asyncio.CancelledError):
                await feed
            assert len(text) == 0

    asyncio.run(cancelled())
    with pytest.raises(OperationError):
        done.wait_sync(1, LONG)
    late, fails = Timeline(), Timeline()
    x, y = tensor(each, ONES), tensor(each)
    running = decoder.generate_sync(PROMPT, sync=[late(wait=1), fails(signal=1)])
    with pytest.raises(ValidationError, match="sync"):
        decoder.generate_sync(PROMPT, sync=[3])  # type: ignore[list-item]

    def destroyed() -> None:
        time.sleep(0.05)
        decoder.destroy()

    def waits() -> None:
        with pytest.raises(InvalidStateError, match="destroyed"):
            next(running)

    in_threads(waits, destroyed)
    with pytest.raises(OperationError):
        fails.wait_sync(1, LONG)
    each.dispatch(doubling(each), {"x": x}, {"y": y})
    np.testing.assert_array_equal(each.read_tensor_sync(y), ONES * 2)


def test_cycles_of_waits_through_a_decoder_are_found(each: MLContext) -> None:
    decoder, gate, done = decoder_by_hand(each), Timeline(), Timeline()
    x, y = tensor(each, ONES), tensor(each)
    each.dispatch(doubling(each), {"x": x}, {"y": y}, sync=[done(wait=1), gate(signal=1)])
    with pytest.raises(OperationError, match=r"can never run.*dispatch to 'y'"):
        list(decoder.generate_sync(PROMPT, sync=[gate(wait=1), done(signal=1)]))
    with pytest.raises(OperationError, match="can never run"):
        each.read_tensor_sync(y)
    assert list(decoder.generate_sync(PROMPT, max_tokens=2)) == tokens_after(PROMPT, 2)


def test_a_generation_that_goes_on_may_still_signal(each: MLContext) -> None:
    """Two dispatches that wait for each other can run, as the generation frees one of them."""
    decoder, first, second = decoder_by_hand(each), Timeline(), Timeline()
    x, y, z = tensor(each, ONES), tensor(each), tensor(each)
    tokens = decoder.generate_sync(PROMPT, max_tokens=12, sync=[first(signal=1)])
    found = [next(tokens)]
    graph = doubling(each)
    each.dispatch(graph, {"x": x}, {"y": y}, sync=[first(wait=1), second(signal=1)])
    each.dispatch(graph, {"x": x}, {"y": z}, sync=[second(wait=1), first(signal=1)])
    found += tokens
    assert found == tokens_after(PROMPT, 12)
    np.testing.assert_array_equal(each.read_tensor_sync(z), ONES * 2)


class _Taken:
    """A queue whose worker has taken the work, but not begun it."""

    def submit(self, operation: Operation) -> None:
        for timeline, value in operation.signals:
            timeline.expect(value, operation)
        self.taken = operation

    def withdraw(self, operation: Operation) -> None:
        """Change nothing: it is too late."""


def test_work_that_is_left_as_it_begins_does_not_begin() -> None:
    gate, done = Timeline(), Timeline()
    session: Any = SimpleNamespace(queue=_Taken())
    turn = TimelineTurn(session, (gate(wait=1), done(signal=1)), "the work")
    begun: list[None] = []
    failed: list[BaseException] = []
    turn.begin(lambda: begun.append(None), failed.append)
    turn.cancel()
    with pytest.raises(OperationError, match="left") as left:
        session.queue.taken.run()
    session.queue.taken.abandon(left.value)
    assert not begun
    assert len(failed) == 1
    with pytest.raises(OperationError, match="left"):
        done.wait_sync(1, LONG)

"""Reads behind work that waits for a timeline which only the reader would raise."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.graphs import build
from tests.loops import Run
from tests.threads import LONG, in_threads
from webnn_py import (
    MLContext,
    MLExecution,
    MLGraph,
    MLTensor,
    Timeline,
    ValidationError,
    WaitTimeoutError,
)

SHORT = 0.5
"""Seconds in which a busy machine finds out what is parked."""
X = np.arange(8, dtype=np.float32)


class Pipeline:
    """A producer and a consumer, each to run on a thread of its own.

    Args:
        context: Where the producer's graph runs: y = x + 1.
        tensors: How many the producer writes in turn.
    """

    def __init__(self, context: MLContext, tensors: int) -> None:
        self.context = context
        self.graph: MLGraph = build(
            context, lambda b: {"y": b.add(b.input("x", "float32", [8]), b.constant(1, "float32"))}
        )
        self.x = _tensor(context)
        self.ring = [_tensor(context) for _ in range(tensors)]
        self.produced, self.consumed = Timeline(label="produced"), Timeline(label="consumed")
        context.write_tensor(self.x, X)

    def produce(self, steps: int) -> None:
        """Dispatch each step; its tensor is to be read before it is written again."""
        for n in range(1, steps + 1):
            y = self.ring[n % len(self.ring)]
            sync = [self.consumed(wait=n - len(self.ring)), self.produced(signal=n)]
            self.context.dispatch(self.graph, {"x": self.x}, {"y": y}, sync=sync)

    def consume(self, n: int, timeout: float | None) -> Any:
        """Wait for a step, and read what it has written."""
        self.produced.wait_sync(n, timeout=LONG)
        found = self.context.read_tensor_sync(self.ring[n % len(self.ring)], timeout=timeout)
        self.consumed.signal(n)
        return found


def _tensor(context: MLContext) -> MLTensor:
    return context.create_tensor_sync("float32", [8], readable=True, writable=True)


def test_one_tensor_is_told_of_and_goes_on_once_it_is_consumed(context: MLContext) -> None:
    """The consumer's view: the producer is ahead, so that its read follows the next dispatch."""
    pipeline = Pipeline(context, tensors=1)
    pipeline.produce(2)
    with pytest.raises(WaitTimeoutError) as told:
        pipeline.consume(1, SHORT)
    for part in ("float32[8]", "0.5 s", "'y'", "timeline 'consumed' to reach 1, now 0"):
        assert part in str(told.value)
    assert pipeline.produced.value == 1
    pipeline.consumed.signal(1)
    np.testing.assert_array_equal(pipeline.consume(2, LONG), X + 1)


def test_who_is_far_behind_is_told_what_it_waits_for_first(context: MLContext) -> None:
    pipeline = Pipeline(context, tensors=1)
    pipeline.produce(9)
    with pytest.raises(WaitTimeoutError, match="'consumed' to reach 1, now 0"):
        pipeline.consume(1, SHORT)
    pipeline.consumed.signal(8)
    np.testing.assert_array_equal(pipeline.consume(9, LONG), X + 1)


def test_work_that_signals_passes_what_waits_for_it(context: MLContext) -> None:
    """As docs/how-to/timelines.md shows: the consumer signals by work of its own."""
    pipeline = Pipeline(context, tensors=1)
    (y,) = pipeline.ring
    copy = build(context, lambda b: {"y": b.identity(b.input("x", "float32", [8]))})
    own, steps = _tensor(context), 20

    def consume() -> None:
        for n in range(1, steps + 1):
            sync = [pipeline.produced(wait=n), pipeline.consumed(signal=n)]
            context.dispatch(copy, {"x": y}, {"y": own}, sync=sync)
            found = context.read_tensor_sync(own, timeout=LONG)
            np.testing.assert_array_equal(found, X + 1)

    in_threads(lambda: pipeline.produce(steps), consume)


def test_a_producer_that_waits_itself(context: MLContext) -> None:
    """As docs/how-to/timelines.md says: each read comes before the next write to its tensor."""
    pipeline = Pipeline(context, tensors=2)
    steps = 20

    def produce() -> None:
        for n in range(1, steps + 1):
            pipeline.consumed.wait_sync(n - 2, timeout=LONG)
            y = pipeline.ring[n % 2]
            sync = [pipeline.produced(signal=n)]
            context.dispatch(pipeline.graph, {"x": pipeline.x}, {"y": y}, sync=sync)

    def consume() -> None:
        for n in range(1, steps + 1):
            np.testing.assert_array_equal(pipeline.consume(n, LONG), X + 1)

    in_threads(produce, consume)


def test_a_read_that_is_taken_back_leaves_its_array(context: MLContext) -> None:
    pipeline = Pipeline(context, tensors=1)
    pipeline.produce(2)
    out = np.full(8, 7, np.float32)
    pipeline.produced.wait_sync(1, timeout=LONG)
    with pytest.raises(WaitTimeoutError):
        context.read_tensor_sync(pipeline.ring[0], out, timeout=SHORT)
    pipeline.consumed.signal(1)
    np.testing.assert_array_equal(pipeline.consume(2, LONG), X + 1)
    assert (out == 7).all()


def test_an_awaited_read_is_taken_back(context: MLContext, run: Run) -> None:
    pipeline = Pipeline(context, tensors=1)
    pipeline.produce(2)

    async def read() -> None:
        out = np.full(8, 7, np.float32)
        with pytest.raises(WaitTimeoutError, match="'consumed' to reach 1, now 0"):
            await context.read_tensor_async(pipeline.ring[0], out, timeout=SHORT)
        assert (out == 7).all()
        pipeline.consumed.signal(1)
        found = await context.read_tensor_async(pipeline.ring[0], timeout=LONG)
        np.testing.assert_array_equal(found, X + 1)

    run(read)


def test_what_is_done_in_time_is_read(context: MLContext) -> None:
    x = _tensor(context)
    context.write_tensor(x, X)
    for timeout in (LONG, float("inf"), None):
        np.testing.assert_array_equal(context.read_tensor_sync(x, timeout=timeout), X)


@pytest.mark.parametrize("timeout", [float("nan"), "1", [1.0]])
def test_a_timeout_is_a_number(context: MLContext, timeout: Any) -> None:
    with pytest.raises(ValidationError, match="timeout"):
        context.read_tensor_sync(_tensor(context), timeout=timeout)


@pytest.mark.usefixtures("soon_told")
@pytest.mark.parametrize("call", ["read", "share", "compute"])
def test_who_waits_without_a_timeout_is_told_once(
    context: MLContext, caplog: pytest.LogCaptureFixture, call: str
) -> None:
    """The producer's view: nothing hangs silently, whatever waits behind its parked work."""
    if call == "compute" and context.device_type == "gpu":
        pytest.skip("MLExecution is for CPU contexts")
    pipeline = Pipeline(context, tensors=1)
    (y,) = pipeline.ring
    pipeline.produce(2)
    calls: dict[str, Callable[[], object]] = {
        "read": lambda: context.read_tensor_sync(y),
        "share": lambda: y.__dlpack__(dl_device=(1, 0)),
        "compute": lambda: MLExecution(context).compute(pipeline.graph, {"x": y}),
    }

    class Told(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            messages.append(record.getMessage())
            pipeline.consumed.signal(1)

    messages: list[str] = []
    log, handler = logging.getLogger("webnn_py"), Told(logging.WARNING)
    log.addHandler(handler)
    try:
        in_threads(calls[call])
    finally:
        log.removeHandler(handler)
    (message,) = messages
    assert "timeline 'consumed' to reach 1, now 0" in message

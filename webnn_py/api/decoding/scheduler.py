"""Scheduler: one thread that reads the tokens of all rows, joined into as few runs as possible.

Continuous batching: between two runs, rows join and leave. Each turn is one run that reads one
token of every row whose next token is known, and then one run that reads a piece of one prompt.
Only the scheduler's thread changes rows and caches; others send it messages. A thread that waits
for the only row with tokens stands in for it: to wake a thread takes 0.1 ms.

Source: Yu et al., "Orca: A Distributed Serving System for Transformer-Based Generative Models",
2022.
"""

from __future__ import annotations

import functools
import heapq
import threading
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from webnn_py.api.decoding.bound_steps import BoundSteps
from webnn_py.api.decoding.cache_rows import CacheRows
from webnn_py.api.decoding.device_steps import DeviceSteps
from webnn_py.api.decoding.flight import Flight
from webnn_py.api.decoding.layout import DecoderLayout
from webnn_py.api.decoding.row import Row
from webnn_py.api.decoding.timeline_turn import TimelineTurn
from webnn_py.api.decoding.token_stream import MAX_TOKENS_AHEAD
from webnn_py.api.session import Session
from webnn_py.core.deferred_signals import call_uninterrupted
from webnn_py.core.errors import InvalidStateError, MLError, OperationError
from webnn_py.core.workers import Workers
from webnn_py.ir import Array

MAX_PIECE_TOKENS = 64
"""Tokens of a prompt that one run reads, so that the other rows soon get their next token."""
DESTROYED = "this MLDecoder is destroyed"


class Scheduler:
    """The slots of a decoder, and the thread that runs its graph.

    Args:
        session: Session of the context.
        layout: The roles of the graph's inputs and outputs.
        slots: Number of rows of the caches.
        length: Number of tokens of a text.

    Attributes:
        session: Session of the context.
        tokens_ahead: Most tokens that are computed before their client asks for them.
    """

    def __init__(self, session: Session, layout: DecoderLayout, slots: int, length: int) -> None:
        self.session = session
        self._layout = layout
        self._slots = slots
        self._caches = CacheRows(session, layout, slots, length)
        self._is_device = session.device is not None
        kind = DeviceSteps if self._is_device else BoundSteps
        self._steps: DeviceSteps | BoundSteps = kind(session, layout, self._caches)
        self._flight: Flight | None = None
        self.tokens_ahead = MAX_TOKENS_AHEAD[session.device_type]
        self._messages: deque[Callable[[], None]] = deque()
        self._turns: weakref.WeakSet[TimelineTurn] = weakref.WeakSet()  # that may be waiting
        self._queue: deque[Row] = deque()  # rows that wait for a slot
        self._rows: list[Row] = []  # rows with a slot
        self._free = list(range(slots))
        self._lock = threading.RLock()  # a finalizer may send a message meanwhile
        self._running = self._again = False
        self._closed: BaseException | None = None
        self._thread = Workers("webnn-decoder")
        self._thread.begin()  # here, as an event loop may send the first message
        weakref.finalize(self, self._thread.finish).atexit = False

    # Called from any thread.

    def send(self, message: Callable[[], None]) -> None:
        """Have the thread call a function before its next run."""
        self._messages.append(message)
        self.wake()

    def post(self, message: Callable[[], None]) -> None:
        """Have a function called before the next run, which this does not bring about."""
        self._messages.append(message)

    def wake(self) -> None:
        """Have the thread look for work."""
        if self._take_over():
            self._start()

    def run_here(self, row: Row) -> None:
        """Read a row's tokens on this thread, while no other row has any; else wake the thread."""
        if self._is_device:
            self.wake()
        elif self._take_over():
            call_uninterrupted(functools.partial(self._run_alone, row))

    def _take_over(self) -> bool:
        """Return whether this thread may run now; else whoever runs looks for work again."""
        with self._lock:
            self._again = self._running
            if self._running:
                return False
            self._running = True
            return True

    def _start(self) -> None:
        """Let the scheduler's thread go on in this thread's place."""
        try:
            self._thread.submit(self._run, self._stop)
        except MLError as error:
            self._stop(error)

    def wait_for(
        self, turn: TimelineTurn, start: Callable[[], None], fail: Callable[[BaseException], None]
    ) -> None:
        """Call `start` when a turn begins, or `fail` if it never does, or at the end of all."""
        self._turns.add(turn)

        def failed(error: BaseException) -> None:
            fail(error if self._closed is None else self._closed)

        turn.begin(start, failed)

    def reserve(self, row: Row) -> None:
        """Give a row a free slot.

        Raises:
            InvalidStateError: There is none.
        """
        with self._lock:
            self.check_open()
            if not self._free:
                raise InvalidStateError(
                    f"all {self._slots} slots of this MLDecoder are in use; close a sequence, or"
                    " load the decoder with more slots"
                )
            row.slot = heapq.heappop(self._free)

    def check_open(self) -> None:
        """Raise an error if no tokens can be read any more."""
        self.session.check_alive()
        if self._closed is not None:
            raise InvalidStateError(DESTROYED)

    def close(self) -> None:
        """End all rows with an InvalidStateError, and release the caches."""
        self._closed = InvalidStateError(DESTROYED)
        for turn in tuple(self._turns):
            turn.leave()
        self.send(self._caches.release)

    # Called on the scheduler's thread.

    def admit(self, row: Row) -> None:
        """Let a row with pending tokens take part, once it has a slot."""
        if row.slot is None:
            if row not in self._queue:
                self._queue.append(row)
        elif row not in self._rows:
            self._begin(row)

    def remove(self, row: Row) -> None:
        """Remove a row and free its slot."""
        row.drop()
        if row in self._queue:
            self._queue.remove(row)
        if row in self._rows:
            self._rows.remove(row)
        if row.slot is not None:
            self._caches.lengths[row.slot] = 0
            with self._lock:
                heapq.heappush(self._free, row.slot)
            row.slot = None

    def truncate(self, row: Row, length: int) -> None:
        """Drop the pending tokens of a row, and all tokens from a position on."""
        row.drop()
        row.length = length
        if row.slot is not None:
            self._caches.lengths[row.slot] = length

    def fork(self, row: Row, other: Row) -> None:
        """Copy a row's caches to another row that has a slot."""
        assert other.slot is not None
        if row.slot is not None and row.length:
            self._caches.copy(row.slot, other.slot)
        other.length = row.length
        self._begin(other)

    def _begin(self, row: Row) -> None:
        assert row.slot is not None
        self._caches.lengths[row.slot] = row.length
        self._rows.append(row)

    def _run(self) -> None:
        while True:
            self._take_messages()
            while self._turn():
                self._take_messages()
            with self._lock:
                if not self._again:
                    self._running = False
                    return
                self._again = False

    def _run_alone(self, row: Row) -> None:
        """Read the tokens of one row, until others have some."""
        try:
            self._take_messages()
            while self._is_only(row) and self._turn():
                self._take_messages()
        finally:
            with self._lock:
                others = self._again or any(r.pending for r in (*self._rows, *self._queue))
                self._again, self._running = False, others
            if others:
                self._start()

    def _is_only(self, row: Row) -> bool:
        """Return whether a row has tokens to read, and no other row has."""
        others = any(r.pending and r is not row for r in (*self._rows, *self._queue))
        return bool(row.pending) and not others

    def _take_messages(self) -> None:
        while self._messages:
            self._messages.popleft()()

    def _turn(self) -> bool:
        """Read one token of each row that is ready, and a piece of one prompt."""
        if self._closed is not None:
            self._fail_all(self._closed)
            return False
        self._give_slots()
        most = None if self._layout.one_by_one else 1
        waiting = [row for row in self._rows if row.pending and row.is_ready()]
        steps = [row for row in waiting if most is None or len(row.pending) <= most]
        if self._flight is not None and not self._flight.is_of(waiting):
            self._land()  # which may end rows, or make others wait
            return True
        if steps and all(map(self._may_run_ahead, waiting)):
            self._try(steps, functools.partial(self._step_ahead, steps))
        elif steps:
            drawn = [row for row in steps if row.is_drawn and self._may_run_ahead(row)]
            others = [row for row in steps if row not in drawn]
            if drawn:  # on the device like all their tokens, so that nobody else changes them
                self._try(drawn, functools.partial(self._step_once, drawn))
            if others:
                self._try(others, functools.partial(self._step, others))
        prompt = next((row for row in waiting if row not in steps), None)
        if prompt is not None:
            self._try([prompt], functools.partial(self._piece, prompt))
            if prompt in self._rows:  # the next turn reads a piece of another prompt
                self._rows.remove(prompt)
                self._rows.append(prompt)
        return bool(waiting)

    def _give_slots(self) -> None:
        while self._queue:
            row = self._queue[0]
            try:
                self.reserve(row)
            except InvalidStateError as error:
                if all(other.is_held for other in self._rows):  # nobody knows until when
                    self._queue.popleft().fail(error)
                return
            self._queue.popleft()
            self._begin(row)

    def _try(self, rows: Sequence[Row], run: Callable[[], None]) -> None:
        try:
            run()
        except BaseException as error:
            self._flight = None
            for row in rows:
                row.fail(error)

    def _step(self, rows: Sequence[Row]) -> None:
        """Read one token of each row."""
        slots = [row.slot for row in rows if row.slot is not None]
        first, count = self._caches.rows_of_run(slots)
        ids = np.zeros([count, 1], np.int64)
        for row, slot in zip(rows, slots, strict=True):
            ids[slot - first, 0] = row.pending[0]
        logits = self._logits(first, ids)
        for row, slot in zip(rows, slots, strict=True):
            self._has_read(row, 1, logits[slot - first])

    def _may_run_ahead(self, row: Row) -> bool:
        """Return whether the device chooses a row's next tokens.

        A software device takes longer for draws than the host.
        """
        if not self._is_device or row.taker is None or len(row.pending) > 1:
            return False
        return self.session.engine.accelerated or not row.is_drawn

    def _step_ahead(self, rows: Sequence[Row]) -> None:
        """Have the device go on by itself, and take the tokens of an earlier submission.

        While one submission runs, another one waits for the device, and no more: rows that come
        wait for both.
        """
        flight = self._flight or self._take_off(rows)
        count = flight.steps_to_submit(bool(self._queue))
        if count:
            flight.submit(count)
        if flight.submissions > 1 or not count:
            self._take_tokens(flight)

    def _step_once(self, rows: Sequence[Row]) -> None:
        """Have the device read one token of each row and choose the next."""
        flight = self._take_off(rows)
        flight.submit(1)
        self._take_tokens(flight)

    def _take_off(self, rows: Sequence[Row]) -> Flight:
        """Begin to run ahead with the tokens that rows have to read."""
        assert isinstance(self._steps, DeviceSteps)
        self._caches.make_room()
        self._flight = Flight(self._steps, self._layout, self._caches, rows)
        return self._flight

    def _take_tokens(self, flight: Flight) -> None:
        flight.take_tokens()
        if not flight.submissions:
            self._flight = None

    def _land(self) -> None:
        """Take all tokens of the steps that run ahead."""
        flight = self._flight
        while self._flight is not None and flight is not None:
            self._try(flight.takers, functools.partial(self._take_tokens, flight))

    def _piece(self, row: Row) -> None:
        """Read a piece of a row's prompt."""
        assert row.slot is not None
        count = min(len(row.pending), MAX_PIECE_TOKENS)
        if self._is_device:  # few sizes, as each one may need kernels of its own
            count = 1 << count.bit_length() - 1
        ids = np.array([[row.pending[place] for place in range(count)]])
        self._has_read(row, count, self._logits(row.slot, ids)[0])

    def _logits(self, first: int, ids: Array) -> Array:
        """Read tokens of consecutive rows; return the logits after the last token of each.

        The next step may overwrite them.
        """
        layout, caches, (count, new) = self._layout, self._caches, ids.shape
        caches.make_room(int(caches.lengths[first]) + new)
        # Rows that take no part get a token behind their last one, which counts for nothing.
        lengths = np.minimum(caches.lengths[first : first + count], caches.most_keys - new)
        inputs: dict[str, Any] = layout.inputs(ids, lengths, caches.keys)
        logits = np.asarray(self._steps.logits(first, inputs, (count, new)), np.float32)
        return logits[:, -1] if logits.ndim == 3 else logits

    def _has_read(self, row: Row, count: int, logits: Array) -> None:
        """Note that tokens of a row were read, and report the logits after the last one."""
        for _ in range(count):
            row.pending.popleft()
        row.length += count
        self._caches.lengths[row.slot] = row.length
        if not row.pending and row.on_logits is not None:
            report, row.on_logits = row.on_logits, None
            try:
                report(logits)
            except BaseException as error:  # of a function of the user's
                row.fail(error)

    def _stop(self, error: BaseException) -> None:
        """Fail all rows: the thread cannot go on."""
        with self._lock:
            self._running = False
        self._take_messages()
        self._fail_all(error)

    def _fail_all(self, error: BaseException) -> None:
        for row in (*self._rows, *self._queue):
            row.fail(error if isinstance(error, MLError) else OperationError(str(error)))
        self._rows.clear()
        self._queue.clear()

"""Scheduler: one thread that reads the tokens of all rows, joined into as few runs as possible.

Continuous batching: between two runs, rows join and leave. Each turn is one run that reads one
token of every row whose next token is known, and then one run that reads a piece of one prompt.
Only the scheduler's thread changes rows and caches; others send it messages.

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

from webnn_py.api.awaited import run_blocking
from webnn_py.api.decoding.bound_steps import BoundSteps
from webnn_py.api.decoding.cache_rows import CacheRows
from webnn_py.api.decoding.layout import DecoderLayout
from webnn_py.api.session import Session
from webnn_py.core.errors import InvalidStateError, MLError, OperationError
from webnn_py.core.workers import Workers
from webnn_py.ir import Array

MAX_PIECE_TOKENS = 64
"""Tokens of a prompt that one run reads, so that the other rows soon get their next token."""
MIN_KEYS = 64
"""Keys of a row at first; the number doubles as texts grow."""
KEYS_STEP = 32
"""Caches have a multiple of so many keys, so that their rows begin at offsets that GPUs bind."""
DESTROYED = "this MLDecoder is destroyed"


class Row:
    """A text in the caches.

    Attributes:
        slot: Row of the caches; None until there is a free one.
        length: Number of tokens in the caches.
        pending: Tokens still to be read.
        on_logits: Called with the logits after the last pending token; None if nobody waits.
        on_error: Called with the error if that fails.
        is_ready: Whether the row may be read now.
        is_held: Whether a sequence holds the row for an unknown time.
    """

    def __init__(self, is_held: bool = False, is_ready: Callable[[], bool] = lambda: True) -> None:
        self.slot: int | None = None
        self.length = 0
        self.pending: deque[int] = deque()
        self.on_logits: Callable[[Array], None] | None = None
        self.on_error: Callable[[BaseException], None] = _ignore
        self.is_ready = is_ready
        self.is_held = is_held

    def read(
        self,
        ids: Sequence[int],
        on_logits: Callable[[Array], None],
        on_error: Callable[[BaseException], None],
    ) -> None:
        """Have tokens read; on the scheduler's thread."""
        self.pending.extend(ids)
        self.on_logits, self.on_error = on_logits, on_error

    def fail(self, error: BaseException) -> None:
        """Drop the pending tokens and report an error."""
        report = self.on_error
        self.drop()
        report(error)

    def drop(self) -> None:
        """Drop the pending tokens and the callbacks, which may refer back to the row."""
        self.pending.clear()
        self.on_logits, self.on_error = None, _ignore


def _ignore(error: BaseException) -> None:
    """Ignore the error: nobody waits."""


class Scheduler:
    """The slots of a decoder, and the thread that runs its graph.

    Args:
        session: Session of the context.
        layout: The roles of the graph's inputs and outputs.
        slots: Number of rows of the caches.
        length: Number of tokens of a text.
    """

    def __init__(self, session: Session, layout: DecoderLayout, slots: int, length: int) -> None:
        self._session = session
        self._layout = layout
        self._slots = slots
        self._length = length
        self._max_keys = layout.keys or -(-length // KEYS_STEP) * KEYS_STEP
        self._caches = CacheRows(session, layout, slots)
        self._caches.resize(layout.keys or min(MIN_KEYS, self._max_keys))
        self._steps = BoundSteps(session, layout, self._caches)
        self._lengths = np.zeros(slots, np.int64)
        self._messages: deque[Callable[[], None]] = deque()
        self._queue: deque[Row] = deque()  # rows that wait for a slot
        self._rows: list[Row] = []  # rows with a slot
        self._free = list(range(slots))
        self._lock = threading.RLock()  # a finalizer may send a message meanwhile
        self._running = self._again = False
        self._closed: BaseException | None = None
        self._is_device = session.device is not None
        self._thread = Workers("webnn-decoder")
        self._thread.begin()  # here, as an event loop may send the first message
        weakref.finalize(self, self._thread.finish).atexit = False

    # Called from any thread.

    def send(self, message: Callable[[], None]) -> None:
        """Have the thread call a function before its next run."""
        self._messages.append(message)
        self.wake()

    def wake(self) -> None:
        """Have the thread look for work."""
        with self._lock:
            if self._running:
                self._again = True
                return
            self._running = True
        try:
            self._thread.submit(self._run, self._stop)
        except MLError as error:
            self._stop(error)

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
        self._session.check_alive()
        if self._closed is not None:
            raise InvalidStateError(DESTROYED)

    def close(self) -> None:
        """End all rows with an InvalidStateError, and release the caches."""
        self._closed = InvalidStateError(DESTROYED)
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
            self._lengths[row.slot] = 0
            with self._lock:
                heapq.heappush(self._free, row.slot)
            row.slot = None

    def truncate(self, row: Row, length: int) -> None:
        """Drop the pending tokens of a row, and all tokens from a position on."""
        row.drop()
        row.length = length
        if row.slot is not None:
            self._lengths[row.slot] = length

    def fork(self, row: Row, other: Row) -> None:
        """Copy a row's caches to another row that has a slot."""
        assert other.slot is not None
        if row.slot is not None and row.length:
            self._caches.copy(row.slot, other.slot)
        other.length = row.length
        self._begin(other)

    def _begin(self, row: Row) -> None:
        assert row.slot is not None
        self._lengths[row.slot] = row.length
        self._rows.append(row)

    def _run(self) -> None:
        while True:
            while self._turn():
                pass
            with self._lock:
                if not self._again:
                    self._running = False
                    return
                self._again = False

    def _turn(self) -> bool:
        """Read one token of each row that is ready, and a piece of one prompt."""
        while self._messages:
            self._messages.popleft()()
        if self._closed is not None:
            self._fail_all(self._closed)
            return False
        self._give_slots()
        most = None if self._layout.one_by_one else 1
        waiting = [row for row in self._rows if row.pending and row.is_ready()]
        steps = [row for row in waiting if most is None or len(row.pending) <= most]
        if steps:
            self._try(steps, lambda: self._step(steps))
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
            for row in rows:
                row.fail(error)

    def _step(self, rows: Sequence[Row]) -> None:
        """Read one token of each row."""
        slots = [row.slot for row in rows if row.slot is not None]
        first, count = self._range(min(slots), max(slots) + 1)
        ids = np.zeros([count, 1], np.int64)
        for row, slot in zip(rows, slots, strict=True):
            ids[slot - first, 0] = row.pending[0]
        logits = self._logits(first, ids)
        for row, slot in zip(rows, slots, strict=True):
            self._has_read(row, 1, logits[slot - first])

    def _range(self, first: int, end: int) -> tuple[int, int]:
        """Return the first row and the number of rows of a run that has these rows.

        Numbers are powers of two, so that few sizes are compiled.
        """
        if self._layout.batch is not None:
            return 0, self._layout.batch
        count = min(1 << (end - first - 1).bit_length(), self._slots)
        return min(first, self._slots - count), count

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
        layout, (count, new) = self._layout, ids.shape
        self._make_room(int(max(self._lengths.max() + 1, self._lengths[first] + new)))
        keys = self._caches.keys
        # Rows that take no part get a token behind their last one, which counts for nothing.
        lengths = np.minimum(self._lengths[first : first + count], min(keys, self._length) - new)
        inputs: dict[str, Any] = layout.inputs(ids, lengths, keys)
        if self._is_device:
            made = self._on_device(first, count, inputs)
        else:
            made = self._steps.logits(first, inputs, (count, new))
        logits = np.asarray(made, np.float32)
        return logits[:, -1] if logits.ndim == 3 else logits

    def _on_device(self, first: int, count: int, inputs: dict[str, Any]) -> Any:
        """Run a step on the device; return its logits."""
        layout = self._layout
        sources, targets = self._caches.at(first, count)
        outputs: dict[str, Any] = {}
        for (name, following), source, target in zip(layout.caches, sources, targets, strict=True):
            inputs[name], outputs[following] = source, target
        return run_blocking(self._session, layout.graph, inputs, outputs)[layout.logits]

    def _make_room(self, needed: int) -> None:
        """Have room for so many keys in each row, if the graph leaves their number open."""
        if self._layout.keys is not None:
            return
        keys = MIN_KEYS
        while keys < needed:
            keys *= 2
        keys = min(keys, self._max_keys)
        is_empty = not self._lengths.any()
        if keys > self._caches.keys or (is_empty and keys < self._caches.keys):
            self._caches.resize(keys, keep=not is_empty)

    def _has_read(self, row: Row, count: int, logits: Array) -> None:
        """Note that tokens of a row were read, and report the logits after the last one."""
        for _ in range(count):
            row.pending.popleft()
        row.length += count
        self._lengths[row.slot] = row.length
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
        while self._messages:
            self._messages.popleft()()
        self._fail_all(error)

    def _fail_all(self, error: BaseException) -> None:
        for row in (*self._rows, *self._queue):
            row.fail(error if isinstance(error, MLError) else OperationError(str(error)))
        self._rows.clear()
        self._queue.clear()

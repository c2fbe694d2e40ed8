"""Queue of computes that are joined into batched runs, each receiving its own rows.

Runs have few sizes, so that few need compilation. Sizes are compiled in the background; meanwhile
runs use the compiled ones. Padding rows of a run are copies of other rows.
"""

from __future__ import annotations

import functools
import itertools
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from webnn_py.api.batching.batch_size_policy import BatchSizePolicy
from webnn_py.api.batching.request import Request, handed_out
from webnn_py.api.compiled import CompiledGraph
from webnn_py.api.session import Session
from webnn_py.api.shape_specialization import Prepared, Sizes
from webnn_py.core.completion import Completion, end_all, hold, next_turn, runs_event_loop
from webnn_py.core.errors import ContextLostError, convert_memory_errors
from webnn_py.core.lru_cache import LRUCache
from webnn_py.core.thread_priority import LONG_RUN_SECONDS
from webnn_py.engines.base import AwaitedRun, Executable, HostExecutable
from webnn_py.ir import Array
from webnn_py.memory.batch_rows import join_rows
from webnn_py.ops.batch_axes import BatchAxes

MAX_DEVICE_RUNS = 2
"""Maximum runs in flight per queue: one computes while the next is joined and uploaded."""


MAX_LOOP_SECONDS = 5e-4
"""Longest run, in seconds, on an event loop's thread; a thread hand-over takes 0.1 ms."""
MAX_SINGLE_THREAD_ROWS = 3
"""Rows up to which one thread is faster than waking a pool of threads."""


@dataclass(frozen=True, slots=True)
class Joining:
    """Configuration of a batch queue.

    Attributes:
        session: Session of the context.
        compiled: The graph.
        executables: Cache of its executables, which outlives the graph.
        axes: Batch axis of each input and output.
        sizes: Returns all open sizes for a size of the batch dimension.
        policy: Chooses the sizes of runs.
        max_delay: Seconds that the first compute of a run waits for others.
    """

    session: Session
    compiled: CompiledGraph
    executables: LRUCache[Prepared]
    axes: BatchAxes
    sizes: Callable[[int], Sizes]
    policy: BatchSizePolicy
    max_delay: float


class BatchQueue:
    """Queue of computes that can be joined with each other.

    Args:
        how: Configuration of the queue.
        lock: Reentrant lock, as work that is refused at once fails the waiting computes under it.
        forget: Called with the lock held when no compute waits and none runs.
    """

    def __init__(
        self, how: Joining, lock: threading.RLock, forget: Callable[[BatchQueue], None]
    ) -> None:
        self._how = how
        self._session = how.session
        self._forget = forget
        self._policy = how.policy
        self._lock = lock
        self._waiting: deque[Request] = deque()
        self._rows = 0  # rows that wait
        self._under_way = 0  # runs in flight or about to begin
        on_host = self._session.device is None
        self._most = self._session.workers if on_host else MAX_DEVICE_RUNS
        self._timer: threading.Timer | None = None
        self._preparing: set[int] = set()  # sizes in compilation
        self._stalled = 0  # runs that wait for such a size
        self._computed = self._handed = 0  # rows in flight; rows returned, which may come again
        self._beside = False  # whether a helper thread computes runs, too
        self._leader: Request | None = None  # its awaiting task is about to run the batch

    def add(self, request: Request) -> bool:
        """Add a compute, with the lock held; return whether its task must call `lead`."""
        self._waiting.append(request)
        self._rows += request.rows
        self._handed = max(0, self._handed - request.rows)
        if self._leader is None:
            return self._consider(request)
        if self._leader.loop is not request.loop:  # the leader's loop may be idle for long
            self._leader = None
            self._schedule()
        return False

    async def lead(self, request: Request) -> None:
        """Run the batch on this event loop's thread, after other tasks had a turn to join it."""
        brief = gone = False
        try:
            await next_turn()
            brief = self._is_brief()
        except GeneratorExit:  # the next request, from another loop, runs the batch
            gone = True
            raise
        finally:
            with hold(self._lock, not gone) as held:
                leads = held and self._leader is request
                if leads:
                    self._leader = None
                    if not brief:
                        self._schedule()
        if leads and brief:
            self._begin()

    def withdraw(self, request: Request, gone: bool = False) -> None:
        """Remove a waiting compute; with `gone`, it may still be computed in vain."""
        with hold(self._lock, not gone) as held:
            if held and request in self._waiting:
                self._waiting.remove(request)
                self._rows -= request.rows
                self._consider()

    def release(self) -> None:
        """Fail all waiting computes at the loss of the context, even if its threads are busy."""
        with self._lock:
            requests, self._rows = list(self._waiting), 0
            self._waiting.clear()
            self._consider()
        _fail(requests, ContextLostError(self._session.why_lost()))

    # The methods from here to `_prepare` are called with the lock held.

    def _consider(self, leader: Request | None = None) -> bool:
        """Begin a run if it is due; return whether the task of `leader` must begin it."""
        if not self._waiting:
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None
            if not (self._under_way or self._beside):
                self._forget(self)
            return False
        if self._under_way >= self._most:
            if self._computed:
                self._begin_beside()
            return False
        patience = self._patience()
        if patience <= 0:
            self._under_way += 1
            if leader is not None and self._is_brief():
                self._leader = leader
                return True
            self._schedule()
        elif self._timer is None:
            self._timer = threading.Timer(patience, self._rung)
            self._timer.daemon = True
            self._timer.start()
        return False

    def _is_brief(self) -> bool:
        """Whether a run of the waiting rows is short enough for an event loop's thread."""
        brief = self._policy.row * self._rows <= MAX_LOOP_SECONDS and not self._policy.crowded
        return brief and self._session.device is None and self._session.alive

    def _patience(self) -> float:
        """Return the seconds for which the batch still waits for more computes."""
        delay = self._how.max_delay if self._session.alive else 0
        if not delay or self._rows >= self._policy.sizes[-1]:
            return 0
        return self._waiting[0].arrived + delay - time.monotonic()

    def _schedule(self) -> None:
        """Begin a run on a worker thread, after the queued work of other graphs."""
        self._session.begin_on_worker(self._begin, self._fail)

    def _end(self, beside: bool = False) -> None:
        """Note that a run has ended or cannot begin."""
        if not beside:
            self._under_way -= 1
            self._consider()

    def _take(self) -> tuple[list[Request], int]:
        """Take the computes of the next run and its size; none while the size is compiled."""
        first = self._waiting[0]
        self._policy.sees(self._rows + self._computed + self._handed)
        size = self._size(first.rows, first.rows if first.apart else self._rows)
        taken: list[Request] = []
        left = size
        while self._waiting and self._waiting[0].rows <= left:
            if taken and (first.apart or self._waiting[0].apart):
                break
            taken.append(self._waiting.popleft())
            left -= taken[-1].rows
        self._rows -= size - left
        self._computed += size - left
        return taken, size

    def _size(self, least: int, rows: int) -> int:
        """Return a compiled size for `rows` rows, at least `least`; 0 if there is none yet."""
        sizes = self._policy.sizes
        rows = max(least, min(rows, self._policy.most))
        larger = next(size for size in sizes if size >= rows)
        smaller = max((size for size in sizes if size <= rows), default=0)
        # Round up if at most a quarter of the rows is padding.
        wanted = larger if 4 * rows >= 3 * larger or smaller < least else smaller
        if self._is_compiled(wanted):
            return wanted
        self._prepare(wanted)
        compiled = [size for size in sizes if size >= least and self._is_compiled(size)]
        if not compiled:
            self._stalled += 1
            return 0
        return next((size for size in compiled if size > wanted), compiled[-1])

    def _is_compiled(self, size: int) -> bool:
        self._session.check_alive()
        return self._how.executables.find(self._how.sizes(size)) is not None

    def _prepare(self, size: int) -> None:
        """Compile for a size on the build thread."""
        if size in self._preparing:
            return
        self._preparing.add(size)
        work = functools.partial(self._executable, self._how.sizes(size))
        prepared = self._session.run_on_builder(work)
        prepared.on_done(functools.partial(self._prepared, size, prepared))

    def _executable(self, sizes: Sizes) -> Executable:
        self._session.check_alive()
        return self._how.executables.get(sizes).executable

    def _prepared(self, size: int, prepared: Completion[Executable]) -> None:
        """Resume stalled runs after a compilation; drop a size whose compilation failed."""
        try:
            prepared.wait(0)
            error = None
        except BaseException as caught:
            error = caught
        with self._lock:
            self._preparing.discard(size)
            stalled, self._stalled = self._stalled, 0
            if error is not None and size != self._policy.sizes[0]:
                self._policy.drop(size)
                error = None
            for _ in range(stalled):
                if error is None:
                    self._schedule()
                else:
                    self._fail(error)

    def _rung(self) -> None:
        """Begin a run, as the first compute has waited for `max_delay`."""
        with self._lock:
            self._timer = None
            self._consider()

    def _fail(self, error: BaseException) -> None:
        """Fail all waiting computes, as no run can begin."""
        with self._lock:
            requests, self._rows = list(self._waiting), 0
            self._waiting.clear()
            self._end()
        _fail(requests, error)

    def _begin(self) -> None:
        """Join the waiting computes and run them."""
        requests: list[Request] = []
        try:
            with self._lock:
                if not self._waiting:  # all were withdrawn
                    self._end()
                    return
                requests, size = self._take()
                self._begin_beside()
            if requests:
                self._run(requests, size)
        except BaseException as error:
            if requests:
                self._failed(requests, error)
            else:
                self._fail(error)
            if not isinstance(error, Exception):  # such as Ctrl-C
                raise

    def _begin_beside(self) -> None:
        """Begin full runs on a helper thread, too; the lock is held.

        A short run spends a good part of its time waiting for the GIL; meanwhile another one
        computes.
        """
        pays = self._policy.is_short and not self._beside and self._session.leaves_interpreter
        if pays and self._can_be_full():
            self._beside = True
            self._session.begin_beside_worker(self._run_beside, self._end_beside)

    def _can_be_full(self) -> bool:
        """Whether the queue fills a run of computes that write to no memory of the user's."""
        most = min(self._policy.most, self._policy.sizes[-1])
        return self._rows >= most and all(
            each.cancellation is None for each in itertools.islice(self._waiting, most)
        )

    def _run_beside(self) -> None:
        """Run full batches on the helper thread until the queue fills none."""
        while True:
            with self._lock:
                requests, size = self._take() if self._can_be_full() else ([], 1)
                if not requests:
                    self._stalled -= size == 0  # no stall: the worker threads wait for the size
                    self._end_beside()
                    return
            try:
                self._run(requests, size, beside=True)
            except BaseException as error:
                self._failed(requests, error, beside=True)

    def _end_beside(self, error: BaseException | None = None) -> None:
        """Leave the remaining computes to the worker threads."""
        with self._lock:
            self._beside = False
            self._consider()

    @convert_memory_errors
    def _run(self, requests: Sequence[Request], size: int, beside: bool = False) -> None:
        sizes = self._how.sizes(size)
        signature = self._how.compiled.signature_at(sizes)
        shapes = [descriptor.shape for descriptor in signature.inputs.values()]
        counts = [request.rows for request in requests]
        parts = zip(*(request.inputs for request in requests), strict=True)
        inputs = [
            arrays[0] if axis is None else join_rows(arrays, axis, shape, size, counts)
            for arrays, axis, shape in zip(parts, self._how.axes.inputs, shapes, strict=True)
        ]
        executable = self._chosen(sizes, size)
        begun = time.perf_counter()
        if isinstance(executable, HostExecutable):
            results = executable.new_results(inputs, signature.made.values())
            seconds = time.perf_counter() - begun
            executable.ran(seconds)
            self._end_run(requests, self._parted(requests, results, size), size, seconds, beside)
            return
        run = executable.start(inputs, signature.with_outputs([None] * len(signature.outputs)))
        run.done.on_done(functools.partial(self._finish, run, requests, size, begun))
        here = threading.get_ident()

        def begin() -> None:
            if threading.get_ident() != here:
                self._session.begin_run(run)
                return
            try:
                run.begin()
            except BaseException as error:
                run.done.set_exception(error)

        run.when_there_is_room(begin)

    def _chosen(self, sizes: Sizes, size: int) -> Executable:
        """Choose the executable: single-threaded if other runs compute meanwhile.

        An event loop also computes a few rows single-threaded, as waking a pool takes longer.
        """
        executable = self._executable(sizes)
        one = self._policy.crowded or (size <= MAX_SINGLE_THREAD_ROWS and runs_event_loop())
        if not (one and self._session.leaves_interpreter):
            return executable
        assert isinstance(executable, HostExecutable)
        alone = self._session.alone.of(executable)
        if alone is None:
            return executable
        self._policy.has_alone = True  # other sizes will have one soon
        return alone

    def _finish(
        self, run: AwaitedRun, requests: Sequence[Request], size: int, begun: float
    ) -> None:
        """Deliver the results of a device's run, or its error."""
        seconds = time.perf_counter() - begun
        try:
            run.done.wait(0)
            results = self._parted(requests, run.results(), size)
        except BaseException as error:
            self._failed(requests, error)
            return
        finally:
            run.release()  # before waiters wake, as they may destroy the device
        self._end_run(requests, results, size, seconds)

    def _parted(
        self, requests: Sequence[Request], arrays: Sequence[Array], size: int
    ) -> Sequence[Sequence[Any]]:
        """Split the results of a run into the rows of each compute."""
        counts = [request.rows for request in requests]
        return handed_out(requests, counts, arrays, self._how.axes.outputs, size)

    def _end_run(
        self,
        requests: Sequence[Request],
        results: Sequence[Sequence[Any]],
        size: int,
        seconds: float,
        beside: bool = False,
    ) -> None:
        """Deliver its rows to each compute, and note the duration of the run."""
        rows = sum(request.rows for request in requests)
        with self._lock:  # before the waiters wake and submit again
            self._computed -= rows
            self._handed += rows
            self._policy.is_short = seconds < LONG_RUN_SECONDS
            self._policy.row = seconds / rows
            if rows == size:
                self._policy.ran(size, seconds)
            self._end(beside)
        end_all(requests, results)

    def _failed(
        self, requests: Sequence[Request], error: BaseException, beside: bool = False
    ) -> None:
        """Queue the computes again to run alone, so that only the faulty ones fail."""
        lost = isinstance(error, ContextLostError)
        again = [] if lost or len(requests) == 1 else requests
        if not again:
            _fail(requests, error)
        with self._lock:
            self._computed -= sum(request.rows for request in requests)
            for request in reversed(again):
                request.apart = True
                self._waiting.appendleft(request)
                self._rows += request.rows
            self._end(beside)


def _fail(requests: Sequence[Request], error: BaseException) -> None:
    end_all(requests, [error] * len(requests))

"""Computes that wait to be joined: one run of what waits, and each gets its own rows of it.

Runs have few sizes, so that few are compiled, and that in the background: meanwhile those are used
that there are. Rows that are missing to a size are copies of others.
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

from webnn_py.api.batching.batch_size_policy import Pace
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

RUNS_ON_A_DEVICE = 2
"""Of one line: while one is computed and read back, the next is joined and uploaded."""


AT_ONCE = 5e-4
"""Seconds of a run up to which an event loop computes it: to hand it over and back takes 0.1 ms."""
FEW = 3
"""Rows that one thread computes sooner than several that have to be woken."""


@dataclass(frozen=True, slots=True)
class Joining:
    """How computes are joined.

    Attributes:
        session: The context's.
        compiled: The graph.
        executables: What runs it, also once it is destroyed.
        axes: Where its runs are joined.
        sizes: All open sizes, for a size of the dimension.
        pace: What sizes runs have.
        max_delay: How many seconds the first of a run waits for others.
    """

    session: Session
    compiled: CompiledGraph
    executables: LRUCache[Prepared]
    axes: BatchAxes
    sizes: Callable[[int], Sizes]
    pace: Pace
    max_delay: float


class Line:
    """Computes that wait to be joined with each other.

    Args:
        how: What to do with them.
        lock: Reentrant: work that is refused at once fails what waits.
        forget: Called with the lock held when nothing waits and nothing runs.
    """

    def __init__(self, how: Joining, lock: threading.RLock, forget: Callable[[Line], None]) -> None:
        self._how = how
        self._session = how.session
        self._forget = forget
        self._pace = how.pace
        self._lock = lock
        self._waiting: deque[Request] = deque()
        self._rows = 0  # that wait
        self._under_way = 0  # runs, those that are about to begin included
        on_host = self._session.device is None
        self._most = self._session.workers if on_host else RUNS_ON_A_DEVICE
        self._timer: threading.Timer | None = None
        self._preparing: set[int] = set()  # sizes that are being compiled
        self._stalled = 0  # runs that wait for one of them
        self._computed = self._handed = 0  # rows under way, and handed out: as many may come again
        self._beside = False  # whether runs are computed beside those that are under way
        self._leader: Request | None = None  # who awaits it is about to run what waits

    def add(self, request: Request) -> bool:
        """Have a compute wait; the lock is held. Gives whether who awaits it is to `lead`."""
        self._waiting.append(request)
        self._rows += request.rows
        self._handed = max(0, self._handed - request.rows)
        if self._leader is None:
            return self._consider(request)
        if self._leader.loop is not request.loop:  # that may be at rest, for as long as it likes
            self._leader = None
            self._schedule()
        return False

    async def lead(self, request: Request) -> None:
        """Run what waits on this event loop's thread, once other tasks had a turn to add more."""
        brief = gone = False
        try:
            await next_turn()
            brief = self._is_brief()
        except GeneratorExit:  # who asks next, from another loop, has it run
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
        """Have it wait no more, if it still does; it may be computed in vain where `gone`."""
        with hold(self._lock, not gone) as held:
            if held and request in self._waiting:
                self._waiting.remove(request)
                self._rows -= request.rows
                self._consider()

    def release(self) -> None:
        """The context is gone: nothing that waits will be done, whatever its threads are at."""
        with self._lock:
            requests, self._rows = list(self._waiting), 0
            self._waiting.clear()
            self._consider()
        _fail(requests, ContextLostError(self._session.why_lost()))

    # What follows up to `_prepare` is called with the lock held.

    def _consider(self, leader: Request | None = None) -> bool:
        """Begin a run if it is time to; gives whether that is left to who awaits `leader`."""
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
        """Whether a run of what waits takes but a moment."""
        brief = self._pace.row * self._rows <= AT_ONCE and not self._pace.crowded
        return brief and self._session.device is None and self._session.alive

    def _patience(self) -> float:
        """Seconds in which others may still join what waits."""
        delay = self._how.max_delay if self._session.alive else 0
        if not delay or self._rows >= self._pace.sizes[-1]:
            return 0
        return self._waiting[0].arrived + delay - time.monotonic()

    def _schedule(self) -> None:
        """Begin a run on the context's thread, after what other graphs have waiting there."""
        self._session.begin_on_worker(self._begin, self._fail)

    def _end(self, beside: bool = False) -> None:
        """A run ended, or cannot begin."""
        if not beside:
            self._under_way -= 1
            self._consider()

    def _take(self) -> tuple[list[Request], int]:
        """What the next run computes, and its size; nothing while that is being compiled."""
        first = self._waiting[0]
        self._pace.sees(self._rows + self._computed + self._handed)
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
        """The size of a run for so many rows, or the first of them; 0 if none is compiled."""
        sizes = self._pace.sizes
        rows = max(least, min(rows, self._pace.most))
        larger = next(size for size in sizes if size >= rows)
        smaller = max((size for size in sizes if size <= rows), default=0)
        # Rows that nobody asked for are worth it if they are few.
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
        """Compile for a size on the thread for builds."""
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
        """A size is compiled, or cannot be: then runs are smaller."""
        try:
            prepared.wait(0)
            error = None
        except BaseException as caught:
            error = caught
        with self._lock:
            self._preparing.discard(size)
            stalled, self._stalled = self._stalled, 0
            if error is not None and size != self._pace.sizes[0]:
                self._pace.drop(size)
                error = None
            for _ in range(stalled):
                if error is None:
                    self._schedule()
                else:
                    self._fail(error)

    def _rung(self) -> None:
        """The first one has waited long enough."""
        with self._lock:
            self._timer = None
            self._consider()

    def _fail(self, error: BaseException) -> None:
        """No run can begin: nothing that waits will be done."""
        with self._lock:
            requests, self._rows = list(self._waiting), 0
            self._waiting.clear()
            self._end()
        _fail(requests, error)

    def _begin(self) -> None:
        """Join what waits and run it."""
        requests: list[Request] = []
        try:
            with self._lock:
                if not self._waiting:  # they were withdrawn
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
            if not isinstance(error, Exception):  # such as by Ctrl-C
                raise

    def _begin_beside(self) -> None:
        """Have more runs begin on another thread while they can be full; the lock is held.

        One computes while another waits for the interpreter, for a good part of a short run.
        """
        pays = self._pace.is_short and not self._beside and self._session.leaves_interpreter
        if pays and self._can_be_full():
            self._beside = True
            self._session.begin_beside_worker(self._run_beside, self._end_beside)

    def _can_be_full(self) -> bool:
        """Whether a run can that needs no order: nothing is written that others see."""
        most = min(self._pace.most, self._pace.sizes[-1])
        return self._rows >= most and all(
            each.cancellation is None for each in itertools.islice(self._waiting, most)
        )

    def _run_beside(self) -> None:
        """Run what waits until it fills no run any more."""
        while True:
            with self._lock:
                requests, size = self._take() if self._can_be_full() else ([], 1)
                if not requests:
                    self._stalled -= size == 0  # the context's own threads wait for a size
                    self._end_beside()
                    return
            try:
                self._run(requests, size, beside=True)
            except BaseException as error:
                self._failed(requests, error, beside=True)

    def _end_beside(self, error: BaseException | None = None) -> None:
        """The context's own threads run what is left, or fail it."""
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
                self._session.begin_on_worker(run.begin, run.done.set_exception, run.prepare_next)
                return
            try:
                run.begin()
            except BaseException as error:
                run.done.set_exception(error)

        run.when_there_is_room(begin)

    def _chosen(self, sizes: Sizes, size: int) -> Executable:
        """What runs: by one thread, if there is such a thing, where others run meanwhile.

        Or where an event loop computes a few rows: a pool's threads take longer to wake.
        """
        executable = self._executable(sizes)
        one = self._pace.crowded or (size <= FEW and runs_event_loop())
        if not (one and self._session.leaves_interpreter):
            return executable
        assert isinstance(executable, HostExecutable)
        alone = self._session.alone.of(executable)
        if alone is None:
            return executable
        self._pace.has_alone = True  # for other sizes soon, too
        return alone

    def _finish(
        self, run: AwaitedRun, requests: Sequence[Request], size: int, begun: float
    ) -> None:
        """A device's run has ended."""
        seconds = time.perf_counter() - begun
        try:
            run.done.wait(0)
            results = self._parted(requests, run.results(), size)
        except BaseException as error:
            self._failed(requests, error)
            return
        finally:
            run.release()  # before anybody is told, who may destroy the device
        self._end_run(requests, results, size, seconds)

    def _parted(
        self, requests: Sequence[Request], arrays: Sequence[Array], size: int
    ) -> Sequence[Sequence[Any]]:
        """Each compute's rows of what a run gave."""
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
        """Give each compute its rows."""
        rows = sum(request.rows for request in requests)
        with self._lock:  # before they can come again
            self._computed -= rows
            self._handed += rows
            self._pace.is_short = seconds < LONG_RUN_SECONDS
            self._pace.row = seconds / rows
            if rows == size:
                self._pace.ran(size, seconds)
            self._end(beside)
        end_all(requests, results)

    def _failed(
        self, requests: Sequence[Request], error: BaseException, beside: bool = False
    ) -> None:
        """Run each alone, so that an error is only of those that it comes from."""
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

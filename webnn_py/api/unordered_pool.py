"""Thread pool for awaited computes on the host that need no order, as their memory is private.

The computes wait in one queue. A worker thread runs one after the other for a while, and wakes an
event loop once for all that finished meanwhile: handing over the GIL for each would take longer
than a small graph. If several short computes wait, helper threads join in, and each thread then
uses a single-threaded executable.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from webnn_py.core.completion import Waiter, end_all
from webnn_py.core.errors import ContextLostError, convert_memory_errors
from webnn_py.core.thread_priority import LONG_RUN_SECONDS
from webnn_py.core.workers import Workers
from webnn_py.engines.base import HostExecutable
from webnn_py.ir import Array
from webnn_py.memory.allocation import OutputSpecs


@dataclass(frozen=True)
class PoolPolicy:
    """Thresholds of the pool of unordered runs.

    Attributes:
        wake_seconds: Interval in seconds at which a thread wakes the event loops while more runs
            wait.
        brief_run_seconds: Duration in seconds below which results are delivered in groups, as
            waking a loop is costly by comparison. A second thread within such a run does not pay.
        turn_seconds: Seconds after which a thread yields to other work of the context.
        long_run_seconds: Duration in seconds above which a run uses its engine's own threads.
        max_helpers: Maximum helper threads. More would only wait for the GIL.
        runs_per_helper: Waiting runs per computing thread above which one more helper starts.
        brief_runs_per_helper: The same threshold for brief runs, whose threads often wait for the
            GIL.
    """

    wake_seconds: float = 1e-3
    brief_run_seconds: float = 2.5e-4
    turn_seconds: float = 2e-3
    long_run_seconds: float = LONG_RUN_SECONDS
    max_helpers: int = min(4, os.cpu_count() or 1) - 1
    runs_per_helper: int = 2
    brief_runs_per_helper: int = 16


DEFAULT_POLICY = PoolPolicy()


class Alone:
    """Lazy cache of single-threaded executables, which compute on the calling thread only.

    Args:
        builder: Threads that create them in the background.
    """

    def __init__(self, builder: Workers) -> None:
        self._builder = builder
        self._asked: weakref.WeakSet[HostExecutable] = weakref.WeakSet()

    def of(self, executable: HostExecutable) -> HostExecutable | None:
        """Return the single-threaded executable; None, and begin to create it, if there is none."""
        found = executable.alone
        if found is None and executable not in self._asked:
            self._asked.add(executable)
            with contextlib.suppress(ContextLostError):
                self._builder.submit(executable.make_alone, _ignore)
        return found


def _ignore(error: BaseException) -> None:
    """Ignore the error: runs keep the multi-threaded executable."""


class HostRequest(Waiter):
    """Awaitable compute of the pool.

    Args:
        executable: Executable to run.
        inputs: Private input arrays, in the graph's order.
        ends: Shapes and data types of the outputs.

    Attributes:
        executable: Executable to run.
        cancelled: Whether the compute was cancelled; results of one in progress are discarded.
    """

    __slots__ = ("_ends", "_inputs", "cancelled", "executable")

    def __init__(
        self, executable: HostExecutable, inputs: Sequence[Array], ends: OutputSpecs
    ) -> None:
        super().__init__()
        self.executable = executable
        self._inputs = inputs
        self._ends = ends
        self.cancelled = False

    def cancel(self) -> None:
        """Cancel the compute and drop its inputs."""
        self.cancelled, self._inputs = True, ()

    @convert_memory_errors
    def compute(self, executable: HostExecutable) -> Sequence[Array]:
        """Return the outputs, computed by its own executable or an equivalent one."""
        inputs, self._inputs = self._inputs, ()
        if self.cancelled:  # by another thread, just now
            return ()
        return executable.new_results(inputs, self._ends)


class IndependentRuns:
    """Pool of the unordered runs of one context.

    Args:
        workers: Worker threads of the context.
        threads: Number of worker threads.
        helpers: Helper threads; None if runs hold the GIL.
        alone: Cache of single-threaded executables, for when several threads compute.
    """

    def __init__(
        self,
        workers: Workers,
        threads: int,
        helpers: Workers | None,
        alone: Alone,
    ) -> None:
        self.policy = DEFAULT_POLICY
        self._workers, self._helpers, self._alone = workers, helpers, alone
        self._free = self._threads = threads
        self._helping = 0
        self._waiting: deque[HostRequest] = deque()
        self._lock = threading.Lock()

    def add(self, request: HostRequest) -> None:
        """Add a request to the queue, and start a free worker thread."""
        begins = False
        try:
            with self._lock:
                self._waiting.append(request)
                begins = self._free > 0
                self._free -= begins
            if begins:
                _submit(self._workers, self._compute, self._fail)
        except BaseException:  # such as Ctrl-C: the submission may or may not have happened
            if begins:
                _submit(self._workers, self._compute, self._fail)
            raise

    def fail(self, error: BaseException) -> None:
        """Fail all waiting requests at the loss of the context, even if its threads are busy."""
        requests: list[HostRequest] = []
        with contextlib.suppress(IndexError):
            while True:
                requests.append(self._waiting.popleft())
        end_all(requests, [error] * len(requests))

    def _compute(self) -> None:
        """Compute waiting requests for one turn, then yield to other work."""
        self._take(helps=False)
        with self._lock:
            more = bool(self._waiting)
            self._free = min(self._free + (not more), self._threads)
        if more:
            _submit(self._workers, self._compute, self._fail)

    def _help(self) -> None:
        """Compute waiting requests on a helper thread, until a long one or none waits."""
        if self._take(helps=True):
            self._begin_to_help()
        else:
            self._end_help()

    def _begin_to_help(self) -> None:
        if self._helpers is not None:
            _submit(self._helpers, self._help, self._end_help)

    def _end_help(self, error: BaseException | None = None) -> None:
        with self._lock:
            self._helping -= 1

    def _take(self, helps: bool) -> bool:
        """Compute waiting requests; return whether the turn ran out of time."""
        waiting, policy = self._waiting, self.policy
        requests: list[HostRequest] = []
        results: list[Any] = []
        now = woken = time.perf_counter()
        until, turn = now + policy.turn_seconds, 0
        while waiting and now < until and not self._workers.closed:
            try:
                if helps and waiting[0].executable.took >= policy.long_run_seconds:
                    break
                request = waiting.popleft()
            except IndexError:  # another thread was quicker
                break
            if request.cancelled:
                continue
            executable = request.executable
            chosen = self._chosen(executable, turn)
            requests.append(request)
            begun = now
            try:
                results.append(request.compute(chosen))
                now = time.perf_counter()
                executable.ran(now - begun)
            except BaseException as error:
                results.append(error)
                now = time.perf_counter()
            turn += 1
            is_brief = executable.took <= policy.brief_run_seconds
            if now - woken > policy.wake_seconds or not is_brief:
                end_all(requests, results)
                requests, results, woken = [], [], now
        end_all(requests, results)
        return now >= until

    def _chosen(self, executable: HostExecutable, turn: int) -> HostExecutable:
        """Choose the executable to run, and start one more helper if enough runs wait.

        Args:
            executable: Executable of the request.
            turn: Number of runs that the calling thread computed before in its turn.
        """
        policy, took, waiting = self.policy, executable.took, len(self._waiting)
        helping, most = self._helping, 0 if self._helpers is None else policy.max_helpers
        if took >= policy.long_run_seconds or not (most and (helping or waiting or turn)):
            return executable
        alone = self._alone.of(executable)
        if alone is None:
            return executable
        is_brief = took <= policy.brief_run_seconds
        many = policy.brief_runs_per_helper if is_brief else policy.runs_per_helper
        if waiting > (1 + helping) * many:
            with self._lock:
                begins = self._helping < most
                self._helping += begins
            if begins:
                self._begin_to_help()
            return alone
        return alone if helping or is_brief else executable

    def _fail(self, error: BaseException) -> None:
        """Fail all waiting requests, as the worker threads accept no more work."""
        with self._lock:
            self._free = min(self._free + 1, self._threads)
            requests = [*self._waiting]
            self._waiting.clear()
        end_all(requests, [error] * len(requests))


def _submit(
    workers: Workers, work: Callable[[], None], fail: Callable[[BaseException], None]
) -> None:
    try:
        workers.submit(work, fail)
    except RuntimeError as error:  # the context is lost, or there is no room for a thread
        fail(error)

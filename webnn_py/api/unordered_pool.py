"""Awaited computes on the host that need no order: nobody else sees what they read and write.

They wait in one line. A thread of the context computes one after the other for a while, and wakes
an event loop once for all that ended meanwhile: to hand the interpreter over for each would take
longer than a small graph. Where several short ones wait, another thread helps, and each computes
alone.
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
    """Thresholds of a pool of unordered runs.

    Attributes:
        wake_seconds: A thread wakes the event loops after so long, while more runs wait.
        brief_run_seconds: Briefer runs are handed out together, as waking a loop takes a part of
            them; nor does a second thread within one pay.
        turn_seconds: Other work of the context has its turn after so long.
        long_run_seconds: Longer runs are left to the threads of their engine.
        max_helpers: Threads beside the context's own. More would wait for the interpreter.
        runs_per_helper: One more thread helps if more runs than this wait for each that computes.
        brief_runs_per_helper: The same of brief runs, whose threads wait for the interpreter often.
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
    """What computes on its calling thread alone, of executables: made when it is first asked for.

    Args:
        builder: Makes it.
    """

    def __init__(self, builder: Workers) -> None:
        self._builder = builder
        self._asked: weakref.WeakSet[HostExecutable] = weakref.WeakSet()

    def of(self, executable: HostExecutable) -> HostExecutable | None:
        """What computes the same alone, if it is there."""
        found = executable.alone
        if found is None and executable not in self._asked:
            self._asked.add(executable)
            with contextlib.suppress(ContextLostError):
                self._builder.submit(executable.make_alone, _ignore)
        return found


def _ignore(error: BaseException) -> None:
    """It stays as it was."""


class HostRequest(Waiter):
    """One compute, to be awaited by the task that makes it.

    Args:
        executable: What runs.
        inputs: In its order, which nobody else changes.
        ends: Of its outputs.

    Attributes:
        executable: As given.
        cancelled: It need not begin any more; what is under way nobody sees.
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
        """Have it not begin any more, nor keep its inputs."""
        self.cancelled, self._inputs = True, ()

    @convert_memory_errors
    def compute(self, executable: HostExecutable) -> Sequence[Array]:
        """Its outputs, by its own executable or one that computes the same."""
        inputs, self._inputs = self._inputs, ()
        if self.cancelled:  # just now
            return ()
        return executable.new_results(inputs, self._ends)


class IndependentRuns:
    """Those of one context.

    Args:
        workers: The context's threads.
        threads: How many these are.
        helpers: Threads that may help them; None where runs hold the interpreter.
        alone: Gives what runs where several threads compute.
        policy: Its thresholds.
    """

    def __init__(
        self,
        workers: Workers,
        threads: int,
        helpers: Workers | None,
        alone: Alone,
        policy: PoolPolicy = DEFAULT_POLICY,
    ) -> None:
        self.policy = policy
        self._workers, self._helpers, self._alone = workers, helpers, alone
        self._free = self._threads = threads
        self._helping = 0
        self._waiting: deque[HostRequest] = deque()
        self._lock = threading.Lock()

    def add(self, request: HostRequest) -> None:
        """Have one wait."""
        begins = False
        try:
            with self._lock:
                self._waiting.append(request)
                begins = self._free > 0
                self._free -= begins
            if begins:
                _submit(self._workers, self._compute, self._fail)
        except BaseException:  # such as by Ctrl-C: a thread may have been given it or not
            if begins:
                _submit(self._workers, self._compute, self._fail)
            raise

    def fail(self, error: BaseException) -> None:
        """The context is lost: nothing that waits will be done, whatever its threads are at."""
        requests: list[HostRequest] = []
        with contextlib.suppress(IndexError):
            while True:
                requests.append(self._waiting.popleft())
        end_all(requests, [error] * len(requests))

    def _compute(self) -> None:
        """Compute what waits, for one turn."""
        self._take(helps=False)
        with self._lock:
            more = bool(self._waiting)
            self._free = min(self._free + (not more), self._threads)
        if more:
            _submit(self._workers, self._compute, self._fail)

    def _help(self) -> None:
        """The same, for as long as what waits is short."""
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
        """Compute what waits; whether that ends as the turn of others has come."""
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
        """What runs; one thread more begins to help if that is worth it.

        Args:
            executable: What was asked for.
            turn: How many its thread computed before, in its turn.
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
        """The context's threads take no more work."""
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

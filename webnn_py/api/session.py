"""What stands behind a context: its engine, the order of its work, its threads."""

from __future__ import annotations

import functools
import threading
import weakref
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from webnn_py.api.unordered_pool import DEFAULT_POLICY, Alone, IndependentRuns
from webnn_py.core import fork_guard, gil_yield
from webnn_py.core.completion import Cancellation, Completion, wait_or_cancel
from webnn_py.core.devices import MLDeviceType
from webnn_py.core.errors import (
    ContextLostError,
    InvalidStateError,
    ValidationError,
)
from webnn_py.core.lru_cache import CacheLimits
from webnn_py.core.messages import LOG, shown
from webnn_py.core.open_dims import typical_sizes
from webnn_py.core.parallel_map import MAX_THREADS
from webnn_py.core.workers import Workers
from webnn_py.engines.base import Engine, Executable
from webnn_py.engines.executor import CompileBy, Listing, by_compile, compile_on, compile_open
from webnn_py.engines.limits import EngineLimits
from webnn_py.engines.reference import ReferenceEngine, evaluate
from webnn_py.ir import Graph
from webnn_py.memory.memory_trim import trim_memory
from webnn_py.memory.weight_spill import WeightSpill
from webnn_py.ops.registry import Operator, TypesByOperand
from webnn_py.ops.replay import fix
from webnn_py.ordering.operation import Run
from webnn_py.passes import (
    Derive,
    SharedResults,
    Target,
    derive_anew,
    optimize,
    optimize_open,
    report,
)
from webnn_py.passes.derived_constants import Results, Sources

T = TypeVar("T")
E = TypeVar("E", bound=Executable)
Compiled = tuple[Listing, Executable]
CompileForSizes = Callable[[Mapping[str, int]], Compiled]

DEFAULT_ROOM = CacheLimits()


@dataclass(frozen=True, slots=True)
class MLContextLostInfo:
    """Why a context was lost.

    Attributes:
        message: What happened, in words.

    Source: WebNN 2026, "MLContextLostInfo dictionary".
    """

    message: str


class Holder(Protocol):
    """What has memory of a context: a tensor, a graph."""

    def release(self) -> None:
        """Give it back; the context is gone."""
        ...


class Session:
    """An engine at work for one context.

    Args:
        engine: What compiles and runs its graphs.
        device_type: "cpu" or "gpu".
        workers: How many threads it runs work on.
        room: How many sets of sizes each of its graphs stays compiled for.

    Attributes:
        workers: As given.
        leaves_interpreter: Whether runs leave the interpreter to other threads, all the while.
        alone: Gives executables for one thread, where several compute.
        independent: The awaited runs that need no order.
        queue: The order of its work.
        lost: Why it was lost, once it is.
        alive: What that says, at the cost of an attribute; see `check_alive`.
    """

    def __init__(
        self,
        engine: Engine,
        device_type: MLDeviceType,
        workers: int = 1,
        room: CacheLimits = DEFAULT_ROOM,
    ) -> None:
        self.engine = engine
        self.room = room
        self.workers = workers
        self.device_type: MLDeviceType = device_type
        self.lost: Completion[MLContextLostInfo] = Completion()
        # On a CPU, the reference runs what the engine does not.
        helps = device_type == "cpu" and not isinstance(engine, ReferenceEngine)
        self._engines = (engine, ReferenceEngine()) if helps else (engine,)
        self._types: dict[str, TypesByOperand] = {}
        # A device holds each constant once, as it is known by its array.
        self._share: Derive = derive_anew if engine.device is None else SharedResults()
        self._forked = False
        self.alive = True
        self._worker = Workers(f"webnn-{device_type}", workers, computes=device_type == "cpu")
        self._builder = Workers(f"webnn-{device_type}-build")
        self._second = Workers(
            f"webnn-{device_type}-helper", max(1, DEFAULT_POLICY.max_helpers), computes=True
        )
        self._improver = Workers(f"webnn-{device_type}-improver")
        self._all_workers = self._worker, self._builder, self._second, self._improver
        self.leaves_interpreter = helps
        self.alone = Alone(self._builder)
        helpers = self._second if helps else None
        self.independent = IndependentRuns(self._worker, workers, helpers, self.alone)
        self._builds: set[Completion[Any]] = set()
        self._holders: weakref.WeakSet[Holder] = weakref.WeakSet()
        self._holding = threading.Lock()
        for threads in self._all_workers:
            weakref.finalize(self, threads.finish).atexit = False
        self.queue = engine.queue(functools.partial(_start, self._worker), workers)
        self.queue.loss().on_lost = functools.partial(_lose, weakref.ref(self))
        _SESSIONS.add(self)

    @property
    def device(self) -> Any:
        """The device whose resources it takes, or None."""
        return self.engine.device

    def begin_threads(self) -> None:
        """Begin those that an event loop will give work to; see `Workers.begin`."""
        for threads in (self._worker, self._builder):
            threads.begin()

    def lose(self, message: str) -> None:
        """What is not done fails, nothing new is accepted. Harmless twice."""
        if self._forked:
            return
        self.lost.set_result(MLContextLostInfo(message))
        self.alive = False
        self.queue.close(ContextLostError(self.why_lost()))
        self._fail_builds()
        for threads in self._all_workers:
            threads.close(self.why_lost())
        self.independent.fail(ContextLostError(self.why_lost()))
        with self._holding:
            holders = tuple(self._holders)
        for holder in holders:
            holder.release()
        for engine in self._engines:
            engine.destroy()

    def has(self, holder: Holder) -> None:
        """Have it let go of its memory when the context is gone, though the user still has it."""
        with self._holding:
            self._holders.add(holder)
        if not self.alive and not self._forked:  # another thread lost it just now
            holder.release()

    def leave_behind(self) -> None:
        """After a fork: it is the parent process's."""
        self.alive, self._forked = False, True
        self.lost = Completion()
        self.lost.set_result(MLContextLostInfo(f"this MLContext {fork_guard.FORKED}"))

    def check_alive(self) -> None:
        """Raise an error if the context cannot be used.

        Raises:
            ContextLostError: It was destroyed or lost.
            InvalidStateError: This is a child process, and it belongs to the parent.
        """
        if not self.alive:
            self.check_process()
            raise ContextLostError(self.why_lost())

    def why_lost(self) -> str:
        """What errors say of it, once it is lost."""
        return f"this MLContext is lost: {self.lost.wait().message}"

    def check_process(self) -> None:
        """Raise an InvalidStateError in a child process, where the context is the parent's."""
        if self._forked:
            raise InvalidStateError(f"this MLContext {fork_guard.FORKED}")

    @property
    def _last_engine(self) -> Engine:
        """The engine that runs what no other one does."""
        return self._engines[-1]

    def limits(self) -> EngineLimits:
        """Bounds of every tensor here."""
        return self._last_engine.limits()

    def supported_types(self, op: Operator) -> TypesByOperand:
        """Data types that an operator's operands may have here; the same object each time."""
        if op.name not in self._types:
            self._types[op.name] = self._last_engine.supported_types(op)
        return self._types[op.name]

    def optimize_open(self, recipe: Graph) -> Graph:
        """A recipe with open dimensions, after those of the engine's passes that allow for them."""
        return optimize_open(
            recipe, _target(self.engine, derive_anew, self._share), self.engine.passes
        )

    def compile(
        self,
        recipe: Graph,
        derive: Derive = derive_anew,
        opened: Callable[[Engine], Compiled | None] = lambda engine: None,
    ) -> Compiled:
        """A recipe for this context's engine, and where that does not run all, the reference.

        Args:
            recipe: Without open dimensions.
            derive: Gives what passes compute from constants.
            opened: Gives what an engine compiled for all sizes, at these.

        Returns:
            What is listed, the graph after the engine's passes, and what runs it.

        Raises:
            OperationError: The engine or device could not compile it.
        """
        with self.queue.loss():
            listing, executable = self.engine.pick(
                recipe, lambda engine: opened(engine) or self._compile_on(engine, recipe, derive)
            )
        report(executable.describe, executable.code)
        return listing, executable

    def load(self, make: Callable[[], E | None]) -> E | None:
        """What runs a graph that is compiled already, if it is.

        Args:
            make: Makes it of what was compiled; None where nothing was.

        Raises:
            OperationError: The engine or device could not.
        """
        with self.queue.loss():
            made = make()
        if made is not None:
            report(made.describe, made.code)
        return made

    def optimize(self, recipe: Graph, derive: Derive) -> Graph:
        """A recipe after the passes of this context's engine; arguments as of `compile`."""
        return _optimize(self.engine, recipe, derive, self._share)

    def compile_as(self, optimized: Graph, compile_by: CompileBy = by_compile) -> Compiled:
        """As `compile`, of what this context's engine's passes have made of a recipe.

        Args:
            optimized: That.
            compile_by: What compiles for an engine, if not its `compile`.
        """
        return self.compile(
            optimized,
            opened=lambda engine: compile_on(optimized, self._with_help(engine), compile_by),
        )

    def compile_open(self, optimized: Graph, engine: Engine) -> CompileForSizes | None:
        """A recipe for all sizes of its open dimensions, as far as an engine can.

        Args:
            optimized: The recipe, as `optimize_open` gives it.
            engine: This context's, or one for which that stands.

        Returns:
            What makes the rest for some sizes, as `compile`; None where each set of sizes is to be
            compiled for.
        """
        if not engine.stays_open:
            return None
        try:
            opened = _optimize(engine, optimized, derive_anew, self._share)
            sample = fix(opened, typical_sizes(opened.open_sizes))
            compile = compile_open(opened, sample, self._with_help(engine))
        except ValidationError as error:  # something is not known of open dimensions
            LOG.info("engine %s compiles for each set of sizes: %s", engine.name, error)
            return None
        return None if compile is None else lambda sizes: compile(fix(opened, sizes), sizes)

    def _compile_on(self, engine: Engine, recipe: Graph, derive: Derive) -> Compiled:
        return compile_on(_optimize(engine, recipe, derive, self._share), self._with_help(engine))

    def _with_help(self, engine: Engine) -> Sequence[Engine]:
        """An engine, and behind it what runs the rest: on a CPU, the reference."""
        helping = self._engines[1:]
        return (engine,) if isinstance(engine, ReferenceEngine) else (engine, *helping)

    def run_on_worker(self, work: Callable[[], T]) -> Completion[T]:
        """Run `work` on a thread of the context, begun after what was given to it before."""
        self.check_alive()
        return self._worker.run(work)

    def run_on_builder(
        self, work: Callable[[], T], cancellation: Cancellation | None = None
    ) -> Completion[T]:
        """Run `work` on the thread for builds: running graphs do not wait for it.

        It fails at once when the context is lost, whatever the thread is at, and where it was
        cancelled before it began.
        """

        def begin() -> T:
            if cancellation is not None:
                cancellation.check()
            return work()

        self.check_alive()
        done = self._builder.run(begin)
        self._builds.add(done)
        done.on_done(lambda: self._builds.discard(done))
        if self.lost.done:  # by another thread, just now
            self._fail_builds()
        return done

    async def await_builder(self, work: Callable[[], T]) -> T:
        """Await `run_on_builder`; what has not begun when the await is cancelled never will."""
        cancellation = Cancellation()
        done = self.run_on_builder(work, cancellation)
        return await wait_or_cancel(done, cancellation, settle=False)

    def _fail_builds(self) -> None:
        for done in tuple(self._builds):
            done.set_exception(ContextLostError(self.why_lost()))

    @property
    def worker_is_idle(self) -> bool:
        """Whether all that was given to the context's threads is done."""
        return self._worker.idle

    def begin_on_worker(
        self, work: Run, fail: Callable[[BaseException], None], afterwards: Run | None = None
    ) -> None:
        """As `run_on_worker`, for work that keeps its result; `fail` is told why it has none.

        Args:
            work: Run there.
            fail: Told why it did not succeed.
            afterwards: As of `Workers.submit`.
        """
        self._begin_on(self._worker, work, fail, afterwards)

    def begin_beside_worker(self, work: Run, fail: Callable[[BaseException], None]) -> None:
        """As `begin_on_worker`, on one thread more: in no order with what runs on those."""
        self._begin_on(self._second, work, fail)

    def improve(self, work: Run, needless: Callable[[], bool]) -> None:
        """Run what nobody waits for on a thread of its own, until it or the context is needless."""
        threads = self._improver

        def begin() -> None:
            with gil_yield.abandon_when(lambda: threads.closed or needless()):
                if not threads.closed:
                    work()

        self._begin_on(threads, begin, _ignore)

    def _begin_on(
        self,
        workers: Workers,
        work: Run,
        fail: Callable[[BaseException], None],
        afterwards: Run | None = None,
    ) -> None:
        try:
            self.check_alive()
            workers.submit(work, fail, afterwards)
        except ContextLostError as error:
            fail(error)


class SessionOwner:
    """What a session stands behind: a context."""

    def __init__(self, session: Session) -> None:
        self._session = session


def session_of(context: object) -> Session:
    """What stands behind a context.

    Raises:
        ValidationError: It is none.
        ContextLostError: It is lost.
    """
    if not isinstance(context, SessionOwner):
        raise ValidationError(f"context: got {shown(context)}, expected an MLContext")
    context._session.check_alive()
    return context._session


def _target(engine: Engine, derive: Derive, share: Derive) -> Target:
    keep = WeightSpill().keep if engine.has_own_weights else None

    def kept(what: Hashable, sources: Sources, compute: Callable[[], Results]) -> Results:
        made = (lambda: tuple(map(keep, compute()))) if keep else compute
        return derive(what, sources, lambda: share(what, sources, made))

    threads = 1 if engine.device is None else MAX_THREADS  # where none of its own compute
    return Target(engine.supports, evaluate, derive=kept, threads=threads)


def _optimize(engine: Engine, recipe: Graph, derive: Derive, share: Derive) -> Graph:
    """A recipe after an engine's passes, and the memory given back of weights that these read."""
    made = optimize(recipe, _target(engine, derive, share), engine.passes)
    if engine.has_own_weights:
        trim_memory(recipe.constants.values())
    return made


_SESSIONS: weakref.WeakSet[Session] = weakref.WeakSet()


def _leave_behind() -> None:
    """Contexts of the parent process; their threads are not here, and their locks may be held."""
    for session in _SESSIONS:
        session.leave_behind()


fork_guard.after_fork_in_child(_leave_behind)


def _lose(session: weakref.ref[Session], message: str) -> None:
    alive = session()
    if alive is not None:
        alive.lose(message)


def _start(worker: Workers, run: Run) -> None:
    """Run on the worker; a context that is lost meanwhile has failed its work already."""
    try:
        worker.submit(run, _ignore)
    except ContextLostError:
        if worker.ended_with_python:
            raise


def _ignore(error: BaseException) -> None:
    """Who gave the work keeps track of it."""

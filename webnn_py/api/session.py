"""The session behind an MLContext: its engine, its work queue and its threads."""

from __future__ import annotations

import functools
import threading
import weakref
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from webnn_py.api.recipe_cache import RecipeCache
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
E = TypeVar("E", bound=Executable | None)
Compiled = tuple[Listing, Executable]
CompileForSizes = Callable[[Mapping[str, int]], Compiled]

DEFAULT_ROOM = CacheLimits()


@dataclass(frozen=True, slots=True)
class MLContextLostInfo:
    """Reason for the loss of a context.

    Attributes:
        message: Description of the loss.

    Source: WebNN 2026, "MLContextLostInfo dictionary".
    """

    message: str


class Holder(Protocol):
    """Owner of a context's memory, such as a tensor or a graph."""

    def release(self) -> None:
        """Release the memory after the context is lost."""
        ...


class Session:
    """Engine, work queue and threads of one context.

    Args:
        engine: Engine that compiles and runs the graphs.
        device_type: "cpu" or "gpu".
        workers: Number of worker threads.
        room: Cache limits for the sets of sizes that each graph stays compiled for.

    Attributes:
        workers: Number of worker threads.
        leaves_interpreter: Whether runs release the GIL while they compute.
        alone: Cache of single-threaded executables, for when several threads compute.
        independent: Pool of awaited runs that need no order.
        queue: Queue that orders the context's work.
        recipes: Compiled recipes, which equal graphs share.
        supported_types: Supported data types of an operator's operands, by operator.
        lost: Completion with the reason for the loss of the context.
        alive: Whether the context can be used; cheaper to read than `lost`. See `check_alive`.
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
        # On a CPU, the reference engine runs the operators that the engine does not support.
        helps = device_type == "cpu" and not isinstance(engine, ReferenceEngine)
        self._engines = (engine, ReferenceEngine()) if helps else (engine,)
        self.supported_types = _SupportedTypes(self._last_engine)
        self.recipes = RecipeCache(engine)
        # Share derived arrays, as a device engine uploads each constant array once, by identity.
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
        """Return the device whose resources the engine accepts, or None."""
        return self.engine.device

    def begin_threads(self) -> None:
        """Start the threads that an event loop submits work to; see `Workers.begin`."""
        for threads in (self._worker, self._builder):
            threads.begin()

    def lose(self, message: str) -> None:
        """Fail pending work and refuse new work. Harmless twice."""
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
        """Register a holder, whose memory is released at the loss of the context."""
        with self._holding:
            self._holders.add(holder)
        if not self.alive and not self._forked:  # another thread lost it just now
            holder.release()

    def leave_behind(self) -> None:
        """Mark the session as unusable in a forked child; it belongs to the parent process."""
        self.alive, self._forked = False, True
        self.lost = Completion()
        self.lost.set_result(MLContextLostInfo(f"this MLContext {fork_guard.FORKED}"))

    def check_alive(self) -> None:
        """Raise an error if the context cannot be used.

        Raises:
            ContextLostError: The context was destroyed or lost.
            InvalidStateError: This is a child process, and the context belongs to the parent.
        """
        if not self.alive:
            self.check_process()
            raise ContextLostError(self.why_lost())

    def why_lost(self) -> str:
        """Return the error message for a lost context."""
        return f"this MLContext is lost: {self.lost.wait().message}"

    def check_process(self) -> None:
        """Raise an InvalidStateError in a child process, where the context is the parent's."""
        if self._forked:
            raise InvalidStateError(f"this MLContext {fork_guard.FORKED}")

    @property
    def _last_engine(self) -> Engine:
        """Return the fallback engine, which runs operators that no other engine supports."""
        return self._engines[-1]

    def limits(self) -> EngineLimits:
        """Return the limits on every tensor of this context."""
        return self._last_engine.limits()

    def optimize_open(self, recipe: Graph) -> Graph:
        """Run the engine's passes that support open dimensions on a recipe that has some."""
        return optimize_open(
            recipe, _target(self.engine, derive_anew, self._share), self.engine.passes
        )

    def compile(
        self,
        recipe: Graph,
        derive: Derive = derive_anew,
        opened: Callable[[Engine], Compiled | None] = lambda engine: None,
    ) -> Compiled:
        """Compile a recipe for this context's engine, with the reference engine as fallback.

        Args:
            recipe: Graph without open dimensions.
            derive: Computes the constants that passes derive from other constants.
            opened: Returns the specialization of a shape-generic compilation, or None.

        Returns:
            The listing of the graph after the engine's passes, and its executable.

        Raises:
            OperationError: The engine or device could not compile it.
        """
        with self.queue.loss():
            listing, executable = self.engine.pick(
                recipe, lambda engine: opened(engine) or self._compile_on(engine, recipe, derive)
            )
        report(executable.describe, executable.code)
        return listing, executable

    def load(self, make: Callable[[], E]) -> E:
        """Return the executable of a graph that is already compiled, or None.

        Args:
            make: Creates the executable from the compiled code; may return None if there is none.

        Raises:
            OperationError: The engine or device could not create it.
        """
        with self.queue.loss():
            made = make()
        if made is not None:
            report(made.describe, made.code)
        return made

    def optimize(self, recipe: Graph, derive: Derive) -> Graph:
        """Run the passes of this context's engine on a recipe; arguments as in `compile`."""
        return _optimize(self.engine, recipe, derive, self._share)

    def compile_as(self, optimized: Graph, compile_by: CompileBy = by_compile) -> Compiled:
        """Compile a recipe as `compile` does, after this context's engine's passes have run.

        Args:
            optimized: The recipe after the passes.
            compile_by: Compiles a graph for an engine, by default with the engine's `compile`.
        """
        return self.compile(
            optimized,
            opened=lambda engine: compile_on(optimized, self._with_help(engine), compile_by),
        )

    def compile_open(self, optimized: Graph, engine: Engine) -> CompileForSizes | None:
        """Compile a recipe for all sizes of its open dimensions, as far as the engine can.

        Args:
            optimized: The recipe that `optimize_open` returns.
            engine: This context's engine, or one that it stands for.

        Returns:
            A function that compiles the rest for a set of sizes, with the results of `compile`.
            None if the engine must compile for each set of sizes.
        """
        if not engine.stays_open:
            return None
        try:
            opened = _optimize(engine, optimized, derive_anew, self._share)
            sample = fix(opened, typical_sizes(opened.open_sizes))
            compile = compile_open(opened, sample, self._with_help(engine))
        except ValidationError as error:  # an engine or pass needs a size that is open
            LOG.info("engine %s compiles for each set of sizes: %s", engine.name, error)
            return None
        return None if compile is None else lambda sizes: compile(fix(opened, sizes), sizes)

    def _compile_on(self, engine: Engine, recipe: Graph, derive: Derive) -> Compiled:
        return compile_on(_optimize(engine, recipe, derive, self._share), self._with_help(engine))

    def _with_help(self, engine: Engine) -> Sequence[Engine]:
        """Return an engine and its fallback: on a CPU, the reference engine."""
        helping = self._engines[1:]
        return (engine,) if isinstance(engine, ReferenceEngine) else (engine, *helping)

    def run_on_worker(self, work: Callable[[], T]) -> Completion[T]:
        """Run `work` on a worker thread; work begins in submission order."""
        self.check_alive()
        return self._worker.run(work)

    def run_on_builder(
        self, work: Callable[[], T], cancellation: Cancellation | None = None
    ) -> Completion[T]:
        """Run `work` on the build thread, so that running graphs do not wait for it.

        It fails at once when the context is lost, even while the thread is busy. It also fails if
        it is cancelled before it begins.
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
        """Run `work` on the build thread; cancelling the await before it begins drops it."""
        cancellation = Cancellation()
        done = self.run_on_builder(work, cancellation)
        return await wait_or_cancel(done, cancellation, settle=False)

    def _fail_builds(self) -> None:
        for done in tuple(self._builds):
            done.set_exception(ContextLostError(self.why_lost()))

    @property
    def worker_is_idle(self) -> bool:
        """Whether the worker threads have finished all submitted work."""
        return self._worker.idle

    def begin_on_worker(
        self, work: Run, fail: Callable[[BaseException], None], afterwards: Run | None = None
    ) -> None:
        """Run `work` on a worker thread; `work` stores its own result.

        Args:
            work: Function to run.
            fail: Called with the error if `work` does not succeed.
            afterwards: As in `Workers.submit`.
        """
        self._begin_on(self._worker, work, fail, afterwards)

    def begin_beside_worker(self, work: Run, fail: Callable[[BaseException], None]) -> None:
        """Run `work` on a helper thread, unordered with the work of the worker threads."""
        self._begin_on(self._second, work, fail)

    def improve(self, work: Run, needless: Callable[[], bool]) -> None:
        """Run background work on its own thread, until the work is needless or the context lost."""
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


class _SupportedTypes(dict[Operator, TypesByOperand]):
    """Cache of the data types that an engine supports, by operator."""

    def __init__(self, engine: Engine) -> None:
        super().__init__()
        self._engine = engine

    def __missing__(self, op: Operator) -> TypesByOperand:
        found = self[op] = self._engine.supported_types(op)
        return found


class SessionOwner:
    """Base class of MLContext, with a reference to its session."""

    def __init__(self, session: Session) -> None:
        self._session = session


def session_of(context: object) -> Session:
    """Return the session of a context.

    Raises:
        ValidationError: `context` is not an MLContext.
        ContextLostError: The context is lost.
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

    threads = 1 if engine.device is None else MAX_THREADS  # a GPU leaves the processors free
    return Target(engine.supports, evaluate, derive=kept, threads=threads)


def _optimize(engine: Engine, recipe: Graph, derive: Derive, share: Derive) -> Graph:
    """Run an engine's passes on a recipe, and release the mapped memory of the weights read."""
    made = optimize(recipe, _target(engine, derive, share), engine.passes)
    if engine.has_own_weights:
        trim_memory(recipe.constants.values())
    return made


_SESSIONS: weakref.WeakSet[Session] = weakref.WeakSet()


def _leave_behind() -> None:
    """Mark the parent's sessions in a forked child, where their threads do not exist."""
    for session in _SESSIONS:
        session.leave_behind()


fork_guard.after_fork_in_child(_leave_behind)


def _lose(session: weakref.ref[Session], message: str) -> None:
    alive = session()
    if alive is not None:
        alive.lose(message)


def _start(worker: Workers, run: Run) -> None:
    """Submit `run` to the worker; a context lost meanwhile has already failed its work."""
    try:
        worker.submit(run, _ignore)
    except ContextLostError:
        if worker.ended_with_python:
            raise


def _ignore(error: BaseException) -> None:
    """Ignore the error: the submitter tracks its work by other means."""

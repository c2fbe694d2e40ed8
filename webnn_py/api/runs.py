"""Submission and completion of awaited runs, in the context's order if needed."""

from __future__ import annotations

import functools
from collections.abc import Callable, Coroutine, Generator, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np

from webnn_py.api import tensor_operations
from webnn_py.api.session import Session
from webnn_py.api.signature import Arguments, Signature
from webnn_py.api.tensor import MLTensor, NamedTensors
from webnn_py.api.tensor_memory import TensorMemory, check_not_held, mark_failed, run_on_tensors
from webnn_py.api.unordered_pool import HostRequest
from webnn_py.core.completion import CANCELLED, Cancellation, Completion, wait_or_cancel
from webnn_py.core.dtypes import DTYPES
from webnn_py.core.errors import DataError, OperationError, ValidationError
from webnn_py.core.messages import shown
from webnn_py.core.thread_priority import LONG_RUN_SECONDS, shorten_slice
from webnn_py.engines.base import AwaitedRun, HostExecutable
from webnn_py.ir import Array, Shape
from webnn_py.memory.overlap import Region, region_of
from webnn_py.ordering.operation import Operation, Run, wait_in_order
from webnn_py.ordering.timeline import Timeline, TimelinePoint

T = TypeVar("T")
Memory = tuple[Sequence[Region], Sequence[Region]]
"""Memory regions that are read, and those that are written."""
Points = tuple[TimelinePoint, ...]
AwaitableRun = Coroutine[Any, Any, dict[str, Any]]
NO_MEMORY: Memory = ((), ())
MAX_END_BYTES = 1 << 20
"""Bytes of an output that a run between tensors reads back to notice its end: a megabyte takes an
H100 0.1 ms, and the checks that are left out take up to 0.6.
"""
MAX_STAGES = 1 << 32
"""Value of a staged run's timeline at its end, above those of its stages."""
COMPILED = "compilation"
"""Label of the timeline that a run waits for until it is compiled, in messages."""


async def finished(
    session: Session, run: AwaitedRun, given: Arguments, waits: Points
) -> dict[str, Any]:
    """Submit a run, await it, and return its outputs by name."""
    with session.queue.loss():
        if not session.alive:
            session.check_alive()
        await _wait(session, run, given, waits)
    return given.results(run.results())


def small_output(tensors: NamedTensors) -> TensorMemory | None:
    """Return the smallest output, None if to read it back takes longer than to check all again."""
    small = (one for one in tensors.writes if one.descriptor.byte_length <= MAX_END_BYTES)
    return min(small, key=lambda memory: memory.descriptor.byte_length, default=None)


async def repeated_run(
    session: Session,
    signature: Signature,
    work: Run,
    tensors: NamedTensors,
    outputs: Mapping[str, MLTensor],
    end: TensorMemory,
) -> dict[str, Any]:
    """Submit a run whose commands are cached, await its end, and return its outputs by name.

    The await reads the output `end` back. Whoever waits for that records the runs that follow.
    """
    with session.queue.loss():
        session.check_alive()
        tensor_operations.submit(session, signature.title, work, tensors.reads, tensors.writes)
        made = end.descriptor
        target = np.empty(made.shape, DTYPES[made.data_type].numpy)
        await tensor_operations.read_async(end, target, None, given=False)
    return {name: outputs[name] for name in signature.outputs}


async def computed(
    session: Session,
    executable: HostExecutable,
    inputs: Sequence[Array],
    outputs: Mapping[str, tuple[Shape, np.dtype[Any]]],
) -> dict[str, Any]:
    """Await a run whose memory is private, in the unordered pool; return its outputs by name."""
    with session.queue.loss():
        session.check_alive()
        if executable.took >= LONG_RUN_SECONDS:
            shorten_slice()
        request = HostRequest(executable, inputs, outputs.values())
        del inputs  # the request alone holds them, and drops them when cancelled
        session.independent.add(request)
        try:
            await request
        except BaseException:
            request.cancel()
            raise
        return dict(zip(outputs, request.outcome(), strict=True))


def done(session: Session, run: AwaitedRun, given: Arguments) -> dict[str, Any]:
    """Submit a run, block until it is done, and return its outputs by name."""
    with session.queue.loss():
        session.check_alive()
        fail = run.done.set_exception
        memory = run.memory()
        _submit_others(session, given, ())
        operation = ordered_operation(given, run.begin, fail, run.cancellation, memory)
        session.queue.submit(operation)
        try:
            wait_in_order(run.done, operation)
        finally:
            run.release()
    return given.results(run.results())


async def _wait(session: Session, run: AwaitedRun, given: Arguments, waits: Points) -> None:
    queue = session.queue
    in_order = bool(waits) or given.on_tensors
    shares = given.writes_given or session.device is not None
    memory = run.memory() if in_order or shares else NO_MEMORY
    unordered = None
    if any(memory) and not in_order:
        unordered = queue.begin_unordered(*memory, given.names)
        if unordered is not None:
            run.done.on_done(unordered.end)
    if not in_order and (unordered is not None or not any(memory)):
        run.when_there_is_room(functools.partial(session.begin_run, run), session.worker_is_idle)
        await _end(run, given)
        return
    signalled: Timeline | None = None
    if any(point.signal is not None for point in waits):
        signalled = Timeline()
        waits = (*waits, signalled(signal=1))
    if given.on_tensors:
        _submit_others(session, given, waits)
    operation = ordered_operation(
        given, run.begin, run.done.set_exception, run.cancellation, memory, waits
    )
    queue.submit(operation)
    await _end(run, given, functools.partial(queue.withdraw, operation))
    if signalled is not None:
        await signalled.wait_async(1)


def _submit_others(session: Session, given: Arguments, waits: Points) -> None:
    """Flush the other contexts whose tensors the run uses.

    Raises:
        InvalidStateError: Work on such a tensor waits for a timeline, but the run waits for none.
    """
    waiting = any(point.wait is not None for point in waits)
    for memories, reading in ((given.reads, True), (given.writes, False)):
        for memory in memories:
            if memory.session is session:
                continue
            if waiting:
                memory.session.queue.flush()
            else:
                check_not_held(memory, "an MLTensor of another context", reading=reading)


async def _end(run: AwaitedRun, given: Arguments, withdraw: Run | None = None) -> None:
    try:
        # Wait for writes in progress only if they go to memory of the user's.
        await wait_or_cancel(run.end, run.cancellation, withdraw, settle=given.writes_given)
    finally:
        run.release()


class HeldPlace:
    """The place of a run in stages in its context's order.

    Later work that shares tensors or output arrays with the run waits for its end. The stages
    overtake it: the operation that holds the place waits for a timeline that they signal.

    Args:
        session: Session of the context.
        inputs: The user's inputs.
        outputs: The user's outputs.
        sync: Timeline points that the run waits for and signals.
        names: Names of its outputs.
    """

    def __init__(
        self,
        session: Session,
        inputs: Mapping[str, Any],
        outputs: Mapping[str, Any],
        sync: Points,
        names: Iterable[str],
    ) -> None:
        self._queue = session.queue
        self._stages = Timeline(label="stages")
        self._count = 0
        self._signals = [point for point in sync if point.signal is not None]
        reads, writes = _tensors_among(session, inputs), _tensors_among(session, outputs)
        arrays = [one for one in outputs.values() if isinstance(one, np.ndarray)]
        self._operation: Operation | None = None
        if reads or writes or arrays or sync:
            self._operation = Operation(
                _nothing,
                _ignore,
                (self._stages(wait=MAX_STAGES), *sync),
                reads=reads,
                writes=(*writes, *map(region_of, arrays)),
                title=title_of(names),
            )
            self._queue.submit(self._operation)

    def next_stage(self) -> Points:
        """Return what the next stage signals."""
        self._count += 1
        return () if self._operation is None else (self._stages(signal=self._count),)

    async def end(self) -> None:
        """Let later work run, and return when the timelines have reached the run's points."""
        self._stages.signal(MAX_STAGES)
        for point in self._signals:
            assert point.signal is not None
            await point.timeline.wait_async(point.signal)

    def fail(self, error: BaseException) -> None:
        """Let later work run, and fail the run's signals."""
        if self._operation is not None:
            self._operation.fail_signals(error)
            self._queue.withdraw(self._operation)


def _tensors_among(session: Session, given: Mapping[str, Any]) -> list[TensorMemory]:
    """Return the memory of the context's own tensors that are there."""
    found = [one._memory for one in given.values() if isinstance(one, MLTensor)]
    return [one for one in found if one.session is session and one.storage is not None]


def promising(run: AwaitableRun, names: Sequence[str], waits: Points) -> AwaitableRun:
    """Wrap a run that signals, so that its waiters learn of a failure before it begins."""
    signals = any(point.signal is not None for point in waits)
    return _Promising(run, waits, names) if signals else run


class _Promising(Coroutine[Any, Any, dict[str, Any]]):
    """Awaited run that fails the waits for its signals if it ends before signalling.

    An `async def` coroutine cannot do this: none of it runs if its task is cancelled before the
    first step.

    Args:
        run: The wrapped run.
        sync: Timeline points that it waits for and signals.
        names: Names of its outputs.
    """

    def __init__(self, run: AwaitableRun, sync: Points, names: Sequence[str]) -> None:
        self._run = run
        self._work = Operation(_nothing, _ignore, sync, title=title_of(names))

    def send(self, value: Any) -> Any:
        """Resume the run with a value."""
        return self._step(self._run.send, value)

    def throw(self, *error: Any) -> Any:
        """Resume the run with an exception, such as a cancellation."""
        return self._step(self._run.throw, *error)

    def close(self) -> None:
        """Close the run, and fail the waits for its signals."""
        self._run.close()
        self._work.refuse(OperationError(CANCELLED))

    def __await__(self) -> Generator[Any, None, dict[str, Any]]:
        return self  # as an iterator, all that `await` needs

    def __iter__(self) -> _Promising:
        return self

    def __next__(self) -> Any:
        return self.send(None)

    def _step(self, step: Callable[..., Any], *given: Any) -> Any:
        try:
            return step(*given)
        except StopIteration:
            raise
        except BaseException as error:
            failed = isinstance(error, Exception)
            self._work.refuse(error if failed else OperationError(CANCELLED))
            raise


def _nothing() -> None:
    """Do nothing: the operation is never submitted."""


def _ignore(error: BaseException) -> None:
    """Ignore the error: the await raises it."""


async def raised(error: Exception) -> Any:
    """Raise an error of the call when it is awaited."""
    raise error


def ordered_operation(
    given: Arguments,
    run: Run,
    fail: Callable[[BaseException], None],
    cancellation: Cancellation,
    memory: Memory,
    sync: tuple[TimelinePoint, ...] = (),
) -> Operation:
    """Return the operation of a run, which stores its error in the tensors it should write.

    Args:
        given: Arguments of the run.
        run: Performs the run.
        fail: Called with the error if the run fails or is refused.
        cancellation: Cancellation of the await.
        memory: Regions that it reads and writes besides tensors.
        sync: Timeline points that it waits for and signals.
    """

    def failed(error: BaseException) -> None:
        if not cancellation.cancelled:  # a cancelled run leaves its outputs unchanged
            mark_failed(given.writes, error)
        fail(error)

    return Operation(
        functools.partial(run_on_tensors, given.reads, given.writes, run),
        failed,
        sync,
        slow=True,
        host=not given.only_tensors,
        reads=(*given.reads, *memory[0]),
        writes=(*given.writes, *memory[1]),
        title=title_of(given.names),
    )


def title_of(outputs: Iterable[str]) -> str:
    """Return the name of a run with these outputs in messages."""
    return f"compute of {', '.join(map(shown, outputs))}"


async def in_turn(
    session: Session,
    given: Arguments,
    waits: Points,
    compile_it: Callable[[], T],
    start: Callable[[T, Sequence[Any]], AwaitedRun],
) -> dict[str, Any]:
    """Submit a run, compile it on the build thread, await it, and return its outputs by name.

    The run keeps its place in the context's order.

    Args:
        session: Session of the context.
        given: Inputs and outputs of the run; the input arrays are private.
        waits: Timeline points that the run waits for and signals.
        compile_it: Compiles the executable, on the build thread.
        start: Creates the run from the compiled object and the inputs.
    """
    over = Timeline(label=COMPILED)

    def begin(inputs: Sequence[Any]) -> AwaitedRun:
        return start(compiling.wait(0), inputs)

    run = PostponedRun(session, given, begin)
    compiling: Completion[T] = session.run_on_builder(compile_it, run.cancellation)
    compiling.on_done(lambda: over.signal(1))
    return await finished(session, run, given, (*waits, over(wait=1)))


class PostponedRun(AwaitedRun):
    """Run whose executable is still being compiled.

    Args:
        session: Session of the context.
        given: Inputs and outputs of the run.
        start: Creates the actual run from the inputs, after the compilation.
    """

    def __init__(
        self,
        session: Session,
        given: Arguments,
        start: Callable[[Sequence[Any]], AwaitedRun],
    ) -> None:
        super().__init__()
        self._session = session
        self._inputs = given.hand_over()
        self._outputs = given.outputs
        self._start = start
        self._run: AwaitedRun | None = None

    def begin(self) -> None:
        """Create and begin the actual run; its executable is compiled by now."""
        inputs = self._inputs  # read first: a cancellation leads to `release`, which drops them
        self.cancellation.check()
        try:
            run = self._start(inputs)
        except (DataError, ValidationError):
            self.cancellation.cancel()  # the run leaves its outputs unchanged
            raise
        run.done, run.cancellation = self.done, self.cancellation
        self._run = run
        run.begin()

    def memory(self) -> tuple[list[Region], list[Region]]:
        """Return the regions read and written: device resources, and output arrays."""
        engine = self._session.engine
        read = [engine.region(given) for given in self._inputs if engine.takes(given)]
        written = [engine.region(given) for given in self._outputs if engine.takes(given)]
        arrays = [given for given in self._outputs if isinstance(given, np.ndarray)]
        return read, [*written, *map(region_of, arrays)]

    def results(self) -> list[Any]:
        """Return the outputs."""
        return [] if self._run is None else self._run.results()

    def release(self) -> None:
        """Drop the inputs."""
        self._inputs = ()
        if self._run is not None:
            self._run.release()

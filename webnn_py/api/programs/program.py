"""MLProgram: graphs and kernels of the user's as one piece of work, run here or saved."""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Coroutine, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, cast

from webnn_py.api.arguments import Arguments
from webnn_py.api.awaited_run import Points, done, finished, promising, raised
from webnn_py.api.deferred_run import in_turn
from webnn_py.api.descriptor import MLOperandDescriptor
from webnn_py.api.profile import MLProfile, measured, run_count
from webnn_py.api.programs.program_arguments import by_name, given_arguments, named_arguments
from webnn_py.api.programs.steps import MLProgramBuffer, MLProgramSequence, Recorder
from webnn_py.api.session import Session, SessionOwner, session_of
from webnn_py.api.signature import Signature
from webnn_py.api.tensor_memory import run_on_tensors
from webnn_py.api.tensor_operations import tensor_descriptor
from webnn_py.core import convert
from webnn_py.core.completion import check_interrupts_nothing, check_may_block
from webnn_py.core.dtypes import MLOperandDataType
from webnn_py.core.errors import (
    DataError,
    InvalidStateError,
    ValidationError,
    convert_memory_errors,
)
from webnn_py.core.messages import Suggesting, shown
from webnn_py.core.pickling import Unpicklable
from webnn_py.core.progress import BuildProgress, with_progress
from webnn_py.engines.base import AwaitedRun
from webnn_py.engines.device import Commands
from webnn_py.engines.reference import evaluate
from webnn_py.engines.webgpu.program.file import reading_program, write_program
from webnn_py.engines.webgpu.program.plan import MAX_DISPATCHES
from webnn_py.engines.webgpu.program.source import Slot
from webnn_py.memory import host_arrays
from webnn_py.ordering.timeline import TimelinePoint, points
from webnn_py.storage.archive import check_ending

if TYPE_CHECKING:
    from webnn_py.engines.webgpu.compiler.programs import ProgramCompiler
    from webnn_py.engines.webgpu.runtime.engine import WebGPUEngine
    from webnn_py.engines.webgpu.runtime.executable import ProgramExecutable


class MLProgram(Unpicklable, Suggesting):
    """Runs of graphs and kernels of your own, compiled as one piece of work for a GPU.

    It is recorded (`argument`, `buffer`, `sequence`, `append`), compiled, and then run as often as
    you like. What it saves runs without Python, too, and without the compiler.

    Args:
        context: A GPU context.

    Raises:
        ValidationError: `context` is no MLContext.
        InvalidStateError: It is not on a GPU.
        ContextLostError: It is lost.

    Source: webnn_py, spec/programs.md, "Programs".
    """

    def __init__(self, context: SessionOwner) -> None:
        session = session_of(context)
        self._session = session
        self._recorder: Recorder | None = Recorder(session, _engine_of(session).gpu)
        self._compiler: ProgramCompiler | None = None
        self._executable: ProgramExecutable | None = None
        self._lock = threading.Lock()

    @property
    def arguments(self) -> Mapping[str, MLOperandDescriptor]:
        """Name to MLOperandDescriptor of what a run is given; read-only."""
        if self._recorder is None:
            assert self._executable is not None
            found = {a.name: a.descriptor for a in self._executable.plan.arguments}
        else:
            found = {str(slot.name): slot.descriptor for slot in self._recorder.arguments}
        return MappingProxyType(
            {name: MLOperandDescriptor(d.data_type, d.shape) for name, d in found.items()}
        )

    def argument(
        self,
        name: str,
        data_type: MLOperandDataType | MLOperandDescriptor,
        shape: Sequence[int] | None = None,
    ) -> MLProgramBuffer:
        """Add what is given at each run.

        Args:
            name: Unlike that of any other argument.
            data_type: Its name, or an MLOperandDescriptor, which gives the shape too; not int4 or
                uint4.
            shape: The dimensions, each at least 1; a scalar if not given.

        Returns:
            What steps take.

        Raises:
            ValidationError: There is one of this name, or data type or shape is not valid.
            InvalidStateError: The program is compiled.
            ContextLostError: The context is lost.

        Source: webnn_py, spec/programs.md, "Arguments and buffers".
        """
        recorder = self._open()
        text = convert.string(name, "argument: name")
        if not text or text in self.arguments:
            why = "there is one of this name already" if text else "expected some characters"
            raise ValidationError(f"argument {shown(text)}: {why}")
        slot = Slot(tensor_descriptor(data_type, shape), text)
        recorder.arguments.append(slot)
        return MLProgramBuffer(recorder, slot)

    def buffer(
        self,
        data_type: MLOperandDataType | MLOperandDescriptor,
        shape: Sequence[int] | None = None,
        initial: Any = None,
    ) -> MLProgramBuffer:
        """Add a buffer of the program's own, which keeps what it holds from run to run.

        Args:
            data_type: Its name, or an MLOperandDescriptor, which gives the shape too; not int4 or
                uint4.
            shape: The dimensions, each at least 1; a scalar if not given.
            initial: What it holds before the first run, as `MLGraphBuilder.constant` takes it;
                zeros if not given.

        Returns:
            What steps take.

        Raises:
            ValidationError: Data type or shape is not valid, or `initial` does not fit.
            InvalidStateError: The program is compiled.
            ContextLostError: The context is lost.

        Source: webnn_py, spec/programs.md, "Arguments and buffers".
        """
        recorder = self._open()
        descriptor = tensor_descriptor(data_type, shape)
        contents = None
        if initial is not None:
            try:
                contents, _ = host_arrays.constant_array(
                    initial, descriptor.data_type, descriptor.shape
                )
            except ValidationError as error:
                raise ValidationError(f"buffer: initial: {error}") from error.__cause__
        return MLProgramBuffer(recorder, Slot(descriptor, None, contents))

    def sequence(self) -> MLProgramSequence:
        """Begin a sequence of steps; it runs once `append` has put it into the program.

        Raises:
            InvalidStateError: The program is compiled.
            ContextLostError: The context is lost.

        Source: webnn_py, spec/programs.md, "Steps".
        """
        return MLProgramSequence(self._open())

    def append(self, sequence: MLProgramSequence, repeat: int = 1) -> None:
        """Run a sequence behind what was appended before.

        Args:
            sequence: Of this program.
            repeat: How often in a row, at least once.

        Raises:
            ValidationError: It is no sequence of this program, or `repeat` is no such number.
            InvalidStateError: The program is compiled.
            ContextLostError: The context is lost.

        Source: webnn_py, spec/programs.md, "Steps".
        """
        self._open().append(sequence, repeat)

    def _open(self) -> Recorder:
        recorder = self._recorder
        if recorder is None:
            raise InvalidStateError("this MLProgram was loaded; make a new one to record steps")
        recorder.check_open()
        return recorder

    def compile_sync(self, *, progress: BuildProgress | None = None) -> None:
        """Compile for this context's device; nothing can be added afterwards. Harmless twice.

        Args:
            progress: As of `MLGraphBuilder.build_sync`.

        Raises:
            ValidationError: There are no steps, or an argument is used by none.
            NotSupportedError: The device lacks what the program needs.
            OperationError: The device refused a kernel, or has no memory left.
            ContextLostError: The context is lost.

        Source: webnn_py, spec/programs.md, "Compiling".
        """
        with_progress(progress, self._compiled)

    async def compile_async(self, *, progress: BuildProgress | None = None) -> None:
        """As `compile_sync`, on a thread of the context: the event loop is never blocked.

        Args:
            progress: As there, on that thread: `loop.call_soon_threadsafe` leads back.

        Raises:
            MLError: As `compile_sync`.

        Source: webnn_py, spec/programs.md, "Compiling".
        """
        work = functools.partial(self.compile_sync, progress=progress)
        await self._session.await_builder(work)

    @convert_memory_errors
    def _compiled(self) -> ProgramExecutable:
        self._session.check_alive()
        with self._lock:
            if self._executable is None:
                self._executable = self._compile()
            return self._executable

    def _compile(self) -> ProgramExecutable:
        from webnn_py.engines.webgpu.compiler.programs import ProgramCompiler

        assert self._recorder is not None
        engine = _engine_of(self._session)
        with self._recorder.compiling() as source:
            self._compiler = compiler = ProgramCompiler(source, evaluate)
            plan = compiler.plan_for(engine.gpu.offer)
            count = plan.variants[0].dispatches
            if count > MAX_DISPATCHES:
                raise ValidationError(
                    f"compile: a run of {count} dispatches, expected {MAX_DISPATCHES} at most"
                )
            executable = engine.load_program(plan)
        self._session.has(executable)
        return executable

    def run_sync(self, arguments: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Run once, and wait for the end. A program that is not compiled is so first.

        Args:
            arguments: What each argument is, by name: an array or buffer in host memory, an
                MLTensor of this context, a GPUBuffer or {"buffer", "offset", "size"} in bytes. What
                a run writes is written there. An argument that no step reads before one writes it
                may be left out. Nothing that is written shares memory with anything else.

        Returns:
            Every argument that is written, by name: what was given, or where it was left out a new
            array of its data type and shape.

        Raises:
            DataError: A name, data type, size or device does not fit; nothing has run.
            InvalidStateError: This thread is running an event loop: use `run_async`. Or a tensor is
                exported.
            ValidationError: As `compile_sync`.
            NotSupportedError: As `compile_sync`.
            OperationError: The device failed, or the work that was to write a tensor given.
            ContextLostError: The context is lost, also while this waits.

        Source: webnn_py, spec/programs.md, "Running".
        """
        check_may_block("run_sync", "run_async")
        check_interrupts_nothing("run_sync")
        executable = self._compiled()
        given = given_arguments(self._session, executable.plan.arguments, arguments)
        return done(self._session, *self._start(executable, *given))

    def run_async(
        self, arguments: Mapping[str, Any] | None = None, sync: Iterable[TimelinePoint] = ()
    ) -> Coroutine[Any, Any, dict[str, Any]]:
        """As `run_sync`, awaited: the event loop is never blocked.

        Arrays are read before this returns: changing them afterwards changes nothing. A cancelled
        await leaves those that are written either untouched or whole.

        Args:
            arguments: As there.
            sync: Timeline points that the run waits for and signals.

        Returns:
            As there.

        Raises:
            MLError: As `run_sync`, by the await, but for the event loop. A ValidationError also
                where a timeline point does not fit.

        Source: webnn_py, spec/programs.md, "Running".
        """
        try:
            waits = points(sync)
            executable, recorder = self._executable, self._recorder
            if executable is None:
                assert recorder is not None
                given = given_arguments(
                    self._session,
                    recorder.source().described_arguments(),
                    arguments,
                    private=True,
                )
                recorder.close()  # what is compiled is what these were checked for
                run = self._compile_first(*given, waits)
            else:
                given = given_arguments(self._session, executable.plan.arguments, arguments)
                run = finished(self._session, *self._start(executable, *given), waits)
            return promising(run, given[1], waits) if waits else run
        except Exception as error:
            return raised(error)

    def _compile_first(
        self, signature: Signature, given: Arguments, waits: Points
    ) -> Coroutine[Any, Any, dict[str, Any]]:
        def start(executable: ProgramExecutable, inputs: Sequence[Any]) -> AwaitedRun:
            return executable.start(*named_arguments(signature, inputs, given.outputs))

        return in_turn(self._session, given, waits, self._compiled, start)

    def _start(
        self, executable: ProgramExecutable, signature: Signature, given: Arguments
    ) -> tuple[AwaitedRun, Arguments]:
        with self._session.queue.loss():
            run = executable.start(*by_name(signature, given))
            run.read_inputs()
            return run, given

    def profile(self, arguments: Mapping[str, Any] | None = None, *, runs: int = 5) -> MLProfile:
        """Run the program on this thread and measure its kernels, those of yours included.

        Each measurement runs it twice or more: with a pause of the device after each step (but
        not in repetitions after the first), and as a whole. Its buffers keep what they hold then;
        tensors and resources of the device are written, as by `run_sync`.

        Args:
            arguments: As of `run_sync`, but arrays are not written.
            runs: How often, 1 to 10,000; medians are given.

        Returns:
            A row for each step with the time of all its repetitions; they print as a table.

        Raises:
            ValidationError: `runs` is out of range, or as `compile_sync`.
            InvalidStateError: This thread is running an event loop, or a tensor is exported.
            MLError: As `run_sync`.

        Source: webnn_py, spec/execution.md, "Profiles".
        """
        check_may_block("MLProgram.profile", "MLProgram.profile_async")
        check_interrupts_nothing("MLProgram.profile")
        return self._profile(arguments, runs)

    async def profile_async(
        self, arguments: Mapping[str, Any] | None = None, *, runs: int = 5
    ) -> MLProfile:
        """As `profile`, on a thread of the context: the event loop is never blocked.

        Args:
            arguments: As there.
            runs: As there.

        Returns:
            As there.

        Raises:
            MLError: As `profile`.

        Source: webnn_py, spec/execution.md, "Profiles".
        """
        work = functools.partial(self._profile, arguments, runs)
        return await self._session.await_builder(work)

    def _profile(self, arguments: Mapping[str, Any] | None, runs: int) -> MLProfile:
        count = run_count(runs)
        executable = self._compiled()
        signature, given = given_arguments(self._session, executable.plan.arguments, arguments)
        named = by_name(signature, given)
        with self._session.queue.loss():
            return measured(self._session, lambda: executable.profile(*named), count)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the compiled program into a file, for any device. One that is there is replaced.

        It is compiled for this context's device first, if it is not yet.

        Args:
            path: The file, by custom named `.mlprogram`.

        Raises:
            ValidationError: As `compile_sync`, or `path` ends in .onnx.
            NotSupportedError: As `compile_sync`.
            OperationError: As `compile_sync`.
            FileError: The file cannot be written.
            ContextLostError: The context is lost.

        Source: webnn_py, spec/programs.md, "Files".
        """
        check_ending(path)
        executable = self._compiled()
        compiler = self._compiler
        write_program(executable.plan if compiler is None else compiler.complete_plan(), path)

    def __str__(self) -> str:
        """Arguments and steps as they run on this device, once it is compiled."""
        executable = self._executable
        return repr(self) if executable is None else executable.describe()

    def __repr__(self) -> str:
        state = "" if self._executable is None else "compiled "
        return f"<{state}MLProgram {dict(self.arguments)}>"


def record_program(
    program: object, session: Session, commands: Commands, arguments: object
) -> None:
    """Record one run of a program, as `MLCommandEncoder.execute`."""
    if not isinstance(program, MLProgram):
        raise ValidationError(f"program: got {shown(program)}, expected an MLProgram")
    if program._session is not session:
        raise DataError("this MLProgram was made by another context")
    executable = program._compiled()
    signature, given = given_arguments(session, executable.plan.arguments, arguments, recorded=True)
    record = functools.partial(executable.record, commands, *by_name(signature, given))
    run_on_tensors(given.reads, given.writes, record)


@convert_memory_errors
def load_program(owner: SessionOwner, path: str | os.PathLike[str]) -> MLProgram:
    """A program of a context, from a file; see `MLContext.load_program_sync`."""
    program = MLProgram(owner)
    program._recorder = None
    with reading_program(path) as plan:
        program._executable = _engine_of(program._session).load_program(plan)
        program._session.has(program._executable)
    return program


def _engine_of(session: Session) -> WebGPUEngine:
    """The engine of a GPU context.

    Raises:
        InvalidStateError: It is on a CPU.
    """
    if session.device is None:
        raise InvalidStateError("an MLProgram needs a GPU context: make one with device_type='gpu'")
    engine: Any = session.engine
    return cast("WebGPUEngine", engine)

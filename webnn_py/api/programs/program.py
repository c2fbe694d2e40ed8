"""MLProgram: graphs and your own kernels, compiled together, to run or to save."""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Coroutine, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, cast

from webnn_py.api.descriptor import MLOperandDescriptor, public_descriptor
from webnn_py.api.profile import MLProfile, measured, run_count
from webnn_py.api.programs.program_arguments import by_name, given_arguments, named_arguments
from webnn_py.api.programs.steps import MLProgramBuffer, MLProgramSequence, Recorder
from webnn_py.api.runs import Points, done, finished, in_turn, promising, raised
from webnn_py.api.session import Session, SessionOwner, session_of
from webnn_py.api.signature import Arguments, Signature
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
from webnn_py.engines.webgpu.program.plan import MAX_DISPATCHES, Argument
from webnn_py.engines.webgpu.program.source import Slot
from webnn_py.memory import host_arrays
from webnn_py.ordering.timeline import TimelinePoint, points
from webnn_py.storage.archive import check_ending

if TYPE_CHECKING:
    from webnn_py.engines.webgpu.compiler.programs import ProgramCompiler
    from webnn_py.engines.webgpu.runtime.engine import WebGPUEngine
    from webnn_py.engines.webgpu.runtime.executable import ProgramExecutable


class MLProgram(Unpicklable, Suggesting):
    """Sequence of graphs and your own kernels, compiled together for a GPU.

    Record it (`argument`, `buffer`, `sequence`, `append`), compile it, then run it as often as you
    like. A saved program also runs without Python and without the compiler.

    Args:
        context: A GPU context.

    Raises:
        ValidationError: `context` is not an MLContext.
        InvalidStateError: The context is not a GPU context.
        ContextLostError: The context is lost.

    Examples:
        ```python
        import asyncio

        import numpy as np

        from webnn_py import MLGraphBuilder, MLProgram, ml

        ctx = ml.create_context_sync(device_type="gpu")
        b = MLGraphBuilder(ctx)
        x = b.input("x", "float32", [4])
        double = b.build_sync({"y": b.add(x, x)})
        ADD_ONE = '''
        @group(0) @binding(0) var<storage, read_write> state: array<f32>;
        @compute @workgroup_size(4)
        fn main(@builtin(local_invocation_index) i: u32) { state[i] += 1.0; }
        '''
        program = MLProgram(ctx)
        state = program.argument("state", "float32", [4])
        other = program.buffer("float32", [4])
        step = program.sequence()
        step.dispatch(double, {"x": state}, {"y": other})
        step.dispatch(double, {"x": other}, {"y": state})
        step.compute(ADD_ONE, [state], workgroups=1)
        program.append(step, repeat=3)
        print(*program.arguments)  # state

        program.compile_sync()  # ahead of the first run; or: await program.compile_async()
        asyncio.run(program.compile_async())
        print(program.run_sync({"state": np.zeros(4, np.float32)})["state"])  # [21. 21. 21. 21.]
        results = asyncio.run(program.run_async({"state": np.ones(4, np.float32)}))
        print(results["state"])  # [85. 85. 85. 85.]
        profile = program.profile({"state": np.zeros(4, np.float32)})
        profile = asyncio.run(program.profile_async({"state": np.zeros(4, np.float32)}))
        program.save("state.mlprogram")
        ```

    Source: webnn_py, spec/programs.md, "Recording".
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
        """Return a read-only mapping of argument names to MLOperandDescriptors."""
        if self._recorder is None:
            assert self._executable is not None
            found = {a.name: a.descriptor for a in self._executable.plan.arguments}
        else:
            found = {str(slot.name): slot.descriptor for slot in self._recorder.arguments}
        return MappingProxyType({name: public_descriptor(given) for name, given in found.items()})

    def argument(
        self,
        name: str,
        data_type: MLOperandDataType | MLOperandDescriptor,
        shape: Sequence[int] | None = None,
    ) -> MLProgramBuffer:
        """Add an argument, which each run supplies.

        Args:
            name: Name of the argument, unique in the program.
            data_type: Name of the data type, or an MLOperandDescriptor, which also has the shape;
                not int4 or uint4.
            shape: The dimensions, each at least 1; a scalar by default.

        Returns:
            The argument or buffer, to use in steps.

        Raises:
            ValidationError: The name is taken, or the data type or shape is not valid.
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
        """Add a buffer to the program, which keeps its contents from run to run.

        Args:
            data_type: Name of the data type, or an MLOperandDescriptor, which also has the shape;
                not int4 or uint4.
            shape: The dimensions, each at least 1; a scalar by default.
            initial: Contents before the first run, as in `MLGraphBuilder.constant`; zeros by
                default.

        Returns:
            The argument or buffer, to use in steps.

        Raises:
            ValidationError: The data type or shape is not valid, or `initial` does not fit.
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
        """Create an empty sequence of steps; `append` adds it to the program.

        Raises:
            InvalidStateError: The program is compiled.
            ContextLostError: The context is lost.

        Source: webnn_py, spec/programs.md, "Steps".
        """
        return MLProgramSequence(self._open())

    def append(self, sequence: MLProgramSequence, repeat: int = 1) -> None:
        """Append a sequence to the program's steps.

        Args:
            sequence: A sequence of this program.
            repeat: Number of consecutive runs of the sequence, at least 1.

        Raises:
            ValidationError: `sequence` is not a sequence of this program, or `repeat` is not valid.
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
        """Compile for this context's device and close the recording. Harmless twice.

        Args:
            progress: Progress callback, as in `MLGraphBuilder.build_sync`.

        Raises:
            ValidationError: There are no steps, or no step uses one of the arguments.
            NotSupportedError: The device lacks what the program needs.
            OperationError: The device refused a kernel, or has no memory left.
            ContextLostError: The context is lost.

        Source: webnn_py, spec/programs.md, "Compiling".
        """
        with_progress(progress, self._compiled)

    async def compile_async(self, *, progress: BuildProgress | None = None) -> None:
        """Compile on a thread of the context, so that the event loop is never blocked.

        Args:
            progress: Progress callback, called on that thread. Use `loop.call_soon_threadsafe` to
                reach the event loop.

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
            plan = compiler.plan_for(engine.gpu.features, engine.passes)
            count = plan.variants[0].dispatches
            if count > MAX_DISPATCHES:
                raise ValidationError(
                    f"compile: a run of {count} dispatches, expected {MAX_DISPATCHES} at most"
                )
            executable = engine.load_program(plan)
        self._session.register_holder(executable)
        return executable

    def run_sync(self, arguments: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Run once and wait for the end, compiling the program first if needed.

        Args:
            arguments: Every argument by name: an array or buffer in host memory, an MLTensor of
                this context, a GPUBuffer or {"buffer", "offset", "size"} in bytes. The run writes
                its results there. You may omit an argument that the program writes before any step
                reads it. A written argument may not share memory with any other.

        Returns:
            Every written argument by name: the object you passed, or a new array of its data type
            and shape if you omitted it.

        Raises:
            DataError: A name, data type, size or device does not fit; nothing has run.
            InvalidStateError: This thread is running an event loop: use `run_async`. Or a tensor is
                exported.
            ValidationError: As in `compile_sync`.
            NotSupportedError: As in `compile_sync`.
            OperationError: The device failed, or the work that writes an argument's tensor failed.
            ContextLostError: The context is lost, before or during the wait.

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
        """Run once as `run_sync` does, without blocking the event loop.

        Arrays are read before this returns, so later changes to them have no effect. A cancelled
        await leaves written arrays either untouched or completely written.

        Args:
            arguments: As in `run_sync`.
            sync: Timeline points that the run waits for and signals.

        Returns:
            As in `run_sync`.

        Raises:
            MLError: As in `run_sync`, from the await, except the error about the event loop. Also a
                ValidationError if a timeline point does not fit.

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
                recorder.close()  # the arguments were checked against these steps
                run = self._compile_first(*given, waits)
            else:
                given = given_arguments(self._session, executable.plan.arguments, arguments)
                run = finished(self._session, *self._start(executable, *given), waits)
            return promising(run, given[1].names, waits) if waits else run
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
        """Run the program on this thread and measure its kernels, including your own.

        Each measurement runs the program at least twice: once with a pause of the device after
        each step, and once as a whole. Repetitions after the first have no pauses. The program's
        buffers keep the contents that these runs leave. Tensors and device resources are written,
        as in `run_sync`.

        Args:
            arguments: As in `run_sync`, but arrays are not written.
            runs: Number of measurements, 1 to 10,000; the profile reports medians.

        Returns:
            A profile with a row for each step, with the time of all its repetitions. It prints as
            a table.

        Raises:
            ValidationError: `runs` is out of range, or as in `compile_sync`.
            InvalidStateError: This thread is running an event loop, or a tensor is exported.
            MLError: As in `run_sync`.

        Source: webnn_py, spec/execution.md, "Profiles".
        """
        check_may_block("MLProgram.profile", "MLProgram.profile_async")
        check_interrupts_nothing("MLProgram.profile")
        return self._profile(arguments, runs)

    async def profile_async(
        self, arguments: Mapping[str, Any] | None = None, *, runs: int = 5
    ) -> MLProfile:
        """Profile on a thread of the context, so that the event loop is never blocked.

        Args:
            arguments: As in `profile`.
            runs: Number of measurements, 1 to 10,000.

        Returns:
            As in `profile`.

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
        """Save the compiled program for any device, replacing an existing file.

        The program is compiled for this context's device first if needed.

        Args:
            path: Path of the file, conventionally with the suffix `.mlprogram`.

        Raises:
            ValidationError: As in `compile_sync`, or `path` ends in .onnx.
            NotSupportedError: As in `compile_sync`.
            OperationError: As in `compile_sync`.
            FileError: The file cannot be written.
            ContextLostError: The context is lost.

        Source: webnn_py, spec/programs.md, "Files".
        """
        check_ending(path)
        executable = self._compiled()
        compiler = self._compiler
        write_program(executable.plan if compiler is None else compiler.complete_plan(), path)

    def __str__(self) -> str:
        """Return the arguments and the steps as they run on this device, once compiled."""
        executable = self._executable
        return repr(self) if executable is None else executable.describe()

    def __repr__(self) -> str:
        state = "" if self._executable is None else "compiled "
        return f"<{state}MLProgram {dict(self.arguments)}>"


def record_program(
    program: object, session: Session, commands: Commands, arguments: object
) -> None:
    """Record one run of a program; see `MLCommandEncoder.execute`."""
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
    """Load a program for a context from a file; see `MLContext.load_program_sync`."""
    program = MLProgram(owner)
    program._recorder = None
    with reading_program(path) as plan:
        program._executable = _engine_of(program._session).load_program(plan)
        program._session.register_holder(program._executable)
    return program


def arguments_of(program: MLProgram) -> Sequence[Argument]:
    """Return the arguments of a compiled or loaded program, with their use."""
    return program._compiled().plan.arguments


def _engine_of(session: Session) -> WebGPUEngine:
    """Return the engine of a GPU context.

    Raises:
        InvalidStateError: The context is a CPU context.
    """
    if session.device is None:
        raise InvalidStateError("an MLProgram needs a GPU context: make one with device_type='gpu'")
    return cast("WebGPUEngine", session.engine)

"""MLSlicedDispatch, a run that is recorded in slices over several frames."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

from webnn_py.api.compiled import CompiledGraph, compiled_of
from webnn_py.api.graph import MLGraph
from webnn_py.api.session import Session, SessionOwner
from webnn_py.api.signature import Arguments
from webnn_py.api.tensor_checks import check_there
from webnn_py.api.tensor_memory import check_not_held, mark_made, run_on_tensors
from webnn_py.core import convert
from webnn_py.core.errors import (
    ContextLostError,
    DataError,
    InvalidStateError,
    ValidationError,
)
from webnn_py.core.messages import Suggesting, shown
from webnn_py.core.pickling import Unpicklable
from webnn_py.engines.device import Commands, DeviceExecutable, SlicedRun


class _Begun:
    """Sliced run and its executable, which is dropped at the loss of the context."""

    def __init__(self, executable: DeviceExecutable, run: SlicedRun) -> None:
        self.executable: DeviceExecutable | None = executable
        self.run = run

    def release(self) -> None:
        """Release the memory after the loss of the context."""
        self.executable = None
        self.run.release()

    def record(self, commands: Commands, seconds: float) -> bool:
        """Record the next slice and return whether it is the last one."""
        executable = self.executable
        if executable is None:  # another thread lost the context just now
            raise ContextLostError("the context of the run in slices is lost")
        return executable.record_slice(commands, self.run, seconds)


class MLSlicedDispatch(Unpicklable, Suggesting):
    """Run of a graph that `MLCommandEncoder.dispatch_slice` records in slices.

    Create it with `MLContext.slice_dispatch`. It has its own buffers for intermediate results
    between the slices. The next sliced run of the same graph reuses them once the last slice is
    submitted.

    Examples:
        ```python
        import wgpu

        from webnn_py import MLCommandEncoder, MLGraphBuilder, ml

        ctx = ml.create_context_sync(device_type="gpu")
        b = MLGraphBuilder(ctx)
        x = b.input("x", "float32", [64, 64])
        graph = b.build_sync({"y": b.softmax(b.matmul(x, x), 1)})
        usage = wgpu.BufferUsage.STORAGE
        source, target = (ctx.device.create_buffer(size=64 * 64 * 4, usage=usage) for _ in range(2))

        job = ctx.slice_dispatch(graph, {"x": source}, {"y": target})
        while not job.done:
            frame = ctx.device.create_command_encoder()
            MLCommandEncoder(ctx, encoder=frame).dispatch_slice(job, budget_ms=2.0)
            ctx.device.queue.submit([frame.finish()])
        print(job.progress)  # 1.0
        ```

    Source: webnn_py, spec/execution.md, "Slices".
    """

    def __init__(
        self, compiled: CompiledGraph, executable: DeviceExecutable, given: Arguments
    ) -> None:
        self._compiled = compiled
        self._tensors = (given.reads, given.writes)
        self._begun = _Begun(executable, executable.sliced(given.inputs, given.outputs))
        self._done = False
        self._recording = threading.Lock()
        compiled.session.register_holder(self._begun)

    @property
    def done(self) -> bool:
        """Whether the last slice was recorded."""
        return self._done

    @property
    def progress(self) -> float:
        """Return the recorded fraction of the run, 0 to 1."""
        return 1.0 if self._done else self._begun.run.progress

    def __repr__(self) -> str:
        return f"<MLSlicedDispatch, {self.progress:.0%} recorded>"


class Slicing(SessionOwner):
    """Mixin of MLContext that begins sliced runs."""

    def slice_dispatch(
        self, graph: MLGraph, inputs: Mapping[str, Any], outputs: Mapping[str, Any]
    ) -> MLSlicedDispatch:
        """Begin a run that `MLCommandEncoder.dispatch_slice` records over several frames.

        Args:
            graph: Built by this context, which is a GPU context.
            inputs: As in `MLCommandEncoder.dispatch`. Arrays are read before this returns, the
                rest when the commands of the first slice run.
            outputs: As in `MLCommandEncoder.dispatch`; the commands of the last slice write them
                all.

        Returns:
            The run to pass to `dispatch_slice`.

        Raises:
            ValidationError: `graph` is not an MLGraph.
            InvalidStateError: This is a CPU context, the graph is destroyed, or a tensor is
                exported. Or an input is missing that commands not submitted yet turn into a
                constant.
            DataError: A name, data type, size, format, context or device does not fit.
            NotSupportedError: As in `MLCommandEncoder.dispatch`.
            OperationError: The device has no memory left.
            ContextLostError: The context is lost.

        Source: webnn_py, spec/execution.md, "Slices".
        """
        session = self._session
        if session.device_type != "gpu":
            raise InvalidStateError("slice_dispatch needs a GPU context, whose frames it spares")
        compiled = compiled_of(graph)
        executables = compiled.check_usable(session)
        signature, sizes = compiled.fixed(inputs)
        executable = executables.get(sizes).executable
        assert isinstance(executable, DeviceExecutable)
        with session.queue.loss():
            bound = compiled.bound
            given = signature.on_device(
                session, inputs, outputs, bound, bound.constants.places, recorded=True
            )
            return MLSlicedDispatch(compiled, executable, given)


def record_slice(session: Session, commands: Commands, job: object, budget_ms: object) -> bool:
    """Record the next slice of a run; raise as `MLCommandEncoder.dispatch_slice` does."""
    commands.check_open()
    seconds = _budget(budget_ms)
    if not isinstance(job, MLSlicedDispatch):
        raise ValidationError(f"job: got {shown(job)}, expected what slice_dispatch gave")
    if job._compiled.session is not session:
        raise DataError("job: it belongs to another context")
    session.check_alive()
    with job._recording:
        _record_next(commands, job, seconds)
    return job._done


def _record_next(commands: Commands, job: MLSlicedDispatch, seconds: float) -> None:
    """Record the next slice; the caller holds the lock of the job."""
    if job._done:
        raise InvalidStateError("job: its last slice was recorded; begin another run")
    reads, writes = job._tensors
    for memories, reading in ((reads, True), (writes, False)):
        for memory in memories:
            what = "dispatch_slice: a tensor of the run"
            check_there(memory, what)
            check_not_held(memory, what, reading=reading)

    def record() -> None:
        job._done = job._begun.record(commands, seconds)

    run_on_tensors(() if job.progress else reads, (), record)  # the first slice copies them
    if job._done:
        mark_made(writes)
    commands.carry(job._compiled.bound)


def _budget(budget_ms: object) -> float:
    milliseconds = convert.double(budget_ms, "budget_ms")
    if not 0 < milliseconds < float("inf"):
        raise ValidationError(f"budget_ms: got {shown(budget_ms)}, expected more than 0")
    return milliseconds * 1e-3

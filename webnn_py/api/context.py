"""MLContext, and `ml`, which makes contexts."""

from __future__ import annotations

import contextlib
import functools
import typing
import weakref
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from types import MappingProxyType, TracebackType
from typing import Any, Literal, TypeVar

from webnn_py.api.builder import BuildContext, MLOperandDescriptor
from webnn_py.api.context_tensors import TensorMethods
from webnn_py.api.graph import MLGraph
from webnn_py.api.tensor import MLTensor
from webnn_py.core import convert, cooperation, forks
from webnn_py.core.completion import Completion
from webnn_py.core.dtypes import ANY
from webnn_py.core.errors import (
    ContextLostError,
    InvalidStateError,
    NotSupportedError,
    ValidationError,
)
from webnn_py.core.messages import Suggesting, shown
from webnn_py.engines.base import Engine, Queue, TypesByOperand
from webnn_py.engines.reference import ReferenceEngine, evaluate
from webnn_py.ir import Array, Graph
from webnn_py.memory import host
from webnn_py.ops.declare import REGISTRY, Operator
from webnn_py.passes import Target, optimize, report

T = TypeVar("T")
DeviceType = Literal["cpu", "gpu", "default"]
PowerPreference = Literal["default", "high-performance", "low-power"]
EngineName = Literal["auto", "reference", "onnxruntime", "webgpu"]
DEVICE_TYPES: tuple[str, ...] = typing.get_args(DeviceType)
POWER_PREFERENCES: tuple[str, ...] = typing.get_args(PowerPreference)
ENGINE_CHOICES: tuple[str, ...] = typing.get_args(EngineName)
CPU_ENGINES: Mapping[str, Callable[[], Engine]] = MappingProxyType(
    {"auto": ReferenceEngine, "reference": ReferenceEngine}
)
"""What CPU contexts can have today, by name."""
GPU_ENGINES = ("auto", "webgpu")
"""Names of the engine of GPU contexts."""


@dataclass(frozen=True, slots=True)
class MLContextLostInfo:
    """Why a context was lost.

    Attributes:
        message: In words.
    """

    message: str


class MLContext(Suggesting, TensorMethods, BuildContext):
    """Where graphs are built and run. Make one with `ml.create_context_sync` or `_async`.

    Source: WebNN 2026, "MLContext interface".
    """

    def __init__(self, backend: Engine, device_type: str, accelerated: bool, device: Any) -> None:
        self._device_type = device_type
        self._accelerated = accelerated
        self._device = device
        self._backend = backend
        self._types: dict[str, TypesByOperand] = {}
        self._lost: Completion[MLContextLostInfo] = Completion()
        self._forked = False
        self._alive = True  # what `_lost` says, at the cost of an attribute
        self._worker = ThreadPoolExecutor(
            1, thread_name_prefix=f"webnn-{device_type}", initializer=cooperation.enable
        )
        self._builder = ThreadPoolExecutor(
            1, thread_name_prefix=f"webnn-{device_type}-build", initializer=cooperation.enable
        )
        for executor in (self._worker, self._builder):
            forks.finalize(self, functools.partial(executor.shutdown, wait=False))
        self._queue = backend.queue(functools.partial(_start, self._worker))
        self._queue.lost = functools.partial(_lose, weakref.ref(self))
        _CONTEXTS.add(self)

    def _self(self) -> MLContext:
        return self

    @property
    def device_type(self) -> str:
        """Where graphs run: "cpu" or "gpu"."""
        return self._device_type

    @property
    def accelerated(self) -> bool:
        """Whether a hardware GPU does the work."""
        return self._accelerated

    @property
    def device(self) -> Any:
        """The wgpu.GPUDevice of a GPU context, else None."""
        return self._device

    @property
    def queue(self) -> Queue:
        """The order of this context's work."""
        return self._queue

    @property
    def engine(self) -> str:
        """Name of the engine that runs the graphs."""
        return self._backend.name

    @property
    def backend(self) -> Engine:
        """The engine."""
        return self._backend

    @property
    def lost(self) -> Completion[MLContextLostInfo]:
        """Awaitable that resolves with an MLContextLostInfo when the context is lost."""
        return self._lost

    def destroy(self) -> None:
        """Lose the context: what is not done fails, nothing new is accepted. Harmless twice."""
        self.lose("destroy() was called")

    def lose(self, message: str) -> None:
        """Mark the context as lost for a reason."""
        if self._forked:
            return
        self._lost.set_result(MLContextLostInfo(message))
        self._alive = False
        self._queue.close(ContextLostError(f"this MLContext is lost: {message}"))
        for executor in (self._worker, self._builder):
            executor.shutdown(wait=False, cancel_futures=True)
        self._backend.destroy()

    def leave_behind(self) -> None:
        """Mark the context as one of the parent process, after a fork."""
        self._alive, self._forked = False, True
        self._lost = Completion()
        self._lost.set_result(MLContextLostInfo(f"this MLContext {forks.FORKED}"))

    def check_alive(self) -> None:
        """Raise an error if the context cannot be used.

        Raises:
            ContextLostError: It was destroyed or lost.
            InvalidStateError: This is a child process, and it belongs to the parent.
        """
        if not self._alive:
            self.check_process()
            raise ContextLostError(f"this MLContext is lost: {self._lost.wait().message}")

    def check_process(self) -> None:
        """Raise an InvalidStateError in a child process, where the context is the parent's."""
        if self._forked:
            raise InvalidStateError(f"this MLContext {forks.FORKED}")

    def __enter__(self) -> MLContext:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.destroy()

    def op_support_limits(self) -> dict[str, Any]:
        """What this context runs: data types and ranks, by operator and operand.

        Returns:
            `preferred_input_layout`, `max_tensor_byte_length`, `input`, `constant` and `output`
            (each with `data_types` and `rank_range`), and for every operator its operands and
            `output` likewise.

        Source: WebNN 2026, "opSupportLimits()".
        """
        bounds = self._backend.limits()
        anything = _tensor_limits(ANY, 0, bounds.max_rank)
        operators: dict[str, Any] = {}
        for op in REGISTRY.values():
            types = self.supported_types(op)
            members = {
                name: _tensor_limits(types[name], *limits.rank_range)
                for name, limits in op.limits.items()
            }
            for name, ranks in op.output_ranks.items():
                members[name] = _tensor_limits(types["output"], *ranks)
            operators[op.name] = members
        return {
            "preferred_input_layout": "nchw",
            "max_tensor_byte_length": bounds.max_tensor_bytes,
            "input": anything,
            "constant": anything,
            "output": anything,
        } | operators

    def supported_types(self, op: Operator) -> TypesByOperand:
        """Data types that an operator's operands may have here."""
        if op.name not in self._types:
            self._types[op.name] = self._backend.supported_types(op)
        return self._types[op.name]

    def check_input(self, data_type: str) -> None:
        """Raise a NotSupportedError if the engine cannot hold this data type at all."""
        return None

    def constant_array(
        self,
        value: Any,
        data_type: str | MLOperandDescriptor | None,
        shape: Sequence[int] | None,
    ) -> tuple[Array, str]:
        """A private copy of a constant's contents, and its data type."""
        if isinstance(value, MLTensor):
            contents: Array = value.memory(self, "tensor")
            if not value.constant:
                raise ValidationError("the MLTensor is not constant")
            return contents, value.data_type
        if isinstance(data_type, MLOperandDescriptor):
            shape, data_type = data_type.shape, data_type.data_type
        return host.constant_array(value, data_type, shape)

    def compile(self, graph: Graph) -> MLGraph:
        """Optimize a graph and compile it for this context's engine."""
        target = Target(self._backend.has_kernel, evaluate)
        optimized = optimize(graph, target)
        executable = self._backend.compile(optimized)
        report(executable.describe, executable.code)
        return MLGraph(self, graph, optimized, executable)

    async def compile_async(self, graph: Graph) -> MLGraph:
        """As `compile`, on a thread for builds: running graphs do not wait for it."""
        return await self._run_on(self._builder, functools.partial(self.compile, graph))

    def run_on_worker(self, work: Callable[[], T]) -> Completion[T]:
        """Run `work` on this context's own thread, after what was given to it before."""
        return self._run_on(self._worker, work)

    def _run_on(self, executor: ThreadPoolExecutor, work: Callable[[], T]) -> Completion[T]:
        self.check_alive()
        try:
            return Completion(executor.submit(work))
        except RuntimeError as error:
            raise ContextLostError(f"this MLContext is lost: {error}") from None

    def __repr__(self) -> str:
        state = "lost " if self._lost.done else ""
        return f"<{state}MLContext {self.device_type} {self.engine}>"


_CONTEXTS: weakref.WeakSet[MLContext] = weakref.WeakSet()


def _leave_behind() -> None:
    """Contexts of the parent process; their threads are not here, and their locks may be held."""
    for context in _CONTEXTS:
        context.leave_behind()


forks.in_child(_leave_behind)


def _lose(context: weakref.ref[MLContext], message: str) -> None:
    alive = context()
    if alive is not None:
        alive.lose(message)


def _start(worker: ThreadPoolExecutor, run: Callable[[], None]) -> None:
    """Run on the worker; a context that is lost meanwhile has failed its work already."""
    with contextlib.suppress(RuntimeError):
        worker.submit(run)


def _tensor_limits(types: Sequence[str], low: int, high: int) -> dict[str, Any]:
    return {"data_types": list(types), "rank_range": {"min": low, "max": high}}


class ML(Suggesting):
    """Makes contexts; use the instance `webnn_py.ml`.

    Source: WebNN 2026, "ML interface".
    """

    def create_context_sync(
        self,
        device: Any = None,
        *,
        device_type: DeviceType | None = None,
        power_preference: PowerPreference = "default",
        accelerated: bool | None = None,
        engine: EngineName = "auto",
    ) -> MLContext:
        """Make a context.

        Args:
            device: A wgpu.GPUDevice of yours, for a GPU context on it.
            device_type: "cpu", "gpu" or "default" (the CPU).
            power_preference: Which GPU, where there are several: "high-performance" or "low-power".
            accelerated: True for a hardware GPU if there is one, else the CPU.
            engine: "auto", or by name: "reference" or "onnxruntime" of a CPU context, "webgpu" of a
                GPU context.

        Raises:
            ValidationError: The arguments contradict each other or are not valid.
            NotSupportedError: There is no such device or engine.
        """
        _check_choice("device_type", device_type, DEVICE_TYPES)
        _check_choice("power_preference", power_preference, POWER_PREFERENCES)
        _check_choice("engine", engine, ENGINE_CHOICES)
        hardware = accelerated is not None and convert.boolean(accelerated, "option 'accelerated'")
        if device is not None and device_type not in (None, "gpu"):
            raise ValidationError(f"device_type {device_type!r} contradicts the given device")
        if device is not None or device_type == "gpu":
            _check_gpu_engine(engine)
            return _gpu_context(device, power_preference)
        if hardware and device_type is None:
            _check_gpu_engine(engine)
            found = _open_gpu(None, power_preference, hardware=True)
            if found is not None:
                return found
            if engine == "webgpu":
                raise NotSupportedError(
                    "accelerated=True, engine='webgpu': there is no hardware GPU"
                )
        if engine == "webgpu":
            raise ValidationError("engine 'webgpu' runs on GPUs: it needs device_type='gpu'")
        return MLContext(_cpu_backend(engine), "cpu", False, None)

    async def create_context_async(
        self,
        device: Any = None,
        *,
        device_type: DeviceType | None = None,
        power_preference: PowerPreference = "default",
        accelerated: bool | None = None,
        engine: EngineName = "auto",
    ) -> MLContext:
        """As `create_context_sync`, without blocking the event loop."""
        work = functools.partial(
            self.create_context_sync,
            device,
            device_type=device_type,
            power_preference=power_preference,
            accelerated=accelerated,
            engine=engine,
        )
        executor = ThreadPoolExecutor(1, thread_name_prefix="webnn-create")
        completion = Completion(executor.submit(work))
        executor.shutdown(wait=False)  # the thread ends with its work; nobody waits for it
        return await completion


def check_context(value: object) -> None:
    """Raise a ValidationError if it is no context, a ContextLostError if it is lost."""
    if not isinstance(value, MLContext):
        raise ValidationError(f"context: got {shown(value)}, expected an MLContext")
    value.check_alive()


def _check_choice(name: str, value: object, choices: tuple[str, ...]) -> None:
    if name != "device_type" or value is not None:
        convert.one_of(value, choices, f"option {name!r}")


def _check_gpu_engine(engine: str) -> None:
    if engine not in GPU_ENGINES:
        raise ValidationError(
            f"engine {engine!r} runs on the CPU: it needs device_type='cpu', and neither a device"
            " nor accelerated=True"
        )


def _cpu_backend(engine: str) -> Engine:
    backend = CPU_ENGINES.get(engine)
    if backend is None:
        usable = ", ".join(map(repr, CPU_ENGINES))
        raise NotSupportedError(f"engine {engine!r} is not there yet; use one of {usable}")
    return backend()


def _gpu_context(device: Any, power_preference: str) -> MLContext:
    context = _open_gpu(device, power_preference)
    if context is None:
        raise NotSupportedError("there is no GPU adapter; use device_type='cpu'")
    return context


def _open_gpu(device: Any, power_preference: str, hardware: bool = False) -> MLContext | None:
    try:
        from webnn_py.engines.webgpu.runtime.engine import open_engine
    except ImportError as error:  # such as on a free-threaded Python that wgpu has no wheels for
        raise NotSupportedError(f"GPU contexts need the package wgpu: {error}") from error
    backend = open_engine(device, power_preference, hardware)
    if backend is None:
        return None
    return MLContext(backend, "gpu", backend.accelerated, backend.device)


ml = ML()

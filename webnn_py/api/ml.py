"""The `ml` object, which creates contexts."""

from __future__ import annotations

import functools
import typing
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from webnn_py.api.context import MLContext
from webnn_py.api.default_session import default_session, set_default_session
from webnn_py.api.session import DEFAULT_ROOM, Session, session_of
from webnn_py.core import convert
from webnn_py.core.completion import Completion
from webnn_py.core.devices import Float32Precision, MLDeviceType, MLPowerPreference
from webnn_py.core.errors import NotSupportedError, ValidationError
from webnn_py.core.lru_cache import CacheLimits
from webnn_py.core.messages import Suggesting, shown
from webnn_py.engines.registry import OTHER_NAMES, engine_names, make_engine

DEVICE_TYPES: tuple[str, ...] = typing.get_args(MLDeviceType)
POWER_PREFERENCES: tuple[str, ...] = typing.get_args(MLPowerPreference)
PRECISIONS: tuple[str, ...] = typing.get_args(Float32Precision)
GPU_ENGINES = ("auto", "webgpu", "dawn")
"""Engine names that GPU contexts accept."""
GPU_NAMES = dict.fromkeys(("cuda", "vulkan", "metal", "webgpu", "wgpu"), "gpu")
"""Device names of other libraries, mapped to "gpu"; for hints in error messages."""


class ML(Suggesting):
    """Factory of contexts; use its instance `webnn_py.ml`.

    Examples:
        ```python
        from webnn_py import ml

        with ml.create_context_sync(device_type="cpu") as ctx:
            print(ctx.device_type)  # cpu


        async def main():
            with await ml.create_context_async(engine="reference") as ctx:
                return ctx.engine


        import asyncio

        print(asyncio.run(main()))  # reference
        print(ml.default_context.device_type)  # cpu
        ```

    Source: WebNN 2026, "ML interface".
    """

    def __init__(self) -> None:
        self._given: MLContext | None = None
        self._made: tuple[Session, MLContext] | None = None

    @property
    def default_context(self) -> MLContext:
        """Return the context of graphs that are unpickled in this process.

        It is a CPU context, created on first use, unless you set another one. Set None to return
        to the CPU context. A process that receives graphs from other processes sets it first.
        """
        if self._given is not None:
            return self._given
        session = default_session()
        if self._made is None or self._made[0] is not session:
            self._made = session, MLContext(session)
        return self._made[1]

    @default_context.setter
    def default_context(self, context: MLContext | None) -> None:
        set_default_session(None if context is None else session_of(context))
        self._given = context

    def create_context_sync(
        self,
        device: Any = None,
        *,
        device_type: MLDeviceType | None = None,
        power_preference: MLPowerPreference = "default",
        accelerated: bool | None = None,
        engine: str = "auto",
        engine_options: Mapping[str, Any] | None = None,
        workers: int = 1,
        max_prepared_sizes: int = DEFAULT_ROOM.max_entries,
        max_prepared_bytes: int | None = DEFAULT_ROOM.max_bytes,
        float32_precision: Float32Precision = "highest",
    ) -> MLContext:
        """Create a context.

        Args:
            device: Your GPUDevice of wgpu or wgpudawn, for a GPU context on that device.
            device_type: "cpu", "gpu" or "default" (the CPU). The context never falls back to
                another device.
            power_preference: Which of several GPUs to use: "high-performance" or "low-power".
            accelerated: True selects a hardware GPU if there is one, else the CPU.
            engine: "auto", or an engine by name. CPU contexts accept "onnxruntime", "openvino",
                "reference", an engine that a package adds, and "fastest", which measures the
                installed engines on each graph. GPU contexts accept "webgpu" (wgpu, the default)
                and "dawn" (wgpudawn, which is alpha; the extra `dawn` installs it).
            engine_options: Options of the engine by name, such as {"threads": 4}. Each engine has
                its own options, or none.
            workers: Number of threads on which a CPU context may run work concurrently, if that
                work shares no memory; at least 1. Other threads may help with short awaited runs.
                `engine_options` set the threads that an engine uses within one graph.
            max_prepared_sizes: Number of sets of sizes for which each graph with open dimensions
                stays compiled, at least 1. The least recently used sets are dropped first.
            max_prepared_bytes: Limit in bytes of the device and host memory of these sets, for
                each graph; None for no limit. Memory that all sets share, such as weights, does
                not count. The set used last is always kept.
            float32_precision: How a GPU with tensor cores (engine "dawn") may compute large
                products and convolutions of float32. "highest" is exact. "high" takes three
                products of float16 with sums in float32; its error is at most 2^-20 of the sum of
                the magnitudes of what is added up, unless all have the same sign (then 2^-16, as
                NVIDIA's tensor cores truncate). "medium" takes one: 2^-10.
                Other devices, CPUs and graphs with open dimensions compute exactly.

        Raises:
            ValidationError: The arguments contradict each other or are not valid.
            NotSupportedError: There is no such device or engine, or a package or driver that it
                needs is not installed.
            OperationError: The engine or the device could not be created.
            ContextLostError: `device` is lost, for example by its `destroy`.
            InvalidStateError: A GPU context was requested in a child process that was forked after
                the GPU's driver was loaded.

        Source: WebNN 2026, "createContext()".
        """
        _check_choice("device_type", device_type, DEVICE_TYPES)
        _check_choice("power_preference", power_preference, POWER_PREFERENCES)
        _check_choice("float32_precision", float32_precision, PRECISIONS)
        _check_engine(engine)
        options = _checked_options(engine_options)
        threads = _checked_count("workers", workers, 1)
        room = CacheLimits(
            _checked_count("max_prepared_sizes", max_prepared_sizes, 1),
            None
            if max_prepared_bytes is None
            else _checked_count("max_prepared_bytes", max_prepared_bytes, 0),
        )
        hardware = accelerated is not None and convert.boolean(accelerated, "option 'accelerated'")
        if isinstance(device, str):
            raise ValidationError(
                f"device: got {shown(device)}, expected a wgpu.GPUDevice{_by_name(device)}"
            )
        if device is not None and device_type not in (None, "gpu"):
            raise ValidationError(f"device_type {device_type!r} contradicts the given device")
        if device is not None or device_type == "gpu":
            _check_gpu_options(engine, options, threads)
            return _gpu_context(device, power_preference, room, engine, float32_precision)
        if hardware and device_type is None:
            _check_gpu_options(engine, options, threads)
            found = _open_gpu(
                None, power_preference, room, engine, float32_precision, hardware=True
            )
            if found is not None:
                return found
            if engine != "auto":
                raise NotSupportedError(
                    f"accelerated=True, engine={engine!r}: there is no hardware GPU"
                )
        if engine in GPU_ENGINES and engine != "auto":
            raise ValidationError(f"engine {engine!r} runs on GPUs: it needs device_type='gpu'")
        return MLContext(Session(make_engine(engine, options), "cpu", threads, room))

    async def create_context_async(
        self,
        device: Any = None,
        *,
        device_type: MLDeviceType | None = None,
        power_preference: MLPowerPreference = "default",
        accelerated: bool | None = None,
        engine: str = "auto",
        engine_options: Mapping[str, Any] | None = None,
        workers: int = 1,
        max_prepared_sizes: int = DEFAULT_ROOM.max_entries,
        max_prepared_bytes: int | None = DEFAULT_ROOM.max_bytes,
        float32_precision: Float32Precision = "highest",
    ) -> MLContext:
        """Create a context on a new thread, so that the event loop is never blocked.

        The arguments are those of `create_context_sync`.

        Raises:
            MLError: As `create_context_sync`.

        Source: WebNN 2026, "createContext()".
        """
        create = functools.partial(
            self.create_context_sync,
            device,
            device_type=device_type,
            power_preference=power_preference,
            accelerated=accelerated,
            engine=engine,
            engine_options=engine_options,
            workers=workers,
            max_prepared_sizes=max_prepared_sizes,
            max_prepared_bytes=max_prepared_bytes,
            float32_precision=float32_precision,
        )

        def work() -> MLContext:
            context = create()
            session_of(context).begin_threads()
            return context

        executor = ThreadPoolExecutor(1, thread_name_prefix="webnn-create")
        completion = Completion.of(executor.submit(work))
        executor.shutdown(wait=False)  # the thread ends after its work; do not wait for it here
        return await completion


def _by_name(text: str) -> str:
    """Return a hint which option a string belongs to, as the end of an error message."""
    low = text.lower()
    name = GPU_NAMES.get(low, low)
    if name in DEVICE_TYPES:
        return f"; give it by name: device_type={name!r}"
    engine = OTHER_NAMES.get(low, low)
    return f"; give it by name: engine={engine!r}" if engine in engine_names() else ""


def _check_choice(name: str, value: object, choices: tuple[str, ...]) -> None:
    if name != "device_type" or value is not None:
        convert.one_of(value, choices, f"option {name!r}", GPU_NAMES)


def _check_engine(engine: object) -> None:
    if not isinstance(engine, str) or not engine:
        raise ValidationError(f"option 'engine': got {shown(engine)}, expected an engine's name")


def _checked_options(given: object) -> Mapping[str, Any]:
    what = "option 'engine_options'"
    options = {} if given is None else convert.mapping(given, what)
    for name in options:
        if not isinstance(name, str):
            raise ValidationError(f"{what}: got {shown(name)} as a name, expected a string")
    return options


def _checked_count(name: str, given: object, least: int) -> int:
    number = convert.number(given, f"option {name!r}")
    if not isinstance(number, int) or number < least:
        raise ValidationError(
            f"option {name!r}: got {shown(given)}, expected an integer of at least {least}"
        )
    return number


def _check_gpu_options(engine: str, options: Mapping[str, Any], workers: int) -> None:
    if engine not in GPU_ENGINES:
        raise ValidationError(
            f"engine {engine!r} runs on the CPU: it needs device_type='cpu', and neither a device"
            " nor accelerated=True"
        )
    if options:
        own = "webgpu" if engine == "auto" else engine
        raise ValidationError(f"engine {own!r} has no option {shown(next(iter(options)))}")
    if workers != 1:
        raise ValidationError(
            f"option 'workers': got {workers}, but work on a GPU is ordered by the device's queue;"
            " leave it out, or use device_type='cpu'"
        )


def _gpu_context(
    device: Any,
    power_preference: str,
    room: CacheLimits,
    engine: str,
    precision: Float32Precision,
) -> MLContext:
    context = _open_gpu(device, power_preference, room, engine, precision)
    if context is None:
        raise NotSupportedError("there is no GPU adapter; use device_type='cpu'")
    return context


def _open_gpu(
    device: Any,
    power_preference: str,
    room: CacheLimits,
    engine: str,
    precision: Float32Precision,
    hardware: bool = False,
) -> MLContext | None:
    try:
        from webnn_py.engines.webgpu.runtime.engine import open_engine
    except ImportError as error:  # such as on a free-threaded Python that wgpu has no wheels for
        raise NotSupportedError(f"GPU contexts need the package wgpu: {error}") from error
    opened = open_engine(device, power_preference, hardware, engine, precision)
    return None if opened is None else MLContext(Session(opened, "gpu", room=room))


ml = ML()

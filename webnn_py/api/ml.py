"""`ml`, which makes contexts."""

from __future__ import annotations

import functools
import typing
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from webnn_py.api.context import MLContext
from webnn_py.api.session import Session
from webnn_py.core import convert
from webnn_py.core.completion import Completion
from webnn_py.core.devices import MLDeviceType, MLPowerPreference
from webnn_py.core.errors import NotSupportedError, ValidationError
from webnn_py.core.messages import Suggesting, shown
from webnn_py.engines.registry import make_engine

DEVICE_TYPES: tuple[str, ...] = typing.get_args(MLDeviceType)
POWER_PREFERENCES: tuple[str, ...] = typing.get_args(MLPowerPreference)
GPU_ENGINES = ("auto", "webgpu")
"""Names of the engine of GPU contexts."""


class ML(Suggesting):
    """Makes contexts; use the instance `webnn_py.ml`.

    Source: WebNN 2026, "ML interface".
    """

    def create_context_sync(
        self,
        device: Any = None,
        *,
        device_type: MLDeviceType | None = None,
        power_preference: MLPowerPreference = "default",
        accelerated: bool | None = None,
        engine: str = "auto",
        engine_options: Mapping[str, Any] | None = None,
    ) -> MLContext:
        """Make a context.

        Args:
            device: A wgpu.GPUDevice of yours, for a GPU context on it.
            device_type: "cpu", "gpu" or "default" (the CPU). No other is ever taken instead.
            power_preference: Which GPU, where there are several: "high-performance" or "low-power".
            accelerated: True for a hardware GPU if there is one, else the CPU.
            engine: "auto"; of a CPU context the name of an engine ("reference", or one that a
                package adds); of a GPU context "webgpu".
            engine_options: What the engine is told, by name, such as {"threads": 4}; each engine
                has options of its own, or none.

        Raises:
            ValidationError: The arguments contradict each other or are not valid.
            NotSupportedError: There is no such device or engine, or what it needs is not installed.
            OperationError: The engine or the device could not be made.
            InvalidStateError: A GPU context, in a child process that was forked after the GPU's
                driver was loaded.

        Source: WebNN 2026, "createContext()".
        """
        _check_choice("device_type", device_type, DEVICE_TYPES)
        _check_choice("power_preference", power_preference, POWER_PREFERENCES)
        _check_engine(engine)
        options = _checked_options(engine_options)
        hardware = accelerated is not None and convert.boolean(accelerated, "option 'accelerated'")
        if device is not None and device_type not in (None, "gpu"):
            raise ValidationError(f"device_type {device_type!r} contradicts the given device")
        if device is not None or device_type == "gpu":
            _check_gpu_engine(engine, options)
            return _gpu_context(device, power_preference)
        if hardware and device_type is None:
            _check_gpu_engine(engine, options)
            found = _open_gpu(None, power_preference, hardware=True)
            if found is not None:
                return found
            if engine == "webgpu":
                raise NotSupportedError(
                    "accelerated=True, engine='webgpu': there is no hardware GPU"
                )
        if engine == "webgpu":
            raise ValidationError("engine 'webgpu' runs on GPUs: it needs device_type='gpu'")
        return MLContext(Session(make_engine(engine, options), "cpu"))

    async def create_context_async(
        self,
        device: Any = None,
        *,
        device_type: MLDeviceType | None = None,
        power_preference: MLPowerPreference = "default",
        accelerated: bool | None = None,
        engine: str = "auto",
        engine_options: Mapping[str, Any] | None = None,
    ) -> MLContext:
        """As `create_context_sync`, on a thread of its own: the event loop is never blocked.

        Raises:
            MLError: As `create_context_sync`.

        Source: WebNN 2026, "createContext()".
        """
        work = functools.partial(
            self.create_context_sync,
            device,
            device_type=device_type,
            power_preference=power_preference,
            accelerated=accelerated,
            engine=engine,
            engine_options=engine_options,
        )
        executor = ThreadPoolExecutor(1, thread_name_prefix="webnn-create")
        completion = Completion.of(executor.submit(work))
        executor.shutdown(wait=False)  # the thread ends with its work; nobody waits for it
        return await completion


def _check_choice(name: str, value: object, choices: tuple[str, ...]) -> None:
    if name != "device_type" or value is not None:
        convert.one_of(value, choices, f"option {name!r}")


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


def _check_gpu_engine(engine: str, options: Mapping[str, Any]) -> None:
    if engine not in GPU_ENGINES:
        raise ValidationError(
            f"engine {engine!r} runs on the CPU: it needs device_type='cpu', and neither a device"
            " nor accelerated=True"
        )
    if options:
        raise ValidationError(f"engine 'webgpu' has no option {shown(next(iter(options)))}")


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
    opened = open_engine(device, power_preference, hardware)
    return None if opened is None else MLContext(Session(opened, "gpu"))


ml = ML()

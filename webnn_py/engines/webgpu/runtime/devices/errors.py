"""What wgpu raises, as errors of this package."""

from __future__ import annotations

import functools

import wgpu

from webnn_py.core.errors import ContextLostError, MLError, OperationError


class DeviceErrors:
    """For `with`: turns what wgpu raises into an OperationError that says what was being done.

    It raises a ContextLostError where the device is lost. A class, as generators cost more.

    Args:
        what: What was being done.
    """

    __slots__ = ("_what",)

    def __init__(self, what: str) -> None:
        self._what = what

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, (wgpu.GPUError, RuntimeError)) and not isinstance(error, MLError):
            raise as_ml_error(error, self._what) from error


device_errors = functools.lru_cache(DeviceErrors)
"""The same object for the same words, as each run of a tiny graph asks for several."""


def told(error: BaseException, what: str) -> BaseException:
    """An error as `device_errors` raises it."""
    try:
        with device_errors(what):
            raise error
    except BaseException as found:
        return found


def as_ml_error(error: BaseException, what: str) -> MLError:
    """An error of wgpu as an MLError that says what was being done."""
    if "device is lost" in str(error):
        return ContextLostError(f"{what}: the GPUDevice is lost")
    return OperationError(f"{what}: the device refused: {error}")

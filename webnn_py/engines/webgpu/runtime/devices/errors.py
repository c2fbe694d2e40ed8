"""Conversion of wgpu's errors into MLErrors."""

from __future__ import annotations

import functools

from webnn_py.core.errors import ContextLostError, MLError, OperationError
from webnn_py.engines.webgpu.runtime.webgpu_api import is_a, is_loss


class DeviceErrors:
    """A context manager that converts errors of wgpu into MLErrors that name the operation.

    The MLError is a ContextLostError if the device is lost, else an OperationError. A class, as a
    generator-based context manager is slower.

    Args:
        what: The operation, for the message.
    """

    __slots__ = ("_what",)

    def __init__(self, what: str) -> None:
        self._what = what

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is None or isinstance(error, MLError):
            return
        if isinstance(error, RuntimeError) or is_a(error, "GPUError"):
            raise as_ml_error(error, self._what) from error


device_errors = functools.lru_cache(DeviceErrors)
"""Return the DeviceErrors of an operation; cached, as each run of a tiny graph uses several."""


def told(error: BaseException, what: str) -> BaseException:
    """Return an error as `device_errors` would raise it."""
    try:
        with device_errors(what):
            raise error
    except BaseException as found:
        return found


def as_ml_error(error: BaseException, what: str) -> MLError:
    """Convert an error of wgpu into an MLError that names the operation."""
    if is_loss(error):
        return ContextLostError(f"{what}: the GPUDevice is lost")
    return OperationError(f"{what}: the device refused: {error}")

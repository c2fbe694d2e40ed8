"""What wgpu raises, as errors of this package."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import wgpu

from webnn_py.core.errors import ContextLostError, MLError, OperationError


@contextlib.contextmanager
def device_errors(what: str) -> Iterator[None]:
    """Turn what wgpu raises into an OperationError that says what was being done.

    Raises:
        ContextLostError: The device is lost.
    """
    try:
        yield
    except (wgpu.GPUError, RuntimeError) as error:
        if isinstance(error, MLError):
            raise
        raise as_ml_error(error, what) from error


def as_ml_error(error: BaseException, what: str) -> MLError:
    """An error of wgpu as an MLError that says what was being done."""
    if "device is lost" in str(error):
        return ContextLostError(f"{what}: the GPUDevice is lost")
    return OperationError(f"{what}: the device refused: {error}")

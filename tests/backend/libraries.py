"""Other libraries that speak DLPack."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest


@dataclass(frozen=True)
class Library:
    """Another library that speaks DLPack.

    Attributes:
        take: A tensor of its own over the memory of a DLPack tensor.
        make: A tensor of its own with an array's contents.
        address: Where its tensor lies.
    """

    take: Callable[[Any], Any]
    make: Callable[[np.ndarray[Any, Any]], Any]
    address: Callable[[Any], int]


def numpy_library() -> Library:
    return Library(np.from_dlpack, np.copy, lambda array: int(array.ctypes.data))


def torch_library() -> Library:
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    return Library(
        torch.from_dlpack,
        lambda array: torch.from_numpy(array.copy()),
        lambda made: int(made.data_ptr()),
    )


def jax_library() -> Library:
    jax = pytest.importorskip("jax", reason="JAX is not installed")
    numpy = importlib.import_module("jax.numpy")
    jax.config.update("jax_enable_x64", True)
    jax.config.update("jax_platforms", "cpu")
    return Library(
        numpy.from_dlpack,
        lambda array: numpy.array(array),
        lambda made: int(made.unsafe_buffer_pointer()),
    )

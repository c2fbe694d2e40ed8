"""Reads weights that PyTorch saved, in the format of its versions up to 1.5, without PyTorch."""

from __future__ import annotations

import pickle
from collections import OrderedDict
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

STORAGES = {"FloatStorage": np.dtype(np.float32), "LongStorage": np.dtype(np.int64)}


class _Unpickler(pickle.Unpickler):
    """Makes nothing but what a dictionary of tensors is made of."""

    def find_class(self, module: str, name: str) -> Any:
        known = {"OrderedDict": OrderedDict, "_rebuild_tensor_v2": lambda *tensor: tensor}
        if name not in known | STORAGES:
            raise pickle.UnpicklingError(f"{module}.{name} is no part of a checkpoint")
        return (known | STORAGES)[name]

    def persistent_load(self, pid: Any) -> Any:
        """Where a tensor lies: its storage's data type and key."""
        _, dtype, key, *_ = pid
        return dtype, key


def load_checkpoint(file: IO[bytes]) -> dict[str, NDArray[Any]]:
    """The arrays of a state dictionary, by name.

    A file is five pickles (a mark, a version, the machine, the tensors, the storages' keys), and
    then of each storage its number of elements and these.
    """
    _, _, _, tensors, keys = (_Unpickler(file).load() for _ in range(5))
    types = {key: dtype for (dtype, key), *_ in tensors.values()}
    storages = {}
    for key in keys:
        (size,) = np.frombuffer(file.read(8), np.int64)
        storages[key] = np.frombuffer(file.read(size * types[key].itemsize), types[key])
    arrays = {}
    for name, ((dtype, key), offset, shape, strides, *_) in tensors.items():
        steps = [step * dtype.itemsize for step in strides]
        start = offset * dtype.itemsize
        view = np.ndarray(shape, dtype, storages[key], start, steps)
        arrays[name] = np.ascontiguousarray(view)
    return arrays

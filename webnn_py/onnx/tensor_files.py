"""Reader and writer of files with one tensor each, the format of ONNX's test data."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from onnx import TensorProto, numpy_helper

from webnn_py.core.errors import DataError
from webnn_py.core.files import open_regular
from webnn_py.onnx.tensor import Array


def read_tensor(path: Path) -> Array:
    """Return the contents of a file with a serialized onnx.TensorProto.

    Raises:
        DataError: The file holds no tensor.
        OSError: The file cannot be read.
    """
    tensor = TensorProto()
    try:
        with open_regular(path) as file:
            tensor.ParseFromString(file.read())
        return np.asarray(numpy_helper.to_array(tensor))
    except (OSError, DataError):
        raise
    except Exception as error:  # protobuf and NumPy raise errors of several types
        raise DataError(f"{path} holds no ONNX tensor: {error}") from error


def tensor_bytes(array: Array, name: str) -> bytes:
    """Return an array as the contents of a TensorProto file."""
    contents: bytes = numpy_helper.from_array(array, name).SerializeToString()
    return contents

"""Tensors in files of their own, as ONNX's test data are."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from onnx import TensorProto, numpy_helper

from webnn_py.core.errors import DataError
from webnn_py.core.files import open_regular
from webnn_py.onnx.tensor import Array


def read_tensor(path: Path) -> Array:
    """The contents of an onnx.TensorProto in a file.

    Raises:
        DataError: The file holds none.
        OSError: It cannot be read.
    """
    tensor = TensorProto()
    try:
        with open_regular(path) as file:
            tensor.ParseFromString(file.read())
        return np.asarray(numpy_helper.to_array(tensor))
    except (OSError, DataError):
        raise
    except Exception as error:  # of protocol buffers' and NumPy's
        raise DataError(f"{path} holds no ONNX tensor: {error}") from error

"""Tensors in files of their own, as ONNX's test data are."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from onnx import TensorProto, numpy_helper

from webnn_py.core.errors import DataError
from webnn_py.onnx.tensor import Array


def read_tensor(path: Path) -> Array:
    """The contents of an onnx.TensorProto in a file.

    Raises:
        DataError: The file holds none.
        OSError: It cannot be read.
    """
    tensor = TensorProto()
    try:
        tensor.ParseFromString(path.read_bytes())
        return np.asarray(numpy_helper.to_array(tensor))
    except OSError:
        raise
    except Exception as error:  # of protocol buffers' and NumPy's
        raise DataError(f"{path} holds no ONNX tensor: {error}") from error

"""The two trained networks of the samples, written for an MLGraphBuilder.

Each function adds one network to a builder and returns its output operand. Layer sizes are read
from the weights, so this file is the only description of the networks: the scripts in `training/`
train exactly these functions.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from webnn_py import MLGraphBuilder, MLOperand

Weights = Mapping[str, NDArray[np.float32]]


def load_weights(name: str) -> dict[str, NDArray[np.float32]]:
    """Read `weights/<name>.npz`; the file may hold float16, the networks run in float32."""
    with np.load(Path(__file__).parent / "weights" / f"{name}.npz") as stored:
        return {key: stored[key].astype(np.float32) for key in stored.files}


def _conv(
    b: MLGraphBuilder, x: MLOperand, weights: Weights, name: str, padding: int = 1
) -> MLOperand:
    """Convolve NCHW `x` with the OIHW filter and the bias called `name`."""
    return b.conv2d(
        x,
        b.constant(weights[f"{name}.filter"]),
        bias=b.constant(weights[f"{name}.bias"]),
        padding=[padding] * 4,
        label=name,
    )


def digits(b: MLGraphBuilder, weights: Weights, batch: int | str = 1) -> MLOperand:
    """Classify handwritten digits.

    The input is `image`, float32 `[batch, 1, 8, 8]`, ink from 0 to 1 (scikit-learn's pixels / 16);
    `batch` is a number, or the name of an open dimension. Returns the probabilities of the digits 0
    to 9, `[batch, 10]`.
    """
    x = b.input("image", "float32", [batch, 1, 8, 8])
    x = b.relu(_conv(b, x, weights, "conv1"))
    x = b.relu(_conv(b, x, weights, "conv2"))
    x = b.max_pool2d(x, window_dimensions=[2, 2], strides=[2, 2])
    x = b.relu(_conv(b, x, weights, "conv3"))
    features = b.constant(weights["dense.weight"])
    x = b.reshape(x, [x.shape[0], features.shape[0]])
    return b.softmax(b.gemm(x, features, c=b.constant(weights["dense.bias"])), 1)


def bicubic_filter() -> NDArray[np.float32]:
    """The OIHW filter of bicubic x2 upsampling (a = -0.5): 12 outputs, channel-major 2x2 phases."""
    # An output pixel's centre lies a quarter pixel before or after its input pixel's centre.
    distance = np.abs(np.arange(-2, 3) - np.array([[-0.25], [0.25]]))
    near = 1.5 * distance**3 - 2.5 * distance**2 + 1
    far = -0.5 * distance**3 + 2.5 * distance**2 - 4 * distance + 2
    taps = np.where(distance <= 1, near, np.where(distance < 2, far, 0))
    phases = np.einsum("oi,yh,xw->oyxihw", np.eye(3), taps, taps)
    return np.ascontiguousarray(phases.reshape(12, 3, 5, 5), np.float32)


def super_resolution(
    b: MLGraphBuilder, weights: Weights, height: int, width: int, batch: int = 1
) -> MLOperand:
    """Double the size of an RGB photo: bicubic upsampling plus a learned residual.

    The input is `low`, float32 `[batch, 3, height, width]` in 0..1. Returns the photo,
    `[batch, 3, 2 * height, 2 * width]` in 0..1.
    """
    low = b.input("low", "float32", [batch, 3, height, width])
    low = b.pad(low, [0, 0, 2, 2], [0, 0, 2, 2], mode="edge")
    x = b.relu(_conv(b, low, weights, "head", padding=0))
    for block in range(sum(name.endswith("first.filter") for name in weights)):
        y = b.relu(_conv(b, x, weights, f"block{block}.first"))
        x = b.add(x, _conv(b, y, weights, f"block{block}.second"))
    x = _conv(b, x, weights, "tail")
    x = b.add(x, b.conv2d(low, b.constant(bicubic_filter()), label="bicubic"))
    # Depth to space: the four phases of each colour become 2x2 pixels.
    x = b.reshape(x, [batch, 3, 2, 2, height, width])
    x = b.transpose(x, permutation=[0, 1, 4, 2, 5, 3])
    x = b.reshape(x, [batch, 3, 2 * height, 2 * width])
    return b.clamp(x, min_value=0.0, max_value=1.0)

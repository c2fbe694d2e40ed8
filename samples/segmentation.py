"""The network of `background_blur.py`: finds the person that its camera draws, and nobody else.

Random 3 x 3 filters over three scales, what they give around each place, and a logistic regression,
which is fitted in a few seconds to frames whose truth is known.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from webnn_py import MLExecution, MLGraphBuilder, MLOperand, ml

COARSE = 4
"""Pixels of a frame along each side of one that the network sees."""
FILTERS = 48
SURROUNDINGS = (5, 13, 25)
"""Windows in which what the filters give is averaged, too."""
SAMPLED = 5
"""Every fifth place is fitted to."""
Pixels = NDArray[np.float32]


def features(b: MLGraphBuilder, height: int, width: int) -> MLOperand:
    """What the filters give for `frame` [1, 3, height, width] in 0..1, at a quarter of its size."""
    frame = b.input("frame", "float32", [1, 3, height, width])
    small = b.average_pool2d(frame, window_dimensions=[COARSE] * 2, strides=[COARSE] * 2)
    seen = [small]
    for size in (7, 21):
        seen.append(b.sub(small, _mean(b, small, size)))
    rows = np.linspace(-1, 1, height // COARSE, dtype=np.float32)
    places = np.repeat(rows, width // COARSE).reshape(1, 1, height // COARSE, width // COARSE)
    rng = np.random.default_rng(0)
    filters = b.constant(rng.normal(0, 0.6, (FILTERS, 10, 3, 3)).astype(np.float32))
    bias = b.constant(rng.normal(0, 0.5, FILTERS).astype(np.float32))
    x = b.concat([*seen, b.constant(places)], 1)
    x = b.relu(b.conv2d(x, filters, bias=bias, padding=[1] * 4))
    return b.concat([x, *(_mean(b, x, size) for size in SURROUNDINGS)], 1)


def _mean(b: MLGraphBuilder, x: MLOperand, size: int) -> MLOperand:
    """The mean of size x size places around each: of rows, then of columns."""
    half = size // 2
    x = b.average_pool2d(x, window_dimensions=[size, 1], padding=[half, half, 0, 0])
    return b.average_pool2d(x, window_dimensions=[1, size], padding=[0, 0, half, half])


def segmentation(b: MLGraphBuilder, weights: Pixels, height: int, width: int) -> MLOperand:
    """How likely each pixel of `frame` shows the person: [1, 1, height, width]."""
    x = features(b, height, width)
    last = b.constant(weights[:-1].reshape(1, -1, 1, 1))
    score = b.conv2d(x, last, bias=b.constant(weights[-1:]))
    return b.sigmoid(b.resample2d(score, mode="linear", sizes=[height, width]))


def fit(frames: Sequence[NDArray[np.uint8]]) -> Pixels:
    """The weights of the regression, by Newton's method.

    Args:
        frames: [height, width, 4] each; alpha is the truth.
    """
    height, width = frames[0].shape[:2]
    with ml.create_context_sync(device_type="cpu") as cpu:
        b = MLGraphBuilder(cpu)
        graph = b.build_sync({"features": features(b, height, width)})
        rows, truth = [], []
        for frame in frames:
            rgb = np.ascontiguousarray(frame[None, ..., :3].transpose(0, 3, 1, 2), np.float32)
            found = MLExecution(cpu).compute(graph, {"frame": rgb / 255})["features"]
            rows.append(found.reshape(found.shape[1], -1).T[::SAMPLED])
            alpha = frame[COARSE // 2 :: COARSE, COARSE // 2 :: COARSE, 3]
            truth.append(alpha.reshape(-1)[::SAMPLED] > 127)
    y = np.concatenate(truth)
    x = np.column_stack([np.concatenate(rows), np.ones(len(y))])
    weights = np.zeros(x.shape[1])
    for _ in range(8):
        p = 1 / (1 + np.exp(-np.clip(x @ weights, -30, 30)))
        curvature = (x * (p * (1 - p))[:, None]).T @ x + 0.1 * np.eye(len(weights))
        weights += np.linalg.solve(curvature, x.T @ (y - p) - 0.1 * weights)
    return weights.astype(np.float32)

"""Random networks around what ONNX Runtime computes in blocks give what the reference gives.

WEBNN_RANDOM_CASES=500 draws so many.
"""

from __future__ import annotations

import math
import os
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.unit.engines.test_nchwc import convolved, normalized
from webnn_py import MLExecution, MLGraphBuilder, MLOperand, ml

pytest.importorskip("onnxruntime")

SEEDS = range(int(os.environ.get("WEBNN_RANDOM_CASES", "60")))
SHAPES = [
    (1, 32, 6, 6),
    (2, 64, 5, 7),
    (1, 64, 16, 32),
    (1, 16, 32, 64),
    (2, 3, 9, 9),
    (1, 128, 4, 1),
    (1, 512, 1, 1),
]
MOST = 1 << 17
"""Elements of a value."""
FIRST, LAST = [0, 3, 1, 2], [0, 2, 3, 1]

Layer = Callable[[MLGraphBuilder, random.Random, MLOperand, list[MLOperand]], MLOperand]


def convolution(b: MLGraphBuilder, rng: random.Random, x: MLOperand, _: Any) -> MLOperand:
    channels = x.shape[1]
    groups = rng.choice([1, 1, 1, channels, *([2] if channels % 2 == 0 else [])])
    made = channels if groups == channels else rng.choice([16, 32, 48, 64, 96, 512])
    padding = rng.choice([[0, 0, 0, 0], [1, 1, 1, 1], [1, 0, 0, 2]])
    size = 3 if min(x.shape[2:]) >= 3 and rng.random() < 0.5 else 1
    strides = rng.choice([[1, 1], [2, 1]])
    return convolved(b, x, made, size, groups=groups, padding=padding, strides=strides)


def pooling(b: MLGraphBuilder, rng: random.Random, x: MLOperand, _: Any) -> MLOperand:
    pool = rng.choice([b.max_pool2d, b.average_pool2d])
    strides, padding = rng.choice([[1, 1], [2, 2]]), rng.choice([[0, 0, 0, 0], [1, 1, 1, 1]])
    window = [min(size, rng.choice([2, 3])) for size in x.shape[2:]]
    padding = padding if min(window) > 1 else [0, 0, 0, 0]
    return pool(x, window_dimensions=window, strides=strides, padding=padding)


def joined(
    b: MLGraphBuilder, rng: random.Random, x: MLOperand, values: list[MLOperand]
) -> MLOperand:
    others = [value for value in values if value.shape == x.shape]
    return rng.choice([b.add, b.mul, b.max])(x, rng.choice(others))


def limited(b: MLGraphBuilder, x: MLOperand) -> MLOperand:
    return b.clamp(x, min_value=-2.0, max_value=2.0)


LAYERS: list[Layer] = [
    convolution,
    pooling,
    joined,
    lambda b, rng, x, _: normalized(b, x, rng.randint(0, 3), rng.randint(0, 3)),
    lambda b, rng, x, _: normalized(b, b.relu(x), 2, 2),
    lambda b, rng, x, _: b.relu(x),
    lambda b, rng, x, _: rng.choice([b.sigmoid, b.gelu, b.hard_swish])(limited(b, x)),
    lambda b, rng, x, _: b.transpose(x, permutation=rng.choice([FIRST, LAST])),
    lambda b, rng, x, _: normalized(b, b.transpose(b.relu(x), permutation=FIRST)),
    lambda b, rng, x, _: b.abs(b.transpose(normalized(b, x), permutation=LAST)),
    lambda b, rng, x, _: b.concat([x, x], rng.choice([1, 2])),
    lambda b, rng, x, _: b.add(x, weight(b, rng.choice([(1,), (x.shape[1], 1, 1), x.shape]))),
    lambda b, rng, x, _: b.softmax(x, rng.choice([1, 3])),
]


def weight(b: MLGraphBuilder, shape: tuple[int, ...]) -> MLOperand:
    return b.constant(np.random.default_rng(1).normal(size=shape).astype(np.float32))


def network(b: MLGraphBuilder, seed: int) -> dict[str, MLOperand]:
    """Some layers, each of one of the last values."""
    rng = random.Random(seed)
    values = [b.input("x", "float32", rng.choice(SHAPES))]
    for _ in range(rng.randint(4, 12)):
        x = rng.choice(values[-3:])
        made = rng.choice(LAYERS)(b, rng, x, values)
        if math.prod(made.shape) <= MOST:
            values.append(made)
    last = values[-1] if len(values) > 1 else b.relu(values[0])
    return {"last": last, "other": b.relu(rng.choice(values))}


def computed(engine: str, seed: int) -> dict[str, Any]:
    context = ml.create_context_sync(engine=engine)
    b = MLGraphBuilder(context)
    graph = b.build_sync(network(b, seed))
    (x,) = graph.inputs.values()
    array = np.random.default_rng(seed).normal(size=x.shape).astype(np.float32)
    return MLExecution(context).compute(graph, {"x": array})


@pytest.mark.parametrize("seed", SEEDS)
def test_a_network(seed: int) -> None:
    got = computed("onnxruntime", seed)
    for name, wanted in computed("reference", seed).items():
        scale = np.abs(wanted).max()
        np.testing.assert_allclose(got[name] / scale, wanted / scale, rtol=0, atol=1e-4)

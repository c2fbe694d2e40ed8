"""Single operators at sizes that fill a large GPU, and the same by PyTorch."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.gpu_peers import Array
from webnn_py import MLGraphBuilder, MLOperand

Compute = Callable[..., Any]


@dataclass(frozen=True)
class Case:
    """An operator, what it reads, and the same by PyTorch."""

    shapes: tuple[tuple[int, ...], ...]
    build: Callable[..., MLOperand]
    """Takes a builder and the inputs."""
    torch: Compute | None = None
    """Takes PyTorch and the inputs."""
    most: tuple[int, ...] = ()
    """Of the inputs that are indices, behind the others: what they stay below."""
    weights: int = 0
    """How many of the last inputs are constants."""
    flop: float = 0.0


def conv_flop(outputs: Sequence[int], each: int) -> float:
    """Of a convolution, by the shape of its result and products for each of its elements."""
    return 2.0 * math.prod(outputs) * each


def attention(b: MLGraphBuilder, q: MLOperand, k: MLOperand, v: MLOperand) -> MLOperand:
    """Of heads of 64 elements, keys turned."""
    scaled = b.mul(b.matmul(q, k), b.constant(0.125, q.data_type))
    return b.matmul(b.softmax(scaled, 3), v)


SQUARE = (5792, 5792)
IMAGES = (32, 64, 128, 128)
WIDE = (8, 256, 128, 128)

CASES: dict[str, Case] = {
    "relu": Case((SQUARE,), lambda b, x: b.relu(x), lambda t, x: t.relu(x)),
    "add a row": Case((SQUARE, (5792,)), lambda b, x, y: b.add(x, y), lambda t, x, y: x + y),
    "gelu": Case((SQUARE,), lambda b, x: b.gelu(x), lambda t, x: t.nn.functional.gelu(x)),
    "cast to float16": Case((SQUARE,), lambda b, x: b.cast(x, "float16"), lambda t, x: x.half()),
    "sum of all": Case((SQUARE,), lambda b, x: b.reduce_sum(x), lambda t, x: x.sum()),
    "sum of rows": Case((SQUARE,), lambda b, x: b.reduce_sum(x, axes=[1]), lambda t, x: x.sum(1)),
    "sum of columns": Case(
        (SQUARE,), lambda b, x: b.reduce_sum(x, axes=[0]), lambda t, x: x.sum(0)
    ),
    "mean of images": Case(
        (IMAGES,), lambda b, x: b.reduce_mean(x, axes=[2, 3]), lambda t, x: x.mean((2, 3))
    ),
    "sum by channel": Case(
        (IMAGES,), lambda b, x: b.reduce_sum(x, axes=[0, 2, 3]), lambda t, x: x.sum((0, 2, 3))
    ),
    "arg max of rows": Case(
        (SQUARE,), lambda b, x: b.arg_max(x, 1), lambda t, x: x.argmax(1).int()
    ),
    "arg max of columns": Case(
        (SQUARE,), lambda b, x: b.arg_max(x, 0), lambda t, x: x.argmax(0).int()
    ),
    "softmax": Case((SQUARE,), lambda b, x: b.softmax(x, 1), lambda t, x: x.softmax(1)),
    "softmax of columns": Case((SQUARE,), lambda b, x: b.softmax(x, 0), lambda t, x: x.softmax(0)),
    "softmax of a vocabulary": Case(
        ((64, 128256),), lambda b, x: b.softmax(x, 1), lambda t, x: x.softmax(1)
    ),
    "layer norm": Case(
        ((32768, 1024),),
        lambda b, x: b.layer_normalization(x, axes=[1]),
        lambda t, x: t.nn.functional.layer_norm(x, (1024,)),
    ),
    "layer norm, long rows": Case(
        (SQUARE,),
        lambda b, x: b.layer_normalization(x, axes=[1]),
        lambda t, x: t.nn.functional.layer_norm(x, (5792,)),
    ),
    "instance norm": Case(
        (WIDE,),
        lambda b, x: b.instance_normalization(x),
        lambda t, x: t.nn.functional.instance_norm(x),
    ),
    "group norm": Case(
        (WIDE,),
        lambda b, x: b.reshape(
            b.layer_normalization(b.reshape(x, [8, 32, 8 * 128 * 128]), axes=[2]), WIDE
        ),
        lambda t, x: t.nn.functional.group_norm(x, 32),
    ),
    "cumulative sum of rows": Case(
        (SQUARE,), lambda b, x: b.cumulative_sum(x, 1), lambda t, x: x.cumsum(1)
    ),
    "cumulative sum of columns": Case(
        (SQUARE,), lambda b, x: b.cumulative_sum(x, 0), lambda t, x: x.cumsum(0)
    ),
    "cumulative sum of one row": Case(
        ((1, 4_000_000),), lambda b, x: b.cumulative_sum(x, 1), lambda t, x: x.cumsum(1)
    ),
    "transpose": Case((SQUARE,), lambda b, x: b.transpose(x), lambda t, x: x.T.contiguous()),
    "channels last": Case(
        (IMAGES,),
        lambda b, x: b.transpose(x, permutation=[0, 2, 3, 1]),
        lambda t, x: x.permute(0, 2, 3, 1).contiguous(),
    ),
    "heads": Case(
        ((32, 1024, 16, 64),),
        lambda b, x: b.transpose(x, permutation=[0, 2, 1, 3]),
        lambda t, x: x.transpose(1, 2).contiguous(),
    ),
    "concat": Case(
        ((2896, 5792), (2896, 5792)),
        lambda b, x, y: b.concat([x, y], 1),
        lambda t, x, y: t.cat([x, y], 1),
    ),
    "reflected padding": Case(
        (IMAGES,),
        lambda b, x: b.pad(x, [0, 0, 3, 3], [0, 0, 3, 3], mode="reflection"),
        lambda t, x: t.nn.functional.pad(x, (3, 3, 3, 3), mode="reflect"),
    ),
    "every second": Case(
        (SQUARE,),
        lambda b, x: b.slice(x, [0, 0], SQUARE, strides=[2, 2]),
        lambda t, x: x[::2, ::2].contiguous(),
    ),
    "upper triangle": Case((SQUARE,), lambda b, x: b.triangular(x), lambda t, x: t.triu(x)),
    "gather rows": Case(
        ((50257, 768), (16384,)),
        lambda b, x, i: b.gather(x, i),
        lambda t, x, i: x[i.long()],
        most=(50257,),
    ),
    "gather elements": Case(
        (SQUARE, SQUARE),
        lambda b, x, i: b.gather_elements(x, i, axis=1),
        lambda t, x, i: x.gather(1, i.long()),
        most=(5792,),
    ),
    "scatter rows": Case(
        ((50257, 768), (16384, 768), (16384, 1)),
        lambda b, x, u, i: b.scatter_nd(x, i, u),
        most=(50257,),
    ),
    "largest of 3x3": Case(
        (IMAGES,),
        lambda b, x: b.max_pool2d(
            x, window_dimensions=[3, 3], strides=[2, 2], padding=[1, 1, 1, 1]
        ),
        lambda t, x: t.nn.functional.max_pool2d(x, 3, 2, 1),
    ),
    "depthwise 3x3": Case(
        (WIDE, (256, 1, 3, 3)),
        lambda b, x, w: b.conv2d(x, w, padding=[1] * 4, groups=256),
        lambda t, x, w: t.nn.functional.conv2d(x, w, padding=1, groups=256),
        weights=1,
    ),
    "enlarged by two, linear": Case(
        (WIDE,),
        lambda b, x: b.resample2d(x, mode="linear", scales=[2, 2]),
        lambda t, x: t.nn.functional.interpolate(x, scale_factor=2, mode="bilinear"),
    ),
    "enlarged by two, nearest": Case(
        (WIDE,),
        lambda b, x: b.resample2d(x, scales=[2, 2]),
        lambda t, x: t.nn.functional.interpolate(x, scale_factor=2, mode="nearest"),
    ),
    "convolution 3x3": Case(
        (IMAGES, (64, 64, 3, 3)),
        lambda b, x, w: b.conv2d(x, w, padding=[1] * 4),
        lambda t, x, w: t.nn.functional.conv2d(x, w, padding=1),
        weights=1,
        flop=conv_flop(IMAGES, 64 * 9),
    ),
    "convolution 3x3, 512 channels": Case(
        ((2, 512, 64, 64), (512, 512, 3, 3)),
        lambda b, x, w: b.conv2d(x, w, padding=[1] * 4),
        lambda t, x, w: t.nn.functional.conv2d(x, w, padding=1),
        weights=1,
        flop=conv_flop((2, 512, 64, 64), 512 * 9),
    ),
    "convolution 3x3, 4 groups": Case(
        (WIDE, (256, 64, 3, 3)),
        lambda b, x, w: b.conv2d(x, w, padding=[1] * 4, groups=4),
        lambda t, x, w: t.nn.functional.conv2d(x, w, padding=1, groups=4),
        weights=1,
        flop=conv_flop(WIDE, 64 * 9),
    ),
    "transposed convolution 4x4": Case(
        ((8, 256, 64, 64), (256, 128, 4, 4)),
        lambda b, x, w: b.conv_transpose2d(x, w, strides=[2, 2], padding=[1] * 4),
        lambda t, x, w: t.nn.functional.conv_transpose2d(x, w, stride=2, padding=1),
        weights=1,
        flop=conv_flop((8, 128, 128, 128), 256 * 4),
    ),
    "product of a row": Case(
        ((1, 8192), (8192, 8192)),
        lambda b, x, y: b.matmul(x, y),
        lambda t, x, y: x @ y,
        weights=1,
    ),
    "product": Case(
        ((4096, 1024), (1024, 4096)),
        lambda b, x, y: b.matmul(x, y),
        lambda t, x, y: x @ y,
        flop=2.0 * 4096 * 4096 * 1024,
    ),
    "products of heads": Case(
        ((128, 512, 64), (128, 64, 512)),
        lambda b, x, y: b.matmul(x, y),
        lambda t, x, y: x @ y,
        flop=2.0 * 128 * 512 * 512 * 64,
    ),
    "attention": Case(
        ((8, 16, 1024, 64), (8, 16, 64, 1024), (8, 16, 1024, 64)),
        attention,
        lambda t, q, k, v: t.softmax(q @ k * 0.125, 3) @ v,
        flop=4.0 * 8 * 16 * 1024 * 1024 * 64,
    ),
    "lstm": Case(
        ((64, 32, 256), (1, 1024, 256), (1, 1024, 256)),
        lambda b, x, w, r: b.lstm(x, w, r, 64, 256)[0],
        weights=2,
        flop=2.0 * 64 * 32 * 1024 * 512,
    ),
}


def drawn(case: Case, data_type: str = "float32") -> list[Array]:
    """Inputs at random, and indices."""
    rng = np.random.default_rng(0)
    floats = len(case.shapes) - len(case.most)
    made: list[Array] = [
        (rng.standard_normal(shape, np.float32) * (0.5 if i else 1.0)).astype(data_type)
        for i, shape in enumerate(case.shapes[:floats])
    ]
    for shape, most in zip(case.shapes[floats:], case.most, strict=True):
        distinct = shape[-1] == 1
        made.append(
            rng.permutation(most)[: math.prod(shape)].reshape(shape).astype(np.int32)
            if distinct
            else rng.integers(0, most, shape, np.int32)
        )
    return made

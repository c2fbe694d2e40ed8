"""Random U-Nets: what goes down is joined to what comes up, by concats that are written in place.

WEBNN_RANDOM_CASES=200 runs so many on each kind of device; WEBNN_SEED=123 runs one.
"""

from __future__ import annotations

import os
import random
from typing import Any

import numpy as np
import pytest

from tests.adapters import need_quick_compiler
from tests.graphs import awaited, build, normal
from webnn_py import MLContext, MLExecution, MLGraphBuilder, MLOperand

pytestmark = pytest.mark.kernels

ONE = os.environ.get("WEBNN_SEED")
SEEDS = [int(ONE)] if ONE else range(int(os.environ.get("WEBNN_RANDOM_CASES", "4")))
APART = {"float32": 1e-4, "float16": 0.03}
"""By how much of the largest result others may differ: what is misplaced differs by about all."""


class UNet:
    """A network that the seed tells: its sizes, and how it goes down, up and joins.

    Args:
        seed: Of all choices.
    """

    def __init__(self, seed: int) -> None:
        self.seed = seed
        chance = random.Random(seed)
        self.data_type = chance.choice(["float32", "float32", "float16"])
        self.layout = chance.choice(["nchw", "nchw", "nhwc"])
        self.axis = 1 if self.layout == "nchw" else 3
        channels, *size = (chance.randint(1, 5), chance.randint(4, 13), chance.randint(4, 13))
        batch = chance.choice([1, 1, 2])
        self.shape = (batch, channels, *size) if self.axis == 1 else (batch, *size, channels)

    def input(self) -> np.ndarray[Any, Any]:
        return normal(*self.shape, seed=self.seed).astype(self.data_type)

    def __call__(self, builder: MLGraphBuilder) -> dict[str, MLOperand]:
        self.chance, self.builder = random.Random(-1 - self.seed), builder
        self.outputs: dict[str, MLOperand] = {}
        depth = self.chance.randint(1, 3)
        x = builder.input("x", self.data_type, self.shape)
        skips = [x] if self.chance.random() < 0.3 else []
        for _ in range(depth):
            if min(self.size_of(x)) < 2:
                break
            x = self.block(x, self.chance.randint(1, 9))
            skips.append(x)
            x = self.down(x)
        x = self.block(x, self.chance.randint(1, 12))
        for skip in reversed(skips):
            x = self.join(self.up(x, skip), skip)
            if self.chance.random() < 0.8:
                x = self.block(x, self.chance.randint(1, 9))
        return {**self.outputs, "y": builder.identity(x)}

    def block(self, x: MLOperand, channels: int) -> MLOperand:
        """One or two convolutions, each perhaps normalized, and the residual where it fits."""
        before = x
        for _ in range(self.chance.randint(1, 2)):
            x = self.convolution(x, channels, self.chance.choice([1, 3, 3]), 1)
            if self.chance.random() < 0.3:
                x = self.builder.instance_normalization(x, layout=self.layout, epsilon=0.1)
            x = self.chance.choice(
                [self.builder.relu, self.builder.leaky_relu, self.builder.tanh, self.builder.elu]
            )(x)
        if before.shape == x.shape and self.chance.random() < 0.5:
            x = self.builder.add(x, before)
        return x

    def convolution(self, x: MLOperand, channels: int, side: int, stride: int) -> MLOperand:
        before = x.shape[self.axis]
        filters, layout = self.weights(channels, before, side, side), "oihw"
        if self.axis == 3 and self.chance.random() < 0.5:
            filters, layout = self.builder.transpose(filters, permutation=[0, 2, 3, 1]), "ohwi"
        return self.builder.conv2d(
            x,
            filters,
            bias=self.weights(channels) if self.chance.random() < 0.5 else None,
            padding=[side // 2] * 4,
            strides=[stride] * 2,
            input_layout=self.layout,
            filter_layout=layout,
        )

    def down(self, x: MLOperand) -> MLOperand:
        way = self.chance.choice(["max", "average", "convolution"])
        if way == "convolution":
            return self.convolution(x, x.shape[self.axis], 3, 2)
        pool = self.builder.max_pool2d if way == "max" else self.builder.average_pool2d
        window = {"window_dimensions": [2, 2], "strides": [2, 2], "layout": self.layout}
        return pool(x, output_shape_rounding=self.chance.choice(["floor", "ceil"]), **window)

    def up(self, x: MLOperand, skip: MLOperand) -> MLOperand:
        """To the size of what it is joined to."""
        axes = [2, 3] if self.axis == 1 else [1, 2]
        sizes = self.size_of(skip)
        if self.chance.random() < 0.5:
            mode = self.chance.choice(["nearest-neighbor", "linear"])
            return self.builder.resample2d(x, mode=mode, sizes=sizes, axes=axes)
        channels = x.shape[self.axis]
        made = self.builder.conv_transpose2d(
            x,
            self.weights(channels, channels, 2, 2),
            strides=[2, 2],
            input_layout=self.layout,
        )
        starts, ends = [0] * 4, list(made.shape)
        missing = [0] * 4
        for axis, size in zip(axes, sizes, strict=True):
            ends[axis] = min(size, made.shape[axis])
            missing[axis] = size - ends[axis]
        return self.builder.pad(self.builder.slice(made, starts, ends), [0] * 4, missing)

    def join(self, x: MLOperand, skip: MLOperand) -> MLOperand:
        """The skip before or behind, once or twice, also as a concat that is joined on."""
        parts = self.chance.choice([[x, skip], [skip, x], [skip, x, skip], [x, skip, self.also(x)]])
        made = self.builder.concat(parts, self.axis)
        if self.chance.random() < 0.3:
            made = self.builder.concat([made, self.also(skip)], self.axis)
        for value in (made, skip):
            if self.chance.random() < 0.15:
                self.outputs[f"r{len(self.outputs)}"] = self.builder.identity(value)
        return made

    def also(self, x: MLOperand) -> MLOperand:
        """Something of the same size."""
        return self.convolution(x, self.chance.randint(1, 4), 1, 1)

    def size_of(self, x: MLOperand) -> list[int]:
        """Height and width."""
        return list(x.shape[2:] if self.axis == 1 else x.shape[1:3])

    def weights(self, *shape: int) -> MLOperand:
        values = normal(*shape, seed=self.chance.randrange(1000))
        spread = max(1.0, float(np.prod(shape[1:]))) ** 0.5
        return self.builder.constant((values / spread).astype(self.data_type))


@pytest.mark.parametrize("seed", SEEDS)
def test_random_u_net(
    form: MLContext, reference: MLContext, hardware: MLContext, seed: int
) -> None:
    if form is hardware:
        need_quick_compiler(form.device, "what graphics hardware gets")
    network = UNet(seed)
    given = {"x": network.input()}
    graph = build(form, network)
    got = awaited(graph, given)
    graph.destroy()
    wanted = MLExecution(reference).compute(build(reference, network), given)
    assert got.keys() == wanted.keys()
    for name, expected in wanted.items():
        most = float(np.max(np.abs(expected), initial=1e-3))
        np.testing.assert_allclose(
            got[name], expected, rtol=0, atol=APART[network.data_type] * most, err_msg=str(seed)
        )

"""A PyTorch stand-in for MLGraphBuilder, so that the networks in `models.py` can be trained.

It runs each operator at once on tensors instead of recording a graph, and has only the operators
and options that `models.py` uses.
"""

# ruff: noqa: D102 - each method is documented by the operator of MLGraphBuilder it stands for.

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

Parameters = dict[str, torch.nn.Parameter]


class TorchBuilder:
    """Evaluates a network eagerly on the given inputs."""

    def __init__(self, inputs: Mapping[str, Tensor]) -> None:
        self._inputs = inputs

    def input(self, name: str, data_type: str, shape: Sequence[int]) -> Tensor:
        tensor = self._inputs[name]
        if data_type != "float32" or list(tensor.shape) != list(shape):
            raise ValueError(f"{name} is {list(tensor.shape)}, the network wants {list(shape)}")
        return tensor

    def constant(self, value: Any) -> Tensor:
        return torch.as_tensor(value)

    def conv2d(
        self,
        x: Tensor,
        filter: Tensor,
        *,
        bias: Tensor | None = None,
        padding: Sequence[int] = (0, 0, 0, 0),
        label: str = "",
    ) -> Tensor:
        top, bottom, left, right = padding
        if top != bottom or left != right:
            raise ValueError(f"{label}: PyTorch pads both sides alike, not {list(padding)}")
        return functional.conv2d(x, filter, bias, padding=(top, left))

    def max_pool2d(
        self, x: Tensor, *, window_dimensions: Sequence[int], strides: Sequence[int]
    ) -> Tensor:
        return functional.max_pool2d(x, tuple(window_dimensions), tuple(strides))

    def pad(
        self, x: Tensor, beginning: Sequence[int], ending: Sequence[int], *, mode: str
    ) -> Tensor:
        pairs = list(zip(beginning, ending, strict=True))
        if mode != "edge" or any(pairs[0] + pairs[1]):
            raise ValueError("only the height and width of a picture can be padded, by its edge")
        return functional.pad(x, (*pairs[3], *pairs[2]), mode="replicate")

    def gemm(self, a: Tensor, b: Tensor, *, c: Tensor) -> Tensor:
        return a @ b + c

    def add(self, a: Tensor, b: Tensor) -> Tensor:
        return a + b

    def relu(self, x: Tensor) -> Tensor:
        return functional.relu(x)

    def softmax(self, x: Tensor, axis: int) -> Tensor:
        return functional.softmax(x, axis)

    def clamp(self, x: Tensor, *, min_value: float, max_value: float) -> Tensor:
        return x.clamp(min_value, max_value)

    def reshape(self, x: Tensor, new_shape: Sequence[int]) -> Tensor:
        return x.reshape(tuple(new_shape))

    def transpose(self, x: Tensor, *, permutation: Sequence[int]) -> Tensor:
        return x.permute(tuple(permutation))


def evaluate(
    network: Callable[..., Any], inputs: Mapping[str, Tensor], *arguments: Any, **options: Any
) -> Tensor:
    """Run a function of `models.py` on PyTorch tensors."""
    result = network(TorchBuilder(inputs), *arguments, **options)
    assert isinstance(result, Tensor)
    return result


def convolution(name: str, outputs: int, inputs: int, size: int, gain: float = 1.0) -> Parameters:
    """Make a filter with He initialisation and a zero bias."""
    deviation = gain * (2 / (inputs * size * size)) ** 0.5
    return {
        f"{name}.filter": torch.nn.Parameter(deviation * torch.randn(outputs, inputs, size, size)),
        f"{name}.bias": torch.nn.Parameter(torch.zeros(outputs)),
    }


def to_float16(weights: Mapping[str, Tensor]) -> dict[str, np.ndarray]:
    """Round the weights to the precision in which they are stored."""
    return {name: value.detach().numpy().astype(np.float16) for name, value in weights.items()}

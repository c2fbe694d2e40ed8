"""ONNX models as PyTorch's functions: those operators that the models measured here are made of."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Sequence
from typing import Any

import onnx
import torch
from onnx import numpy_helper
from torch.nn import functional as F  # noqa: N812

Tensor = Any
"""torch.Tensor, whose types are read only where PyTorch is installed."""
Function = Callable[..., Tensor]
"""Of a node's operands."""
Step = tuple[Function, list[str], str]
"""What is called, the names of its operands, and of its result."""


class TorchModel:
    """A model that runs operator by operator; what follows from constants alone is computed once.

    Args:
        model: With one output; its operators have one result each.
        device: PyTorch's name of the device.

    Raises:
        NotImplementedError: It has an operator that is not among those of `OPERATORS`.
    """

    def __init__(self, model: onnx.ModelProto, device: str = "cpu") -> None:
        graph = model.graph
        version = next(each.version for each in model.opset_import if not each.domain)
        unknown = sorted({node.op_type for node in graph.node} - set(OPERATORS))
        if unknown:
            raise NotImplementedError(f"no function of PyTorch's for {', '.join(unknown)}")
        self._constants: dict[str, Tensor] = {}
        for initializer in graph.initializer:
            array = torch.from_numpy(numpy_helper.to_array(initializer).copy())
            # Shapes stay where Python reads them.
            where = "cpu" if array.dtype == torch.int64 else device
            self._constants[initializer.name] = array.to(where)
        self.inputs = [i.name for i in graph.input if i.name not in self._constants]
        self.output = graph.output[0].name
        self._steps: list[Step] = []
        for node in graph.node:
            given = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
            call = OPERATORS[node.op_type](given, version)
            operands = list(node.input)
            if all(name in self._constants for name in operands):
                values = [self._constants[name] for name in operands]
                self._constants[node.output[0]] = call(*values)
            else:
                self._steps.append((call, operands, node.output[0]))

    def __call__(self, inputs: dict[str, Tensor]) -> Tensor:
        """Its output."""
        values = self._constants | inputs
        for call, operands, result in self._steps:
            values[result] = call(*(values[name] for name in operands))
        return values[self.output]


Attributes = dict[str, Any]


def _padded(x: Tensor, pads: Sequence[int], value: float) -> tuple[Tensor, list[int]]:
    """`x` padded where its ends differ, and else the padding that functions take themselves."""
    half = len(pads) // 2
    begin, end = list(pads[:half]), list(pads[half:])
    if begin == end:
        return x, begin
    both = [n for pair in zip(begin[::-1], end[::-1], strict=True) for n in pair]
    return F.pad(x, both, value=value), [0] * half


def _conv(given: Attributes, version: int) -> Function:
    rank = len(given["kernel_shape"])
    pads = given.get("pads", [0, 0] * rank)
    options = {
        "stride": given.get("strides", [1] * rank),
        "dilation": given.get("dilations", [1] * rank),
        "groups": given.get("group", 1),
    }

    def call(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        x, padding = _padded(x, pads, 0)
        return F.conv2d(x, weight, bias, padding=padding, **options)

    return call


def _max_pool(given: Attributes, version: int) -> Function:
    size = given["kernel_shape"]
    pads, strides = given.get("pads", [0, 0] * len(size)), given.get("strides", [1] * len(size))

    def call(x: Tensor) -> Tensor:
        x, padding = _padded(x, pads, float("-inf"))
        return F.max_pool2d(x, size, strides, padding)

    return call


def _average_pool(given: Attributes, version: int) -> Function:
    """Of what is not padding, unless the model wants it counted."""
    size = given["kernel_shape"]
    pads, strides = given.get("pads", [0, 0] * len(size)), given.get("strides", [1] * len(size))
    counted = bool(given.get("count_include_pad", 0))
    shares: list[Tensor] = []

    def call(x: Tensor) -> Tensor:
        padded, padding = _padded(x, pads, 0)
        means = F.avg_pool2d(padded, size, strides, padding, count_include_pad=counted)
        if padded is x or counted:
            return means
        if not shares:  # the share of each window that is not padding
            ones, _ = _padded(torch.ones_like(x[:1, :1]), pads, 0)
            shares.append(F.avg_pool2d(ones, size, strides))
        return means / shares[0]

    return call


def _lrn(given: Attributes, version: int) -> Function:
    options = {"alpha": given.get("alpha", 1e-4), "beta": given.get("beta", 0.75)}
    return functools.partial(
        F.local_response_norm, size=given["size"], k=given.get("bias", 1.0), **options
    )


def _batch_normalization(given: Attributes, version: int) -> Function:
    epsilon = given.get("epsilon", 1e-5)
    return lambda x, scale, bias, mean, variance: F.batch_norm(
        x, mean, variance, scale, bias, eps=epsilon
    )


def _layer_normalization(given: Attributes, version: int) -> Function:
    axis, epsilon = given.get("axis", -1), given.get("epsilon", 1e-5)
    return lambda x, scale, bias=None: F.layer_norm(x, x.shape[axis:], scale, bias, epsilon)


def _softmax(given: Attributes, version: int) -> Function:
    if version >= 13:
        return functools.partial(torch.softmax, dim=given.get("axis", -1))
    axis = given.get("axis", 1)
    return lambda x: torch.softmax(x.flatten(axis), axis).reshape(x.shape)


def _gemm(given: Attributes, version: int) -> Function:
    factors = {"alpha": given.get("alpha", 1.0), "beta": given.get("beta", 1.0)}

    def call(a: Tensor, b: Tensor, c: Tensor) -> Tensor:
        a, b = a.T if given.get("transA") else a, b.T if given.get("transB") else b
        return torch.addmm(c, a, b, **factors)

    return call


def _reshape(given: Attributes, version: int) -> Function:
    def call(x: Tensor, shape: Tensor) -> Tensor:
        sizes = [x.shape[i] if n == 0 else n for i, n in enumerate(shape.tolist())]
        return x.reshape(sizes)

    return call


def _unsqueeze(given: Attributes, version: int) -> Function:
    def call(x: Tensor, axes: Tensor | None = None) -> Tensor:
        for axis in sorted(given["axes"] if axes is None else axes.tolist()):
            x = x.unsqueeze(axis)
        return x

    return call


def _plain(function: Callable[..., Any]) -> Callable[[Attributes, int], Function]:
    """An operator without attributes."""
    return lambda given, version: function


OPERATORS: dict[str, Callable[[Attributes, int], Function]] = {
    "Add": _plain(torch.add),
    "AveragePool": _average_pool,
    "BatchNormalization": _batch_normalization,
    "Concat": lambda given, _: lambda *parts: torch.cat(parts, given["axis"]),
    "Conv": _conv,
    "Dropout": _plain(lambda x, *_: x),
    "Expand": _plain(lambda x, shape: x.expand(torch.broadcast_shapes(x.shape, shape.tolist()))),
    "Flatten": lambda given, _: lambda x: x.reshape(x.shape[: given.get("axis", 1)].numel(), -1),
    "Gelu": lambda given, _: functools.partial(
        F.gelu, approximate=given.get("approximate", b"none").decode()
    ),
    "Gemm": _gemm,
    "GlobalAveragePool": _plain(functools.partial(torch.mean, dim=(2, 3), keepdim=True)),
    "LRN": _lrn,
    "LayerNormalization": _layer_normalization,
    "MatMul": _plain(torch.matmul),
    "MaxPool": _max_pool,
    "Mul": _plain(torch.mul),
    "Relu": _plain(torch.relu),
    "Reshape": _reshape,
    "Softmax": _softmax,
    "Sum": _plain(lambda *terms: functools.reduce(operator.add, terms)),
    "Transpose": lambda given, _: (
        lambda x: x.permute(given.get("perm", tuple(reversed(range(x.dim())))))
    ),
    "Unsqueeze": _unsqueeze,
}
"""By ONNX name: a function of attributes and version that makes the node's."""

"""ONNX models as PyTorch's functions: the operators that the models measured here consist of."""

from __future__ import annotations

import collections
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
Step = tuple[Function, list[str], list[str]]
"""What is called, the names of its operands, and of its results."""


class TorchModel:
    """A model that runs operator by operator; what follows from constants alone is computed once.

    A product with a bias is one operator, as of torch.nn.Linear.

    Args:
        model: With one output.
        device: PyTorch's name of the device.
        channels_last: Keep the channels of images last in memory.

    Raises:
        NotImplementedError: It has an operator that is not among those of `OPERATORS`.
    """

    def __init__(
        self, model: onnx.ModelProto, device: str = "cpu", channels_last: bool = False
    ) -> None:
        graph = model.graph
        version = next(each.version for each in model.opset_import if not each.domain)
        unknown = sorted({node.op_type for node in graph.node} - set(OPERATORS))
        if unknown:
            raise NotImplementedError(f"no function of PyTorch's for {', '.join(unknown)}")
        self._layout = torch.channels_last if channels_last else torch.contiguous_format
        self._constants: dict[str, Tensor] = {}
        for initializer in graph.initializer:
            array = torch.from_numpy(numpy_helper.to_array(initializer).copy())
            # Shapes stay where Python reads them.
            where = "cpu" if array.dtype == torch.int64 else device
            self._constants[initializer.name] = self._placed(array.to(where))
        self.inputs = [i.name for i in graph.input if i.name not in self._constants]
        self.output = graph.output[0].name
        self._steps: list[Step] = []
        readers = collections.Counter(name for node in graph.node for name in node.input)
        products: dict[str, int] = {}
        for node in graph.node:
            given = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
            call = OPERATORS[node.op_type](given, version)
            operands, results = list(node.input), list(node.output)
            if all(name in self._constants for name in operands):
                made = call(*(self._constants[name] for name in operands))
                self._constants[results[0]] = made
                continue
            product = next((name for name in operands if name in products), "")
            if node.op_type == "Add" and self._adds_bias(operands, product):
                place = products[product]
                x, weight = self._steps[place][1]
                (bias,) = set(operands) - {product}
                self._constants[f"{weight}.T"] = self._constants[weight].T
                self._steps[place] = F.linear, [x, f"{weight}.T", bias], results
                continue
            if node.op_type == "MatMul" and readers[results[0]] == 1:
                products[results[0]] = len(self._steps)
            self._steps.append((call, operands, results))
        self._drop_unread()

    def _adds_bias(self, operands: list[str], product: str) -> bool:
        """Whether the other operand is a constant row, and the product's weight a matrix."""
        ranks = [self._constants[name].dim() for name in operands if name in self._constants]
        return bool(product) and ranks == [1]

    def _placed(self, array: Tensor) -> Tensor:
        """Return images and filters in the model's layout."""
        return array.contiguous(memory_format=self._layout) if array.dim() == 4 else array

    def _drop_unread(self) -> None:
        """Drop constants that no step reads."""
        read = {name for _, operands, _ in self._steps for name in operands} | {self.output}
        self._constants = {name: v for name, v in self._constants.items() if name in read}

    def __call__(self, inputs: dict[str, Tensor]) -> Tensor:
        """Its output."""
        values = {name: self._placed(x) for name, x in inputs.items()} | self._constants
        values[""] = None
        for call, operands, results in self._steps:
            made = call(*(values[name] for name in operands))
            values |= zip(results, made if isinstance(made, tuple) else (made,), strict=False)
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
    convolve = F.conv1d if rank == 1 else F.conv2d
    options = {
        "stride": given.get("strides", [1] * rank),
        "dilation": given.get("dilations", [1] * rank),
        "groups": given.get("group", 1),
    }

    def call(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        x, padding = _padded(x, pads, 0)
        return convolve(x, weight, bias, padding=padding, **options)

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


def _attention(given: Attributes, version: int) -> Function:
    causal = bool(given.get("is_causal", 0))

    def call(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        shared = query.shape[1] != key.shape[1]
        return F.scaled_dot_product_attention(
            query, key, value, is_causal=causal, enable_gqa=shared
        )

    return call


def _gather(given: Attributes, version: int) -> Function:
    """At places that are constants."""
    axis = given.get("axis", 0)

    def call(x: Tensor, places: Tensor) -> Tensor:
        if places.dim() == 0:
            return x.select(axis, int(places))
        return torch.cat([x.narrow(axis, place, 1) for place in places.tolist()], axis)

    return call


def _group_normalization(given: Attributes, version: int) -> Function:
    groups, epsilon = given["num_groups"], given.get("epsilon", 1e-5)
    return lambda x, scale, bias: F.group_norm(x, groups, scale, bias, epsilon)


def _resize(given: Attributes, version: int) -> Function:
    """By repeating pixels."""
    return lambda x, region, scales, sizes: F.interpolate(x, sizes.tolist()[2:], mode="nearest")


def _rotary_embedding(given: Attributes, version: int) -> Function:
    def call(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        first, second = x.chunk(2, -1)
        cos, sin = cos[:, None], sin[:, None]
        return torch.cat([first * cos - second * sin, second * cos + first * sin], -1)

    return call


def _slice(x: Tensor, begins: Tensor, ends: Tensor, axes: Tensor) -> Tensor:
    """Along one axis."""
    (axis,), (begin,), (end,) = axes.tolist(), begins.tolist(), ends.tolist()
    return x.narrow(axis, begin, end - begin)


def _plain(function: Callable[..., Any]) -> Callable[[Attributes, int], Function]:
    """An operator without attributes."""
    return lambda given, version: function


OPERATORS: dict[str, Callable[[Attributes, int], Function]] = {
    "Add": _plain(torch.add),
    "Attention": _attention,
    "AveragePool": _average_pool,
    "BatchNormalization": _batch_normalization,
    "Clip": _plain(torch.clamp),
    "Concat": lambda given, _: lambda *parts: torch.cat(parts, given["axis"]),
    "Conv": _conv,
    "DepthToSpace": lambda given, _: functools.partial(
        F.pixel_shuffle, upscale_factor=given["blocksize"]
    ),
    "Dropout": _plain(lambda x, *_: x),
    "Expand": _plain(lambda x, shape: x.expand(torch.broadcast_shapes(x.shape, shape.tolist()))),
    "Flatten": lambda given, _: lambda x: x.reshape(x.shape[: given.get("axis", 1)].numel(), -1),
    "Gather": _gather,
    "Gelu": lambda given, _: functools.partial(
        F.gelu, approximate=given.get("approximate", b"none").decode()
    ),
    "Gemm": _gemm,
    "GlobalAveragePool": _plain(functools.partial(torch.mean, dim=(2, 3), keepdim=True)),
    "GroupNormalization": _group_normalization,
    "LRN": _lrn,
    "LayerNormalization": _layer_normalization,
    "MatMul": _plain(torch.matmul),
    "MaxPool": _max_pool,
    "Mul": _plain(torch.mul),
    "RMSNormalization": _plain(lambda x, scale: F.rms_norm(x, x.shape[-1:], scale, 1e-5)),
    "ReduceSum": _plain(lambda x, axes: x.sum(axes.tolist())),
    "Relu": _plain(torch.relu),
    "Reshape": _reshape,
    "Resize": _resize,
    "RotaryEmbedding": _rotary_embedding,
    "Sigmoid": _plain(torch.sigmoid),
    "Softmax": _softmax,
    "Slice": _plain(_slice),
    "Split": lambda given, _: lambda x: x.chunk(given["num_outputs"], given["axis"]),
    "Sum": _plain(lambda *terms: functools.reduce(operator.add, terms)),
    "Swish": _plain(F.silu),
    "Transpose": lambda given, _: (
        lambda x: x.permute(given.get("perm", tuple(reversed(range(x.dim())))))
    ),
    "Unsqueeze": _unsqueeze,
}
"""By ONNX name: a function of attributes and version that makes the node's."""

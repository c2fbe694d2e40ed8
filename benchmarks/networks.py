"""Networks that people run on GPUs, as ONNX models with random weights of their real shapes."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

Array = np.ndarray[Any, Any]
OPSET = 24
"""The first with Swish; Attention, RMSNormalization and RotaryEmbedding came one before."""
POOL = np.random.default_rng(0).standard_normal(1 << 20).astype(np.float32)
"""Random numbers that all weights repeat, as drawing a billion takes longer than measuring."""


class Net:
    """An ONNX graph that is written node by node; values are names."""

    def __init__(self, data_type: str = "float32") -> None:
        self._dtype = np.dtype(data_type)
        self._nodes: list[onnx.NodeProto] = []
        self._inputs: list[onnx.ValueInfoProto] = []
        self._initializers: list[TensorProto] = []

    def input(self, name: str, *shape: int) -> str:
        """Add an input."""
        kind = helper.np_dtype_to_tensor_dtype(self._dtype)
        self._inputs.append(helper.make_tensor_value_info(name, kind, shape))
        return name

    def constant(self, array: Array) -> str:
        """Add an initializer; floats take the network's data type."""
        name = f"c{len(self._initializers)}"
        typed = array.astype(self._dtype) if array.dtype.kind == "f" else array
        self._initializers.append(numpy_helper.from_array(typed, name))
        return name

    def weight(self, *shape: int, spread: float, mean: float = 0.0) -> str:
        """Add a weight with a mean and a standard deviation."""
        start = 7919 * len(self._initializers) % POOL.size
        array = np.resize(np.roll(POOL, -start), shape)
        return self.constant(mean + spread * array)

    def __call__(self, op: str, *operands: str, **attributes: Any) -> str:
        """Add a node; return its result."""
        return self._node(op, operands, 1, attributes)[0]

    def halves(self, x: str, axis: int) -> list[str]:
        """Split into two."""
        return self._node("Split", (x,), 2, {"axis": axis, "num_outputs": 2})

    def _node(
        self, op: str, operands: tuple[str, ...], results: int, attributes: dict[str, Any]
    ) -> list[str]:
        names = [f"v{len(self._nodes)}_{number}" for number in range(results)]
        self._nodes.append(helper.make_node(op, operands, names, **attributes))
        return names

    def model(self, *results: str) -> onnx.ModelProto:
        """Return the model with these outputs."""
        kind = helper.np_dtype_to_tensor_dtype(self._dtype)
        outputs = [helper.make_tensor_value_info(name, kind, None) for name in results]
        graph = helper.make_graph(self._nodes, "g", self._inputs, outputs, self._initializers)
        opsets = [helper.make_opsetid("", OPSET)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=11)

    # Layers

    def shape(self, x: str, *shape: int) -> str:
        """Reshape."""
        return self("Reshape", x, self.constant(np.array(shape, np.int64)))

    def dense(self, x: str, inner: int, outer: int, bias: bool = True) -> str:
        """Multiply the last axis by a weight."""
        product = self("MatMul", x, self.weight(inner, outer, spread=inner**-0.5))
        return self("Add", product, self.weight(outer, spread=0.1)) if bias else product

    def conv(
        self, x: str, ins: int, outs: int, size: int, stride: int = 1, spread: float = 1.0
    ) -> str:
        """Convolve images, padded so that a stride of 1 keeps their size."""
        weights = self.weight(outs, ins, size, size, spread=spread / math.sqrt(ins * size * size))
        bias, pads = self.weight(outs, spread=0.1), [size // 2] * 4
        sizes, strides = [size, size], [stride, stride]
        return self("Conv", x, weights, bias, kernel_shape=sizes, strides=strides, pads=pads)

    def layer_norm(self, x: str, width: int) -> str:
        """Normalize the last axis."""
        scale, bias = self.weight(width, spread=0.1, mean=1), self.weight(width, spread=0.1)
        return self("LayerNormalization", x, scale, bias, axis=-1)

    def group_norm(self, x: str, channels: int, epsilon: float = 1e-5) -> str:
        """Normalize 32 groups of channels."""
        scale = self.weight(channels, spread=0.1, mean=1)
        bias = self.weight(channels, spread=0.1)
        return self("GroupNormalization", x, scale, bias, num_groups=32, epsilon=epsilon)

    def doubled(self, x: str, channels: int, height: int, width: int, batch: int = 1) -> str:
        """Double the size of images of this size by repeating pixels."""
        sizes = self.constant(np.array([batch, channels, 2 * height, 2 * width], np.int64))
        rounding = {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
        return self("Resize", x, "", "", sizes, mode="nearest", **rounding)

    def attention(
        self,
        x: str,
        rows: tuple[int, int],
        width: int,
        heads: int,
        other: tuple[str, int, int] | None = None,
    ) -> str:
        """Attend to other rows, or to `x` itself.

        Args:
            x: Rows of `width`.
            rows: Batch and length of `x`.
            width: Elements of a row.
            heads: Number of heads.
            other: Rows that give keys and values, their length and width.
        """
        batch, length = rows

        def split(value: str, inner: int, length: int) -> str:
            heads_last = self.shape(
                self.dense(value, inner, width), batch, length, heads, width // heads
            )
            return self("Transpose", heads_last, perm=[0, 2, 1, 3])

        source, longer, wider = other or (x, length, width)
        query = split(x, width, length)
        key, value = (split(source, wider, longer) for _ in "kv")
        mixed = self("Transpose", self("Attention", query, key, value), perm=[0, 2, 1, 3])
        return self.dense(self.shape(mixed, batch, length, width), width, width)

    def perceptron(self, x: str, width: int) -> str:
        """Widen four times, gelu, narrow."""
        return self.dense(self("Gelu", self.dense(x, width, 4 * width)), 4 * width, width)

    def layer(self, x: str, rows: tuple[int, int], width: int, heads: int) -> str:
        """Add a transformer's layer that normalizes first."""
        x = self("Add", x, self.attention(self.layer_norm(x, width), rows, width, heads))
        return self("Add", x, self.perceptron(self.layer_norm(x, width), width))


def encoder(batch: int, layers: int = 12, width: int = 384, heads: int = 12) -> onnx.ModelProto:
    """Return a text encoder over 128 embedded tokens."""
    net, rows = Net(), (batch, 128)
    x = net.input("x", *rows, width)
    for _ in range(layers):
        x = net.layer_norm(net("Add", x, net.attention(x, rows, width, heads)), width)
        x = net.layer_norm(net("Add", x, net.perceptron(x, width)), width)
    return net.model(x)


def vision_transformer(batch: int, layers: int = 12) -> onnx.ModelProto:
    """Return ViT-B/16."""
    net, width, rows = Net(), 768, (batch, 197)
    x = net.input("x", batch, 3, 224, 224)
    patches = net.weight(width, 3, 16, 16, spread=(3 * 16 * 16) ** -0.5)
    x = net("Conv", x, patches, kernel_shape=[16, 16], strides=[16, 16])
    x = net("Transpose", net.shape(x, batch, width, 196), perm=[0, 2, 1])
    token = net.constant(np.resize(POOL, (1, 1, width)).repeat(batch, 0))
    x = net("Concat", token, x, axis=1)
    x = net("Add", x, net.weight(1, 197, width, spread=0.1))
    for _ in range(layers):
        x = net.layer(x, rows, width, 12)
    x = net("Gather", net.layer_norm(x, width), net.constant(np.array(0)), axis=1)
    return net.model(net.dense(x, width, 1000))


def whisper_tiny(layers: int = 4) -> onnx.ModelProto:
    """Return the encoder of Whisper tiny, for 30 seconds of sound."""
    net, width = Net(), 384
    x = net.input("x", 1, 80, 3000)
    for ins, stride in ((80, 1), (width, 2)):
        weights = net.weight(width, ins, 3, spread=(3 * ins) ** -0.5)
        bias, moves = net.weight(width, spread=0.1), [stride]
        x = net("Conv", x, weights, bias, kernel_shape=[3], strides=moves, pads=[1, 1])
        x = net("Gelu", x)
    x = net("Transpose", x, perm=[0, 2, 1])
    x = net("Add", x, net.weight(1, 1500, width, spread=0.1))
    for _ in range(layers):
        x = net.layer(x, (1, 1500), width, 6)
    return net.model(net.layer_norm(x, width))


def yolo_v8n(side: int = 640) -> onnx.ModelProto:
    """Return YOLOv8n with batch normalizations folded: boxes and 80 classes of each place."""
    net = Net()

    def conv(x: str, ins: int, outs: int, size: int = 1, stride: int = 1) -> str:
        return net("Swish", net.conv(x, ins, outs, size, stride, spread=1.6))

    def c2f(x: str, ins: int, outs: int, count: int, adds: bool) -> str:
        half = outs // 2
        parts = net.halves(conv(x, ins, outs), 1)
        for _ in range(count):
            y = conv(conv(parts[-1], half, half, 3), half, half, 3)
            parts.append(net("Add", parts[-1], y) if adds else y)
        return conv(net("Concat", *parts, axis=1), half * (2 + count), outs)

    x = conv(net.input("x", 1, 3, side, side), 3, 16, 3, 2)
    kept = []
    for ins, outs, count in ((16, 32, 1), (32, 64, 2), (64, 128, 2), (128, 256, 1)):
        x = c2f(conv(x, ins, outs, 3, 2), outs, outs, count, adds=True)
        kept.append(x)
    _, small, middle, _ = kept
    pools = [conv(x, 256, 128)]
    for _ in range(3):
        pooled = net("MaxPool", pools[-1], kernel_shape=[5, 5], pads=[2] * 4, strides=[1, 1])
        pools.append(pooled)
    large = conv(net("Concat", *pools, axis=1), 512, 256)

    def joined(x: str, y: str, ins: int, outs: int) -> str:
        return c2f(net("Concat", x, y, axis=1), ins, outs, 1, adds=False)

    middle = joined(net.doubled(large, 256, side // 32, side // 32), middle, 384, 128)
    small = joined(net.doubled(middle, 128, side // 16, side // 16), small, 192, 64)
    middle = joined(conv(small, 64, 64, 3, 2), middle, 192, 128)
    large = joined(conv(middle, 128, 128, 3, 2), large, 384, 256)
    found = []
    for x, channels, step in ((small, 64, 8), (middle, 128, 16), (large, 256, 32)):
        heads = []
        for inner, outs in ((64, 64), (80, 80)):
            y = conv(conv(x, channels, inner, 3), inner, inner, 3)
            heads.append(net.conv(y, inner, outs, 1))
        both = net("Concat", *heads, axis=1)
        found.append(net.shape(both, 1, 144, (side // step) ** 2))
    places = sum((side // step) ** 2 for step in (8, 16, 32))
    both = net("Concat", *found, axis=2)
    axis = net.constant(np.array([1], np.int64))
    boxes, classes = (
        net("Slice", both, *(net.constant(np.array([end], np.int64)) for end in ends), axis)
        for ends in ((0, 64), (64, 144))
    )
    boxes = net("Softmax", net.shape(boxes, 1, 4, 16, places), axis=2)
    numbers = net.constant(np.arange(16, dtype=np.float32).reshape(1, 1, 16, 1))
    axes = net.constant(np.array([2], np.int64))
    boxes = net("ReduceSum", net("Mul", boxes, numbers), axes, keepdims=0)
    return net.model(net("Concat", boxes, net("Sigmoid", classes), axis=1))


def _transformer(net: Net, x: str, channels: int, side: int, text: str) -> str:
    """Add a transformer of Stable Diffusion 1.5: itself, the text, a gated perceptron."""
    rows, before = (2, side * side), x
    x = net.conv(net.group_norm(x, channels, 1e-6), channels, channels, 1)
    x = net("Transpose", net.shape(x, 2, channels, side * side), perm=[0, 2, 1])
    y = net.layer_norm(x, channels)
    x = net("Add", x, net.attention(y, rows, channels, 8))
    y = net.layer_norm(x, channels)
    x = net("Add", x, net.attention(y, rows, channels, 8, (text, 77, 768)))
    y = net.dense(net.layer_norm(x, channels), channels, 8 * channels)
    y, gate = net.halves(y, 2)
    y = net("Mul", y, net("Gelu", gate))
    x = net("Add", x, net.dense(y, 4 * channels, channels))
    x = net.shape(net("Transpose", x, perm=[0, 2, 1]), 2, channels, side, side)
    return net("Add", before, net.conv(x, channels, channels, 1))


def _residual(net: Net, x: str, ins: int, outs: int, time: str = "") -> str:
    """Add two normalized convolutions, with the time between them."""
    y = net.conv(net("Swish", net.group_norm(x, ins)), ins, outs, 3)
    if time:
        y = net("Add", y, net.shape(net.dense(time, 1280, outs), 2, outs, 1, 1))
    y = net.conv(net("Swish", net.group_norm(y, outs)), outs, outs, 3)
    return net("Add", x if ins == outs else net.conv(x, ins, outs, 1), y)


def diffusion_block(channels: int, side: int) -> onnx.ModelProto:
    """Return a transformer of Stable Diffusion 1.5's UNet, for a batch of 2."""
    net = Net()
    x, text = net.input("x", 2, channels, side, side), net.input("text", 2, 77, 768)
    return net.model(_transformer(net, x, channels, side, text))


def diffusion_unet() -> onnx.ModelProto:
    """Return the UNet of Stable Diffusion 1.5 for 512 x 512 pixels, a batch of 2, in float16."""
    net, side = Net("float16"), 64
    x, text = net.input("x", 2, 4, side, side), net.input("text", 2, 77, 768)
    time = net("Swish", net.dense(net.input("time", 2, 320), 320, 1280))
    time = net("Swish", net.dense(time, 1280, 1280))
    widths, last = (320, 640, 1280, 1280), 3
    channels = widths[0]
    x = net.conv(x, 4, channels, 3)
    kept = [(x, channels)]
    for level, width in enumerate(widths):
        for _ in range(2):
            x, channels = _residual(net, x, channels, width, time), width
            x = _transformer(net, x, width, side, text) if level < last else x
            kept.append((x, width))
        if level < last:
            x, side = net.conv(x, width, width, 3, 2), side // 2
            kept.append((x, width))
    x = _residual(net, x, channels, channels, time)
    x = _residual(net, _transformer(net, x, channels, side, text), channels, channels, time)
    for level, width in reversed(list(enumerate(widths))):
        for _ in range(3):
            skipped, more = kept.pop()
            x = net("Concat", x, skipped, axis=1)
            x, channels = _residual(net, x, channels + more, width, time), width
            x = _transformer(net, x, width, side, text) if level < last else x
        if level:
            x, side = net.doubled(x, width, side, side, 2), 2 * side
            x = net.conv(x, width, width, 3)
    return net.model(net.conv(net("Swish", net.group_norm(x, channels)), channels, 4, 3))


def diffusion_decoder(side: int = 64) -> onnx.ModelProto:
    """Return the decoder of Stable Diffusion's autoencoder: 8 times `side` pixels."""
    net, channels = Net(), 512
    x = net.conv(net.conv(net.input("x", 1, 4, side, side), 4, 4, 1), 4, channels, 3)
    x = _residual(net, x, channels, channels)
    y = net.shape(net.group_norm(x, channels), 1, channels, side * side)
    y = net.attention(net("Transpose", y, perm=[0, 2, 1]), (1, side * side), channels, 1)
    y = net.shape(net("Transpose", y, perm=[0, 2, 1]), 1, channels, side, side)
    x = _residual(net, net("Add", x, y), channels, channels)
    for level, width in enumerate((512, 512, 256, 128)):
        for _ in range(3):
            x, channels = _residual(net, x, channels, width), width
        if level < 3:
            x, side = net.doubled(x, width, side, side), 2 * side
            x = net.conv(x, width, width, 3)
    return net.model(net.conv(net("Swish", net.group_norm(x, channels)), channels, 3, 3))


def prefill(tokens: int, layers: int = 16, data_type: str = "float16") -> onnx.ModelProto:
    """Return Llama 3.2 1B without its vocabulary: embedded tokens to the last hidden row."""
    net, width, heads, groups, inner = Net(data_type), 2048, 32, 8, 8192
    head = width // heads
    x = net.input("x", 1, tokens, width)
    angles = np.arange(tokens)[:, None] * 5e5 ** (-np.arange(head // 2) / (head // 2))
    turns = [net.constant(turn(angles)[None]) for turn in (np.cos, np.sin)]

    def normalized(x: str) -> str:
        return net("RMSNormalization", x, net.weight(width, spread=0.1, mean=1), axis=-1)

    def split(x: str, heads: int) -> str:
        product = net.dense(x, width, heads * head, bias=False)
        return net("Transpose", net.shape(product, 1, tokens, heads, head), perm=[0, 2, 1, 3])

    for _ in range(layers):
        y = normalized(x)
        query, key = (net("RotaryEmbedding", split(y, n), *turns) for n in (heads, groups))
        y = net("Attention", query, key, split(y, groups), is_causal=1)
        y = net.shape(net("Transpose", y, perm=[0, 2, 1, 3]), 1, tokens, width)
        x = net("Add", x, net.dense(y, width, width, bias=False))
        y = normalized(x)
        gate, up = (net.dense(y, width, inner, bias=False) for _ in range(2))
        y = net("Mul", net("Swish", gate), up)
        x = net("Add", x, net.dense(y, inner, width, bias=False))
    last = net("Gather", x, net.constant(np.array([tokens - 1])), axis=1)
    return net.model(normalized(last))


def attention(length: int) -> onnx.ModelProto:
    """Return attention alone, of 12 heads of 64."""
    net = Net()
    return net.model(net("Attention", *(net.input(name, 1, 12, length, 64) for name in "qkv")))


def super_resolution(height: int = 540, width: int = 960) -> onnx.ModelProto:
    """Return three residual blocks of 32 channels that double the size of a photo."""
    net, channels = Net(), 32
    x = net("Relu", net.conv(net.input("x", 1, 3, height, width), 3, channels, 5))
    for _ in range(3):
        y = net("Relu", net.conv(x, channels, channels, 3))
        x = net("Add", x, net.conv(y, channels, channels, 3))
    x = net("DepthToSpace", net.conv(x, channels, 12, 3), blocksize=2, mode="CRD")
    zero, one = (net.constant(np.array(end, np.float32)) for end in (0, 1))
    return net.model(net("Clip", x, zero, one))


NETWORKS: dict[str, Callable[[], onnx.ModelProto]] = {
    "encoder, batch 1": functools.partial(encoder, 1),
    "encoder, batch 32": functools.partial(encoder, 32),
    "ViT-B/16, batch 1": functools.partial(vision_transformer, 1),
    "ViT-B/16, batch 32": functools.partial(vision_transformer, 32),
    "Whisper tiny, encoder": whisper_tiny,
    "YOLOv8n 640": yolo_v8n,
    "super-resolution, 540p": super_resolution,
    "attention 12x4096x64": functools.partial(attention, 4096),
    "attention 12x8192x64": functools.partial(attention, 8192),
    "SD 1.5 block 320, 64x64": functools.partial(diffusion_block, 320, 64),
    "SD 1.5 block 640, 32x32": functools.partial(diffusion_block, 640, 32),
    "SD 1.5 block 1280, 16x16": functools.partial(diffusion_block, 1280, 16),
    "SD 1.5 UNet, batch 2": diffusion_unet,
    "SD 1.5 VAE decoder, 512": diffusion_decoder,
    "Llama 1B, prefill 512": functools.partial(prefill, 512),
    "Llama 1B, prefill 2048": functools.partial(prefill, 2048),
}
"""By name; those that only float16 can run take and give float16."""

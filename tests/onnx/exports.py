"""Models as exporters of PyTorch write them, with open dimensions: the shape arithmetic above all.

`Script` is the exporter by TorchScript, which takes every size with Shape and Gather; `Dynamo` the
one by torch.export, which takes one with Shape of a range.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper

HIDDEN, HEADS, WORDS, PLACES = 16, 2, 30, 12
EACH = HIDDEN // HEADS
LARGE = 2**63 - 1


class Script:
    """Writes nodes and constants.

    Args:
        opset: The version of the operators.
    """

    def __init__(self, opset: int = 14) -> None:
        self.opset = opset
        self.nodes: list[Any] = []
        self.weights: list[Any] = []
        self.functions: list[Any] = []
        self.rng = np.random.default_rng(0)

    def op(self, kind: str, *inputs: Any, outputs: int = 1, **attributes: Any) -> Any:
        """A node; what is no name is a constant."""
        names = [one if isinstance(one, str) else self.constant(one) for one in inputs]
        made = [f"/{kind}_{len(self.nodes)}_output_{i}" for i in range(outputs)]
        title = f"/{kind}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, names, made, name=title, **attributes))
        return made[0] if outputs == 1 else made

    def constant(self, value: Any) -> str:
        """Numbers as a Constant, of int64 if they are integers, else of float32."""
        array = np.asarray(value)
        array = array.astype({"i": np.int64, "f": np.float32, "b": np.bool_}[array.dtype.kind])
        name = f"/Constant_{len(self.nodes)}_output_0"
        tensor = onnx.numpy_helper.from_array(array)
        self.nodes.append(helper.make_node("Constant", [], [name], value=tensor))
        return name

    def weight(self, *shape: int) -> str:
        """A random initializer."""
        name = f"weight.{len(self.weights)}"
        array = self.rng.normal(0, 0.4, shape).astype(np.float32)
        self.weights.append(onnx.numpy_helper.from_array(array, name))
        return name

    def size(self, x: str, axis: int) -> str:
        """A size, as a scalar."""
        return str(self.op("Gather", self.op("Shape", x), axis, axis=0))

    def list(self, *sizes: Any) -> str:
        """A list of sizes, each a scalar or a number."""
        parts = [
            self.op("Unsqueeze", size, [0]) if isinstance(size, str) else self.constant([size])
            for size in sizes
        ]
        return str(self.op("Concat", *parts, axis=0))

    def reshape(self, x: str, *sizes: Any) -> str:
        return str(self.op("Reshape", x, self.list(*sizes)))

    def range(self, first: Any, last: Any) -> str:
        return str(self.op("Range", first, last, 1))

    def expand(self, x: str, shape: str) -> str:
        """With -1 for what stays, which the exporter asks each size for."""
        ones = self.op("ConstantOfShape", self.op("Shape", shape), value=one())
        stays = self.op("Equal", shape, self.op("Mul", ones, -1))
        return str(self.op("Expand", x, self.op("Where", stays, ones, shape)))

    def linear(self, x: str, columns: int, rows: int = HIDDEN) -> str:
        made = self.op("MatMul", x, self.weight(rows, columns))
        return str(self.op("Add", self.weight(columns), made))

    def norm(self, x: str) -> str:
        """Layer normalization in parts."""
        apart = self.op("Sub", x, self.op("ReduceMean", x, axes=[-1]))
        spread = self.op("ReduceMean", self.op("Pow", apart, 2.0), axes=[-1])
        made = self.op("Div", apart, self.op("Sqrt", self.op("Add", spread, 1e-5)))
        return str(self.op("Add", self.op("Mul", made, self.weight(HIDDEN)), self.weight(HIDDEN)))

    def heads(self, x: str) -> str:
        """[batch, length, hidden] to [batch, heads, length, each]."""
        batch, length = self.size(x, 0), self.size(x, 1)
        each = self.op("Div", self.size(x, 2), HEADS)
        parted = self.reshape(x, batch, length, HEADS, self.op("Cast", each, to=TensorProto.INT64))
        return str(self.op("Transpose", parted, perm=[0, 2, 1, 3]))

    def merged(self, x: str) -> str:
        """Heads side by side again."""
        moved = self.op("Transpose", x, perm=[0, 2, 1, 3])
        batch, length = self.size(moved, 0), self.size(moved, 1)
        columns = self.op("Mul", self.size(moved, 2), self.size(moved, 3))
        return self.reshape(moved, batch, length, columns)

    def model(
        self, inputs: dict[str, tuple[int, Sequence[Any]]], outputs: dict[str, str]
    ) -> onnx.ModelProto:
        for name, source in outputs.items():
            self.nodes.append(helper.make_node("Identity", [source], [name]))
        graph = helper.make_graph(
            self.nodes,
            "main_graph",
            [helper.make_tensor_value_info(n, elem, s) for n, (elem, s) in inputs.items()],
            [helper.make_tensor_value_info(n, TensorProto.FLOAT, None) for n in outputs],
            self.weights,
        )
        opsets = [helper.make_opsetid("", self.opset)]
        opsets += [helper.make_opsetid(f.domain, 1) for f in self.functions[:1]]
        made = helper.make_model(graph, opset_imports=opsets, ir_version=8)
        made.functions.extend(self.functions)
        return made


class Dynamo(Script):
    """Sizes by Shape of a range, normalization by its operator."""

    def __init__(self) -> None:
        super().__init__(18)

    def size(self, x: str, axis: int) -> str:
        shape = self.op("Shape", x, start=axis, end=axis + 1)
        return str(self.op("Squeeze", shape, [0]))

    def list(self, *sizes: Any) -> str:
        parts = [
            self.op("Reshape", size, [-1]) if isinstance(size, str) else self.constant([size])
            for size in sizes
        ]
        return str(self.op("Concat", *parts, axis=0))

    def reshape(self, x: str, *sizes: Any) -> str:
        return str(self.op("Reshape", x, self.list(*sizes), allowzero=1))

    def norm(self, x: str) -> str:
        return str(
            self.op("LayerNormalization", x, self.weight(HIDDEN), self.weight(HIDDEN), axis=-1)
        )


def one() -> Any:
    return helper.make_tensor("value", TensorProto.INT64, [1], [1])


def encoder(w: Script) -> onnx.ModelProto:
    """A text encoder: positions by a slice of a table, a mask that is added."""
    ids, mask = "input_ids", "attention_mask"
    batch, length = w.size(ids, 0), w.size(ids, 1)
    table = w.constant(np.arange(PLACES)[None])
    end = w.op("Unsqueeze", length, [0])
    places = w.op("Slice", table, [0], end, [1], [1])
    kinds = w.op("ConstantOfShape", w.list(batch, length), value=one())
    words = w.op("Gather", w.weight(WORDS, HIDDEN), ids)
    x = w.op("Add", words, w.op("Gather", w.weight(2, HIDDEN), kinds))
    x = w.norm(w.op("Add", x, w.op("Gather", w.weight(PLACES, HIDDEN), places)))
    wide = w.op("Unsqueeze", w.op("Unsqueeze", mask, [1]), [2])
    off = w.op("Sub", 1.0, w.op("Cast", wide, to=TensorProto.FLOAT))
    added = w.op("Mul", off, -1e4)
    query, key, value = (w.heads(w.linear(x, HIDDEN)) for _ in range(3))
    scores = w.op("MatMul", query, w.op("Transpose", key, perm=[0, 1, 3, 2]))
    root = w.op("Sqrt", w.op("Cast", w.size(query, 3), to=TensorProto.FLOAT))
    weights = w.op("Softmax", w.op("Add", w.op("Div", scores, root), added), axis=-1)
    x = w.norm(w.op("Add", x, w.linear(w.merged(w.op("MatMul", weights, value)), HIDDEN)))
    inner = w.linear(x, 32)
    bent = w.op("Mul", inner, w.op("Add", w.op("Erf", w.op("Div", inner, 2.0**0.5)), 1.0))
    x = w.norm(w.op("Add", x, w.linear(w.op("Mul", bent, 0.5), HIDDEN, 32)))
    # The mean over the words that count.
    counts = w.op("Cast", w.op("Unsqueeze", mask, [2]), to=TensorProto.FLOAT)
    counts = w.expand(counts, w.op("Shape", x))
    sums = w.op("ReduceSum", w.op("Mul", x, counts), [1], keepdims=0)
    many = w.op("Clip", w.op("ReduceSum", counts, [1], keepdims=0), 1e-9)
    shape = ["batch", "sequence"]
    inputs = dict.fromkeys((ids, mask), (TensorProto.INT64, shape))
    return w.model(inputs, {"hidden": x, "pooled": w.op("Div", sums, many)})


def decoder(w: Script) -> onnx.ModelProto:
    """A step of a language model with a cache: a causal mask of ranges, lengths that are added."""
    ids = "input_ids"
    length, past = w.size(ids, 1), w.size("past_key", 2)
    whole = w.op("Add", past, length)
    places = w.range(past, whole)
    x = w.op("Gather", w.weight(WORDS, HIDDEN), ids)
    x = w.op("Add", x, w.op("Gather", w.weight(PLACES * 4, HIDDEN), places))
    query, key, value = (w.heads(w.linear(w.norm(x), HIDDEN)) for _ in range(3))
    key, value = (
        w.op("Concat", old, new, axis=2) for old, new in (("past_key", key), ("past_value", value))
    )
    scores = w.op("MatMul", query, w.op("Transpose", key, perm=[0, 1, 3, 2]))
    scores = w.op("Mul", scores, EACH**-0.5)
    rows = w.op("Unsqueeze", places, [1])
    seen = w.op("LessOrEqual", w.op("Unsqueeze", w.range(0, whole), [0]), rows)
    shape = w.list(w.size(ids, 0), 1, length, whole)
    seen = w.expand(w.op("Unsqueeze", seen, [0, 1]), shape)
    told = w.op("Cast", "attention_mask", to=TensorProto.BOOL)
    seen = w.op("And", seen, w.op("Unsqueeze", told, [1, 2]))
    weights = w.op("Softmax", w.op("Where", seen, scores, -3.4e38), axis=-1)
    x = w.op("Add", x, w.linear(w.merged(w.op("MatMul", weights, value)), HIDDEN))
    last = w.op("Slice", x, [-1], [LARGE], [1], [1])
    logits = w.linear(w.norm(last), WORDS)
    cache = ["batch", HEADS, "past_sequence", EACH]
    inputs = {
        ids: (TensorProto.INT64, ["batch", "sequence"]),
        "attention_mask": (TensorProto.INT64, ["batch", "past_sequence + sequence"]),
        "past_key": (TensorProto.FLOAT, cache),
        "past_value": (TensorProto.FLOAT, cache),
    }
    return w.model(inputs, {"logits": logits, "key": key, "value": value})


def classifier(w: Script) -> onnx.ModelProto:
    """A convolutional network for images of any size, flattened by the batch's size."""
    x = w.op("Conv", "image", w.weight(8, 3, 3, 3), w.weight(8), pads=[1] * 4, strides=[2, 2])
    ones = np.abs(w.rng.normal(1, 0.1, (4, 8))).astype(np.float32)
    x = w.op("BatchNormalization", x, *[w.constant(row) for row in ones])
    x = w.op("MaxPool", w.op("Relu", x), kernel_shape=[2, 2], strides=[2, 2])
    shortcut = w.op("Conv", x, w.weight(8, 8, 1, 1))
    x = w.op("Clip", w.op("Conv", x, w.weight(8, 1, 3, 3), group=8, pads=[1] * 4), 0.0, 6.0)
    x = w.op("Add", x, shortcut)
    x = w.op("AveragePool", x, kernel_shape=[3, 3], pads=[1] * 4, count_include_pad=1)
    squeeze = w.op("Sigmoid", w.op("Conv", w.op("GlobalAveragePool", x), w.weight(8, 8, 1, 1)))
    x = w.op("GlobalAveragePool", w.op("Mul", x, squeeze))
    flat = w.reshape(x, w.size(x, 0), -1)
    made = w.op("Gemm", flat, w.weight(5, 8), w.weight(5), transB=1)
    inputs = {"image": (TensorProto.FLOAT, ["batch", 3, "height", "width"])}
    return w.model(inputs, {"scores": w.op("Softmax", made, axis=1)})


def segmenter(w: Script) -> onnx.ModelProto:
    """A pyramid: coarse maps are resized to finer ones, and padded to what is left."""
    fine = w.op("Relu", w.op("Conv", "image", w.weight(4, 3, 3, 3), pads=[1] * 4))
    coarse = w.op("MaxPool", fine, kernel_shape=[2, 2], strides=[2, 2])
    low = w.op("Conv", coarse, w.weight(4, 4, 3, 3), pads=[1] * 4, strides=[2, 2])
    sizes = w.op(
        "Concat",
        *(
            w.op("Slice", w.op("Shape", t), [a], [b], [0])
            for t, a, b in ((low, 0, 2), (coarse, 2, 4))
        ),
        axis=0,
    )
    linear = {"mode": "linear", "coordinate_transformation_mode": "pytorch_half_pixel"}
    nearest = {"mode": "nearest", "coordinate_transformation_mode": "asymmetric"}
    middle = w.op("Add", coarse, w.op("Resize", low, "", "", sizes, **linear))
    twice = [1.0, 1.0, 2.0, 2.0]
    up = w.op("Resize", middle, "", twice, nearest_mode="floor", **nearest)
    # One row and column more, where the size was odd.
    left = [w.op("Sub", w.size(fine, i), w.size(up, i)) for i in (2, 3)]
    widths = w.list(0, 0, 0, 0, 0, 0, *left)
    up = w.op("Pad", up, widths, mode="constant")
    both = w.op("Concat", fine, up, axis=1)
    half = w.op("Cast", w.op("Slice", w.op("Shape", both), [2], [4], [0]), to=TensorProto.FLOAT)
    half = w.op("Cast", w.op("Floor", w.op("Mul", half, 1.5)), to=TensorProto.INT64)
    first = w.op("Slice", w.op("Shape", both), [0], [2], [0])
    large = w.op("Concat", first, half, axis=0)
    large = w.op("Resize", both, "", "", large, **linear)
    made = w.op("Conv", large, w.weight(2, 8, 1, 1))
    tall = {"image": (TensorProto.FLOAT, ["batch", 3, "height", "width"])}
    return w.model(tall, {"maps": made, "best": w.op("Cast", w.op("ArgMax", made, axis=1), to=1)})


def recurrent(w: Script) -> onnx.ModelProto:
    """An LSTM whose first states are zeros for the batch."""
    moved = w.op("Transpose", "x", perm=[1, 0, 2])
    zeros = w.op("ConstantOfShape", w.list(2, w.size("x", 0), 8))
    weights = w.weight(2, 32, 4), w.weight(2, 32, 8), w.weight(2, 64)
    made, *_ = w.op(
        "LSTM", moved, *weights, "", zeros, zeros, outputs=3,
        direction="bidirectional", hidden_size=8,
    )  # fmt: skip
    moved = w.op("Transpose", made, perm=[2, 0, 1, 3])
    flat = w.reshape(moved, w.size("x", 0), w.size("x", 1), -1)
    last = w.op("Gather", flat, -1, axis=1)
    shape = ["batch", "time", 4]
    return w.model({"x": (TensorProto.FLOAT, shape)}, {"last": last, "all": flat})


MODELS = {
    "encoder": encoder,
    "decoder": decoder,
    "classifier": classifier,
    "segmenter": segmenter,
    "recurrent": recurrent,
}
EXPORTERS = {"script": Script, "dynamo": Dynamo}

"""ONNX models to measure: those that the onnx package has, with random weights, and an encoder."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, numpy_helper

from webnn_py import MLGraphBuilder, MLOperand, ml
from webnn_py.onnx import to_onnx

LIGHT = (
    "squeezenet",
    "shufflenet",
    "inception_v1",
    "inception_v2",
    "densenet121",
    "resnet50",
    "bvlc_alexnet",
    "vgg19",
)
ENCODER = "encoder12"
Array = np.ndarray[Any, Any]


def model(name: str, data_type: str = "float32") -> onnx.ModelProto:
    """A model of LIGHT, or ENCODER.

    Args:
        name: Its name.
        data_type: float32, or float16 for its weights, input and output.
    """
    made = encoder() if name == ENCODER else light(name)
    return half(made) if data_type == "float16" else made


def light(name: str) -> onnx.ModelProto:
    """A model of the onnx package, which fills its weights with one number, with random ones."""
    folder = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"
    found = onnx.load(folder / f"light_{name}.onnx")
    graph = found.graph
    shapes = {i.name: numpy_helper.to_array(i) for i in graph.initializer}
    filled = [node for node in graph.node if node.op_type == "ConstantOfShape"]
    # Scales and variances are near one, and weights such that float16 holds what all layers make.
    multiplied = {name for node in graph.node if node.op_type == "Mul" for name in node.input}
    near_one = {
        node.input[place]
        for node in graph.node
        for place in {"BatchNormalization": (1, 4), "Unsqueeze": (0,)}.get(node.op_type, ())
        if node.op_type != "Unsqueeze" or node.output[0] in multiplied
    }
    rng = np.random.default_rng(0)
    known = {node.output[0] for node in filled} | set(shapes)
    for node in filled:
        shape = tuple(shapes.pop(node.input[0]).tolist())
        spread = math.sqrt(1.4 / math.prod(shape[1:])) if len(shape) > 1 else 0.1
        array = rng.normal(0, spread, shape)
        if node.output[0] in near_one:
            array = 1 + 0.1 * np.abs(array)
        shapes[node.output[0]] = array.astype(np.float32)
    kept = [node for node in graph.node if node.op_type != "ConstantOfShape"]
    read = {value for node in kept for value in node.input}
    inputs = [value for value in graph.input if value.name not in known]
    del graph.node[:], graph.input[:], graph.initializer[:]
    graph.node.extend(kept)
    graph.input.extend(inputs)
    graph.initializer.extend(
        numpy_helper.from_array(array, key) for key, array in shapes.items() if key in read
    )
    return found


def logits(given: onnx.ModelProto) -> onnx.ModelProto:
    """Return the model without the softmax that ends it, if there is one behind others.

    A softmax of large values is 1 in one place and 0 in all others: it hides every difference.
    """
    (output, *_) = given.graph.output
    makers = {name: node for node in given.graph.node for name in node.output}
    last = makers[output.name]
    if last.op_type != "Softmax" or last.input[0] not in makers:
        return given
    made = onnx.ModelProto()
    made.CopyFrom(given)
    made.graph.node.remove(last)
    for node in made.graph.node:
        node.output[:] = [output.name if n == last.input[0] else n for n in node.output]
        node.input[:] = [output.name if n == last.input[0] else n for n in node.input]
    return made


def batched(given: onnx.ModelProto, count: int) -> onnx.ModelProto:
    """The model for `count` images in the place of one."""
    graph = given.graph
    for value in (*graph.input, *graph.output):
        value.type.tensor_type.shape.dim[0].dim_value = count
    shapes = {node.input[1] for node in graph.node if node.op_type == "Reshape"}
    for tensor in graph.initializer:
        if tensor.name in shapes:
            array = numpy_helper.to_array(tensor).copy()
            array[0] *= count
            tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))
    del graph.value_info[:]
    return given


def half(given: onnx.ModelProto) -> onnx.ModelProto:
    """The model with float16 in the place of float32."""
    graph = given.graph
    for tensor in graph.initializer:
        if tensor.data_type == TensorProto.FLOAT:
            array = numpy_helper.to_array(tensor).astype(np.float16)
            tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))
    for value in (*graph.input, *graph.output, *graph.value_info):
        if value.type.tensor_type.elem_type == TensorProto.FLOAT:
            value.type.tensor_type.elem_type = TensorProto.FLOAT16
    return given


def encoder(
    layers: int = 12,
    width: int = 384,
    heads: int = 12,
    length: int | str = 128,
    batch: int | str = 1,
) -> onnx.ModelProto:
    """A transformer's encoder over embedded tokens; names may stand for length and batch."""
    with ml.create_context_sync(engine="reference") as context:
        b = MLGraphBuilder(context)
        layer = _Transformer(b, width, heads)
        h = b.input("x", "float32", [batch, length, width])
        for _ in range(layers):
            h = layer(h, layer.split(h), layer.split(h))
        return to_onnx(b.build_sync({"y": h}))


def decoder(layers: int = 12, width: int = 384, heads: int = 12) -> onnx.ModelProto:
    """A step of a transformer's decoder: one embedded token, behind "past" others.

    Their keys and values are inputs; with the token's own they are outputs.
    """
    with ml.create_context_sync(engine="reference") as context:
        b = MLGraphBuilder(context)
        layer = _Transformer(b, width, heads)
        h = b.input("x", "float32", [1, 1, width])
        outputs = {}
        for number in range(layers):
            caches = []
            for name in ("key", "value"):
                past_shape = (1, heads, "past", width // heads)
                past = b.input(f"past_{name}_{number}", "float32", past_shape)
                caches.append(b.concat([past, layer.split(h)], 2))
                outputs[f"present_{name}_{number}"] = caches[-1]
            h = layer(h, *caches)
        return to_onnx(b.build_sync({"y": h, **outputs}))


class _Transformer:
    """Layers with random weights."""

    def __init__(self, b: MLGraphBuilder, width: int, heads: int) -> None:
        self._b, self._width, self._heads = b, width, heads
        self._rng = np.random.default_rng(0)

    def __call__(self, x: MLOperand, keys: MLOperand, values: MLOperand) -> MLOperand:
        """One layer."""
        b, width = self._b, self._width
        h = self._normalized(b.add(x, self._attention(x, keys, values)))
        return self._normalized(b.add(h, self._dense(b.gelu(self._dense(h, 4 * width)), width)))

    def split(self, x: MLOperand) -> MLOperand:
        """A product of `x`, by heads."""
        b, heads = self._b, self._heads
        shape = [*x.shape[:2], heads, self._width // heads]
        return b.transpose(b.reshape(self._dense(x, self._width), shape), permutation=[0, 2, 1, 3])

    def _attention(self, x: MLOperand, keys: MLOperand, values: MLOperand) -> MLOperand:
        b, width = self._b, self._width
        scores = b.matmul(self.split(x), b.transpose(keys, permutation=[0, 1, 3, 2]))
        scale = b.constant(1 / math.sqrt(width // self._heads), "float32")
        mixed = b.matmul(b.softmax(b.mul(scores, scale), 3), values)
        return self._dense(b.reshape(b.transpose(mixed, permutation=[0, 2, 1, 3]), x.shape), width)

    def _normalized(self, x: MLOperand) -> MLOperand:
        return self._b.layer_normalization(x, axes=[2])

    def _dense(self, x: MLOperand, outer: int) -> MLOperand:
        inner = x.shape[-1]
        weights = self._rng.normal(0, 1 / math.sqrt(inner), (inner, outer))
        bias = self._rng.normal(0, 1 / math.sqrt(outer), outer)
        b = self._b
        product = b.matmul(x, b.constant(weights.astype(np.float32)))
        return b.add(product, b.constant(bias.astype(np.float32)))


def inputs_of(given: onnx.ModelProto) -> dict[str, Array]:
    """Random inputs."""
    rng = np.random.default_rng(1)
    made = {}
    for value in given.graph.input:
        kind = value.type.tensor_type
        shape = [dimension.dim_value for dimension in kind.shape.dim]
        dtype = onnx.helper.tensor_dtype_to_np_dtype(kind.elem_type)
        made[value.name] = rng.normal(size=shape).astype(dtype)
    return made

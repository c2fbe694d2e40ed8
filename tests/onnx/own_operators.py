"""Models with operators of ONNX Runtime's own domain, and what it computes of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

OWN = "com.microsoft"
WORDS, HIDDEN, HEADS, SHARED, EACH, ROWS = 48, 64, 4, 2, 16, 32
CACHE = ("past_key", "past_value")


def whole(
    nodes: Sequence[Any],
    inputs: Sequence[Any],
    outputs: Sequence[str],
    weights: Mapping[str, Any],
) -> onnx.ModelProto:
    """A model; its outputs' shapes are inferred."""
    graph = helper.make_graph(
        list(nodes),
        "g",
        list(inputs),
        [onnx.ValueInfoProto(name=name) for name in outputs],
        [onnx.numpy_helper.from_array(np.asarray(v), n) for n, v in weights.items()],
    )
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid(OWN, 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


def alone(
    kind: str,
    given: Sequence[Any],
    outputs: int,
    attributes: Mapping[str, Any],
    known: Sequence[int] = (),
) -> tuple[onnx.ModelProto, dict[str, Any]]:
    """A model of one operator, and what to give it.

    Args:
        kind: The operator.
        given: Its inputs, None for those that are left out.
        outputs: How many it has.
        attributes: Its attributes.
        known: Which of the inputs are constants.
    """
    names = ["" if one is None else f"x{i}" for i, one in enumerate(given)]
    node = helper.make_node(
        kind, names, [f"y{i}" for i in range(outputs)], name="n", domain=OWN, **attributes
    )
    arrays = {name: one for name, one in zip(names, given, strict=True) if name}
    weights = {f"x{i}": given[i] for i in known if given[i] is not None}
    feeds = {name: one for name, one in arrays.items() if name not in weights}
    inputs = [
        helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(x.dtype), x.shape)
        for n, x in feeds.items()
    ]
    return whole([node], inputs, [f"y{i}" for i in range(outputs)], weights), feeds


def by_onnx_runtime(model: onnx.ModelProto, feeds: Mapping[str, Any]) -> dict[str, Any]:
    """Its CPU provider's results by name."""
    onnxruntime = pytest.importorskip("onnxruntime")
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    found = session.run(None, dict(feeds))
    return {value.name: one for value, one in zip(model.graph.output, found, strict=True)}


class _Writer:
    """Nodes and random weights."""

    def __init__(self) -> None:
        self.nodes: list[Any] = []
        self.weights: dict[str, Any] = {}
        self.rng = np.random.default_rng(7)

    def op(self, kind: str, *inputs: Any, outputs: int = 1, **attributes: Any) -> Any:
        """A node; what is no name is an initializer."""
        names = [one if isinstance(one, str) else self.constant(one) for one in inputs]
        made = [f"{kind}_{len(self.nodes)}_{i}" for i in range(outputs)]
        own = kind in {"GroupQueryAttention", "MatMulNBits", "SkipSimplifiedLayerNormalization"}
        domain = OWN if own else ""
        node = helper.make_node(kind, names, made, name=f"n{len(self.nodes)}", **attributes)
        node.domain = domain
        self.nodes.append(node)
        return made[0] if outputs == 1 else made

    def constant(self, value: Any) -> str:
        name = f"w{len(self.weights)}"
        self.weights[name] = np.asarray(value)
        return name

    def random(self, *shape: int, by: float = 1.0) -> Any:
        return (by * self.rng.normal(size=shape)).astype(np.float32)

    def linear(self, x: str, columns: int, depth: int = HIDDEN) -> str:
        """A product with weights of 4 bits."""
        blocks = depth // ROWS
        packed = self.rng.integers(0, 256, [columns, blocks, ROWS // 2]).astype(np.uint8)
        scales = self.rng.uniform(0.02, 0.05, [columns * blocks]).astype(np.float32)
        return str(
            self.op("MatMulNBits", x, packed, scales, K=depth, N=columns, bits=4, block_size=ROWS)
        )

    def skip(self, x: str, other: str) -> list[str]:
        """A normalized sum, and the sum."""
        scale = np.ones(HIDDEN, np.float32)
        made = self.op("SkipSimplifiedLayerNormalization", x, other, scale, outputs=4, epsilon=1e-6)
        self.nodes[-1].output[1] = self.nodes[-1].output[2] = ""
        return [made[0], made[3]]


def decoder(**attributes: Any) -> onnx.ModelProto:
    """A language model of two layers as exporters for ONNX Runtime write it.

    Lengths of each batch are sums of a mask; the total is the mask's size, which is no sum here.
    """
    w = _Writer()
    lengths = w.op("ReduceSum", "attention_mask", np.asarray([1]), keepdims=0)
    lengths = w.op("Cast", w.op("Sub", lengths, np.asarray(1)), to=TensorProto.INT32)
    total = w.op("Gather", w.op("Shape", "attention_mask"), np.asarray(1))
    total = w.op("Cast", total, to=TensorProto.INT32)
    angles = np.arange(32)[:, None] * 0.5 ** np.arange(EACH // 2)
    tables = [w.constant(f(angles).astype(np.float32)) for f in (np.cos, np.sin)]
    total_sum = w.op("Gather", w.random(WORDS, HIDDEN), "input_ids")
    x = w.op("SimplifiedLayerNormalization", total_sum, np.ones(HIDDEN, np.float32), epsilon=1e-6)
    inputs = [
        helper.make_tensor_value_info("input_ids", TensorProto.INT64, ["batch", "sequence"]),
        helper.make_tensor_value_info("attention_mask", TensorProto.INT64, ["batch", "total"]),
    ]
    outputs = ["logits"]
    for layer in range(2):
        packed = w.linear(x, (HEADS + 2 * SHARED) * EACH)
        past = [f"{name}_{layer}" for name in CACHE]
        made, *present = w.op(
            "GroupQueryAttention",
            *(packed, "", "", *past, lengths, total, *tables),
            outputs=3,
            num_heads=HEADS,
            kv_num_heads=SHARED,
            do_rotary=1,
            **attributes,
        )
        for name, one in zip(past, present, strict=True):
            shape = ["batch", SHARED, "past", EACH]
            inputs.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, shape))
            outputs.append(name.replace("past", "present"))
            w.nodes.append(helper.make_node("Identity", [one], [outputs[-1]]))
        x, total_sum = w.skip(total_sum, w.linear(made, HIDDEN))
        hidden = w.linear(x, 2 * HIDDEN)
        hidden = w.op("Mul", hidden, w.op("Sigmoid", hidden))
        x, total_sum = w.skip(total_sum, w.linear(hidden, HIDDEN, 2 * HIDDEN))
    w.nodes.append(helper.make_node("Identity", [w.linear(x, WORDS)], ["logits"]))
    return whole(w.nodes, inputs, outputs, w.weights)

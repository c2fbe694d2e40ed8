"""Small decoders as exporters write them, and the tokens that ONNX Runtime generates with them."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from tests.onnx import own_operators

WORDS, HIDDEN, HEADS, EACH, LAYERS, POSITIONS = 100, 64, 4, 16, 2, 64
Array = np.ndarray[Any, Any]


def fused_decoder() -> onnx.ModelProto:
    """A decoder as the builder of onnxruntime-genai writes it, by its operators."""
    model = own_operators.decoder()
    renamed = {
        f"past_{kind}_{layer}": f"past_key_values.{layer}.{kind}"
        for layer in range(LAYERS)
        for kind in ("key", "value")
    }
    renamed |= {
        name.replace("past", "present"): other.replace("past_key_values", "present")
        for name, other in renamed.items()
    }
    for value in (*model.graph.input, *model.graph.output):
        value.name = renamed.get(value.name, value.name)
    for node in model.graph.node:
        for names in (node.input, node.output):
            names[:] = [renamed.get(name, name) for name in names]
    return model


def plain_decoder(positions: str = "given") -> onnx.ModelProto:
    """A decoder as optimum exports it, of standard operators, whose caches grow.

    Args:
        positions: Where the positions of tokens come from: "given" (position_ids), "mask" (sums of
            the attention mask) or "length" (of the caches).
    """
    rng = np.random.default_rng(3)
    nodes: list[Any] = []
    weights: dict[str, Any] = {}

    def op(kind: str, *inputs: Any, name: str = "", **attributes: Any) -> str:
        names = []
        for one in inputs:
            if not isinstance(one, str):
                weights[f"w{len(weights)}"] = np.asarray(one)
                one = f"w{len(weights) - 1}"
            names.append(one)
        made = name or f"{kind}_{len(nodes)}"
        nodes.append(helper.make_node(kind, names, [made], **attributes))
        return made

    def random(*shape: int) -> Array:
        return (rng.normal(size=shape) / shape[0] ** 0.5).astype(np.float32)

    def size(x: str, axis: int) -> str:
        return op("Shape", x, start=axis, end=axis + 1)

    def normalized(x: str) -> str:
        ones, zeros = np.ones(HIDDEN, np.float32), np.zeros(HIDDEN, np.float32)
        return op("LayerNormalization", x, ones, zeros, axis=-1)

    new, past = size("input_ids", 1), size("past_key_values.0.key", 2)
    total = op("Add", new, past)
    scalar = np.array([], np.int64)
    own = op(
        "Range",
        op("Reshape", past, scalar),
        op("Reshape", total, scalar),
        np.asarray(1),
        name="cache_positions",
    )
    if positions == "mask":
        summed = op("Sub", op("CumSum", "attention_mask", np.asarray(1)), np.asarray(1))
        first = op("Slice", summed, past, total, np.array([1]))
        at = op("Max", first, np.asarray(0))
    else:
        at = "position_ids" if positions == "given" else op("Unsqueeze", own, np.array([0]))
    x = op(
        "Add",
        op("Gather", 8 * random(WORDS, HIDDEN), "input_ids"),
        op("Gather", 8 * random(POSITIONS + 64, HIDDEN), at),
    )
    keys = op("Range", np.asarray(0), op("Reshape", total, scalar), np.asarray(1))
    causal = op("LessOrEqual", op("Unsqueeze", keys, np.array([0])), op("Unsqueeze", own, [1]))
    seen = op("Cast", "attention_mask", to=TensorProto.BOOL)
    seen = op("And", op("Unsqueeze", seen, np.array([1, 2])), causal)
    hidden = op("Where", seen, np.float32(0), np.float32(-1e9))
    for layer in range(LAYERS):
        y = normalized(x)
        q, k, v = (
            op(
                "Transpose",
                op("Reshape", op("MatMul", y, random(HIDDEN, HIDDEN)), [0, 0, HEADS, EACH]),
                perm=[0, 2, 1, 3],
            )
            for _ in range(3)
        )
        k, v = (
            op(
                "Concat",
                f"past_key_values.{layer}.{kind}",
                one,
                axis=2,
                name=f"present.{layer}.{kind}",
            )
            for kind, one in (("key", k), ("value", v))
        )
        scores = op("MatMul", q, op("Transpose", k, perm=[0, 1, 3, 2]))
        scores = op("Add", op("Mul", scores, np.float32(EACH**-0.5)), hidden)
        y = op("Transpose", op("MatMul", op("Softmax", scores), v), perm=[0, 2, 1, 3])
        x = op("Add", x, op("MatMul", op("Reshape", y, [0, 0, HIDDEN]), random(HIDDEN, HIDDEN)))
        y = op("Relu", op("MatMul", normalized(x), random(HIDDEN, 2 * HIDDEN)))
        x = op("Add", x, op("MatMul", y, random(2 * HIDDEN, HIDDEN)))
    op("MatMul", normalized(x), random(HIDDEN, WORDS), name="logits")
    kinds = {
        "input_ids": ["batch_size", "sequence_length"],
        "attention_mask": ["batch_size", "all"],
    }
    if positions == "given":
        kinds["position_ids"] = kinds["input_ids"]
    inputs = [
        helper.make_tensor_value_info(name, TensorProto.INT64, shape)
        for name, shape in kinds.items()
    ]
    names = [f"{layer}.{kind}" for layer in range(LAYERS) for kind in ("key", "value")]
    inputs += [
        helper.make_tensor_value_info(
            f"past_key_values.{name}", TensorProto.FLOAT, ["batch_size", HEADS, "past", EACH]
        )
        for name in names
    ]
    results = ["logits", *(f"present.{name}" for name in names)]
    return own_operators.whole(nodes, inputs, results, weights)


class Oracle:
    """ONNX Runtime's greedy tokens, by a loop over caches that grow.

    Args:
        model: The decoder.
    """

    def __init__(self, model: onnx.ModelProto) -> None:
        onnxruntime = pytest.importorskip("onnxruntime")
        self._session = onnxruntime.InferenceSession(
            model.SerializeToString(), providers=["CPUExecutionProvider"]
        )
        self._inputs = {one.name: one.shape for one in self._session.get_inputs()}
        self._results = [one.name for one in self._session.get_outputs()]

    def logits(self, prompt: Sequence[int]) -> Array:
        """The logits of the token behind a prompt."""
        return self._step(np.array([prompt]), 0, self._empty())[0]

    def tokens(self, prompt: Sequence[int], count: int) -> list[int]:
        """The most likely tokens behind a prompt, one by one."""
        ids, before, cache, found = np.array([prompt]), 0, self._empty(), []
        for _ in range(count):
            logits, cache = self._step(ids, before, cache)
            before += ids.shape[1]
            found.append(int(logits.argmax()))
            ids = np.array([found[-1:]])
        return found

    def _empty(self) -> dict[str, Array]:
        return {
            name: np.zeros([1, shape[1], 0, shape[3]], np.float32)
            for name, shape in self._inputs.items()
            if name.startswith("past")
        }

    def _step(
        self, ids: Array, before: int, cache: dict[str, Array]
    ) -> tuple[Array, dict[str, Array]]:
        total = before + ids.shape[1]
        feeds = {
            "input_ids": ids,
            "attention_mask": np.ones([1, total], np.int64),
            "position_ids": np.arange(before, total)[None],
            **cache,
        }
        given = {name: one for name, one in feeds.items() if name in self._inputs}
        made = dict(zip(self._results, self._session.run(None, given), strict=True))
        following = {name: made[name.replace("past_key_values", "present")] for name in cache}
        return made["logits"][0, -1], following


@functools.cache
def made(kind: str) -> tuple[onnx.ModelProto, Oracle]:
    """A decoder by name, and its oracle."""
    model = fused_decoder() if kind == "fused" else plain_decoder(kind)
    return model, Oracle(model)

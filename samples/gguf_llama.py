"""A Llama in a GGUF file as a tokenizer and an ONNX model with ONNX Runtime's operators.

The model is written as the builder of onnxruntime-genai writes decoders; weights are unpacked to
float32.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gguf
import numpy as np
import onnx
import tokenizers
from onnx import TensorProto, helper


def read(path: Any, length: int) -> tuple[Any, Any, int]:
    """Return the tokenizer, the model for texts of `length` tokens, and the token that ends one."""
    reader = gguf.GGUFReader(path)
    fields = {name: field.contents() for name, field in reader.fields.items()}
    model = model_of(fields, weights_of(reader, fields, length))
    return tokenizer_of(fields), model, fields["tokenizer.ggml.eos_token_id"]


def tokenizer_of(fields: Mapping[str, Any]) -> Any:
    """Return the tokenizer that the file describes."""
    words, kinds = fields["tokenizer.ggml.tokens"], fields["tokenizer.ggml.token_type"]
    merges = [tuple(pair.split(" ")) for pair in fields["tokenizer.ggml.merges"]]
    numbers = {word: number for number, word in enumerate(words)}
    made: Any = tokenizers.Tokenizer(tokenizers.models.BPE(numbers, merges))
    digits = tokenizers.pre_tokenizers.Digits(individual_digits=True)
    parts = [digits, tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)]
    made.pre_tokenizer = tokenizers.pre_tokenizers.Sequence(parts)
    made.decoder = tokenizers.decoders.ByteLevel()
    made.add_special_tokens([w for w, kind in zip(words, kinds, strict=True) if kind == 3])
    return made


def weights_of(reader: Any, fields: Mapping[str, Any], length: int) -> dict[str, Any]:
    """Return the weights, those of products as [inputs, outputs], and the tables of the angles."""
    arrays: dict[str, Any] = {"minus": np.array(-1), "axis": np.array([1]), "one": np.array(1)}
    for tensor in reader.tensors:
        array = gguf.dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
        is_product = array.ndim == 2 and tensor.name != "token_embd.weight"
        arrays[tensor.name] = np.ascontiguousarray(array.T) if is_product else array
    arrays.setdefault("output.weight", np.ascontiguousarray(arrays["token_embd.weight"].T))
    each = fields["llama.rope.dimension_count"]
    steps = float(fields["llama.rope.freq_base"]) ** (-np.arange(0, each, 2) / each)
    angles = np.outer(np.arange(length), steps)
    return arrays | {"cos": np.cos(angles).astype("f4"), "sin": np.sin(angles).astype("f4")}


def model_of(fields: Mapping[str, Any], weights: Mapping[str, Any]) -> Any:
    """Return a Llama as an ONNX model."""
    heads, groups = (fields[f"llama.attention.head_count{end}"] for end in ("", "_kv"))
    nodes: list[Any] = []

    def add(kind: str, *inputs: str, outputs: tuple[str, ...] = (), **attributes: Any) -> str:
        made = outputs or (f"{kind} {len(nodes)}",)
        domain = "com.microsoft" if kind == "GroupQueryAttention" else ""
        nodes.append(helper.make_node(kind, inputs, made, domain=domain, **attributes))
        return made[0]

    def product(x: str, name: str) -> str:
        return add("MatMul", x, f"{name}.weight")

    def normalized(x: str, name: str) -> str:
        epsilon = fields["llama.attention.layer_norm_rms_epsilon"]
        return add("SimplifiedLayerNormalization", x, f"{name}.weight", epsilon=epsilon)

    last = add("Add", add("ReduceSum", "attention_mask", "axis", keepdims=0), "minus")
    total = add("Gather", add("Shape", "attention_mask"), "one")
    counts = [add("Cast", one, to=TensorProto.INT32) for one in (last, total)]
    x = add("Gather", "token_embd.weight", "input_ids")
    rotary = {"do_rotary": 1, "rotary_interleaved": 1}
    caches = [
        f"{n}.{kind}" for n in range(fields["llama.block_count"]) for kind in ("key", "value")
    ]
    for n, (key, value) in enumerate(zip(caches[::2], caches[1::2], strict=True)):
        y = normalized(x, f"blk.{n}.attn_norm")
        parts = [product(y, f"blk.{n}.attn_{part}") for part in "qkv"]
        parts += [f"past_key_values.{key}", f"past_key_values.{value}", *counts, "cos", "sin"]
        made = (f"attention {n}", f"present.{key}", f"present.{value}")
        sizes = {"num_heads": heads, "kv_num_heads": groups}
        y = add("GroupQueryAttention", *parts, outputs=made, **sizes, **rotary)
        x = add("Add", x, product(y, f"blk.{n}.attn_output"))
        y = normalized(x, f"blk.{n}.ffn_norm")
        gate = product(y, f"blk.{n}.ffn_gate")
        y = add("Mul", add("Mul", gate, add("Sigmoid", gate)), product(y, f"blk.{n}.ffn_up"))
        x = add("Add", x, product(y, f"blk.{n}.ffn_down"))
    add("MatMul", normalized(x, "output_norm"), "output.weight", outputs=("logits",))
    row = ["batch", groups, "past", fields["llama.rope.dimension_count"]]
    tokens = {"input_ids": ["batch", "new"], "attention_mask": ["batch", "all"]}
    ends = [helper.make_tensor_value_info(n, TensorProto.INT64, s) for n, s in tokens.items()]
    pasts = [f"past_key_values.{name}" for name in caches]
    ends += [helper.make_tensor_value_info(name, TensorProto.FLOAT, row) for name in pasts]
    results = [onnx.ValueInfoProto(name=n) for n in ("logits", *(f"present.{c}" for c in caches))]
    arrays = [onnx.numpy_helper.from_array(array, name) for name, array in weights.items()]
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    graph = helper.make_graph(nodes, "llama", ends, results, arrays)
    return helper.make_model(graph, opset_imports=opsets)

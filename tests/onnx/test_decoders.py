"""A small language model made for ONNX Runtime, whose tokens are ONNX Runtime's."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest

from tests.onnx.own_operators import CACHE, EACH, SHARED, by_onnx_runtime, decoder
from webnn_py import MLAwaitedExecution, MLContext, MLExecution, MLGraph
from webnn_py.onnx import load

STEPS = 5
Step = Callable[[dict[str, Any]], Mapping[str, Any]]


def generated(step: Step, prompts: list[list[int]], room: int = 0) -> tuple[list[Any], Any]:
    """Greedy tokens of each step, and the last step's logits.

    Args:
        step: Computes the model.
        prompts: Of each batch; the shorter ones are padded on the right.
        room: The length of a cache that holds all from the first step on, if there is one.
    """
    lengths = np.asarray([len(one) for one in prompts])
    ids = np.zeros([len(prompts), lengths.max()], np.int64)
    for row, prompt in zip(ids, prompts, strict=True):
        row[: len(prompt)] = prompt
    names = [f"{name}_{layer}" for layer in range(2) for name in CACHE]
    cache = {n: np.zeros([len(prompts), SHARED, room, EACH], np.float32) for n in names}
    last, total, tokens, made = lengths - 1, ids.shape[1], [], None
    for _ in range(STEPS):
        mask = (np.arange(total) < lengths[:, None]).astype(np.int64)
        made = step({"input_ids": ids, "attention_mask": mask, **cache})
        cache = {n: np.asarray(made[n.replace("past", "present")]) for n in names}
        logits = made["logits"][np.arange(len(prompts)), last]
        tokens.append(logits.argmax(-1).tolist())
        ids, last = np.asarray(tokens[-1])[:, None], 0 * last
        total, lengths = total + 1, lengths + 1
    return tokens, logits


class Loaded:
    """The model by this library: a graph of prompts, without a cache, and one of the rest."""

    def __init__(self, context: MLContext, model: Any) -> None:
        self._context = context
        self._prompt = load(model, context, {"past": 0})
        self._rest = load(model, context)

    def __call__(self, given: dict[str, Any]) -> Mapping[str, Any]:
        graph: MLGraph = self._rest if given["past_key_0"].size else self._prompt
        feeds = {name: one for name, one in given.items() if name in graph.inputs}
        return asyncio.run(MLAwaitedExecution(self._context).compute(graph, feeds))


@pytest.mark.parametrize("prompts", [[[3, 1, 4, 1, 5]], [[3, 1, 4, 1, 5], [9, 2, 6]]], ids=len)
def test_tokens_are_those_of_onnx_runtime(own: MLContext, prompts: list[list[int]]) -> None:
    model = decoder()
    wanted, scores = generated(lambda given: by_onnx_runtime(model, given), prompts)
    assert len({token for step in wanted for token in step}) > 2
    found, logits = generated(Loaded(own, model), prompts)
    assert found == wanted
    np.testing.assert_allclose(logits, scores, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("is_open", [False, True])
def test_a_cache_may_have_room_for_all_steps(own: MLContext, is_open: bool) -> None:
    """Its keys stay where they are, and the tokens, too; one graph of open length does it."""
    model, prompts = decoder(), [[3, 1, 4, 1, 5], [9, 2, 6]]
    wanted, _ = generated(lambda given: by_onnx_runtime(model, given), prompts)

    all_steps = load(model, own, {"past": 12, "total": (1, 12)}) if is_open else None

    def step(given: dict[str, Any]) -> Mapping[str, Any]:
        new = given["input_ids"].shape[1]
        graph = all_steps or load(model, own, {"past": 12, "sequence": new, "total": (1, 12)})
        made = asyncio.run(MLAwaitedExecution(own).compute(graph, given))
        assert made["present_key_0"].shape[2] == 12
        return made

    found, _ = generated(step, prompts, room=12)
    assert found == wanted


def test_a_mask_as_long_as_the_cache_fixes_all_sizes(own: MLContext) -> None:
    """One graph of prompts, and one of all steps, which nothing is compiled for anew."""
    model, prompts, room = decoder(), [[3, 1, 4, 1, 5], [9, 2, 6]], 12
    wanted, scores = generated(lambda given: by_onnx_runtime(model, given), prompts)
    graphs: dict[int, MLGraph] = {}

    def step(given: dict[str, Any]) -> Mapping[str, Any]:
        new, mask = given["input_ids"].shape[1], given["attention_mask"]
        if new not in graphs:
            sizes = {"batch": 2, "sequence": new, "past": room, "total": room}
            graphs[new] = load(model, own, sizes)
        given["attention_mask"] = np.pad(mask, [(0, 0), (0, room - mask.shape[1])])
        return asyncio.run(MLAwaitedExecution(own).compute(graphs[new], given))

    found, logits = generated(step, prompts, room)
    assert found == wanted
    np.testing.assert_allclose(logits, scores, rtol=1e-3, atol=1e-3)
    assert len(graphs) == 2


def test_sizes_may_be_fixed_but_for_the_whole(cpu: MLContext) -> None:
    """Then nothing says that all keys fit into the cache, and there is room behind it."""
    rng, model = np.random.default_rng(0), decoder()
    given = {"input_ids": np.asarray([[3], [4]]), "attention_mask": np.ones([2, 5], np.int64)}
    for layer in range(2):
        for name in CACHE:
            given[f"{name}_{layer}"] = rng.normal(size=[2, SHARED, 4, EACH]).astype(np.float32)
    graph = load(model, cpu, {"past": 4, "sequence": 1})
    found = MLExecution(cpu).compute(graph, given)
    for name, wanted in by_onnx_runtime(model, given).items():
        np.testing.assert_allclose(found[name], wanted, rtol=1e-3, atol=1e-3)

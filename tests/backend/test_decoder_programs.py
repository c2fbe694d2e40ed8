"""Greedy generation as a program gives the tokens that the decoder gives."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.decoders import KEYS, decoder_by_hand, tokens_after
from tests.onnx.decoder_models import made
from webnn_py import MLContext, MLDecoder, ValidationError, ml
from webnn_py.onnx import load_decoder

PROMPT = [3, 1, 4]


def generated(gpu: MLContext, path: Path, prompt: list[int], length: int, runs: int) -> list[int]:
    """The tokens behind a prompt after some runs of a program."""
    program = gpu.load_program_sync(path)
    text = {
        "ids": np.array([*prompt, *[0] * (length - len(prompt))], np.int32),
        "count": np.array([len(prompt)], np.int32),
        "position": np.zeros(1, np.int32),
        "tokens": np.zeros(length, np.int32),
    }
    for _ in range(runs):
        text |= program.run_sync(text)
    return [int(one) for one in text["tokens"][len(prompt) - 1 : int(text["position"][0])]]


@pytest.mark.parametrize("batch", ["rows", 1])
def test_of_a_graph_made_by_hand(gpu: MLContext, tmp_path: Path, batch: object) -> None:
    decoder_by_hand(gpu, batch=batch).compile_to(tmp_path / "chat.mlprogram", steps=5)
    found = generated(gpu, tmp_path / "chat.mlprogram", PROMPT, KEYS, 3)
    assert found == tokens_after(PROMPT, 13)


@pytest.mark.parametrize("kind", ["fused", "given"])
def test_of_a_model(gpu: MLContext, tmp_path: Path, kind: str) -> None:
    """Compiled on a CPU context, run on the GPU."""
    model, oracle = made(kind)
    with ml.create_context_sync(engine="reference") as context:
        load_decoder(model, context, length=24).compile_to(tmp_path / "chat.mlprogram", steps=7)
    found = generated(gpu, tmp_path / "chat.mlprogram", PROMPT, 24, 2)
    assert found == oracle.tokens(PROMPT, 12)


def test_what_cannot_be_compiled(cpu: MLContext, tmp_path: Path) -> None:
    decoder: MLDecoder = decoder_by_hand(cpu, batch=3)
    with pytest.raises(ValidationError, match="the graph has 3 rows"):
        decoder.compile_to(tmp_path / "chat.mlprogram")
    for steps in (0, KEYS + 1):
        with pytest.raises(ValidationError, match=f"expected 1 to {KEYS}"):
            decoder.compile_to(tmp_path / "chat.mlprogram", steps=steps)
    with pytest.raises(ValidationError, match=r"\.onnx"):
        decoder_by_hand(cpu).compile_to(tmp_path / "chat.onnx")

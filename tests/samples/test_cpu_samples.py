"""The samples that run anywhere: what they print and return is right."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from samples import asyncio_server, first_graph
from webnn_py import MLContext, MLExecution, MLGraphBuilder, ml

SAMPLES = Path(__file__).parents[2] / "samples"


def softmax(scores: np.ndarray) -> np.ndarray:
    exponent = np.exp(scores - scores.max(axis=1, keepdims=True))
    return exponent / exponent.sum(axis=1, keepdims=True)


def test_first_graph(capsys: pytest.CaptureFixture[str]) -> None:
    results = first_graph.main(rows=3)
    x = np.arange(6, dtype=np.float64).reshape(3, 2)
    expected = softmax(x @ first_graph.WEIGHTS + first_graph.BIAS)
    np.testing.assert_allclose(results, expected, rtol=1e-5)
    printed = capsys.readouterr().out
    assert printed.startswith("graph(%x: float32[3,2]) {\n")
    assert "return probabilities=" in printed


def expected_answers(pictures: np.ndarray) -> np.ndarray:
    """All pictures in one batch, on the reference engine."""
    with ml.create_context_sync(device_type="cpu", engine="reference") as context:
        builder = MLGraphBuilder(context)
        output = asyncio_server.network(builder, batch=len(pictures))
        graph = builder.build_sync({"answer": output})
        return MLExecution(context).compute(graph, {"picture": pictures})["answer"]


@pytest.mark.parametrize("device", ["cpu", "gpu"])
def test_asyncio_server_answers_every_request_with_its_own_result(
    device: Any, request: pytest.FixtureRequest
) -> None:
    context: MLContext = request.getfixturevalue(device)  # skips where there is no adapter
    figures = asyncio_server.main(context.device_type, requests=8)  # type: ignore[arg-type]
    assert figures.answers.shape == (8, 10)
    np.testing.assert_allclose(figures.answers.sum(axis=1), 1, rtol=1e-5)
    np.testing.assert_allclose(
        figures.answers, expected_answers(figures.pictures), rtol=1e-4, atol=1e-5
    )
    assert len(np.unique(figures.answers, axis=0)) == 8
    assert figures.seconds > 0


@pytest.mark.parametrize("name", ["first_graph", "asyncio_server"])
def test_samples_run_by_themselves(name: str, tmp_path: Path) -> None:
    arguments = ["--requests", "2"] if name == "asyncio_server" else []
    done = subprocess.run(
        [sys.executable, SAMPLES / f"{name}.py", *arguments],
        cwd=tmp_path, check=True, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.stdout

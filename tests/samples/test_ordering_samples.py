"""The samples about serving, threads, timelines and DLPack: what they return is right."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from samples import digits, dlpack_torch, drawing, thread_workers, timeline_pipeline
from webnn_py import MLContext

SAMPLES = Path(__file__).parents[2] / "samples"


def test_service_answers_every_request_with_its_own_result(
    capsys: pytest.CaptureFixture[str],
) -> None:
    for package in ("httpx", "starlette", "uvicorn"):
        pytest.importorskip(package, reason="the extra `service` is not installed")
    from samples import asyncio_service

    figures = asyncio_service.main(requests=40)
    images, labels = digits.held_out()
    np.testing.assert_allclose(figures.answers, digits.synchronous(images[:40]), atol=1e-6)
    assert np.mean(figures.answers.argmax(axis=1) == labels[:40]) > 0.9
    assert len(figures.seconds) == 40
    assert "every answer equals that of MLExecution" in capsys.readouterr().out


async def test_service_refuses_what_is_no_image(cpu: MLContext) -> None:
    httpx = pytest.importorskip("httpx", reason="the extra `service` is not installed")
    for package in ("starlette", "uvicorn"):
        pytest.importorskip(package, reason="the extra `service` is not installed")
    from samples import asyncio_service

    app = asyncio_service.application(await asyncio_service.classifier(cpu))
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://service") as client:
        for body in ({"image": [0.0] * 63}, {"picture": []}, {"image": "ink"}, [1]):
            reply = await client.post("/digits", json=body)
            assert reply.status_code == 400
            assert reply.json()["error"]
        assert (await client.post("/digits", content=b"{")).status_code == 400


@pytest.mark.parametrize("workers", [1, 3])
def test_thread_workers(workers: int) -> None:
    figures = thread_workers.main(workers)
    images, labels = digits.held_out()
    expected = digits.synchronous(images).argmax(axis=1)
    np.testing.assert_array_equal(figures.predictions, expected)
    assert figures.accuracy == np.mean(expected == labels)
    assert len(figures.by_thread) == workers
    assert sum(figures.by_thread) == len(images)


def disc(number: int) -> np.ndarray:
    x, y = np.meshgrid(drawing.AXIS.astype(np.float64), drawing.AXIS.astype(np.float64))
    angle = 0.2 * number
    inside = 0.05 - (x - np.cos(angle) / 2) ** 2 - (y - np.sin(angle) / 2) ** 2
    return 1 / (1 + np.exp(-99 * inside))


@pytest.mark.parametrize("passes", [3, 25])
def test_timeline_pipeline(passes: int) -> None:
    """A drawing that is overwritten too early, or blended too early, shows on the canvas."""
    figures = timeline_pipeline.main(passes)
    np.testing.assert_allclose(figures.joined, np.maximum(0.9 * disc(0), disc(9)), atol=1e-4)
    canvas = np.zeros((drawing.SIZE, drawing.SIZE))
    for number in range(1, passes + 1):
        canvas = np.maximum(0.9 * canvas, disc(number))
    np.testing.assert_allclose(figures.canvas, canvas, atol=1e-4)
    assert figures.furthest == min(passes, timeline_pipeline.AHEAD)


def test_dlpack_torch() -> None:
    pytest.importorskip("torch", reason="PyTorch is not installed")
    figures = dlpack_torch.main()
    assert figures.addresses.keys() == {"x", "y"}
    assert all(theirs == ours for theirs, ours in figures.addresses.values())
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    np.testing.assert_array_equal(figures.results["first"], 2 * x + 1)
    np.testing.assert_array_equal(figures.results["y"], 20 * x + 1)
    np.testing.assert_array_equal(figures.results["z"], 40 * x + 3)


def test_dlpack_torch_says_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(SystemExit, match="PyTorch, which is not installed: pip install torch"):
        dlpack_torch.main()


@pytest.mark.parametrize("arguments", [["thread_workers"], ["timeline_pipeline", "--passes", "3"]])
def test_samples_run_by_themselves(arguments: list[Any], tmp_path: Path) -> None:
    name, *options = arguments
    done = subprocess.run(
        [sys.executable, SAMPLES / f"{name}.py", *options],
        cwd=tmp_path, check=True, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.stdout

"""The samples that put graphs beside rendering; see what they promise in their docstrings."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from PIL import Image

from samples import background_blur, frame_budget, photo_classifier, segmentation
from webnn_py import MLContext


def pixels(picture: Path) -> np.ndarray[Any, Any]:
    with Image.open(picture) as image:
        assert image.format == "PNG"
        return np.asarray(image.convert("RGB"), float)


def test_the_background_is_blurred_and_the_person_is_not(gpu: MLContext, tmp_path: Path) -> None:
    picture = tmp_path / "new" / "blur.png"
    assert background_blur.main(picture, frames=3) > 0.9
    seen, mask, blurred = np.split(pixels(picture), 3, axis=1)
    changed = np.abs(seen - blurred).mean(axis=2)
    assert changed[mask.min(axis=2) > 250].mean() < 4  # the picture's palette
    assert changed[mask.max(axis=2) < 5].mean() > 8


def test_the_call_is_shown_in_a_window(gpu: MLContext, monkeypatch: pytest.MonkeyPatch) -> None:
    """Or on a canvas without one."""
    offscreen = pytest.importorskip("rendercanvas.offscreen", reason="rendercanvas is missing")
    weights = np.zeros(segmentation.FILTERS * (1 + len(segmentation.SURROUNDINGS)) + 1, np.float32)
    monkeypatch.setattr(background_blur, "fit", lambda frames: weights)
    size = (background_blur.WIDTH, background_blur.HEIGHT)
    canvas, drawn = offscreen.RenderCanvas(size=size, pixel_ratio=1), []
    background_blur.show(canvas, SimpleNamespace(run=lambda: drawn.append(canvas.draw())))
    assert np.asarray(drawn[0]).shape == (size[1], size[0], 4)
    assert np.asarray(drawn[0]).std() > 20


def test_slices_take_less_of_a_frame_and_see_the_same(
    gpu: MLContext,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(photo_classifier, "OUT", tmp_path)
    monkeypatch.setattr(photo_classifier, "MODEL", tmp_path / "model.onnx")
    monkeypatch.setattr(photo_classifier, "LABELS", tmp_path / "labels.txt")
    picture = tmp_path / "new" / "frames.png"
    rows = frame_budget.main(picture, budget=0.01, frames=5)
    assert [len(taken) for taken in rows.values()] == [5, 5, 5]
    assert (pixels(picture) < 250).any()
    printed = capsys.readouterr().out
    assert "slices a run, the same scores: palace; picture" in printed
    assert int(printed.split(" slices a run")[0].split()[-1]) > 1


def test_pygfx_draws_what_a_graph_enlarges_and_shows_it(gpu: MLContext, tmp_path: Path) -> None:
    pytest.importorskip("pygfx", minversion="0.17", reason="pygfx 0.17 is not installed")
    from samples import shared_device_pygfx

    picture = tmp_path / "new" / "knot.png"
    shared_device_pygfx.main(picture, frames=2)
    drawn, enlarged = np.split(pixels(picture), 2, axis=1)
    assert drawn.shape == (240, 320, 3)
    assert drawn.std() > 30
    steps = [np.abs(half[1::2, 1::2] - half[::2, ::2]).max() for half in (drawn, enlarged)]
    assert steps[0] <= 1  # each pixel fills 2 x 2
    assert steps[1] > 10
    assert np.abs(drawn - enlarged).mean() < 6

"""The samples that use a GPU adapter: the figures they return are right."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from benchmarks import programs
from samples import digits, mpm88, render_pipeline
from webnn_py import MLContext


def test_digits_are_read_alike_in_all_modes(
    gpu: MLContext, capsys: pytest.CaptureFixture[str]
) -> None:
    results = digits.main()
    assert list(results) == [
        "MLExecution (cpu)",
        "MLAwaitedExecution (cpu)",
        "MLAwaitedExecution (gpu)",
        "MLCommandEncoder (gpu)",
    ]
    predictions = next(iter(results.values()))[0]
    assert np.bincount(predictions, minlength=10).min() > 30  # every digit, about as often
    for mode, (found, accuracy) in results.items():
        assert accuracy >= 0.98, mode
        np.testing.assert_array_equal(found, predictions, err_msg=mode)
    assert "all 4 runs give the same answers: yes" in capsys.readouterr().out


def test_the_render_pipeline_draws_a_better_picture(
    gpu: MLContext, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    picture = tmp_path / "new" / "picture.png"
    figures = render_pipeline.main(picture)
    assert figures["network"] > figures["bicubic"] + 0.3  # dB
    assert 20 < figures["bicubic"] < 40
    with Image.open(picture) as image:
        assert image.format == "PNG"
        assert image.size == (1280, 426)
        left, right = (np.asarray(image.crop((x, 0, x + 640, 426)), float) for x in (0, 640))
    assert left.std() > 30  # a photo, not one colour
    assert 0.5 < np.abs(left - right).mean() < 15  # alike, but not the same
    assert f"network {figures['network']:.2f} dB" in capsys.readouterr().out


def test_the_liquid_falls_and_stays_inside(
    gpu: MLContext, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mpm88, "STEPS", 40)
    picture, saved = tmp_path / "liquid.png", tmp_path / "liquid.mlprogram"
    moments = mpm88.main(picture, saved, frames=3)
    upper = [moment[::2, 1].astype(float).mean() for moment in moments]
    seconds = 1e-4 * 40 * np.arange(4)
    # The upper block has not reached the lower one: it falls freely.
    np.testing.assert_allclose(upper, upper[0] - 9.8 / 2 * seconds**2, atol=1e-5)
    assert all(moment.min() > 0 and moment.max() < 1 for moment in moments)
    with Image.open(picture) as image:
        assert image.size == (1024, 256)
    loaded = gpu.load_program_sync(saved)
    again = mpm88.first_positions()
    loaded.run_sync({"position": again})
    assert again.tobytes() == moments[1].tobytes()


def test_one_by_one_and_as_a_program_come_to_the_same(
    gpu: MLContext, capsys: pytest.CaptureFixture[str]
) -> None:
    figures = programs.main(["--steps", "3", "--rounds", "1"])
    assert all(seconds > 0 for taken in figures.values() for seconds in taken)
    assert "3 steps of 3 kernels a frame" in capsys.readouterr().out.replace("\n", " ")

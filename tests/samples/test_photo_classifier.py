"""The classifier of the samples: a published network, a real photo, and an ONNX file between."""

from __future__ import annotations

import io
import pickle
from pathlib import Path

import numpy as np
import PIL.Image
import pytest
from sklearn.datasets import load_sample_image

from samples import photo_classifier
from samples.checkpoint import load_checkpoint
from webnn_py.cli.main import main


def test_the_photo_is_of_a_palace(capsys: pytest.CaptureFixture[str]) -> None:
    """china.jpg shows the Summer Palace."""
    best = photo_classifier.main()
    assert best[0][0] == "palace"
    assert {"bell tower", "monastery"} < {label for label, _ in best}
    assert capsys.readouterr().out.endswith("lakeshore\n")


def test_the_command_line_sees_the_same(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    onnxruntime = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
    model = str(photo_classifier.export())
    path = tmp_path / "flower.png"
    PIL.Image.fromarray(load_sample_image("flower.jpg")).save(path)
    session = onnxruntime.InferenceSession(model)
    (expected,) = session.run(None, {"image": photo_classifier.photo(path)})
    given = ["--labels", str(photo_classifier.LABELS), "--mean", "0.498", "--std", "0.502"]
    target = tmp_path / "scores.npy"
    assert main(["run", model, "--input", str(path), "--output", str(target), *given]) == 0
    # (x / 255 - 0.498) / 0.502 is not quite (x - 127) / 128.
    np.testing.assert_allclose(np.load(target), expected, atol=2e-3)
    out = capsys.readouterr().out
    assert out.index("daisy") < out.index("bee")


class Command:
    """Runs something when it is unpickled by whoever lets it."""

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return print, ("unpickled",)


def test_a_checkpoint_makes_nothing_else(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(pickle.UnpicklingError, match="print is no part of a checkpoint"):
        load_checkpoint(io.BytesIO(pickle.dumps(Command())))
    assert not capsys.readouterr().out

"""Published models on the command line."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from tests.onnx.official import light_case
from webnn_py.cli.main import main

MODEL = Path(onnx.__file__).parent / "backend/test/data/light/light_shufflenet.onnx"


@pytest.mark.parametrize("mode", ["execution", "awaited", "encoder"])
def test_a_published_model_gives_its_published_output(
    mode: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    device = "cpu" if mode == "execution" else "gpu"
    request.getfixturevalue(device)  # skips where there is no adapter
    _, _, [([x], [published])], rtol, atol = light_case(MODEL)
    source, target = tmp_path / "x.npy", tmp_path / "y.npy"
    np.save(source, x)
    given = ["--device", device, "--mode", mode, "--input", str(source), "--output", str(target)]
    assert main(["run", str(MODEL), *given]) == 0
    np.testing.assert_allclose(np.load(target), published, rtol=rtol, atol=atol)

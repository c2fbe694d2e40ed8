"""The Python blocks of README and guide run, and the guide shows the real listing."""

from __future__ import annotations

import re
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.onnx.own_operators import decoder
from webnn_py import MLContext, MLGraphBuilder, onnx

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(name: str, language: str = "python") -> list[str]:
    """The blocks of a page in a language; those of plain text have none."""
    found = BLOCK.findall((ROOT / name).read_text())
    return [text for marked, text in found if marked == language]


def run(code: str, names: dict[str, Any]) -> None:
    exec(compile(code, "<document>", "exec"), names)


@pytest.mark.parametrize("code", [*blocks("README.md"), *blocks("docs/index.md")])
def test_blocks_that_stand_alone(
    code: str, request: pytest.FixtureRequest, capsys: pytest.CaptureFixture[str]
) -> None:
    """What the last line of each prints is in the comment there."""
    if "wgpu" in code:
        request.getfixturevalue("gpu")  # skips where there is no adapter
    run(code, {})
    expected = code.rstrip().rpartition("  # ")[2]
    assert capsys.readouterr().out.strip() == expected


def guide(need: str = "") -> list[str]:
    """The blocks of the guide that say in their first line what they need, or those that do not."""
    found = blocks("docs/guide.md")
    return [code for code in found if need == (code.split()[1] if code[0] == "#" else "")]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cpu: MLContext) -> Path:
    """Where the guide may write files; there is a model like the one that it exports."""
    monkeypatch.chdir(tmp_path)
    b = MLGraphBuilder(cpu)
    image = b.input("image", "float32", ["batch", 3, 32, 32])
    mean = b.reduce_mean(image, axes=[2, 3])
    weights = np.random.default_rng(0).normal(size=(3, 10)).astype(np.float32)
    scores = b.softmax(b.matmul(mean, b.constant(weights)), 1)
    model = onnx.to_onnx(b.build_sync({"scores": scores}))
    (tmp_path / "network.onnx").write_bytes(model.SerializeToString())
    return tmp_path


def test_guide_on_the_cpu(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names: dict[str, Any] = {}
    for code in guide():
        run(code, names)
    printed = capsys.readouterr().out
    listing = (ROOT / "docs/guide.md").read_text().split("```\ngraph(")[1].split("```")[0]
    assert f"graph({listing}" in printed
    assert "matmul [head]: " in printed


def test_guide_of_a_decoder(folder: Path) -> None:
    model = decoder()
    names = {name: f"{name}_sequence_length" for name in ("past", "total")}
    names |= {"batch": "batch_size", "sequence": "sequence_length"}
    for value in model.graph.input:
        for size in value.type.tensor_type.shape.dim:
            size.dim_param = names.get(size.dim_param, size.dim_param)
    (folder / "decoder.onnx").write_bytes(model.SerializeToString())
    made: dict[str, Any] = {}
    (loaded,) = guide("decoder")
    run(loaded, made)
    for graph, new in ((made["prompt"], 64), (made["step"], 1)):
        assert graph.inputs["input_ids"].shape == (1, new)
        assert graph.outputs["present_key_0"].shape[2] == 2048


def test_guide_on_the_gpu(gpu: object, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first, *_ = guide()
    names: dict[str, Any] = {}
    run(f"import numpy as np\nfrom webnn_py import MLGraphBuilder\n{first}", names)
    recorded, of_a_model, of_parts_of_textures = guide("gpu")
    run(recorded, names)
    assert capsys.readouterr().out.endswith("[0. 0. 1. 0. 0. 1.]\n")
    run(of_a_model, names)
    assert float(capsys.readouterr().out) == pytest.approx(1)
    run(of_parts_of_textures, names)
    assert names["sharpen"].outputs["y"].shape == (1, 3, 16, 16)


def test_guide_from_pytorch(folder: Path) -> None:
    """What PyTorch computes, the exported model does, too."""
    torch = pytest.importorskip("torch", reason="torch is not installed")
    pytest.importorskip("onnxscript", reason="onnxscript, which torch exports by, is not installed")
    (folder / "network.onnx").unlink()
    names: dict[str, Any] = {}
    (export,) = guide("torch")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyTorch's own
        run(export, names)
    for code in guide():
        run(code, names)
    with torch.no_grad():
        expected = names["network"](torch.from_numpy(names["images"])).numpy()
    np.testing.assert_allclose(names["scores"], expected, rtol=1e-4, atol=1e-6)

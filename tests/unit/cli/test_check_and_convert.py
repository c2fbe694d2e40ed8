"""`webnn-py check` and `webnn-py convert`."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

from tests.onnx.models import model
from tests.public import DEFAULT_ENGINE
from tests.unit.cli.commands import of_process, refused, told
from webnn_py import MLContext
from webnn_py.cli.main import main


@pytest.fixture
def unsupported(tmp_path: Path) -> str:
    """Three nodes that WebNN does not have."""
    path = tmp_path / "unsupported.onnx"
    nodes = [
        helper.make_node("Unique", ["x"], ["n"], name="first"),
        helper.make_node("Optional", ["x"], ["d"], name="second"),
        helper.make_node("Optional", ["x"], ["e"], name="third"),
    ]
    onnx.save(model(nodes, {"x": [2, 2]}, ["n", "d", "e"]), path)
    return str(path)


def test_a_supported_model(network: str, gpu: object, capsys: pytest.CaptureFixture[str]) -> None:
    cpu, graphics = told(capsys, "check", network)["devices"]
    engines = {DEFAULT_ENGINE: 5}
    assert cpu == {"device": "cpu", "supported": True, "engines": engines, "reasons": []}
    assert graphics["supported"]
    assert set(graphics["engines"]) == {"webgpu"}
    assert main(["check", network, "--device", "cpu"]) == 0
    out = capsys.readouterr().out
    assert f"{DEFAULT_ENGINE} 5" in out
    assert "webgpu" not in out


def test_all_that_is_not_supported_is_listed(
    unsupported: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (verdict,) = told(capsys, "check", unsupported, "--device", "cpu", status=1)["devices"]
    assert verdict["supported"] is False
    assert verdict["reasons"] == [
        "Unique [first]: the shape of its result depends on contents",
        "Optional [second, third]: WebNN has no optional values",
    ]
    assert main(["check", unsupported, "--device", "cpu"]) == 1
    assert "Optional [second, third]" in capsys.readouterr().out
    said = refused(capsys, "run", unsupported)
    assert "Unique [first]" in said
    assert "(and 1 more: `webnn-py check` lists all)" in said


def test_sizes_that_contents_decide_are_supported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "counted.onnx"
    onnx.save(model([helper.make_node("NonZero", ["x"], ["n"])], {"x": [2, 2]}, ["n"]), path)
    (verdict,) = told(capsys, "check", str(path), "--device", "cpu")["devices"]
    assert verdict["supported"] is True
    assert verdict["engines"][DEFAULT_ENGINE] > 1
    report = told(capsys, "run", str(path), "--device", "cpu")
    assert report["outputs"]["n"]["data_type"] == "int64"
    assert "decide the sizes" in refused(capsys, "convert", str(path), str(tmp_path / "x.mlgraph"))


def test_a_missing_package_is_no_verdict(
    network: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "onnx", None)
    assert 'pip install "webnn-py[onnx]"' in refused(capsys, "check", network)


def test_a_device_that_is_not_there_is_no_verdict(network: str) -> None:
    _, graphics = json.loads(of_process("check", network, "--json"))["devices"]
    assert graphics["supported"] is None
    assert len(graphics["reasons"]) == 1


@pytest.mark.parametrize("formats", [[".onnx"], [".mlgraph"], [".mlgraph", ".onnx"]])
def test_what_is_written_computes_the_same(
    formats: list[str], network: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    paths = [network]
    for ending in formats:
        target = tmp_path / f"other{ending}"
        report = told(capsys, "convert", paths[-1], str(target))
        assert report["bytes"] == target.stat().st_size > 0
        paths.append(str(target))
    if formats[-1] == ".onnx":
        onnx.checker.check_model(onnx.load(paths[-1]), full_check=True)
    found = []
    for path in (network, paths[-1]):
        output = tmp_path / "y.npy"
        told(capsys, "run", path, "--output", str(output))
        found.append(np.load(output))
    np.testing.assert_allclose(found[1], found[0], rtol=1e-6)


def test_a_model_is_not_written_over_itself(
    network: str, capsys: pytest.CaptureFixture[str]
) -> None:
    before = Path(network).read_bytes()
    assert "is the model itself" in refused(capsys, "convert", network, network)
    assert Path(network).read_bytes() == before


def test_a_program_is_written_of_known_sizes(
    doubling: str, gpu: MLContext, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "doubling.mlprogram"
    assert "--shape batch=SIZE" in refused(capsys, "convert", doubling, str(target))
    told(capsys, "convert", doubling, str(target), "--shape", "batch=3")
    program = gpu.load_program_sync(target)
    assert {name: a.shape for name, a in program.arguments.items()} == {"x": (3, 2), "y": (3, 2)}
    saved = str(tmp_path / "doubling.mlgraph")
    told(capsys, "convert", doubling, saved)
    told(capsys, "convert", saved, str(target), "--shape", "x=5,2")
    assert gpu.load_program_sync(target).arguments["x"].shape == (5, 2)
    assert "--device gpu" in refused(capsys, "run", str(target), "--device", "cpu")


def test_saved_graphs_are_taken_everywhere(
    doubling: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    saved = str(tmp_path / "doubling.mlgraph")
    told(capsys, "convert", doubling, saved)
    assert told(capsys, "inspect", saved)["inputs"][0]["shape"] == ["batch", 2]
    assert told(capsys, "inspect", saved, "--shape", "batch=3")["inputs"][0]["shape"] == [3, 2]
    assert told(capsys, "check", saved, "--device", "cpu")["devices"][0]["supported"]
    outputs = told(capsys, "run", saved, "--shape", "batch=3")["outputs"]
    assert outputs["y"]["shape"] == [3, 2]
    assert "--shape batch=SIZE" in refused(capsys, "run", saved)
    assert "'bach', but x, batch" in refused(capsys, "run", saved, "--shape", "bach=3")
    assert told(capsys, "run", saved, "--shape", "x=3,2")["outputs"]["y"]["shape"] == [3, 2]
    said = refused(capsys, "run", saved, "--shape", "x=3,4")
    assert "--shape: got [3, 4] for input x, which is [batch, 2]" in said
    back = str(tmp_path / "back.onnx")
    assert "keeps its open dimension" in refused(
        capsys, "convert", saved, back, "--shape", "batch=3"
    )
    told(capsys, "convert", saved, back)
    assert told(capsys, "inspect", back)["inputs"][0]["shape"] == ["batch", 2]
    Path(saved).write_bytes(b"no graph")
    assert "doubling.mlgraph" in refused(capsys, "run", saved)


def test_sizes_are_fixed_on_the_way(
    doubling: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "fixed.onnx"
    told(capsys, "convert", doubling, str(target), "--shape", "batch=3")
    assert told(capsys, "inspect", str(target))["inputs"][0]["shape"] == [3, 2]

"""The benchmark of files runs what maps, and says of the others why they do not."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("onnxruntime")
from onnx import TensorProto, helper, save

from benchmarks import report, zoo


def write(path: Path, operator: str, shape: list[int | str]) -> None:
    """Write a model of one operator."""
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name in "xy"]
    graph = helper.make_graph([helper.make_node(operator, ["x"], ["y"])], "g", *([e] for e in ends))
    save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 22)], ir_version=8), path)


def test_files_in_a_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(report, "TURN_SECONDS", 0.0)
    monkeypatch.setattr(zoo, "LOADS", 1)
    write(tmp_path / "drawn.onnx", "Relu", ["n", 3])
    write(tmp_path / "given.onnx", "Sqrt", ["n", "m"])
    np.savez(tmp_path / "given.npz", x=np.full((2, 5), 4, np.float32))
    write(tmp_path / "unique.onnx", "Unique", [4])
    written = tmp_path / "zoo.json"
    figures = zoo.main([str(tmp_path), "--rounds", "1", "--json", str(written)])
    drawn, given, unique = figures["rows"]
    for row in (drawn, given):
        assert row["as"] == "open"
        assert row["apart"] <= 1e-6
        assert set(row["ms"]) == set(row["load"]) == {"ort", "ours"}
        assert row["ratio"] > 0 < row["load_ratio"]
    assert "Unique" in unique["failed"]
    printed = capsys.readouterr().out
    assert "Unique" in printed
    assert json.loads(written.read_text()) == figures


def test_differences_are_parts_of_the_largest_magnitude() -> None:
    wanted = np.array([1.0, -4.0, np.inf])
    assert zoo.apart(np.array([1.0, -3.6, np.inf]), wanted) == pytest.approx(0.1)
    assert zoo.apart(wanted[:2].copy(), wanted) == float("inf")
    assert zoo.apart(np.array([1.0, np.nan, np.inf]), wanted) == float("inf")

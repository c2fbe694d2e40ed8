"""The benchmark of CPU engines still runs, and compares like with like."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("onnxruntime")
from benchmarks import cases, cpu, cpu_peers, report
from tests.public import DEFAULT_ENGINE


def test_it_writes_what_it_can_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("WEBNN_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(report, "TURN_SECONDS", 0.0)
    path, case = tmp_path / "cpu.json", "relu, 4 floats"
    figures = cpu.main(["--cases", case, "--rounds", "1", "--reference", "--json", str(path)])
    (row,) = figures["rows"]
    expected = set(cpu_peers.peers(reference=True)[0])
    assert set(row["ms"]) == set(row["ratio"]) == expected
    assert set(row["build"]) == {cpu_peers.ORT, DEFAULT_ENGINE}
    assert all(ms > 0 for taken in row["build"].values() for ms in taken)
    assert not row["failed"]
    assert row["ratio"][cpu_peers.ORT] == 1
    printed = capsys.readouterr().out
    assert json.loads(path.read_text()) == figures
    assert cpu.main(["--from-json", str(path)]) == figures
    assert capsys.readouterr().out in printed


def test_all_cases_are_models() -> None:
    for name in cases.OPERATORS:
        assert cases.CASES[name]().graph.node

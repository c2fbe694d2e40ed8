"""The benchmark of threads still runs, and counts runs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("onnxruntime")
from benchmarks import threads


def test_it_writes_what_it_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "SECONDS", 0.0)
    path, case = tmp_path / "threads.json", "relu, 4 floats"
    figures = threads.main(["--cases", case, "--rounds", "1", "--json", str(path)])
    (row,) = figures["rows"]
    assert set(row["alone"]) == set(row["gain"]) == set(threads.peers())
    assert all(gain > 0 for gain in row["gain"].values())
    assert json.loads(path.read_text()) == figures


def test_runs_of_all_threads_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "SECONDS", 0.0)
    times = iter(range(100))
    monkeypatch.setattr(threads.time, "perf_counter", lambda: next(times))
    ran: list[None] = []
    assert threads.runs_a_second(lambda: ran.append(None), 3) > 0
    assert len(ran) >= 6

"""`webnn-py tune`: what it measures, tells and leaves for `engine="fastest"`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.cli.commands import refused, told
from webnn_py import ml, onnx
from webnn_py.cli.main import main
from webnn_py.engines import fastest, registry


def test_tune_measures_and_remembers(
    network: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("WEBNN_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(fastest, "SECONDS", 0.03)
    found = told(capsys, "tune", network)
    installed = {name for name in registry.FAST if registry._OWN[name].installed}
    assert installed <= set(found["seconds"]) <= {*installed, registry.FALLBACK}
    assert found["engine"] == min(found["seconds"], key=found["seconds"].get)
    monkeypatch.setattr(fastest.FastestEngine, "_measured", None)  # it is remembered
    with ml.create_context_sync(engine="fastest") as context:
        onnx.load(network, context)
        assert context.engine == found["engine"]


def test_tune_prints_a_table(
    network: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("WEBNN_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(fastest, "SECONDS", 0.03)
    assert main(["tune", network]) == 0
    out = capsys.readouterr().out
    assert "milliseconds" in out
    assert registry.default_engine() in out


def test_open_dimensions_are_to_be_given(
    doubling: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("WEBNN_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(fastest, "SECONDS", 0.03)
    assert "--shape batch=SIZE" in refused(capsys, "tune", doubling)
    assert told(capsys, "tune", doubling, "--shape", "batch=3")["seconds"]

"""`webnn-py tune`: what it measures, tells and leaves for `engine="fastest"`."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest

from tests.adapters import need_quick_compiler
from tests.unit.cli.commands import refused, told
from webnn_py import MLContext, ml, onnx
from webnn_py.cli import progress
from webnn_py.cli.main import main
from webnn_py.engines import fastest, registry
from webnn_py.engines.webgpu.runtime import tuning


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where it is remembered, and little time to measure."""
    monkeypatch.setenv("WEBNN_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(fastest, "MEASURE_SECONDS", 0.03)
    return tmp_path / "cache"


def test_tune_measures_and_remembers(
    network: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found = told(capsys, "tune", network)
    installed = {name for name in registry.FAST if registry._BUILT_IN[name].is_installed}
    assert installed <= set(found["seconds"]) <= {*installed, registry.FALLBACK}
    assert found["engine"] == min(found["seconds"], key=found["seconds"].get)
    monkeypatch.setattr(fastest.FastestEngine, "_measure", None)  # it is remembered
    with ml.create_context_sync(engine="fastest") as context:
        onnx.load(network, context)
        assert context.engine == found["engine"]


def test_tune_prints_a_table(network: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tune", network]) == 0
    out = capsys.readouterr().out
    assert "milliseconds" in out
    assert registry.default_engine() in out


def test_open_dimensions_are_to_be_given(doubling: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert "--shape batch=SIZE" in refused(capsys, "tune", doubling)
    assert told(capsys, "tune", doubling, "--shape", "batch=3")["seconds"]


def test_an_engine_of_gpus_needs_one(network: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert "needs --device gpu" in refused(capsys, "tune", network, "--engine", "dawn")


def test_tiles_are_tuned_on_gpus(
    network: str,
    gpu: MLContext,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    need_quick_compiler(gpu.device, "every tile of a convolution")

    def medians(device: Any, runs: dict[str, Any]) -> dict[str, float]:
        return {name: 3.0 - number % 2 for number, name in enumerate(runs)}

    monkeypatch.setattr(tuning, "_medians", medians)
    assert main(["tune", network, "--device", "gpu"]) == 0
    out = capsys.readouterr().out
    assert "conv2d" in out
    assert "before" in out
    assert "remembered" in out
    found = told(capsys, "tune", network, "--device", "gpu", "--engine", "webgpu")
    assert found["kept"]
    assert found["device"] == gpu.device.adapter.info["device"]
    assert (found["before"], found["after"]) == (3, 2)
    assert all(kernel["tile"] and kernel["count"] for kernel in found["kernels"])
    assert main(["inspect", network, "--device", "gpu"]) == 0
    assert f"tuned: {found['kernels'][0]['tile']}" in capsys.readouterr().out


def test_no_table_is_printed_where_no_tile_is_tuned(
    doubling: str, gpu: MLContext, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["tune", doubling, "--device", "gpu", "--shape", "batch=3"]) == 0
    assert "no products or convolutions to tune" in capsys.readouterr().out


def test_a_gpu_lost_while_tuning_is_an_error_in_a_line(
    network: str,
    gpu: MLContext,
    cache: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    need_quick_compiler(gpu.device, "every tile of a convolution")
    caplog.set_level(logging.CRITICAL, logger="wgpu")
    monkeypatch.setattr(progress, "PROGRESS_DELAY_SECONDS", 60)

    def lost(device: Any, runs: dict[str, Any]) -> dict[str, float]:
        device.handle.destroy()
        return measured(device, runs)

    measured = tuning._medians
    monkeypatch.setattr(tuning, "_medians", lost)
    assert "lost" in refused(capsys, "tune", network, "--device", "gpu")
    assert not (cache / "tiles").exists()

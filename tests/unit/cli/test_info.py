"""`webnn-py info`."""

from __future__ import annotations

import builtins
import json
from typing import Any

import numpy as np
import pytest

from webnn_py import MLContext, ml
from webnn_py.cli import info
from webnn_py.cli.main import main
from webnn_py.engines.registry import default_engine

ADAPTER = {
    "name": "Card",
    "type": "DiscreteGPU",
    "backend": "Vulkan",
    "driver": "1.2",
    "features": {"shader-f16": True, "subgroup": False},
    "limits": {"max-buffer-size": 1 << 31},
}


def test_json_tells_engines_and_adapters(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["info", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["engines"]["reference"] == f"numpy {np.__version__}"
    assert found["contexts"]['device_type="cpu"'] == f"engine {default_engine()}, on the CPU"
    for adapter in found["adapters"]:
        assert {"shader-f16", "timestamp-query"} <= set(adapter["features"])
        assert all(isinstance(value, int) for value in adapter["limits"].values())


@pytest.mark.parametrize("with_rich", [True, False])
def test_the_table_shows_every_adapter(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, with_rich: bool
) -> None:
    monkeypatch.setattr(info, "adapters", lambda: [ADAPTER])
    monkeypatch.setattr(info, "gpu", lambda *wanted, **more: "Card (Vulkan)")
    if not with_rich:
        without(monkeypatch, "rich")
    assert main(["info"]) == 0
    lines = [line.strip("│ ").split() for line in capsys.readouterr().out.splitlines()]
    words = [[word for word in line if word != "│"] for line in lines]
    assert ["shader-f16", "yes"] in words
    assert ["subgroup", "no"] in words
    assert ["max-buffer-size", "2,147,483,648"] in words
    assert ['device_type="gpu"', "Card", "(Vulkan)"] in words
    assert ["accelerated=True", "Card", "(Vulkan)"] in words


@pytest.mark.parametrize("found", [[], [ADAPTER | {"backend": "OpenGL"}]])
def test_no_adapter_that_can_be_used_is_said(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, found: list[Any]
) -> None:
    monkeypatch.setattr(info, "adapters", lambda: found)
    monkeypatch.setattr(info, "gpu", lambda *wanted, **more: None)
    assert main(["info"]) == 0
    said = capsys.readouterr().out
    assert "No GPU adapter found" in said
    assert "no hardware GPU: the CPU" in said
    assert "webgpu" not in said


def test_every_engine_that_is_listed_can_be_used(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["info", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert "reference" in found["engines"]
    for engine in found["engines"]:
        device_type = "gpu" if engine in info.GPU_LIBRARIES else "cpu"
        with ml.create_context_sync(device_type=device_type, engine=engine) as context:
            assert context.engine == engine


def test_the_gpu_is_named_that_a_context_is_made_on(gpu: MLContext) -> None:
    assert info.gpu() == (
        f"{gpu.device.adapter.info['device']} ({gpu.device.adapter.info['backend_type']})"
    )
    assert (info.gpu(hardware=True) is not None) == gpu.accelerated


def test_a_gpu_for_each_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(info, "gpu", lambda *wanted, engine="webgpu", **more: engine)
    monkeypatch.setattr(info, "version_of", lambda module: "1.2")
    found = info.engines()
    assert (found["webgpu"], found["dawn"]) == ("wgpu 1.2", "wgpudawn 1.2 (alpha)")
    assert info.contexts()['device_type="gpu", engine="dawn"'] == "dawn"


def test_wgpu_may_be_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(info, "version_of", lambda module: None)
    assert info.adapters() == []
    assert info.gpu() is None


def test_no_command_is_an_error() -> None:
    with pytest.raises(SystemExit, match="2"):
        main([])


def without(monkeypatch: pytest.MonkeyPatch, package: str) -> None:
    """Make importing `package` fail."""
    real = builtins.__import__

    def guarded(name: str, *rest: Any, **more: Any) -> Any:
        if name.partition(".")[0] == package:
            raise ImportError(name)
        return real(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", guarded)

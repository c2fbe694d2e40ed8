"""`webnn-py info`."""

from __future__ import annotations

import builtins
import json
from typing import Any

import numpy as np
import pytest

from tests.public import DEFAULT_ENGINE
from tests.unit.cli.commands import of_process, told
from webnn_py import MLContext, ml
from webnn_py.cli.main import main


def test_json_tells_engines_and_adapters(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["info", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["engines"]["reference"] == f"numpy {np.__version__}"
    assert found["contexts"]['device_type="cpu"'] == f"engine {DEFAULT_ENGINE}, on the CPU"
    for adapter in found["adapters"]:
        assert {type(value) for value in adapter["features"].values()} == {bool}
        assert {type(value) for value in adapter["limits"].values()} == {int}


@pytest.mark.parametrize("with_rich", [True, False])
def test_the_table_shows_every_adapter(
    gpu: MLContext,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    with_rich: bool,
) -> None:
    found = told(capsys, "info")
    if not with_rich:
        without(monkeypatch, "rich")
    assert main(["info"]) == 0
    lines = [line.strip("│ ").split() for line in capsys.readouterr().out.splitlines()]
    words = [[word for word in line if word != "│"] for line in lines]
    (adapter, *_) = found["adapters"]
    for name, has in adapter["features"].items():
        assert any(line[0] == name and ("yes" if has else "no") in line for line in words if line)
    for name, value in adapter["limits"].items():
        assert any(line[0] == name and f"{value:,}" in line for line in words if line)


@pytest.mark.parametrize(
    ("lacking", "reason"),
    [("a driver", "no GPU adapter: "), ("wgpu", "wgpu cannot be imported")],
)
def test_no_adapter_that_can_be_used_is_said(lacking: str, reason: str) -> None:
    before = "import sys; sys.modules['wgpu'] = None" if lacking == "wgpu" else ""
    said = of_process("info", before=before)
    assert f"CPU contexts work, GPU contexts do not: {reason}" in said
    assert "no hardware GPU: the CPU" in said


def test_a_missing_library_is_named_with_its_extra() -> None:
    said = json.loads(
        of_process("info", "--json", before="import sys; sys.modules['wgpudawn'] = None")
    )
    assert 'pip install "webnn-py[dawn]"' in said["contexts"]['device_type="gpu", engine="dawn"']


def test_every_engine_that_is_listed_can_be_used(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["info", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert "reference" in found["engines"]
    for engine in found["engines"]:
        device_type = "gpu" if engine in ("webgpu", "dawn") else "cpu"
        with ml.create_context_sync(device_type=device_type, engine=engine) as context:
            assert context.engine == engine


def test_the_gpu_is_named_that_a_context_is_made_on(
    gpu: MLContext, capsys: pytest.CaptureFixture[str]
) -> None:
    contexts = told(capsys, "info")["contexts"]
    named = f"{gpu.device.adapter.info['device']} ({gpu.device.adapter.info['backend_type']})"
    assert named in contexts['device_type="gpu"']
    assert (named in contexts["accelerated=True"]) == gpu.accelerated


def test_no_command_prints_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    assert "list engines and GPUs" in capsys.readouterr().err


def without(monkeypatch: pytest.MonkeyPatch, package: str) -> None:
    """Make importing `package` fail."""
    real = builtins.__import__

    def guarded(name: str, *rest: Any, **more: Any) -> Any:
        if name.partition(".")[0] == package:
            raise ImportError(name)
        return real(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", guarded)

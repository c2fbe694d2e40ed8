"""WEBNN_PROFILE: programs profile their graphs without being changed, and run as they did."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from webnn_py import (
    ContextLostError,
    MLAwaitedExecution,
    MLCommandEncoder,
    MLContext,
    MLGraph,
    MLGraphBuilder,
)
from webnn_py.api import env_profile
from webnn_py.memory.allocation import new_array

Printed = pytest.CaptureFixture[str]
X = np.arange(6, dtype=np.float32).reshape(2, 3)
SIX = np.full(6, 6, np.int32)


@pytest.fixture
def profiled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEBNN_PROFILE", "1")


def product(context: MLContext, rows: int | str = 2) -> MLGraph:
    """A matrix product."""
    b = MLGraphBuilder(context)
    x = b.input("x", "float32", [rows, 3])
    return b.build_sync({"y": b.matmul(x, b.constant(np.eye(3, dtype=np.float32)))})


def tables(printed: Printed) -> int:
    """How many were printed since the last look."""
    return printed.readouterr().err.count("a run takes")


@pytest.mark.usefixtures("profiled")
def test_a_graph_is_profiled_as_it_is_built(context: MLContext, capsys: Printed) -> None:
    product(context)
    title, given, head, first, *_ = capsys.readouterr().err.splitlines()
    assert title.endswith(f"engine {context.engine}, of the graph that makes 'y'")
    assert given == "#   'x': float32[2,3]"
    assert head.split()[:3] == ["step", "operator", "kernel"]
    assert first.split()[:2] == ["0", "matmul"]


@pytest.mark.parametrize("value", [None, "", "0"])
def test_it_is_off(
    context: MLContext, monkeypatch: pytest.MonkeyPatch, capsys: Printed, value: str | None
) -> None:
    if value is None:
        monkeypatch.delenv("WEBNN_PROFILE", raising=False)
    else:
        monkeypatch.setenv("WEBNN_PROFILE", value)
    product(context)
    assert capsys.readouterr().err == ""


def test_a_folder_gets_a_trace_for_each_graph(
    context: MLContext, monkeypatch: pytest.MonkeyPatch, capsys: Printed, tmp_path: Path
) -> None:
    folder = tmp_path / "new" / "traces"
    monkeypatch.setenv("WEBNN_PROFILE", str(folder))
    product(context)
    product(context)
    assert tables(capsys) == 2
    traces = [json.loads(path.read_text())["traceEvents"] for path in folder.iterdir()]
    assert [[event["name"] for event in events] for events in traces] == [["matmul"]] * 2


@pytest.mark.usefixtures("profiled")
async def test_open_sizes_are_profiled_as_they_come(context: MLContext, capsys: Printed) -> None:
    graph = product(context, rows="n")
    assert tables(capsys) == 0
    execution = MLAwaitedExecution(context)
    for rows, expected in ((2, 1), (5, 1), (2, 0)):
        x = np.ones((rows, 3), np.float32)
        np.testing.assert_array_equal((await execution.compute(graph, {"x": x}))["y"], x)
        assert tables(capsys) == expected


@pytest.mark.usefixtures("profiled")
def test_dispatch_of_open_sizes(context: MLContext, capsys: Printed) -> None:
    graph = product(context, rows="n")
    x, y = (
        context.create_tensor_sync("float32", [2, 3], writable=True, readable=True)
        for _ in range(2)
    )
    context.write_tensor(x, X)
    context.dispatch(graph, {"x": x}, {"y": y})
    np.testing.assert_array_equal(context.read_tensor_sync(y), X)
    assert tables(capsys) == 1


@pytest.mark.usefixtures("profiled")
def test_an_encoder_of_open_sizes(gpu: MLContext, capsys: Printed) -> None:
    graph = product(gpu, rows="n")
    x, y = (
        gpu.create_tensor_sync("float32", [2, 3], writable=True, readable=True) for _ in range(2)
    )
    gpu.write_tensor(x, X)
    encoder = MLCommandEncoder(gpu)
    encoder.dispatch(graph, {"x": x}, {"y": y})
    gpu.device.queue.submit([encoder.finish()])
    np.testing.assert_array_equal(gpu.read_tensor_sync(y), X)
    assert tables(capsys) == 1


@pytest.mark.usefixtures("profiled")
def test_inputs_that_are_divided_by_or_point_somewhere(context: MLContext, capsys: Printed) -> None:
    b = MLGraphBuilder(context)
    x = b.input("x", "int32", [6])
    b.build_sync({"y": b.div(b.constant(SIX), x), "z": b.gather(b.constant(SIX[:1]), x)})
    assert tables(capsys) == 1


@pytest.mark.usefixtures("profiled")
def test_what_cannot_be_profiled_runs(
    context: MLContext, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def no_memory(*_: object) -> None:
        raise MemoryError("no memory for inputs")

    monkeypatch.setattr(env_profile, "new_array", no_memory)
    with caplog.at_level(logging.WARNING, "webnn_py"):
        graph = product(context)
    assert "no memory for inputs" in caplog.text
    assert len(graph.profile({"x": X}, runs=1)) == 1


@pytest.mark.usefixtures("profiled")
def test_a_context_that_is_lost_meanwhile(
    own: MLContext, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def losing(*end: Any) -> Any:
        own.destroy()
        return new_array(*end)

    monkeypatch.setattr(env_profile, "new_array", losing)
    graph = product(own)
    assert "WEBNN_PROFILE: no" in caplog.text
    with pytest.raises(ContextLostError):
        graph.profile({"x": X})


@pytest.mark.usefixtures("profiled")
def test_a_folder_that_cannot_be_made(
    cpu: MLContext,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    tmp_path: Path,
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("WEBNN_PROFILE", str(tmp_path / "file" / "traces"))
    product(cpu)
    assert "WEBNN_PROFILE: no" in caplog.text

"""The same program started again: kernels come from disk, results are the same."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from tests.backend.networks import encoder
from tests.graphs import awaited, normal
from tests.processes import LONG, ROOT
from webnn_py import MLContext, MLGraphBuilder, ml
from webnn_py.engines.webgpu.runtime.devices.adapters import request_device
from webnn_py.onnx import load, load_impl, to_onnx

WRITERS = "webnn_py.engines.webgpu.compiler.kernel_list"


def start(shift: float) -> None:
    """Build and run an encoder; print what was imported for it, and the results.

    On a device that is open: while a context opens one, it imports what may be of use.
    """
    with ml.create_context_sync(request_device()) as context:
        b = MLGraphBuilder(context)
        y = b.add(encoder(b, 1, 4, 1, 8, 2), b.constant(normal(1, 4, 8) + np.float32(shift)))
        graph = b.build_sync({"y": y})
        inputs = {"x": normal(1, 4, 8, seed=1), "mask": np.zeros((1, 4), np.float32)}
        result = awaited(graph, inputs)["y"]
        print(json.dumps([WRITERS in sys.modules, result.tolist(), str(graph)]))


def begin(folder: Path, shift: float = 0) -> subprocess.Popen[str]:
    code = f"from {__name__} import start; start({shift})"
    variables = os.environ | {"WEBNN_CACHE": str(folder)}
    command = [sys.executable, "-c", code]
    return subprocess.Popen(command, cwd=ROOT, env=variables, stdout=subprocess.PIPE, text=True)


def end(process: subprocess.Popen[str]) -> Any:
    """Whether kernels were written, the results, and the listing."""
    out, _ = process.communicate(timeout=LONG)
    assert process.returncode == 0
    return json.loads(out)


@dataclass
class Starts:
    """What each told: two at once, then one more of the same, and one of other weights."""

    at_once: list[Any]
    again: Any
    others: Any
    folder: Path


@pytest.fixture(scope="module")
def starts(gpu: MLContext, tmp_path_factory: pytest.TempPathFactory) -> Starts:
    """Four processes that have one folder of kernels."""
    folder = tmp_path_factory.mktemp("cache")
    first = [end(process) for process in [begin(folder) for _ in range(2)]]
    again, others = [end(process) for process in [begin(folder), begin(folder, 1)]]
    return Starts(first, again, others, folder)


def test_the_second_start_writes_no_kernels(starts: Starts) -> None:
    written, *same = starts.again
    assert any(first for first, *_ in starts.at_once)  # one of them may find what the other wrote
    assert not written
    assert all(results == same for _, *results in starts.at_once)


def test_other_weights_have_their_own_results(starts: Starts) -> None:
    (_, first, _), (written, other, _) = starts.again, starts.others
    assert not written
    np.testing.assert_allclose(np.subtract(other, first), 1, atol=1e-5)


def test_two_that_start_at_once(starts: Starts) -> None:
    """Neither is in the way of the other."""
    (_, *one), (_, *other) = starts.at_once
    assert one == other
    kept = starts.folder / "kernels"
    assert len(list(kept.iterdir())) == 2  # which operators have any, too


def test_a_known_model(gpu: MLContext, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Results and listing are as at the first start."""
    monkeypatch.setenv("WEBNN_CACHE", str(tmp_path / "cache"))
    path = tmp_path / "model.onnx"
    b = MLGraphBuilder(gpu)
    onnx.save(to_onnx(b.build_sync({"y": encoder(b, 1, 4, 2, 8, 2)})), path)
    inputs = {"x": normal(1, 4, 8, seed=1), "mask": np.zeros((1, 4), np.float32)}
    first = load(path, gpu)
    monkeypatch.delattr(load_impl, "imported")
    again = load(path, gpu)
    assert str(again) == str(first)
    wanted, got = awaited(first, inputs)["y"], awaited(again, inputs)["y"]
    assert got.tobytes() == wanted.tobytes()

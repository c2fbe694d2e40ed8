"""Is the package there at all? Under a second."""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np

import webnn_py
from webnn_py import MLContext, MLExecution, MLGraphBuilder

PROBE = """
import json, sys, time
import numpy
start = time.perf_counter()
import webnn_py
print(json.dumps([time.perf_counter() - start, sorted(sys.modules)]))
"""


def python(*arguments: str) -> str:
    return subprocess.run(
        [sys.executable, *arguments], check=True, capture_output=True, text=True, timeout=60
    ).stdout


def test_import_brings_in_no_engine_and_no_event_loop() -> None:
    seconds, modules = json.loads(python("-c", PROBE))
    print(f"import webnn_py: {seconds * 1e3:.0f} ms on top of numpy")
    assert "webnn_py" in modules
    assert not {"wgpu", "onnx", "onnxruntime", "jinja2", "asyncio", "trio"} & set(modules)


def test_one_graph_runs(cpu: MLContext) -> None:
    builder = MLGraphBuilder(cpu)
    x = builder.input("x", "float32", [2, 2])
    graph = builder.build_sync({"y": builder.relu(builder.sub(x, builder.constant(np.float32(2))))})
    results = MLExecution(cpu).compute(graph, {"x": np.array([[1, 2], [3, 4]], np.float32)})
    assert results["y"].tolist() == [[0, 0], [1, 2]]


def test_version_is_the_package_s() -> None:
    assert python("-m", "webnn_py", "--version") == f"webnn_py {webnn_py.__version__}\n"

"""The operators of docs/add-an-operator.md, added to a copy of the package as the page says."""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.pages import ROOT, blocks
from webnn_py import MLContext

PAGE = "docs/add-an-operator.md"
LOWERINGS = "webnn_py/engines/onnx_lowering"
USED = """
import numpy as np
import webnn_py
from webnn_py import MLAwaitedExecution, MLExecution, MLGraphBuilder, ml
import asyncio, sys

assert webnn_py.__file__.startswith(sys.argv[1])
x = np.random.default_rng(0).normal(0, 4, (3, 4, 5)).astype(np.float32)
whole = np.arange(60, dtype=np.int8).reshape(3, 4, 5)
wanted = {
    "mish": x * np.tanh(np.logaddexp(x, 0)),
    "logarithms": x - np.log(np.exp(x).sum(1, keepdims=True)),
    "rolled": np.roll(x, 2, 1),
    "bytes": np.roll(whole, 3, 2),
}


async def run(context):
    b = MLGraphBuilder(context)
    floats, integers = b.input("x", "float32", ["n", 4, 5]), b.input("whole", "int8", ["n", 4, 5])
    outputs = {
        "mish": b.mish(floats),
        "logarithms": b.log_softmax(floats, 1),
        "rolled": b.roll(floats, 1, 2),
        "bytes": b.roll(integers, 2, 3),
    }
    graph = b.build_sync(outputs)
    execution = MLAwaitedExecution(context, batch="n")
    joined = [{"x": x[i : i + 1], "whole": whole[i : i + 1]} for i in range(3)]
    rows = await asyncio.gather(*(execution.compute(graph, row) for row in joined))
    for name, expected in wanted.items():
        found = np.concatenate([row[name] for row in rows])
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
    return graph


graphs = [asyncio.run(run(ml.create_context_sync(engine=name))) for name in ENGINES]
assert "engine reference" not in str(graphs[-1])  # ONNX has a lowering of each
graphs.append(asyncio.run(run(ml.create_context_sync(device_type="gpu"))))
assert {"Mish"} <= {node.op_type for node in webnn_py.onnx.to_onnx(graphs[0]).graph.node}
print("all as expected")
"""


def insert(path: Path, code: str) -> None:
    """Put a method at the end of the family's class, a function at the end of the file."""
    text = path.read_text()
    if "(self," in code or "    self,\n" in code:
        lines = text.splitlines(keepends=True)
        (family,) = (part for part in ast.parse(text).body if isinstance(part, ast.ClassDef))
        method = re.sub(r"^(?=.)", "    ", code, flags=re.MULTILINE)
        lines.insert(family.end_lineno or 0, f"\n{method}")
        path.write_text("".join(lines))
    else:
        path.write_text(f"{text}\n\n{code}")


def replace(path: Path, before: str, after: str) -> None:
    text = path.read_text()
    assert text.count(before) == 1, before
    path.write_text(text.replace(before, after))


@pytest.fixture
def changed(tmp_path: Path) -> Path:
    """A folder with a copy of the package that has the operators."""
    leave = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "webnn_py", tmp_path / "webnn_py", ignore=leave)
    text = (ROOT / PAGE).read_text()
    told = text[text.index("## Elementwise") : text.index("## ONNX")]
    paths = re.findall(r"`(webnn_py/[\w/]+\.py)`", told)
    *codes, exported, _ = blocks(PAGE)
    for name, code in zip([*paths, f"{LOWERINGS}/movement.py"], [*codes, exported], strict=True):
        insert(tmp_path / name, code)
    row = '"mish": "Mish"'
    assert f"`{row}`" in text
    replace(
        tmp_path / LOWERINGS / "elementwise.py",
        '    "softsign": "Softsign",\n',
        f'    "softsign": "Softsign",\n    {row},\n',
    )
    rules = tmp_path / "webnn_py/ops/batch_axes.py"
    replace(rules, '"softmax", "split")', '"softmax", "split", "log_softmax", "roll")')
    return tmp_path


def test_the_operators_work_on_every_engine(changed: Path, gpu: MLContext) -> None:
    code = USED.replace("ENGINES", '["reference", "onnxruntime"]')
    done = subprocess.run(
        [sys.executable, "-c", code, str(changed)],
        cwd=changed,
        env=os.environ | {"PYTHONPATH": str(changed), "WEBNN_CACHE": "0"},
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.stdout == "all as expected\n", done.stderr

"""Every reader refuses a program whose WGSL a driver cannot take, and reads one just below."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.graphs import build
from tests.runtime.programs import changed, verdict
from tests.wgsl_limits import KINDS
from webnn_py import MLContext

JS = Path(__file__).parents[2] / "runtime" / "js"


@pytest.fixture(scope="module")
def files(gpu: MLContext, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files of two folders: those to read, and those to refuse."""
    folder = tmp_path_factory.mktemp("limits")
    original = folder / "program"
    build(gpu, lambda b: {"y": b.relu(b.input("x", "float32", [4]))}).compile_to(original)
    for right in (True, False):
        (folder / str(right)).mkdir()
        for number, (make, size, over, _) in enumerate(KINDS.values()):
            code = make(size if right else over)
            made = changed(original, lambda d, code=code: d["shaders"].append(code))
            made.rename(folder / str(right) / str(number))
    return folder


@pytest.mark.parametrize("right", [True, False])
def test_python(files: Path, right: bool) -> None:
    verdicts = [verdict(path) for path in (files / str(right)).iterdir()]
    assert verdicts == ["read" if right else "DataError"] * len(KINDS)


@pytest.mark.skipif(shutil.which("g++") is None, reason="there is no g++")
def test_cpp(files: Path, reader: Path, tmp_path: Path) -> None:
    for right, expected in ((True, f"{len(KINDS)} 0\n"), (False, f"0 {len(KINDS)}\n")):
        done = subprocess.run([reader, files / str(right)], capture_output=True, text=True)
        assert (done.stdout, done.stderr) == (expected, "")
    os.mkfifo(tmp_path / "pipe")
    done = subprocess.run([reader, tmp_path], capture_output=True, timeout=60)
    assert b"it is no file" in done.stderr


@pytest.mark.skipif(shutil.which("node") is None, reason="there is no Node.js")
@pytest.mark.parametrize("right", [True, False])
def test_javascript(files: Path, tmp_path: Path, right: bool) -> None:
    many = [path.read_bytes() for path in (files / str(right)).iterdir()]
    packed = b"".join(len(data).to_bytes(4, "little") + data for data in many)
    (tmp_path / "many").write_bytes(packed)
    command = ["node", JS / "tests" / "read.mjs", tmp_path / "many"]
    done = subprocess.run(command, capture_output=True, check=True)
    assert json.loads(done.stdout) == ["read" if right else "DataError"] * len(KINDS)

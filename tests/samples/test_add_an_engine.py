"""The engine of docs/add-an-engine.md, installed as a package and run as the page says."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.pages import ROOT, blocks
from tests.unit.engines.distributions import install

PAGE = "docs/add-an-engine.md"
MOST_LINES = 60


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Where the package is installed."""
    module, _ = blocks(PAGE)
    (settings,) = blocks(PAGE, "toml")
    project = tomllib.loads(settings)
    assert project["tool"]["setuptools"]["py-modules"] == ["webnn_float32"]
    about = project["project"]
    points = about["entry-points"]["webnn_py.engines"]
    install(tmp_path, "webnn_float32", points, about["version"], module, about["name"])
    return tmp_path


def run(folder: Path, *arguments: str) -> str:
    """What Python prints in a process of its own, with the package installed."""
    path = os.pathsep.join([str(folder), str(ROOT)])
    environment = {**os.environ, "PYTHONPATH": path, "PYTHONWARNINGS": "error"}
    done = subprocess.run(
        [sys.executable, *arguments],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_engine_runs_its_part_of_a_graph(folder: Path) -> None:
    """It prints what the page shows."""
    printed = run(folder, "-c", blocks(PAGE)[1])
    assert printed == "".join(text for text in blocks(PAGE, "") if text.startswith("float32\n"))


def test_the_engine_is_listed(folder: Path) -> None:
    listed = run(folder, "-m", "webnn_py", "info", "--json")
    assert '"float32": "webnn-float32 1.0"' in listed


def test_the_engine_is_short() -> None:
    module, _ = blocks(PAGE)
    assert len(module.splitlines()) <= MOST_LINES

"""The compiler needs no wgpu: its modules load, and compile, where that cannot be imported."""

from __future__ import annotations

import importlib
import pkgutil
import subprocess
import sys
from pathlib import Path

import pytest

from webnn_py.engines.webgpu import compiler

FOLDER = Path(__file__).parent
MODULES = [info.name for info in pkgutil.walk_packages(compiler.__path__, f"{compiler.__name__}.")]
COMPILING = ("test_without_wgpu.py", "test_kernels_golden.py", "test_fusion.py")
"""Tests that import every module, and have graphs and products compiled."""
PROGRAM = """
import sys
sys.modules["wgpu"] = None
import pytest
sys.exit(pytest.main(sys.argv[1:]))
"""


@pytest.mark.parametrize("module", MODULES)
def test_every_module_can_be_imported(module: str) -> None:
    importlib.import_module(module)


def test_the_compiler_without_wgpu() -> None:
    if "wgpu" in sys.modules and sys.modules["wgpu"] is None:
        with pytest.raises(ImportError):
            importlib.import_module("wgpu")
        return
    run = subprocess.run(
        [sys.executable, "-c", PROGRAM, "-q", "-p", "no:cacheprovider"]
        + [str(FOLDER / name) for name in COMPILING],
        cwd=FOLDER.parents[1],
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert run.returncode == 0, run.stdout[-3000:] + run.stderr[-3000:]
    assert " passed" in run.stdout

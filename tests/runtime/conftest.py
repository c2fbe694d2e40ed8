"""What reads and runs programs by the C++ runtime, compiled once."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.runtime.cpp import SANITIZED, compile_cpp
from webnn_py import MLContext


@pytest.fixture(scope="session")
def runner(tmp_path_factory: pytest.TempPathFactory, gpu: MLContext) -> Path:
    return compile_cpp("tests/run.cpp", tmp_path_factory.mktemp("cpp") / "run", "-O1")


@pytest.fixture(scope="session")
def reader(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compile_cpp("tests/read.cpp", tmp_path_factory.mktemp("cpp") / "read", *SANITIZED)

"""Models in files."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest
from onnx import helper

from tests.onnx.models import model, small_network


@pytest.fixture
def network(tmp_path: Path) -> str:
    """A small network; its input is `x`, its output `y`."""
    path = tmp_path / "network.onnx"
    onnx.save(small_network(), path)
    return str(path)


@pytest.fixture
def doubling(tmp_path: Path) -> str:
    """y = x + x, of open dimensions."""
    path = tmp_path / "doubling.onnx"
    made = model([helper.make_node("Add", ["x", "x"], ["y"])], {"x": ["batch", 2]}, ["y"])
    onnx.save(made, path)
    return str(path)

"""What tests of saved graphs share."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where a graph can be saved."""
    return tmp_path / "graph.mlgraph"

"""Passes over the graph: each a function Graph -> Graph, in one visible order."""

from __future__ import annotations

from webnn_py.passes.pipeline import PIPELINE, Pass, Target, optimize, report

__all__ = ["PIPELINE", "Pass", "Target", "optimize", "report"]

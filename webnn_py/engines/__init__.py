"""Engines, which compile and run graphs, and the public classes for engines of other packages.

See docs/add-an-engine.md. Engines compile graphs of `webnn_py.ir`.
"""

from __future__ import annotations

from webnn_py.engines.base import HostExecutable
from webnn_py.engines.host import HostEngine
from webnn_py.engines.registry import register_engine

__all__ = ["HostEngine", "HostExecutable", "register_engine"]

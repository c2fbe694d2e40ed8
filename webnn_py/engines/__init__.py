"""Engines, which run graphs; and what an engine of another package is made of.

See docs/add-an-engine.md. The graphs that engines are given are those of `webnn_py.ir`.
"""

from __future__ import annotations

from webnn_py.engines.base import HostExecutable
from webnn_py.engines.host import HostEngine
from webnn_py.engines.registry import register_engine

__all__ = ["HostEngine", "HostExecutable", "register_engine"]

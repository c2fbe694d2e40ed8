"""The reference engine, which defines each operator in NumPy."""

from __future__ import annotations

import numpy

from webnn_py.core.requirements import check_version
from webnn_py.engines.reference.engine import ReferenceEngine, evaluate

check_version(numpy)

__all__ = ["ReferenceEngine", "evaluate"]

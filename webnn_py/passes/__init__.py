"""Passes: functions from graph to graph, run in the order of a pipeline."""

from __future__ import annotations

from webnn_py.passes.derived_constants import (
    Derivations,
    Derive,
    DerivedConstants,
    SharedResults,
    derive_anew,
)
from webnn_py.passes.halve_float32 import multiply_by_halves
from webnn_py.passes.pipeline import (
    BLOCKS,
    LOOPS,
    PIPELINE,
    PRODUCTS,
    TILES,
    Pass,
    Target,
    debug_level,
    multiply_integers,
    optimize,
    optimize_open,
    report,
    widen_halves,
)
from webnn_py.passes.shape_generic_passes import OpenPasses

__all__ = [
    "BLOCKS",
    "LOOPS",
    "PIPELINE",
    "PRODUCTS",
    "TILES",
    "Derivations",
    "Derive",
    "DerivedConstants",
    "OpenPasses",
    "Pass",
    "SharedResults",
    "Target",
    "debug_level",
    "derive_anew",
    "multiply_by_halves",
    "multiply_integers",
    "optimize",
    "optimize_open",
    "report",
    "widen_halves",
]

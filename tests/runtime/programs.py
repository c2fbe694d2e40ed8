"""Programs that every runtime is to run, and what Python makes of them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from samples.models import digits, load_weights, super_resolution
from tests.backend.program_cases import X, mixed
from tests.graphs import build, normal
from webnn_py import MLContext, MLGraphBuilder, MLOperand

Arrays = dict[str, np.ndarray[Any, Any]]
Case = tuple[Callable[[MLContext, Path], None], Arrays]
"""What writes the file, and what its arguments are given."""


def _graph(make: Callable[[MLGraphBuilder], MLOperand]) -> Callable[[MLContext, Path], None]:
    def write(context: MLContext, path: Path) -> None:
        build(context, lambda b: {"y": make(b)}).compile_to(path)

    return write


def _bytes(b: MLGraphBuilder) -> MLOperand:
    """Tensors that do not fill their last word, of 64 bits, and of 16."""
    x = b.input("x", "int8", [7])
    k = b.cast(b.input("k", "int64", [7]), "float16")
    return b.cast(b.add(b.mul(k, k), b.cast(x, "float16")), "uint8")


CASES: dict[str, Case] = {
    "digits": (
        _graph(lambda b: digits(b, load_weights("digits"), 4)),
        {"image": abs(normal(4, 1, 8, 8)).clip(0, 1)},
    ),
    "super-resolution": (
        _graph(lambda b: super_resolution(b, load_weights("super_resolution"), 8, 12)),
        {"low": abs(normal(1, 3, 8, 12)).clip(0, 1)},
    ),
    "steps": (lambda context, path: mixed(context, own=True).save(path), {"x": X}),
    "in place": (
        lambda context, path: mixed(context).save(path),
        {"x": X, "total": np.full((4, 3), 7, np.float32)},
    ),
    "bytes": (
        _graph(_bytes),
        {"x": np.arange(-3, 4, dtype=np.int8), "k": np.arange(7, dtype=np.int64)},
    ),
}


def run_by_python(context: MLContext, path: Path, inputs: Arrays, runs: int) -> Arrays:
    """What some runs that follow each other leave in the arguments that are written."""
    program = context.load_program_sync(path)
    given = {name: array.copy() for name, array in inputs.items()}
    results: Arrays = {}
    for _ in range(runs):
        results = program.run_sync(given)
    return results

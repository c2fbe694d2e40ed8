"""Build a small graph, print it, run it.

Usage: python samples/first_graph.py [--rows 2]
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).parents[1]))

from webnn_py import MLContext, MLExecution, MLGraph, MLGraphBuilder, ml

WEIGHTS = np.array([[1, 0, -1], [0, 1, 1]], np.float32)
BIAS = np.array([0.5, 0, -0.5], np.float32)


def build(context: MLContext, rows: int) -> MLGraph:
    """Probabilities of three classes: softmax(x @ weights + bias)."""
    builder = MLGraphBuilder(context)
    x = builder.input("x", "float32", [rows, 2])
    scores = builder.gemm(x, builder.constant(WEIGHTS), c=builder.constant(BIAS), label="scores")
    return builder.build_sync({"probabilities": builder.softmax(scores, 1)})


def main(rows: int = 2) -> NDArray[np.float32]:
    """Build, print and run; returns the probabilities."""
    with ml.create_context_sync(device_type="cpu") as context:
        graph = build(context, rows)
        print(graph)
        x = np.arange(2 * rows, dtype=np.float32).reshape(rows, 2)
        results = MLExecution(context).compute(graph, {"x": x})
    print(f"x =\n{x}\nprobabilities =\n{results['probabilities'].round(3)}")
    return results["probabilities"]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=2, help="rows of the input")
    main(parser.parse_args().rows)

"""Hand tensors to PyTorch and back without a copy: both sides see the same memory.

Usage: python samples/dlpack_torch.py
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

from webnn_py import MLContext, MLExecution, MLGraph, MLGraphBuilder, ml


class Figures(NamedTuple):
    """Address of each tensor's memory as both sides see it, and what was computed."""

    addresses: dict[str, tuple[int, int]]
    results: dict[str, np.ndarray[Any, Any]]


def affine(context: MLContext) -> MLGraph:
    """Doubles x and adds 1."""
    b = MLGraphBuilder(context)
    x = b.input("x", "float32", [2, 3])
    y = b.add(b.mul(x, b.constant(2.0, "float32")), b.constant(1.0, "float32"))
    return b.build_sync({"y": y})


def exchange(torch: Any, context: MLContext) -> Figures:
    graph = affine(context)
    x = torch.arange(6, dtype=torch.float32).reshape(2, 3)

    shared = context.from_dlpack(x)  # PyTorch's memory as an MLTensor
    result = context.create_tensor_sync("float32", [2, 3], readable=True)
    context.dispatch(graph, {"x": shared}, {"y": result})
    y = torch.from_dlpack(result)  # an MLTensor's memory as PyTorch's, once the work is done
    first = y.numpy().copy()

    x.mul_(10)  # PyTorch writes, the next dispatch reads, and `y` shows what it wrote
    context.dispatch(graph, {"x": shared}, {"y": result})
    y = torch.from_dlpack(result)

    z = torch.empty(2, 3)  # MLExecution takes tensors as they are, and fills those given
    MLExecution(context).compute(graph, {"x": y}, {"y": z})

    addresses = {
        "x": (x.data_ptr(), np.from_dlpack(shared).ctypes.data),
        "y": (y.data_ptr(), np.from_dlpack(result).ctypes.data),
    }
    return Figures(addresses, {"first": first, "y": y.numpy(), "z": z.numpy()})


def main() -> Figures:
    try:
        import torch
    except ImportError:
        raise SystemExit(
            "this sample needs PyTorch, which is not installed: pip install torch"
        ) from None
    with ml.create_context_sync(device_type="cpu") as context:
        figures = exchange(torch, context)
    for name, (theirs, ours) in figures.addresses.items():
        same = "the same memory" if theirs == ours else "A COPY"
        print(f"{name}: PyTorch {theirs:#x}, webnn_py {ours:#x}: {same}")
    for name, result in figures.results.items():
        print(f"{name:5} = {result.tolist()}")
    return figures


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__.splitlines()[0]).parse_args()
    main()

"""Programs that tests record, save and break."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.graphs import build
from webnn_py import MLContext, MLGraph, MLGraphBuilder, MLOperand, MLProgram

SHAPE = [4, 8]
WEIGHTS = np.arange(24, dtype=np.float32).reshape(8, 3) / 8
X = np.linspace(-1, 1, 32, dtype=np.float32).reshape(4, 8)

ACCUMULATE = """
@group(0) @binding(0) var<storage> y: array<f32>;
@group(0) @binding(1) var<storage, read_write> total: array<f32>;
override factor: f32;
@compute @workgroup_size(4)
fn accumulate(@builtin(global_invocation_id) id: vec3<u32>) {
  if (id.x < arrayLength(&total)) { total[id.x] += y[id.x] * factor; }
}
"""
DOUBLE = """
@group(0) @binding(0) var<storage, read_write> x: array<f32>;
@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
  if (id.x < arrayLength(&x)) { x[id.x] *= 2.0; }
}
"""


def product(context: MLContext) -> MLGraph:
    """y = x @ WEIGHTS."""

    def graph(b: MLGraphBuilder) -> dict[str, MLOperand]:
        return {"y": b.matmul(b.input("x", "float32", SHAPE), b.constant(WEIGHTS))}

    return build(context, graph)


def mixed(context: MLContext, repeat: int = 3, own: bool = False) -> MLProgram:
    """A graph and a kernel: total += 2 * (x @ WEIGHTS), so often; `own` totals stay inside.

    With `own`, the sum is the program's and "total" a copy of it.
    """
    program = MLProgram(context)
    x = program.argument("x", "float32", SHAPE)
    y = program.buffer("float32", [4, 3])
    result = program.argument("total", "float32", [4, 3])
    total = program.buffer("float32", [4, 3], initial=np.ones((4, 3), "f4")) if own else result
    step = program.sequence()
    step.dispatch(product(context), {"x": x}, {"y": y})
    step.compute(ACCUMULATE, [y, total], 3, "accumulate", {"factor": 2})
    program.append(step, repeat)
    if own:
        copy = program.sequence()
        identity = build(context, lambda b: {"y": b.identity(b.input("x", "float32", [4, 3]))})
        copy.dispatch(identity, {"x": total}, {"y": result})
        program.append(copy)
    return program


def expected_total(x: Any, repeat: int = 3) -> np.ndarray[Any, Any]:
    """What `mixed` adds to its total in one run."""
    return np.asarray(repeat * 2 * (x @ WEIGHTS), np.float32)

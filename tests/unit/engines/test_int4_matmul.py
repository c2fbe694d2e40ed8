"""Products with weights of 4 bits on engine "onnxruntime"."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pytest

from tests.property.drawing import packed
from webnn_py import MLContext, MLExecution, MLGraph, MLGraphBuilder, ml

COLUMNS, DEPTH = 2304, 512
"""Weights of more than what folding makes floats of."""


@dataclass(frozen=True)
class Case:
    """A product x · wᵀ.

    Attributes:
        data_type: Of the codes.
        block: Of codes with one scale.
        depth: Of the product; the last block may have more.
        also: Who else reads what the weights are made of: nobody, a node, or the user.
        floats: The data type of x.
        start: The first of the codes that are taken of a row.
        batch: A dimension of x, which may be open.
    """

    data_type: Literal["uint4", "int4"] = "uint4"
    block: int = 32
    depth: int = DEPTH
    also: str = ""
    floats: Literal["float32", "float16"] = "float32"
    start: int = 0
    batch: int | str = 3

    def built(self, context: MLContext) -> MLGraph:
        rng = np.random.default_rng(0)
        b = MLGraphBuilder(context)
        blocks = -(-(self.start + self.depth) // self.block)
        shape = [COLUMNS, blocks, self.block]
        low = -8 if self.data_type == "int4" else 0
        codes, zeros = (
            b.constant(packed(array), self.data_type, array.shape)
            for array in (
                rng.integers(low, low + 16, each).astype(np.int8)
                for each in (shape, [COLUMNS, blocks, 1])
            )
        )
        scales = b.constant(rng.uniform(0.1, 0.2, [COLUMNS, blocks, 1]).astype(self.floats))
        made = b.dequantize_linear(codes, scales, zeros)
        rows = b.reshape(made, [COLUMNS, blocks * self.block])
        if rows.shape[1] > self.depth:
            rows = b.slice(rows, [0, self.start], [COLUMNS, self.depth])
        x = b.input("x", self.floats, [2, self.batch, self.depth])
        outputs = {"y": b.matmul(x, b.transpose(rows))}
        if self.also == "a node":
            outputs["z"] = b.neg(rows)
        if self.also == "the user":
            outputs["z"] = made
        return b.build_sync(outputs)


KEPT = {
    "uint4": Case(),
    "int4": Case(data_type="int4"),
    "an odd number of blocks": Case(depth=544),
    "less than whole blocks": Case(depth=520, block=128),
    "small blocks": Case(block=16),
    "open": Case(batch="batch"),
    "float16": Case(floats="float16"),
}
OTHERS = {
    "read by a node": Case(also="a node"),
    "read by the user": Case(also="the user"),
    "too small blocks": Case(block=8),
    "no power of two": Case(block=24, depth=528),
    "not from the start": Case(start=3),
}


@pytest.mark.parametrize("name", KEPT | OTHERS)
def test_weights_stay_as_they_are(models: list[Any], name: str) -> None:
    with ml.create_context_sync(engine="onnxruntime") as context:
        graph = (KEPT | OTHERS)[name].built(context)
        if graph.inputs["x"].shape[1] != 3:
            graph.prepare_sync({"batch": 3})
    nodes = [node for node in models[-1].graph.node if node.op_type != "Cast"]
    if name in KEPT:
        assert [node.op_type for node in nodes] == ["MatMulNBits"]
        assert {node.domain for node in nodes} == {"com.microsoft"}
    else:
        assert {"MatMul", "DequantizeLinear"} <= {node.op_type for node in nodes}


@pytest.mark.parametrize("name", KEPT | OTHERS)
def test_results_are_those_of_the_reference(cpu: MLContext, name: str) -> None:
    case = (KEPT | OTHERS)[name]
    x = np.random.default_rng(1).normal(size=[2, 3, case.depth]).astype(case.floats)
    results: list[Any] = []
    for context in (cpu, ml.create_context_sync(engine="reference")):
        results.append(MLExecution(context).compute(case.built(context), {"x": x})["y"])
    tolerance = 2e-2 if case.floats == "float16" else 2e-5
    scale = float(np.abs(results[1]).max())
    np.testing.assert_allclose(results[0], results[1], rtol=tolerance, atol=tolerance * scale)

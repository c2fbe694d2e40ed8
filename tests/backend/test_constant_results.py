"""Outputs that follow from constants alone, and outputs that are inputs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import numpy as np
import pytest

from tests.property.drawing import Array
from webnn_py import MLAwaitedExecution, MLContext, MLExecution, MLGraphBuilder, MLOperand

Make = Callable[[MLGraphBuilder], MLOperand]

X = np.arange(6, dtype=np.uint8).reshape(2, 3)

LARGE = [600, 600]
"""A constant expanded to this is not computed at build: it would take over a MiB."""

RESULTS: dict[str, Make] = {
    "a number": lambda b: b.identity(b.constant(3.0, "float32")),
    "an array": lambda b: b.identity(b.constant(np.arange(5, dtype=np.int64))),
    "cast": lambda b: b.cast(b.constant(6, "int64"), "float32"),
    "cast to int64": lambda b: b.cast(b.constant(-6.5, "float32"), "int64"),
    "nan": lambda b: b.sqrt(b.constant(-1.0, "float32")),
    "infinity": lambda b: b.reciprocal(b.constant(0.0, "float32")),
    "overflow": lambda b: b.mul(b.constant(3e38, "float32"), b.constant(10.0, "float32")),
    "half overflow": lambda b: b.cast(b.constant(1e9, "float32"), "float16"),
    "division by 0": lambda b: b.div(b.constant(7, "int32"), b.constant(0, "int32")),
    "lowest by -1": lambda b: b.div(b.constant(-(2**31), "int32"), b.constant(-1, "int32")),
    "wrapped": lambda b: b.mul(b.constant(2**31, "uint32"), b.constant(2, "uint32")),
    "product": lambda b: b.matmul(
        b.constant(np.full((1, 1), 2, "f4")), b.constant(np.full((1, 1), 3, "f4"))
    ),
    "large nan": lambda b: b.sqrt(b.expand(b.constant(-1.0, "float32"), LARGE)),
    "large overflow": lambda b: b.mul(
        b.expand(b.constant(3e38, "float32"), LARGE), b.constant(10.0, "float32")
    ),
    "large cast": lambda b: b.cast(b.expand(b.constant(6, "int64"), LARGE), "float32"),
    "large quotient": lambda b: b.div(
        b.expand(b.constant(7, "int32"), LARGE), b.constant(0, "int32")
    ),
    "large norm": lambda b: b.reduce_l2(b.expand(b.constant(3e38, "float32"), LARGE), axes=[1]),
}


def results(context: MLContext, make: Callable[[MLGraphBuilder], list[MLOperand]]) -> list[Array]:
    """What the operators themselves give, nothing behind them."""
    builder = MLGraphBuilder(context)
    made = {str(number): operand for number, operand in enumerate(make(builder))}
    graph = builder.build_sync(made)
    inputs = {"x": X} if graph.inputs else {}
    if context.device_type == "cpu":
        return list(MLExecution(context).compute(graph, inputs).values())

    async def awaited() -> list[Array]:
        return list((await MLAwaitedExecution(context).compute(graph, inputs)).values())

    return asyncio.run(awaited())


@pytest.mark.parametrize("name", RESULTS)
def test_a_result_of_constants(each_device: MLContext, reference: MLContext, name: str) -> None:
    (got,), (wanted,) = (
        results(context, lambda b: [RESULTS[name](b)]) for context in (each_device, reference)
    )
    assert got.dtype == wanted.dtype
    np.testing.assert_array_equal(got, wanted)


def test_an_input_as_output(each_device: MLContext) -> None:
    def make(b: MLGraphBuilder) -> list[MLOperand]:
        x = b.input("x", "uint8", X.shape)
        return [b.identity(x), b.reshape(x, [6]), b.transpose(b.transpose(x))]

    same, flat, back = results(each_device, make)
    np.testing.assert_array_equal(same, X)
    np.testing.assert_array_equal(flat, X.reshape(6))
    np.testing.assert_array_equal(back, X)

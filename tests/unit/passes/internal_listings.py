"""Graphs before and after a pass of hardware GPUs, which no engine here runs."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from textwrap import dedent

import numpy as np

from tests.internals import recipe_of
from webnn_py import MLGraphBuilder, MLOperand, ml
from webnn_py.engines.reference import evaluate
from webnn_py.ir import Graph
from webnn_py.passes import Target
from webnn_py.passes.pipeline import Pass, verify_types

TARGET = Target(lambda node: True, evaluate)
TENSOR_CORES = dataclasses.replace(TARGET, has_tensor_cores=True)

Record = Callable[[MLGraphBuilder, MLOperand], MLOperand]


def recorded(body: Record, shape: Sequence[int] = (2, 3), data_type: str = "float32") -> Graph:
    """The graph `y = body(x)` before any pass, where x has this shape and data type."""
    with ml.create_context_sync(device_type="cpu", engine="reference") as context:
        builder = MLGraphBuilder(context)
        x = builder.input("x", data_type, shape)
        return recipe_of(builder.build_sync({"y": body(builder, x)}))


def nodes(graph: Graph) -> list[str]:
    """The lines of a listing that are nodes."""
    return [line.strip() for line in str(graph).splitlines() if " = " in line and "(" in line]


def after(stage: Pass, graph: Graph, target: Target = TARGET) -> Graph:
    """The graph after a pass."""
    made = stage(graph, target)
    verify_types(made)
    return made


def assert_prints(graph: Graph, listing: str) -> None:
    assert str(graph) == dedent(listing).strip()


def assert_keeps(stage: Pass, graph: Graph) -> None:
    """The pass does not fire."""
    assert after(stage, graph) is graph


def results(graph: Graph, x: np.ndarray) -> list[np.ndarray]:
    """The outputs, computed node by node."""
    arrays = {graph.inputs[0]: x, **graph.constants}
    for node in graph.nodes:
        operands = [None if value is None else arrays[value] for value in node.inputs]
        arrays.update(zip(node.outputs, evaluate(node, operands), strict=True))
    return [arrays[value] for _, value in graph.outputs]


def tensor(*shape: int, data_type: str = "float32") -> np.ndarray:
    """Numbers from 1 on."""
    return np.arange(1, 1 + np.prod(shape), dtype=data_type).reshape(shape)

"""Steps of a graph, from the profile of the library that runs its ONNX model.

Nodes of the model are named by their node's number in the graph, from which the optimizers of ONNX
Runtime and OpenVINO derive the names of what they make of them.
"""

from __future__ import annotations

import dataclasses
import re
import statistics
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass

from onnx import ModelProto

from webnn_py.engines.onnx_lowering.model import Names, numbered
from webnn_py.engines.profile import StepTime, step_of
from webnn_py.ir import Graph, Node

PROFILED_RUNS = 5
"""Runs of which a profile takes the median, after a first one that warms up."""

_NODE_NUMBER = re.compile(r"(\d+)(?![^/_])")
_LAYOUT_SUFFIX = "_nchwc"
"""ONNX Runtime's suffix of convolutions in its blocked layout, after the name of their output."""


@dataclass(frozen=True, slots=True)
class NodeTime:
    """One run of one node of a library.

    Attributes:
        key: What distinguishes the node from the library's other nodes.
        name: The library's name of the node.
        kernel: The library's operator.
        seconds: The duration.
    """

    key: Hashable
    name: str
    kernel: str
    seconds: float


def numbered_nodes(graph: Graph) -> Names:
    """Return names for a model to profile: each node is called by its number."""
    numbers = {node: str(number) for number, node in enumerate(graph.nodes)}
    return dataclasses.replace(numbered(graph), title=numbers.__getitem__)


def steps_of(
    engine: str, graph: Graph, model: ModelProto, times: Sequence[NodeTime]
) -> tuple[StepTime, ...]:
    """Return a step for each operator that the library runs, with the operators fused into it.

    Args:
        engine: Name of the engine.
        graph: The graph.
        model: Its model, with the names of `numbered_nodes`.
        times: What the library measured in several runs; the first time of each node is left out.
    """
    tensors = {
        output: number
        for node in model.graph.node
        if (number := _number_in(node.name)) is not None
        for output in node.output
    }
    runs: dict[Hashable, list[NodeTime]] = {}
    for time in times:
        runs.setdefault(time.key, []).append(time)
    seconds: dict[Hashable, float] = {}
    kernels: dict[Hashable, dict[str, None]] = {}
    for key, same in runs.items():
        number = tensors.get(name := same[0].name.removesuffix(_LAYOUT_SUFFIX), _number_in(name))
        step = key if number is None or number >= len(graph.nodes) else graph.nodes[number]
        taken = statistics.median(one.seconds for one in same[1:] or same)
        seconds[step] = seconds.get(step, 0.0) + taken
        kernels.setdefault(step, {})[same[0].kernel] = None
    fused = _fused(graph, seconds)
    return tuple(
        step_of(f"{engine} {', '.join(kernels[step])}", fused.get(step, ()), taken)
        for step, taken in seconds.items()
    )


def _number_in(name: str) -> int | None:
    found = _NODE_NUMBER.match(name)
    return None if found is None else int(found[1])


def _fused(graph: Graph, steps: Mapping[Hashable, float]) -> dict[Hashable, list[Node]]:
    """Return the nodes of each step: nodes without a step join a producer's or a reader's."""
    step_by_node = {node: node for node in graph.nodes if node in steps}
    for node in graph.nodes:
        for value in node.operands:
            step = step_by_node.get(graph.producers.get(value, node))
            if step is not None:
                step_by_node.setdefault(node, step)
    for node in reversed(graph.nodes):
        for value in node.operands:
            producer = graph.producers.get(value)
            if producer is not None and node in step_by_node:
                step_by_node.setdefault(producer, step_by_node[node])
    fused: dict[Hashable, list[Node]] = {}
    for node in graph.nodes:
        if node in step_by_node:
            fused.setdefault(step_by_node[node], []).append(node)
    return fused

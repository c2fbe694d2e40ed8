"""State in place: an output that is an input with rows scattered into it, such as a cache.

Its kernel writes the new rows alone, and relies on the input's contents in the output's buffer. Who
binds the buffers has the input copied there, unless both are one buffer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from webnn_py.engines.webgpu.program.storage import Features, storage_of
from webnn_py.ir import Graph, Node, Value


def states_in_place(graph: Graph, features: Features) -> Mapping[Value, Value]:
    """Return the outputs that are written in place, each with the input that it continues.

    No other node reads that input: it may be overwritten before.
    """
    inputs = set(graph.inputs)
    times = Counter(value for _, value in graph.outputs)
    return {
        node.output: state
        for node in graph.nodes
        if node.op == "scatter_rows"
        and (state := _state_of(node)) in inputs
        and times[node.output] == 1
        and not times[state]
        and graph.uses[state] == 1
        and storage_of(state.data_type, features).per_word == 1
    }


def _state_of(node: Node) -> Value:
    return next(node.operands)

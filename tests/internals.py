"""What stands behind the public objects, for tests of the rooms within."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import pytest

from webnn_py import MLContext, MLError, MLGraph, MLProgram, MLTensor, ml
from webnn_py.api.compiled import CompiledGraph
from webnn_py.api.session import Session
from webnn_py.api.shape_specialization import Prepared
from webnn_py.core.completion import Completion
from webnn_py.core.dimensions import is_open
from webnn_py.core.open_dims import OpenSizes, evaluated, solve
from webnn_py.ir import Descriptor, Graph, Value
from webnn_py.ops.all import Operators
from webnn_py.ops.declare import REGISTRY
from webnn_py.ops.graph_builder import GraphBuilder
from webnn_py.ops.operand import MLOperand
from webnn_py.passes import LOOPS, TILES


def session_of(context: MLContext) -> Session:
    return context._session


def context_on_engine(engine: Any) -> MLContext:
    """A CPU context of an engine that users cannot register."""
    return MLContext(Session(engine, "cpu"))


def engine_of(context: MLContext) -> Any:
    return context._session.engine


@contextlib.contextmanager
def taken_for(device: Any, **changes: Any) -> Iterator[MLContext]:
    """A context on a device that is taken for another kind, or for one with lower limits."""
    with ml.create_context_sync(device) as context:
        engine = engine_of(context)
        features = engine.gpu.features = dataclasses.replace(engine.gpu.features, **changes)
        engine.has_tensor_cores = features.f16_matrix is not None
        engine.passes = TILES if features.kind == "gpu" else LOOPS
        yield context


def run_on_worker(context: MLContext, work: Callable[[], Any]) -> Completion[Any]:
    """Run work on a worker thread of a context, which begins in order of these calls."""
    return session_of(context)._worker.run(work)


def bindings_of(loaded: Any, values: Iterable[Value]) -> dict[Value, Any]:
    """The bindings of a graph's intermediate values and constants on a device."""
    return {value: loaded._groups.own[value] for value in values}


def set_policy(context: MLContext, **changes: Any) -> None:
    """Change thresholds of a context's awaited runs: fields of `RunPolicy`, or `PoolPolicy`."""
    session = session_of(context)
    owner = session.independent if session.device is None else engine_of(context).gpu
    owner.policy = dataclasses.replace(owner.policy, **changes)


def settle(context: MLContext) -> None:
    """Wait until the context's threads have nothing left to do."""
    reader = engine_of(context).gpu.reader
    while not reader.idle:
        time.sleep(0)
    run_on_worker(context, lambda: None).wait(10)
    while not session_of(context).worker_is_idle:
        time.sleep(0)


def recipe_of(graph: MLGraph) -> Graph:
    return graph._compiled.recipe


def plan_of(program: MLProgram) -> Any:
    """The plan of a compiled program."""
    executable: Any = program._executable
    return executable.plan


def executable_of(graph: MLGraph) -> Any:
    return graph._compiled.executable(graph._compiled.session)


def prepared_for(graph: MLGraph, **sizes: int) -> Prepared:
    """A graph with open dimensions, compiled for some sizes."""
    compiled = graph._compiled
    return compiled.check_usable(compiled.session).get(tuple(sorted(sizes.items())))


def built_from(context: MLContext, recipe: Graph) -> MLGraph:
    return MLGraph(CompiledGraph(context._session, recipe))


def prepared_sizes(graph: MLGraph, monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, ...]]:
    """The sizes that it is prepared for from now on, in the alphabetical order of their names."""
    prepared: Any = graph._compiled._prepared
    make, found = prepared._make, []

    def making(sizes: Any) -> Any:
        found.append(tuple(size for _, size in sizes))
        return make(sizes)

    monkeypatch.setattr(prepared, "_make", making)
    return found


def storage_of(tensor: MLTensor) -> Any:
    return tensor._memory.storage


def context_of(graph: MLGraph) -> MLContext:
    return MLContext(graph._compiled.session)


def replay(
    graph: Graph,
    builder: Operators,
    inputs: Mapping[str, MLOperand],
    sizes: Mapping[str, int] | None = None,
) -> dict[str, MLOperand]:
    """Apply a graph's operators again through the methods of a builder.

    The new graph shares the constants' arrays and keeps their names.

    Args:
        graph: The graph as recorded, before any pass.
        builder: The builder that checks the calls and records the new graph.
        inputs: An operand of the builder for each graph input, by name. Data types and shapes may
            differ from the recorded ones; default options are inferred again from them.
        sizes: Sizes of the open dimensions in options; they stay open if None.

    Returns:
        The outputs, by name.

    Raises:
        MLError: An operator does not accept such operands; the message names it and its label.
    """
    operands: dict[Value, MLOperand] = {value: inputs[value.name] for value in graph.inputs}
    for value, array in graph.constants.items():
        operands[value] = builder._node_builder.add_constant(array, value.data_type, value.name)
    for node in graph.nodes:
        op = REGISTRY[node.op]
        arguments = op.given_arguments(node, operands)
        if sizes:
            arguments |= {name: evaluated(node.given[name], sizes) for name in op.sizes}
        made = getattr(builder, node.op)(**arguments, label=node.label)
        outputs = made if isinstance(made, list) else [made]
        operands.update(zip(node.outputs, outputs, strict=True))
    return {name: operands[value] for name, value in graph.outputs}


def replayed(graph: Graph, descriptors: Mapping[str, Descriptor] | None = None) -> Graph:
    """The graph, recorded for inputs of other data types and shapes.

    Args:
        graph: What to replay, as it was recorded.
        descriptors: What inputs are, by name; those that are not in it stay what they are. Where
            no dimension of an input is left open, options that hold open ones are what follows.

    Raises:
        DataError: The shapes of inputs contradict each other, or the bounds of an open dimension.
        MLError: As `replay`.
    """
    inputs = {value.name: value for value in graph.inputs}
    wanted: dict[str, Descriptor] = {**inputs, **(descriptors or {})}
    sizes: Mapping[str, int] = {}
    if graph.open_sizes and not any(is_open(wanted[name].shape) for name in inputs):
        open_shapes = {name: value.shape for name, value in inputs.items()}
        sizes = solve(open_shapes, {name: wanted[name].shape for name in inputs})
    builder = GraphBuilder()
    given = {name: builder.add_input(name, wanted[name]) for name in inputs}
    return builder.recorded(replay(graph, builder, given, sizes))


def opened_graph(graph: Graph) -> Graph | None:
    """A graph with an open first dimension of an input, if its operators take one."""
    for value in graph.inputs:
        if value.shape:
            batch: Any = OpenSizes().declare("batch", 2, 2**20)
            wanted = Descriptor(value.data_type, (batch, *value.shape[1:]))
            with contextlib.suppress(MLError, ZeroDivisionError):
                return replayed(graph, {value.name: wanted})
    return None

"""What `load` and `add_to` are made of; imported with them, as it needs onnx."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from webnn_py.api.builder import MLGraphBuilder, recorded
from webnn_py.api.compiled import CompiledGraph
from webnn_py.api.context import MLContext
from webnn_py.api.graph import MLGraph
from webnn_py.api.session import Compiled, session_of
from webnn_py.ir import Graph
from webnn_py.onnx.import_cache import KnownModel
from webnn_py.onnx.importer import Importer
from webnn_py.onnx.inputs import Inputs, InputShapes
from webnn_py.onnx.model import Model
from webnn_py.onnx.tensor import NarrowerError, Tensor
from webnn_py.ops.operand import MLOperand
from webnn_py.passes.constant_replay import Recorder

__all__ = ["Importer", "Inputs", "Model", "built", "imported", "outputs"]


def imported(
    ctx: MLContext,
    model: Model,
    shapes: InputShapes,
    constants: Mapping[str, Any] | None = None,
) -> tuple[MLGraphBuilder, dict[str, Tensor]]:
    """A model in a builder of its own, its open dimensions bounded as its nodes want it.

    Raises:
        MLError: As `load`.
    """
    fewer: list[NarrowerError] = []
    no_help: set[object] = set()
    while True:  # each time there are fewer sizes
        inputs = Inputs(model.inputs, shapes, fewer)
        builder = MLGraphBuilder(ctx, dimensions=inputs.bounds)
        try:
            return builder, Importer(builder, model, no_help).run(constants, inputs)
        except NarrowerError as error:
            if any(error.args == one.args for one in fewer):
                no_help.add(error.args)
            else:
                fewer.append(error)


def built(
    ctx: MLContext, model: Model, shapes: InputShapes, constants: Mapping[str, Any]
) -> MLGraph:
    """The graph of a model, as far as it can be as an earlier process left it.

    Raises:
        MLError: As `load`.
    """
    session = session_of(ctx)
    known = KnownModel(model, shapes, session)
    found = None if constants else known.load()
    if found is not None:
        recipe, optimized = found
        return MLGraph(CompiledGraph(session, recipe, lambda _: session.compile_as(optimized)))

    recorder = Recorder()
    rewritten: list[Graph] = []

    def compile(recipe: Graph) -> Compiled:  # without a way to the model, which goes now
        listing, executable = session.compile(recipe, recorder)
        rewritten[:] = [listing.graph]
        return listing, executable

    builder, made = imported(ctx, model, shapes, constants)
    recipe = recorded(builder, outputs(builder, made))
    graph = MLGraph(CompiledGraph(session, recipe, compile))
    for optimized in () if constants else rewritten:  # none of a graph with open dimensions
        known.store(recipe, optimized, recorder)
    return graph


def outputs(builder: MLGraphBuilder, found: Mapping[str, Tensor]) -> dict[str, MLOperand]:
    """What to build: a copy of each result that is an input or a constant of the graph."""
    made = {}
    for name, tensor in found.items():
        assert tensor.operand is not None
        made[name] = builder.identity(tensor.operand) if tensor.is_leaf else tensor.operand
    return made

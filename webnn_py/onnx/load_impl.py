"""Implementation of `load` and `add_to`, imported at their first call because it needs onnx."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from webnn_py.api.builder import MLGraphBuilder
from webnn_py.api.compiled import CompiledGraph
from webnn_py.api.context import MLContext
from webnn_py.api.graph import MLGraph
from webnn_py.api.graph_compiler import Compiled
from webnn_py.api.session import session_of
from webnn_py.api.staged_graph import StagedGraph
from webnn_py.ir import Graph
from webnn_py.onnx.data_sizes import DataSize, DataSizes
from webnn_py.onnx.import_cache import KnownModel
from webnn_py.onnx.importer import Importer
from webnn_py.onnx.inputs import Inputs, InputShapes
from webnn_py.onnx.model import Model
from webnn_py.onnx.predication import with_data_sizes
from webnn_py.onnx.tensor import NarrowerError, Tensor
from webnn_py.ops.operand import MLOperand
from webnn_py.passes.constant_replay import Recorder

__all__ = ["Importer", "Inputs", "Model", "built", "imported", "outputs"]


def imported(
    ctx: MLContext,
    model: Model,
    shapes: InputShapes,
    constants: Mapping[str, Any] | None = None,
    bounds: Mapping[str, int] | None = None,
) -> tuple[MLGraphBuilder, dict[str, Tensor], Sequence[DataSize]]:
    """Import a model into a new builder, with bounds of open dimensions that its nodes accept.

    Args:
        ctx: The context of the builder.
        model: The model.
        shapes: The user's input shapes.
        constants: Arrays by input name that become constants.
        bounds: Bounds of sizes that contents of tensors decide; None to refuse such sizes.

    Returns:
        The builder, the tensors of the model's outputs by name, and the sizes that contents decide.

    Raises:
        MLError: The same errors as `load`.
    """
    fewer: list[NarrowerError] = []
    no_help: set[object] = set()
    sizes = None if bounds is None else DataSizes(bounds)
    while True:  # every attempt narrows the open sizes, or gives up on one error
        inputs = Inputs(model.inputs, shapes, fewer)
        builder = MLGraphBuilder(ctx, dimensions=inputs.bounds)
        if sizes is not None:
            sizes.begin()
        try:
            made = Importer(builder, model, no_help, sizes).run(constants, inputs)
            if sizes is None:
                return builder, made, ()
            sizes.check_bounds()
            return builder, made, sizes.found
        except NarrowerError as error:
            if any(error.args == one.args for one in fewer):
                no_help.add(error.args)
            elif sizes is not None and not sizes.names.isdisjoint(error.names):
                no_help.add(error.args)
                sizes.narrow(error)
            else:
                fewer += [error, *error.also]


def built(
    ctx: MLContext,
    model: Model,
    shapes: InputShapes,
    constants: Mapping[str, Any],
    bounds: Mapping[str, int],
) -> MLGraph:
    """Build the graph of a model, from the disk cache if an earlier process stored it.

    Args:
        ctx: The context that runs the graph.
        model: The model.
        shapes: The user's input shapes.
        constants: Arrays by input name that become constants; with any, the cache is not used.
        bounds: Bounds of sizes that contents of tensors decide; likewise.

    Raises:
        MLError: The same errors as `load`.
    """
    session = session_of(ctx)
    known = KnownModel(model, shapes, session)
    found = None if constants or bounds else known.load()
    if found is not None:
        recipe, optimized = found
        return MLGraph(
            CompiledGraph(session, recipe, lambda _: session.compiler.compile_as(optimized))
        )

    recorder = Recorder()
    rewritten: list[Graph] = []

    def compile(recipe: Graph) -> Compiled:  # holds no reference to the model, to free it
        listing, executable = session.compiler.compile(recipe, recorder)
        rewritten[:] = [listing.graph]
        return listing, executable

    builder, made, sizes = imported(ctx, model, shapes, constants, bounds)
    recipe, counted = with_data_sizes(builder, outputs(builder, made), sizes)
    if counted:
        return StagedGraph(session, recipe, counted)
    shares = bool(constants) or not known.is_cached  # an entry needs what passes compute
    graph = MLGraph(CompiledGraph(session, recipe, compile, shares))
    for optimized in () if constants else rewritten:  # empty if dimensions are open
        known.store(recipe, optimized, recorder)
    return graph


def outputs(builder: MLGraphBuilder, found: Mapping[str, Tensor]) -> dict[str, MLOperand]:
    """Return the operands to build by name; an output that is an input or constant is copied."""
    made = {}
    for name, tensor in found.items():
        assert tensor.operand is not None
        made[name] = builder.identity(tensor.operand) if tensor.is_leaf else tensor.operand
    return made

"""MLGraphBuilder, which records operators and builds a graph from them."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from webnn_py.api.compiled import CompiledGraph
from webnn_py.api.context import MLContext
from webnn_py.api.descriptor import MLOperandDescriptor, split
from webnn_py.api.graph import MLGraph
from webnn_py.api.graph_recorder import SessionNodes
from webnn_py.api.session import session_of
from webnn_py.api.tensor import MLTensor, memory_of
from webnn_py.core import convert, dtypes, open_dims
from webnn_py.core.dimensions import MLDimension
from webnn_py.core.dtypes import MLOperandDataType
from webnn_py.core.errors import ValidationError, prefix_errors
from webnn_py.core.messages import Suggesting, shown
from webnn_py.core.open_dims import OpenSizes
from webnn_py.core.pickling import Unpicklable
from webnn_py.core.progress import BuildProgress, with_progress
from webnn_py.ir import Array, Descriptor, Graph
from webnn_py.memory import host_arrays
from webnn_py.memory.weight_spill import WeightSpill
from webnn_py.ops.all import Operators
from webnn_py.ops.graph_builder import NodeList
from webnn_py.ops.operand import MLOperand, NodeBuilder


class MLGraphBuilder(Unpicklable, Suggesting, Operators):
    """Builder that records operators and builds one graph from them.

    Args:
        context: The context that will run the graph.
        dimensions: Bounds of the open dimensions, by name: (lowest, highest), with None for no
            upper bound. A single size fixes the dimension. The default is 1 to 2,147,483,647.

    Raises:
        ValidationError: `context` is not an MLContext, or the bounds are not valid.
        ContextLostError: The context is lost.

    Examples:
        ```python
        import asyncio

        import numpy as np

        from webnn_py import MLExecution, MLGraphBuilder, ml

        ctx = ml.create_context_sync(device_type="cpu")
        b = MLGraphBuilder(ctx)
        x = b.input("x", "float32", [2, 3])
        w = b.constant(np.ones((3, 2), np.float32))
        graph = b.build_sync({"y": b.matmul(x, w)})
        results = MLExecution(ctx).compute(graph, {"x": np.eye(2, 3, dtype=np.float32)})
        print(results["y"][0])  # [1. 1.]


        async def main():
            b = MLGraphBuilder(ctx, dimensions={"batch": (1, 64)})
            y = b.relu(b.input("x", "float32", ["batch", 3]))
            return await b.build_async({"y": y})


        print(asyncio.run(main()).inputs["x"].shape)  # (batch, 3)
        ```

    Source: WebNN 2026, "MLGraphBuilder interface".
    """

    def __init__(
        self,
        context: MLContext,
        dimensions: Mapping[str, int | tuple[int, int | None]] | None = None,
    ) -> None:
        self._nodes = SessionNodes(session_of(context), OpenSizes(dimensions))
        aside = self._nodes.session.engine.has_own_weights
        self._copy = WeightSpill().copy if aside else host_arrays.immutable_copy

    @property
    def _node_builder(self) -> NodeBuilder:
        return self._nodes

    def input(
        self,
        name: str,
        data_type: MLOperandDataType | MLOperandDescriptor,
        shape: Sequence[int | str] | None = None,
    ) -> MLOperand:
        """Add a named input, whose value each execution supplies.

        Args:
            name: Name of the input, not empty and not used before.
            data_type: Name of the data type, or an MLOperandDescriptor, which also has the shape.
                int4 and uint4 are for constants only.
            shape: The dimensions, each at least 1; a scalar by default. A string names an open
                dimension, which has the same size wherever it recurs in this builder. -1 is an
                open dimension without a name.

        Raises:
            ValidationError: The name, data type or shape is not valid.
            InvalidStateError: The builder has already built its graph.
            ContextLostError: The context is lost.

        Source: WebNN 2026, "input operands".
        """
        self._nodes.check_open()
        if not isinstance(name, str) or not name:
            raise ValidationError(f"input: name {shown(name)} is not a string with characters")
        name = convert.string(name, "name")
        with prefix_errors(f"input {shown(name)}"):
            given, sizes = split(data_type, shape)
            kind = dtypes.check(given)
            if kind in dtypes.PACKED_4BIT:
                raise ValidationError(f"data type {kind} is for constants only")
            dimensions = () if sizes is None else open_dims.shape(sizes, "shape")
            return self._nodes.add_input(name, Descriptor(kind, dimensions))

    def constant(
        self,
        value: Any,
        data_type: MLOperandDataType | MLOperandDescriptor | None = None,
        shape: Sequence[int] | None = None,
        *,
        name: str = "",
    ) -> MLOperand:
        """Add a constant; its contents are copied, but those of an MLTensor are shared.

        Args:
            value: A NumPy array, a number that the data type holds, bytes or anything with the
                buffer protocol or `__dlpack__`, or a constant MLTensor of the same context. int4
                and uint4 are packed, two to a byte, the low nibble first.
            data_type: The array's data type by default; required for a number or raw bytes. An
                MLOperandDescriptor also has the shape.
            shape: The array's shape by default; a scalar for a number.
            name: Name of the constant in listings; a number is appended if the name is taken.

        Raises:
            ValidationError: The contents do not fit the data type and shape.
            InvalidStateError: The builder has already built its graph.
            OperationError: There is no memory left.
            ContextLostError: The context is lost.

        Source: WebNN 2026, "constant operands".
        """
        self._nodes.check_open()
        with prefix_errors("constant"):
            title = convert.label(name, "name")
            array, held = self._contents(value, data_type, shape)
        return self._nodes.add_constant(array, held, title)

    def _contents(
        self,
        value: Any,
        data_type: MLOperandDataType | MLOperandDescriptor | None,
        shape: Sequence[int] | None,
    ) -> tuple[Array, MLOperandDataType]:
        """Return the private contents of a constant, and its data type."""
        if isinstance(value, MLTensor):
            memory = memory_of(value, "tensor")
            if memory.session is not self._nodes.session:
                raise ValidationError("tensor: the MLTensor belongs to another context")
            contents: Array = memory.place("tensor")
            if not memory.constant:
                raise ValidationError("the MLTensor is not constant")
            held = memory.descriptor
            name, sizes = split(data_type, shape)
            if name not in (None, held.data_type):
                raise ValidationError(f"data type {shown(name)}, but the MLTensor is {held}")
            if sizes is not None and convert.unsigned_list(sizes, "shape") != held.shape:
                raise ValidationError(f"shape {shown(sizes)}, but the MLTensor is {held}")
            return contents, value.data_type
        return host_arrays.constant_array(value, *split(data_type, shape), self._copy)

    def build_sync(
        self, outputs: Mapping[str, MLOperand], *, progress: BuildProgress | None = None
    ) -> MLGraph:
        """Compile the graph that computes `outputs`; block until the engine is ready.

        Args:
            outputs: Operands of the results, by name; pass an input or constant through an
                `identity`.
            progress: Called on the calling thread with the number of finished pipelines and their
                total. An exception that it raises ends the build. It is not called if there are no
                pipelines to create.

        Raises:
            ValidationError: There are no outputs, a name is empty, an operand cannot be an output,
                or a name in `dimensions` occurs in the shape of no input.
            InvalidStateError: The builder has already built its graph.
            NotSupportedError: The graph needs more than the device offers, such as larger buffers.
            OperationError: The engine or device could not compile the graph.
            ContextLostError: The context is lost.

        Source: WebNN 2026, "build method".
        """
        recipe = self._finish(outputs)
        with self._nodes.building():
            return with_progress(progress, self._compile, recipe)

    async def build_async(
        self, outputs: Mapping[str, MLOperand], *, progress: BuildProgress | None = None
    ) -> MLGraph:
        """Build the graph on a thread of the context, so that the event loop is never blocked.

        Cancelling the await discards a compilation in progress, and one that has not begun never
        begins. The builder is used up afterwards, as after a build that fails.

        Args:
            outputs: Operands of the results, by name; pass an input or constant through an
                `identity`.
            progress: As in `build_sync`, but called on that thread. Use
                `loop.call_soon_threadsafe` to reach the event loop.

        Raises:
            MLError: As `build_sync`.

        Source: WebNN 2026, "build method".
        """
        work = functools.partial(with_progress, progress, self._compile, self._finish(outputs))
        with self._nodes.building():
            return await self._nodes.session.await_builder(work)

    def _finish(self, outputs: Mapping[str, MLOperand]) -> Graph:
        self._nodes.check_open()
        self._nodes.sizes.check_used()
        return self._nodes.finish(outputs)

    def _compile(self, recipe: Graph) -> MLGraph:
        return MLGraph(CompiledGraph(self._nodes.session, recipe))


def recorded(builder: MLGraphBuilder, outputs: Mapping[str, MLOperand]) -> Graph:
    """Return the uncompiled graph that computes `outputs`; raise as `build_sync` does."""
    return builder._nodes.finish(outputs)


def declare_size(
    builder: MLGraphBuilder, name: str, bounds: Callable[[str], tuple[int, int]]
) -> MLDimension:
    """Declare an open size of inputs to come.

    Args:
        builder: The builder.
        name: The name, which gets a number at its end if it is taken.
        bounds: Returns the lowest and highest value by the whole name.
    """
    sizes = builder._nodes.sizes
    numbers = itertools.count(2)
    unique = name
    while unique in sizes.symbols:
        unique = f"{name}_{next(numbers)}"
    return sizes.declare(unique, *bounds(unique))


def check_made_by(builder: MLGraphBuilder, operand: MLOperand, name: str) -> None:
    """Check that an operand belongs to a builder.

    Raises:
        ValidationError: The operand belongs to another builder.
    """
    builder._nodes.check_operand(operand, name)


def inputs_of(builder: MLGraphBuilder) -> dict[str, MLOperand]:
    """Return the operands of a builder's inputs by name."""
    return builder._nodes.inputs()


def nodes_of(builder: MLGraphBuilder) -> NodeList:
    """Return the nodes of a builder, for an importer that copies some."""
    return builder._nodes


def contents_of(builder: MLGraphBuilder, operand: MLOperand) -> Array | None:
    """Return the contents of a constant operand, None for any other operand."""
    contents: Array | None = builder._nodes.array_of(operand)
    return contents


def keeps_what_it_is_given(builder: MLGraphBuilder) -> bool:
    """Whether constants keep using the memory of the bytes that they are created from."""
    return not builder._nodes.session.engine.has_own_weights

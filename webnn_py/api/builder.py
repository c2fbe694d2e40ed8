"""MLGraphBuilder: records operators and builds a graph from them."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

from webnn_py.api.compiled import CompiledGraph
from webnn_py.api.context import MLContext
from webnn_py.api.descriptor import MLOperandDescriptor, split
from webnn_py.api.graph import MLGraph
from webnn_py.api.graph_recorder import SessionNodes
from webnn_py.api.session import session_of
from webnn_py.api.tensor import MLTensor, memory_of
from webnn_py.core import convert, dtypes
from webnn_py.core.dtypes import MLOperandDataType
from webnn_py.core.errors import ValidationError, prefix_errors
from webnn_py.core.messages import Suggesting, shown
from webnn_py.core.open_dims import OpenSizes
from webnn_py.core.pickling import Unpicklable
from webnn_py.core.progress import BuildProgress, with_progress
from webnn_py.core.shapes import check_dimensions
from webnn_py.ir import Array, Descriptor, Graph
from webnn_py.memory import host_arrays
from webnn_py.memory.weight_spill import WeightSpill
from webnn_py.ops.all import Operators
from webnn_py.ops.operand import MLOperand, NodeBuilder


class MLGraphBuilder(Unpicklable, Suggesting, Operators):
    """Records a graph of operators and builds it, once.

    Args:
        context: Where the graph will run.
        dimensions: Bounds of open sizes, by name: (lowest, highest), None for no highest one; or a
            size, with which the name is not open any more. 1 to 2,147,483,647 if not given.

    Raises:
        ValidationError: It is no MLContext, or the bounds are none.
        ContextLostError: It is lost.

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
        """A named operand that is given at each execution.

        Args:
            name: Not empty, and not used before.
            data_type: The data type's name, or an MLOperandDescriptor, which gives the shape too;
                int4 and uint4 are for constants alone.
            shape: The dimensions, each at least 1; a scalar if not given. A name is an open size,
                equal wherever it recurs in this builder; -1 is one without a name.

        Raises:
            ValidationError: The name, data type or shape is not valid.
            InvalidStateError: The builder has built.
            ContextLostError: The context is lost.

        Source: WebNN 2026, "input operands".
        """
        self._nodes.check_open()
        if not isinstance(name, str) or not name:
            raise ValidationError(f"input: name {shown(name)} is not a string with characters")
        name = convert.string(name, "name")
        with prefix_errors(f"input {shown(name)}"):
            descriptor = _descriptor(data_type, shape)
            if descriptor.data_type in dtypes.PACKED_4BIT:
                raise ValidationError(f"data type {descriptor.data_type} is for constants only")
            given = Descriptor(descriptor.data_type, descriptor.shape)
            return self._nodes.add_input(name, given)

    def constant(
        self,
        value: Any,
        data_type: MLOperandDataType | MLOperandDescriptor | None = None,
        shape: Sequence[int] | None = None,
        *,
        name: str = "",
    ) -> MLOperand:
        """An operand whose contents are known now; they are copied, those of an MLTensor shared.

        Args:
            value: A NumPy array, a number that the data type holds, bytes or anything with the
                buffer protocol or `__dlpack__`, or a constant MLTensor of the same context. int4
                and uint4 are packed, two to a byte, the low nibble first.
            data_type: The array's own if not given; a number or raw bytes need it. An
                MLOperandDescriptor gives the shape too.
            shape: The array's own if not given; of a number that of a scalar.
            name: What listings call it, with a number behind it where that is taken.

        Raises:
            ValidationError: The contents do not fit data type and shape.
            InvalidStateError: The builder has built.
            OperationError: There is no memory left.
            ContextLostError: The context is lost.

        Source: WebNN 2026, "constant operands".
        """
        self._nodes.check_open()
        with prefix_errors("constant"):
            title = convert.label(name, "name")
            array, held = self._contents(value, data_type, shape)
            check_dimensions(array.shape, held)
        return self._nodes.add_constant(array, held, title)

    def _contents(
        self,
        value: Any,
        data_type: MLOperandDataType | MLOperandDescriptor | None,
        shape: Sequence[int] | None,
    ) -> tuple[Array, MLOperandDataType]:
        """A constant's contents, which nobody else may change, and its data type."""
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
        """Compile the graph up to `outputs`; blocks until the engine is ready.

        Args:
            outputs: Names and operands of the results; an input or constant needs an `identity`.
            progress: Called with how many pipelines are made and of how many, on the calling
                thread; what it raises ends the build. Not called where there is nothing to make.

        Raises:
            ValidationError: No outputs, an empty name, an operand that cannot be an output, or a
                name in `dimensions` that stands in the shape of no input.
            InvalidStateError: The builder has built before.
            NotSupportedError: The graph needs more than the device has, such as larger buffers.
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
        """As `build_sync`, on a thread of the context: the event loop is never blocked.

        If the await is cancelled, what is being compiled is not used, and what is not compiled yet
        will not be. The builder has been used then, too, as by a build that fails.

        Args:
            outputs: Names and operands of the results; an input or constant needs an `identity`.
            progress: As there, on that thread: `loop.call_soon_threadsafe` leads back.

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
    """The recipe of a builder up to `outputs`; raises as `build_sync`, and nothing is compiled."""
    return builder._nodes.finish(outputs)


def check_made_by(builder: MLGraphBuilder, operand: MLOperand, name: str) -> None:
    """An operand is of a builder.

    Raises:
        ValidationError: It is of another one.
    """
    builder._nodes.check_operand(operand, name)


def contents_of(builder: MLGraphBuilder, operand: MLOperand) -> Array | None:
    """What a constant of a builder holds; None of another operand."""
    contents: Array | None = builder._nodes.array_of(operand)
    return contents


def keeps_what_it_is_given(builder: MLGraphBuilder) -> bool:
    """Whether constants stay in the memory of bytes that they are made of."""
    return not builder._nodes.session.engine.has_own_weights


def _descriptor(
    data_type: MLOperandDataType | MLOperandDescriptor, shape: Sequence[int | str] | None
) -> MLOperandDescriptor:
    name, sizes = split(data_type, shape)
    return MLOperandDescriptor(name, () if sizes is None else sizes)

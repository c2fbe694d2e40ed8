"""MLGraphBuilder: records operators and builds a graph from them."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from webnn_py.api.compiled import CompiledGraph
from webnn_py.api.context import MLContext, session_of
from webnn_py.api.descriptor import MLOperandDescriptor
from webnn_py.api.graph import MLGraph
from webnn_py.api.session import Session
from webnn_py.api.tensor import MLTensor, memory_of
from webnn_py.core import convert, dtypes
from webnn_py.core.dimensions import symbols_of
from webnn_py.core.dtypes import MLOperandDataType
from webnn_py.core.errors import InvalidStateError, MLError, NotSupportedError, ValidationError
from webnn_py.core.messages import Suggesting, shown
from webnn_py.core.shapes import check_dimensions
from webnn_py.core.sizes import OpenSizes, plain_names
from webnn_py.ir import Array, Descriptor, Graph, Value, make_graph, without_dead_nodes
from webnn_py.memory import host
from webnn_py.ops.all import Operators
from webnn_py.ops.graph_builder import NodeList
from webnn_py.ops.operand import MLOperand, NodeBuilder, value_of
from webnn_py.ops.registry import Operator


class _SessionNodes(NodeList):
    """Nodes that a context can run, until a graph is built of them."""

    def __init__(self, session: Session, sizes: OpenSizes) -> None:
        super().__init__()
        self.session = session
        self.sizes = sizes
        self._has_built = False

    def add_input(self, name: str, descriptor: Descriptor) -> MLOperand:
        """A named input.

        Raises:
            ValidationError: There is one of this name, or its shape is not valid.
        """
        if any(value.name == name for value in self._inputs):
            raise ValidationError("there is an input of this name already; choose another")
        shape = self.sizes.bind(descriptor.shape)
        return super().add_input(name, Descriptor(descriptor.data_type, shape))

    def check_dimensions(self, options: Iterable[object]) -> None:
        """Raise if open dimensions in options are not of this builder's inputs."""
        self.sizes.check(options)

    def check_open(self) -> None:
        """Raise an InvalidStateError if the builder has built or its context is gone."""
        if self._has_built:
            raise InvalidStateError("this MLGraphBuilder has built its graph; make a new builder")
        self.session.check_alive()

    def check_supported(
        self, op: Operator, operands: Mapping[str, Any], outputs: Sequence[Descriptor]
    ) -> None:
        """Raise a NotSupportedError if the context cannot run this operator on these types."""
        types = self.session.supported_types(op)
        given = {name: operand for name, operand in operands.items() if operand is not None}
        if op.output_types and not isinstance(op.output_types, str):
            given["output"] = outputs[0]
        for name, operand in given.items():
            first = operand[0] if isinstance(operand, list) else operand
            if first.data_type not in types[name]:
                raise NotSupportedError(
                    f"operand {name!r}: this context does not support {first.data_type} here;"
                    f" it supports {', '.join(types[name])} (see op_support_limits())"
                )

    def finish(self, outputs: Mapping[str, MLOperand]) -> Graph:
        """The graph up to `outputs`; nothing can be added after."""
        self.check_open()
        if isinstance(outputs, MLOperand):
            raise ValidationError('build: outputs: got an MLOperand; name it: {"name": operand}')
        given = convert.mapping(outputs, "build: outputs")
        if not given:
            raise ValidationError("build: outputs: got an empty mapping, expected an operand")
        made = {value for node in self._nodes for value in node.outputs}
        pairs: list[tuple[str, Value]] = []
        for name, operand in given.items():
            if not isinstance(name, str) or not name:
                raise ValidationError(
                    f"build: output name {shown(name)} is not a string with characters"
                )
            name = convert.string(name, "name")
            value = value_of(self.check_operand(operand, f"build output {name}"))
            if value not in made:
                raise ValidationError(
                    f"build: output {shown(name)} is an input or a constant; put identity() between"
                )
            pairs.append((name, value))
        self._has_built = True
        graph = without_dead_nodes(make_graph(self._inputs, self._constants, self._nodes, pairs))
        self._nodes, self._constants = [], {}
        return graph.replace(inputs=_needed_inputs(graph))


def _needed_inputs(graph: Graph) -> list[Value]:
    """The inputs that nodes read, and those that sizes follow from which no other input tells."""
    read = [value for value in graph.inputs if value in graph.uses]
    if not graph.open_sizes:
        return read
    shapes = [output.shape for node in graph.nodes for output in node.outputs]
    options = [option for node in graph.nodes for option in node.given.values()]
    untold = set(symbols_of([*shapes, *options, *(value.shape for value in read)]))
    for value in read:
        untold -= plain_names(value.shape)
    kept = []
    for value in graph.inputs:
        names = plain_names(value.shape) & untold
        if value in graph.uses or names:
            kept.append(value)
            untold -= names
    return kept


class MLGraphBuilder(Suggesting, Operators):
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
        self._nodes = _SessionNodes(session_of(context), OpenSizes(dimensions))

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
        title = f"input {shown(name)}"
        try:
            descriptor = _descriptor(data_type, shape)
            if descriptor.data_type in dtypes.PACKED_4BIT:
                raise ValidationError(f"data type {descriptor.data_type} is for constants only")
            given = Descriptor(descriptor.data_type, descriptor.shape)
            return self._nodes.add_input(name, given)
        except MLError as error:
            raise type(error)(f"{title}: {error}") from error.__cause__

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
        try:
            title = convert.label(name, "name")
            array, held = self._contents(value, data_type, shape)
            check_dimensions(array.shape, held)
        except MLError as error:
            raise type(error)(f"constant: {error}") from error.__cause__
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
            return contents, value.data_type
        if isinstance(data_type, MLOperandDescriptor):
            shape, data_type = data_type.shape, data_type.data_type
        return host.constant_array(value, data_type, shape)

    def build_sync(self, outputs: Mapping[str, MLOperand]) -> MLGraph:
        """Compile the graph up to `outputs`; blocks until the engine is ready.

        Args:
            outputs: Names and operands of the results; an input or constant needs an `identity`.

        Raises:
            ValidationError: No outputs, an empty name, or an operand that cannot be an output.
            InvalidStateError: The builder has built before.
            NotSupportedError: The graph needs more than the device has, such as larger buffers.
            OperationError: The engine or device could not compile the graph.
            ContextLostError: The context is lost.

        Source: WebNN 2026, "build method".
        """
        return self._compile(self._nodes.finish(outputs))

    async def build_async(self, outputs: Mapping[str, MLOperand]) -> MLGraph:
        """As `build_sync`, on a thread of the context: the event loop is never blocked.

        Args:
            outputs: Names and operands of the results; an input or constant needs an `identity`.

        Raises:
            MLError: As `build_sync`.

        Source: WebNN 2026, "build method".
        """
        work = functools.partial(self._compile, self._nodes.finish(outputs))
        return await self._nodes.session.run_on_builder(work)

    def _compile(self, recipe: Graph) -> MLGraph:
        return MLGraph(CompiledGraph(self._nodes.session, recipe))


def _descriptor(
    data_type: MLOperandDataType | MLOperandDescriptor, shape: Sequence[int | str] | None
) -> MLOperandDescriptor:
    if isinstance(data_type, MLOperandDescriptor):
        return data_type
    return MLOperandDescriptor(data_type, () if shape is None else shape)

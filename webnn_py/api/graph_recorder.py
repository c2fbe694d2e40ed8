"""Recording of graphs for a context, from a builder's calls or from a file."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from webnn_py.api.session import Session
from webnn_py.core import convert
from webnn_py.core.dimensions import symbols_of
from webnn_py.core.errors import InvalidStateError, NotSupportedError, ValidationError
from webnn_py.core.messages import shown
from webnn_py.core.open_dims import OpenSizes, plain_names
from webnn_py.ir import Descriptor, Graph, Value, make_graph, without_dead_nodes
from webnn_py.ops.graph_builder import GraphBuilder, NodeList
from webnn_py.ops.operand import MLOperand, value_of
from webnn_py.ops.registry import Operator
from webnn_py.storage.archive import Archive
from webnn_py.storage.graph_file import read_graph


class SessionNodes(NodeList):
    """Recorded nodes of one graph, checked against a context's support."""

    def __init__(self, session: Session, sizes: OpenSizes) -> None:
        super().__init__()
        self.session = session
        self.sizes = sizes
        self._input_names: set[str] = set()
        self._spent = ""  # state of the build for error messages; empty before it

    def add_input(self, name: str, descriptor: Descriptor) -> MLOperand:
        """Add a named input.

        Raises:
            ValidationError: The name is taken, or the shape is not valid.
        """
        if name in self._input_names:
            raise ValidationError("there is an input of this name already; choose another")
        shape = self.sizes.bind(descriptor.shape)
        made = super().add_input(name, Descriptor(descriptor.data_type, shape))
        self._input_names.add(name)
        return made

    def check_dimensions(self, options: Iterable[object]) -> None:
        """Raise an error if options have open dimensions that no input of this builder has."""
        self.sizes.check(options)

    def check_open(self) -> None:
        """Raise an error if the builder has begun to build, or its context is lost."""
        if self._spent:
            raise InvalidStateError(
                f"this MLGraphBuilder {self._spent}; a builder builds once: make a new builder"
            )
        if not self.session.alive:
            self.session.check_alive()

    def check_supported(
        self, op: Operator, operands: Mapping[str, Any], outputs: Sequence[Descriptor]
    ) -> None:
        """Raise a NotSupportedError if the context cannot run this operator on these types."""
        types = self.session.compiler.supported_types[op]
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

    @contextlib.contextmanager
    def building(self) -> Iterator[None]:
        """Track the state of the build, for the errors of later uses of the builder."""
        built, self._spent = self._spent, "is building its graph"
        try:
            yield
        except Exception:
            self._spent = "could not build its graph"
            raise
        except BaseException:
            self._spent = "was to build its graph, which was cancelled"
            raise
        self._spent = built

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
        self._spent = "has built its graph"
        graph = without_dead_nodes(make_graph(self._inputs, self._constants, self._nodes, pairs))
        self._nodes, self._constants = [], {}
        needed = _needed_inputs(graph)
        return graph if len(needed) == len(graph.inputs) else graph.replace(inputs=needed)


def _needed_inputs(graph: Graph) -> list[Value]:
    """Return the inputs that nodes read or that alone determine a needed open size."""
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


class _SessionBuilder(SessionNodes, GraphBuilder):
    """Session nodes with a method for every operator."""


def read_recipe(session: Session, archive: Archive) -> Graph:
    """Record the graph of a file; raise as `MLContext.load_graph_sync` does."""
    sizes = OpenSizes()
    builder = _SessionBuilder(session, sizes)
    return builder.finish(read_graph(archive, builder, sizes))

"""MLGraph: a compiled graph."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from webnn_py.api.builder import MLOperandDescriptor
from webnn_py.core.errors import DataError, InvalidStateError, MLError, ValidationError
from webnn_py.core.messages import Suggesting, shown, type_name
from webnn_py.engines.base import Executable
from webnn_py.ir import Descriptor, Graph

if TYPE_CHECKING:
    from webnn_py.api.context import MLContext


class MLGraph(Suggesting):
    """A compiled graph, bound to the context that built it.

    Source: WebNN 2026, "MLGraph interface".
    """

    def __init__(
        self, context: MLContext, source: Graph, optimized: Graph, executable: Executable
    ) -> None:
        self._context = context
        self._source: Graph | None = source
        self._listing: object = optimized  # or its text, once it is destroyed
        self._executable: Executable | None = executable
        self.input_descriptors: Mapping[str, Descriptor] = {v.name: v for v in source.inputs}
        self.output_descriptors: Mapping[str, Descriptor] = dict(source.outputs)
        self._inputs = _public(self.input_descriptors)
        self._outputs = _public(self.output_descriptors)

    @property
    def inputs(self) -> Mapping[str, MLOperandDescriptor]:
        """Name to MLOperandDescriptor of what an execution is given; read-only."""
        return self._inputs

    @property
    def outputs(self) -> Mapping[str, MLOperandDescriptor]:
        """Name to MLOperandDescriptor of what it makes; read-only."""
        return self._outputs

    @property
    def context(self) -> MLContext:
        """The context that built the graph."""
        return self._context

    @property
    def source(self) -> Graph:
        """The graph as it was built, before any pass.

        Raises:
            InvalidStateError: The graph is destroyed.
        """
        if self._source is None:
            raise InvalidStateError("this MLGraph is destroyed")
        return self._source

    def executable_for(self, context: MLContext, error: type[MLError] = DataError) -> Executable:
        """What runs, if the graph can run on `context` now.

        Raises:
            InvalidStateError: The graph is destroyed.
            ContextLostError: The context is destroyed or lost.
            DataError: The graph belongs to another context (or `error`, where given).
        """
        context.check_alive()
        if self._executable is None:
            raise InvalidStateError("this MLGraph is destroyed")
        if self._context is not context:
            raise error("this MLGraph was built by another context")
        return self._executable

    def bound_names(self) -> frozenset[str]:
        """Inputs that `initialize_graph` made constant."""
        return frozenset() if self._executable is None else frozenset(self._executable.bound)

    def check_names(
        self,
        inputs: Mapping[str, Any],
        outputs: Mapping[str, Any],
        bound: frozenset[str],
        error: type[MLError] = DataError,
    ) -> None:
        """Every input is given (but those bound before), and every name is known.

        Raises:
            DataError: (or `error`) Names the ones that are missing or unknown.
            InvalidStateError: One becomes a constant with commands that are not submitted.
        """
        for kind, given, known in (
            ("input", inputs, self.input_descriptors),
            ("output", outputs, self.output_descriptors),
        ):
            if not isinstance(given, Mapping):
                raise error(f"{kind}s: got {type_name(given)}, expected a mapping by name")
            unknown = [name for name in given if name not in known]
            if unknown:
                names = ", ".join(map(shown, list(known)[:32])) or "none"
                raise error(f"unknown {kind} {shown(unknown[0])}; this graph has {names}")
        again = [name for name in inputs if name in bound]
        if again:
            raise error(f"input {shown(again[0])} was made a constant by initialize_graph")
        missing = [n for n in self.input_descriptors if n not in inputs and n not in bound]
        if missing:
            if self._executable is not None and missing[0] in self._executable.pending_names():
                raise InvalidStateError(
                    f"input {missing[0]!r} was made a constant by an initialize_graph that is"
                    " recorded and not submitted; submit that command buffer first, dispatch in"
                    " its own encoder, or give the input here"
                )
            descriptor = self.inputs[missing[0]]
            raise error(f"input {shown(missing[0])} is missing; expected {descriptor}")

    def destroy(self) -> None:
        """Give back memory and device objects; work that is under way still completes."""
        self._listing = str(self)  # without the constants' contents
        self._source = self._executable = None

    def __str__(self) -> str:
        return str(self._listing)

    def __repr__(self) -> str:
        state = "destroyed " if self._executable is None else ""
        return f"<{state}MLGraph {dict(self.inputs)} -> {dict(self.outputs)}>"


def executable_of(
    graph: object, context: MLContext, error: type[MLError] = DataError
) -> Executable:
    """What runs a graph on `context`; see `MLGraph.executable_for`.

    Raises:
        ValidationError: It is no graph.
    """
    if not isinstance(graph, MLGraph):
        raise ValidationError(f"graph: got {shown(graph)}, expected an MLGraph")
    return graph.executable_for(context, error)


def _public(descriptors: Mapping[str, Descriptor]) -> Mapping[str, MLOperandDescriptor]:
    return MappingProxyType(
        {name: MLOperandDescriptor(d.data_type, d.shape) for name, d in descriptors.items()}
    )

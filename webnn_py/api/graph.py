"""MLGraph: a compiled graph."""

from __future__ import annotations

from collections.abc import Mapping

from webnn_py.api.compiled import CompiledGraph
from webnn_py.api.descriptor import MLOperandDescriptor
from webnn_py.core.errors import ValidationError
from webnn_py.core.messages import Suggesting, shown


class MLGraph(Suggesting):
    """A compiled graph, bound to the context that built it; `print` lists it.

    Source: WebNN 2026, "MLGraph interface".
    """

    def __init__(self, compiled: CompiledGraph) -> None:
        self._compiled = compiled
        self._inputs = compiled.signature.public("inputs")
        self._outputs = compiled.signature.public("outputs")

    @property
    def inputs(self) -> Mapping[str, MLOperandDescriptor]:
        """Name to MLOperandDescriptor of what an execution is given; read-only."""
        return self._inputs

    @property
    def outputs(self) -> Mapping[str, MLOperandDescriptor]:
        """Name to MLOperandDescriptor of what it makes; read-only."""
        return self._outputs

    def destroy(self) -> None:
        """Give back memory and device objects; nothing can run it any more. Harmless twice.

        Work that is under way still completes.

        Source: WebNN 2026, "MLGraph interface", "destroy()".
        """
        self._compiled.destroy()

    def __str__(self) -> str:
        return str(self._compiled)

    def __repr__(self) -> str:
        state = "destroyed " if self._compiled.destroyed else ""
        return f"<{state}MLGraph {dict(self.inputs)} -> {dict(self.outputs)}>"


def compiled_of(graph: object) -> CompiledGraph:
    """What stands behind a graph.

    Raises:
        ValidationError: It is none.
    """
    if not isinstance(graph, MLGraph):
        raise ValidationError(f"graph: got {shown(graph)}, expected an MLGraph")
    return graph._compiled

"""Export of a single graph as a program file."""

from __future__ import annotations

import os

from webnn_py.core.errors import ValidationError, convert_memory_errors
from webnn_py.core.messages import shown
from webnn_py.engines.reference import evaluate
from webnn_py.engines.webgpu.program.file import write_program
from webnn_py.engines.webgpu.program.source import GraphStep, Slot, Source
from webnn_py.ir import Descriptor, Graph


@convert_memory_errors
def write_graph(graph: Graph, path: str | os.PathLike[str]) -> None:
    """Compile a graph without open dimensions for all devices; save it as a program.

    Raises:
        ValidationError: An input and an output have the same name, as arguments cannot.
        NotSupportedError: A kernel would need more than WebGPU's default limits.
        FileError: The file cannot be written.
    """
    from webnn_py.engines.webgpu.compiler.programs import ProgramCompiler

    inputs = {value.name: _slot(value.name, value) for value in graph.inputs}
    outputs = {name: _slot(name, value) for name, value in graph.outputs}
    both = [name for name in outputs if name in inputs]
    if both:
        raise ValidationError(
            f"compile_to: an input and an output are called {shown(both[0])}; the arguments of a"
            " program have one name each: rename the output"
        )
    step = GraphStep(graph, inputs, outputs)
    source = Source((*inputs.values(), *outputs.values()), [((step,), 1)])
    write_program(ProgramCompiler(source, evaluate).complete_plan(), path)


def _slot(name: str, tensor: Descriptor) -> Slot:
    return Slot(Descriptor(tensor.data_type, tensor.shape), name)

"""Export of a single graph as a program file, and the runtimes that run such files."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Literal

from webnn_py.core.errors import ValidationError, convert_memory_errors, file_error
from webnn_py.core.messages import shown
from webnn_py.engines.reference import evaluate
from webnn_py.engines.webgpu.program.file import write_program
from webnn_py.engines.webgpu.program.source import GraphStep, Slot, Source
from webnn_py.ir import Descriptor, Graph

RUNTIME_FOLDERS = {"cpp": "cpp", "browser": "js"}
"""Folders of the runtimes, in runtime/ of the repository and of the installed package."""


def runtime_path(runtime: Literal["cpp", "browser"]) -> Path:
    """Return the folder of a runtime that runs saved programs without Python.

    Args:
        runtime: "cpp" for the C++ header `webnn_program.hpp` with its examples, "browser" for the
            ES module `webnn-program.mjs` with its types and `package.json`.

    Raises:
        ValidationError: There is no such runtime.
        FileError: The installation lacks the runtimes.

    Examples:
        ```python
        import webnn_py

        print((webnn_py.runtime_path("cpp") / "webnn_program.hpp").is_file())  # True
        print((webnn_py.runtime_path("browser") / "webnn-program.mjs").is_file())  # True
        ```
    """
    folder = RUNTIME_FOLDERS.get(runtime)
    if folder is None:
        names = " or ".join(map(repr, RUNTIME_FOLDERS))
        raise ValidationError(f"runtime_path: got {shown(runtime)}, expected {names}")
    package = Path(__file__).parents[2]
    paths = [home / "runtime" / folder for home in (package, package.parent)]
    for path in paths:  # in a wheel, then in a checkout
        if path.is_dir():
            return path
    missing = FileNotFoundError(errno.ENOENT, "the installation lacks the runtime", str(paths[0]))
    raise file_error(missing, paths[0], str(paths[0]))


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

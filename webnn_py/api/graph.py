"""MLGraph: a compiled graph."""

from __future__ import annotations

import functools
import io
import os
from collections.abc import Callable, Mapping
from typing import Any

from webnn_py.api.compiled import CompiledGraph
from webnn_py.api.default_session import default_session
from webnn_py.api.descriptor import MLOperandDescriptor
from webnn_py.api.graph_recorder import read_recipe
from webnn_py.api.profile import MLProfile
from webnn_py.api.programs.file import write_graph
from webnn_py.core.completion import check_interrupts_nothing, check_may_block
from webnn_py.core.errors import ValidationError
from webnn_py.core.messages import Suggesting, shown
from webnn_py.core.progress import BuildProgress, with_progress
from webnn_py.ops.replay import fix, output_shapes
from webnn_py.storage.archive import Archive, check_ending, replacing, write_archive
from webnn_py.storage.graph_file import graph_entries


class MLGraph(Suggesting):
    """A compiled graph, bound to the context that built it; `print` lists it.

    A copy (`copy.copy`, `copy.deepcopy`) is another graph of the same context, with the same
    constants in memory. Pickled, it becomes a graph of the process that unpickles it, in the
    context `ml.default_context` there.

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

    def output_shapes(self, sizes: Mapping[str, int]) -> dict[str, tuple[int, ...]]:
        """The shapes of the outputs where the open dimensions have these sizes; nothing runs.

        Args:
            sizes: A size for each open dimension, by its name, such as {"batch": 4}.

        Returns:
            A shape for each output, by name.

        Raises:
            ValidationError: A size is missing, unknown or out of its bounds.
            InvalidStateError: The graph is destroyed.

        Source: spec/execution.md, "Open dimensions".
        """
        return output_shapes(self._compiled.recipe, sizes)

    def prepare_sync(
        self, sizes: Mapping[str, int], *, progress: BuildProgress | None = None
    ) -> None:
        """Compile the graph for these sizes of its open dimensions, before it is run with them.

        Args:
            sizes: A size for each open dimension, by its name, such as {"batch": 4}.
            progress: As of `MLGraphBuilder.build_sync`.

        Raises:
            ValidationError: A size is missing, unknown or out of its bounds.
            InvalidStateError: The graph is destroyed.
            OperationError: The engine or device could not compile the graph.
            ContextLostError: The context is lost.

        Source: spec/execution.md, "Open dimensions".
        """
        with_progress(progress, self._compiled.prepare, sizes)

    async def prepare_async(
        self, sizes: Mapping[str, int], *, progress: BuildProgress | None = None
    ) -> None:
        """As `prepare_sync`, on a thread of the context: the event loop is never blocked.

        Args:
            sizes: As there.
            progress: As there, on that thread: `loop.call_soon_threadsafe` leads back.

        Raises:
            MLError: As `prepare_sync`.

        Source: spec/execution.md, "Open dimensions".
        """
        work = functools.partial(with_progress, progress, self._compiled.prepare, sizes)
        await self._compiled.session.await_builder(work)

    def profile(self, inputs: Mapping[str, Any], *, runs: int = 5) -> MLProfile:
        """Run the graph several times on this thread, and measure its steps.

        It is run once more before, so that what is made once is not counted. On a GPU the device's
        own clock is read where it has the feature timestamp-query, and a GPU that has rested
        computes for a second or more before, until it is as fast as it gets.

        Args:
            inputs: Every input by name, as the context's `compute` takes it; tensors as they are.
            runs: How often, 1 to 10,000; medians are given.

        Returns:
            A row for each step, which print as a table.

        Raises:
            ValidationError: `runs` is out of range.
            DataError: A name, data type, size, format, context or device does not fit.
            InvalidStateError: This thread is running an event loop (`profile_async` does not block
                it), the graph is destroyed, or work on a tensor waits for a timeline.
            OperationError: The engine or the device failed.
            ContextLostError: The context is lost.

        Source: webnn_py, spec/execution.md, "Profiles".
        """
        check_may_block("MLGraph.profile", "MLGraph.profile_async")
        check_interrupts_nothing("MLGraph.profile")
        return self._compiled.profile(inputs, runs)

    async def profile_async(self, inputs: Mapping[str, Any], *, runs: int = 5) -> MLProfile:
        """As `profile`, on a thread of the context: the event loop is never blocked.

        Args:
            inputs: As there.
            runs: As there.

        Returns:
            A row for each step, which print as a table.

        Raises:
            MLError: As `profile`.

        Source: webnn_py, spec/execution.md, "Profiles".
        """
        work = functools.partial(self._compiled.profile, inputs, runs)
        return await self._compiled.session.await_builder(work)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write what the graph computes into a file, for `MLContext.load_graph_sync`.

        Any context can load it, and with open dimensions it keeps them. A file that is there is
        replaced once the new one is whole. What `initialize_graph` bound is not saved.

        Args:
            path: The file.

        Raises:
            InvalidStateError: The graph is destroyed.
            NotSupportedError: An option, dimension or the whole graph is too long for a file.
            ValidationError: `path` is no path, or ends in .onnx.
            FileError: The file cannot be written.

        Source: spec/saved_graphs.md, "Saving".
        """
        check_ending(path)
        entries = graph_entries(self._compiled.recipe)
        with replacing(path) as stream:
            write_archive(stream, entries)

    def compile_to(
        self, path: str | os.PathLike[str], sizes: Mapping[str, int] | None = None
    ) -> None:
        """Compile the graph for WebGPU and write it as a program, which runs without Python, too.

        It has the inputs and outputs as arguments, and variants for devices with and without
        optional features. No GPU is needed for it, whatever the graph's own context.

        Args:
            path: The file, by custom named `.mlprogram`.
            sizes: A size for each open dimension, by its name, such as {"batch": 1}.

        Raises:
            ValidationError: A size is missing, unknown or out of its bounds, an input and an output
                have the same name, or `path` ends in .onnx.
            InvalidStateError: The graph is destroyed, or `initialize_graph` has made inputs of it
                constants.
            NotSupportedError: A kernel would need more than WebGPU's default limits.
            OperationError: There is no memory left.
            FileError: The file cannot be written.

        Source: webnn_py, spec/programs.md, "Files".
        """
        check_ending(path)
        self._compiled.bound.check_free("compile_to")
        write_graph(fix(self._compiled.recipe, {} if sizes is None else sizes), path)

    def __reduce__(self) -> tuple[Callable[[bytes], MLGraph], tuple[bytes]]:
        stream = io.BytesIO()
        write_archive(stream, graph_entries(self._compiled.recipe))
        return _unpickled, (stream.getvalue(),)

    def __copy__(self) -> MLGraph:
        return MLGraph(CompiledGraph(self._compiled.session, self._compiled.recipe))

    def __deepcopy__(self, memo: object) -> MLGraph:
        return self.__copy__()

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


def _unpickled(data: bytes) -> MLGraph:
    session = default_session()
    recipe = read_recipe(session, Archive(data, "pickled MLGraph"))
    return MLGraph(CompiledGraph(session, recipe))


def compiled_of(graph: object) -> CompiledGraph:
    """What stands behind a graph.

    Raises:
        ValidationError: It is none.
    """
    if not isinstance(graph, MLGraph):
        raise ValidationError(f"graph: got {shown(graph)}, expected an MLGraph")
    return graph._compiled

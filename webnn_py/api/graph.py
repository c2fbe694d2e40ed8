"""MLGraph, a compiled graph: its sizes, profiles, files and pickling."""

from __future__ import annotations

import functools
import html
import io
import os
from collections.abc import Callable, Mapping
from typing import Any

from webnn_py.api.compiled import CompiledGraph, CompiledOwner
from webnn_py.api.default_session import default_session
from webnn_py.api.descriptor import MLOperandDescriptor
from webnn_py.api.graph_recorder import read_recipe
from webnn_py.api.profile import MLProfile
from webnn_py.api.programs.file import write_graph
from webnn_py.api.view.facts import facts_of
from webnn_py.api.view.page import fragment_of
from webnn_py.core.completion import check_interrupts_nothing, check_may_block
from webnn_py.core.errors import MLError
from webnn_py.core.messages import Suggesting
from webnn_py.core.progress import BuildProgress, with_progress
from webnn_py.ops.bind_sizes import fix, output_shapes
from webnn_py.storage.archive import Archive, check_ending, replacing, write_archive
from webnn_py.storage.graph_file import graph_entries


class MLGraph(CompiledOwner, Suggesting):
    """A compiled graph, bound to the context that built it; `print` lists it.

    A copy (`copy.copy`, `copy.deepcopy`) is another graph of the same context that shares the
    constants in memory. Unpickling a graph compiles it for `ml.default_context` of the process
    that unpickles it.

    Examples:
        ```python
        import asyncio

        import numpy as np

        from webnn_py import MLGraphBuilder, ml

        ctx = ml.create_context_sync(device_type="gpu")
        b = MLGraphBuilder(ctx)
        x = b.input("x", "float32", ["batch", 4])
        graph = b.build_sync({"y": b.softmax(x, 1)})
        print(*graph.inputs, *graph.outputs)  # x y
        print(graph.output_shapes({"batch": 3}))  # {'y': (3, 4)}

        graph.prepare_sync({"batch": 3})  # compile ahead
        asyncio.run(graph.prepare_async({"batch": 4}))
        profile = graph.profile({"x": np.ones((3, 4), np.float32)})
        profile = asyncio.run(graph.profile_async({"x": np.ones((3, 4), np.float32)}))

        graph.save("softmax.mlgraph")
        graph.compile_to("softmax.mlprogram", sizes={"batch": 1})
        graph.destroy()
        ```

    Source: WebNN 2026, "MLGraph interface".
    """

    def __init__(self, compiled: CompiledGraph) -> None:
        super().__init__(compiled)
        self._inputs = compiled.signature.public("inputs")
        self._outputs = compiled.signature.public("outputs")

    @property
    def inputs(self) -> Mapping[str, MLOperandDescriptor]:
        """Return a read-only mapping of input names to MLOperandDescriptors."""
        return self._inputs

    @property
    def outputs(self) -> Mapping[str, MLOperandDescriptor]:
        """Return a read-only mapping of output names to MLOperandDescriptors."""
        return self._outputs

    def output_shapes(self, sizes: Mapping[str, int]) -> dict[str, tuple[int, ...]]:
        """Return the output shapes for these sizes of the open dimensions, without a run.

        Args:
            sizes: Size of each open dimension, by name, such as {"batch": 4}.

        Returns:
            The shape of each output, by name.

        Raises:
            ValidationError: A size is missing, unknown or out of its bounds.
            InvalidStateError: The graph is destroyed.

        Source: spec/execution.md, "Open dimensions".
        """
        return output_shapes(self._compiled.recipe, sizes)

    def prepare_sync(
        self, sizes: Mapping[str, int], *, progress: BuildProgress | None = None
    ) -> None:
        """Compile the graph for these sizes of its open dimensions, ahead of a run.

        Args:
            sizes: Size of each open dimension, by name, such as {"batch": 4}.
            progress: Progress callback, as in `MLGraphBuilder.build_sync`.

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
        """Compile as `prepare_sync` does, on a thread of the context.

        The event loop is never blocked.

        Args:
            sizes: Size of each open dimension, by name.
            progress: Progress callback, called on that thread. Use `loop.call_soon_threadsafe` to
                reach the event loop.

        Raises:
            MLError: As `prepare_sync`.

        Source: spec/execution.md, "Open dimensions".
        """
        work = functools.partial(with_progress, progress, self._compiled.prepare, sizes)
        await self._compiled.session.await_builder(work)

    def profile(self, inputs: Mapping[str, Any], *, runs: int = 5) -> MLProfile:
        """Run the graph several times on this thread and measure its steps.

        One warm-up run before excludes one-time work from the measurement. On a GPU with the
        feature timestamp-query, the times come from the device's own clock. An idle GPU computes
        for a second or more first, until it reaches its full clock rate.

        Args:
            inputs: Every input by name, as the context's `compute` takes it; tensors as they are.
            runs: Number of measured runs, 1 to 10,000; the profile reports medians.

        Returns:
            A profile with a row for each step; it prints as a table.

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
        """Profile as `profile` does, on a thread of the context.

        The event loop is never blocked.

        Args:
            inputs: Every input by name, as the context's `compute` takes it.
            runs: Number of measured runs, 1 to 10,000.

        Returns:
            A profile with a row for each step; it prints as a table.

        Raises:
            MLError: As `profile`.

        Source: webnn_py, spec/execution.md, "Profiles".
        """
        work = functools.partial(self._compiled.profile, inputs, runs)
        return await self._compiled.session.await_builder(work)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Save the graph to a file for `MLContext.load_graph_sync`.

        Any context can load the file, and open dimensions stay open. An existing file is replaced
        once the new one is complete. Constants bound by `initialize_graph` are not saved.

        Args:
            path: Path of the file.

        Raises:
            InvalidStateError: The graph is destroyed.
            NotSupportedError: An option, dimension or the whole graph is too long for a file.
            ValidationError: `path` is not a path, or ends in .onnx.
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
        """Compile the graph for WebGPU and save it as a program that also runs without Python.

        The inputs and outputs become the program's arguments. The file has variants for devices
        with and without optional features. Compiling needs no GPU, whatever the graph's context.

        Args:
            path: Path of the file, conventionally with the suffix `.mlprogram`.
            sizes: Size of each open dimension, by name, such as {"batch": 1}.

        Raises:
            ValidationError: A size is missing, unknown or out of its bounds, an input and an output
                have the same name, or `path` ends in .onnx.
            InvalidStateError: The graph is destroyed, or `initialize_graph` has turned some of its
                inputs into constants.
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
        """Release memory and device objects; the graph cannot run afterwards. Harmless twice.

        Runs in flight still complete.

        Source: WebNN 2026, "MLGraph interface", "destroy()".
        """
        self._compiled.destroy()

    def __str__(self) -> str:
        return str(self._compiled)

    def __repr__(self) -> str:
        state = "destroyed " if self._compiled.destroyed else ""
        return f"<{state}MLGraph {dict(self.inputs)} -> {dict(self.outputs)}>"

    def _repr_html_(self) -> str:
        """Return tables and a drawing of the graph as it runs, for notebooks."""
        try:
            return fragment_of(facts_of(self, {}))
        except MLError:  # it is destroyed, or its context lost
            return f"<pre>{html.escape(repr(self))}</pre>"


def _unpickled(data: bytes) -> MLGraph:
    session = default_session()
    recipe = read_recipe(session, Archive(data, "pickled MLGraph"))
    return MLGraph(CompiledGraph(session, recipe))

"""The methods of a context that load graphs and programs from files."""

from __future__ import annotations

import functools
import os

from webnn_py.api.compiled import CompiledGraph
from webnn_py.api.graph import MLGraph
from webnn_py.api.graph_recorder import read_recipe
from webnn_py.api.programs.program import MLProgram, load_program
from webnn_py.api.session import Session, SessionOwner
from webnn_py.core.errors import convert_memory_errors
from webnn_py.core.messages import Suggesting
from webnn_py.core.progress import BuildProgress, with_progress
from webnn_py.storage.archive import Archive


class Loading(SessionOwner, Suggesting):
    """Mixin of MLContext that loads graphs and programs from files."""

    def load_graph_sync(
        self,
        path: str | os.PathLike[str],
        *,
        verify: bool = False,
        progress: BuildProgress | None = None,
    ) -> MLGraph:
        """Load a graph that `MLGraph.save` wrote on any context, and compile it for this one.

        The constants are memory-mapped, not read: they stay in the file. While the graph is in
        use, the file may be replaced by another one but must not be overwritten.

        Args:
            path: Path of the file.
            verify: Also read all constants and compare their checksums, which takes longer.
            progress: Progress callback, as in `MLGraphBuilder.build_sync`.

        Raises:
            DataError: The file is damaged or is not a saved graph; the message says where. Only
                `verify` detects damage to the contents of constants.
            NotSupportedError: A later version of webnn_py wrote the file, this context does not
                support an operator, or the graph needs more than the device offers.
            ValidationError: `path` is not a path.
            FileError: The file cannot be opened.
            OperationError: The engine or device could not compile the graph.
            ContextLostError: The context is lost.

        Source: spec/saved_graphs.md, "Loading".
        """
        return with_progress(progress, _load, self._session, path, verify)

    async def load_graph_async(
        self,
        path: str | os.PathLike[str],
        *,
        verify: bool = False,
        progress: BuildProgress | None = None,
    ) -> MLGraph:
        """Load a graph on a thread of the context, so that the event loop is never blocked.

        Args:
            path: Path of the file.
            verify: Also read all constants and compare their checksums, which takes longer.
            progress: Progress callback, called on that thread. Use `loop.call_soon_threadsafe` to
                reach the event loop.

        Raises:
            MLError: As `load_graph_sync`.

        Source: spec/saved_graphs.md, "Loading".
        """
        work = functools.partial(with_progress, progress, _load, self._session, path, verify)
        return await self._session.await_builder(work)

    def load_program_sync(
        self, path: str | os.PathLike[str], *, progress: BuildProgress | None = None
    ) -> MLProgram:
        """Load a program that `MLProgram.save` wrote; GPU contexts only.

        Args:
            path: Path of the file.
            progress: Progress callback, as in `MLGraphBuilder.build_sync`.

        Raises:
            InvalidStateError: This is a CPU context.
            DataError: The file is damaged or is not a saved program; the message says where.
            NotSupportedError: The device lacks what the program needs; the message names it.
            FileError: The file cannot be opened.
            OperationError: The device refused a kernel, or has no memory left.
            ContextLostError: The context is lost.

        Source: webnn_py, spec/programs.md, "Files".
        """
        return with_progress(progress, load_program, self, path)

    async def load_program_async(
        self, path: str | os.PathLike[str], *, progress: BuildProgress | None = None
    ) -> MLProgram:
        """Load a program on a thread of the context, so that the event loop is never blocked.

        Args:
            path: Path of the file.
            progress: Progress callback, called on that thread. Use `loop.call_soon_threadsafe` to
                reach the event loop.

        Raises:
            MLError: As `load_program_sync`.

        Source: webnn_py, spec/programs.md, "Files".
        """
        work = functools.partial(with_progress, progress, load_program, self, path)
        return await self._session.await_builder(work)


@convert_memory_errors
def _load(session: Session, path: str | os.PathLike[str], verify: bool) -> MLGraph:
    session.check_alive()
    archive = Archive.open(path)
    if verify:
        for name in archive.names:
            archive.verify(name)
    return MLGraph(CompiledGraph(session, read_recipe(session, archive)))

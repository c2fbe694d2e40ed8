"""Loading: what contexts read from files."""

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
    """The methods of a context that read files."""

    def load_graph_sync(
        self,
        path: str | os.PathLike[str],
        *,
        verify: bool = False,
        progress: BuildProgress | None = None,
    ) -> MLGraph:
        """Load a graph that `MLGraph.save` wrote, on whatever context, and compile it for this one.

        The contents of its constants are mapped into memory, not read: they stay in the file, which
        may be replaced by another one but not be overwritten while the graph is used.

        Args:
            path: The file.
            verify: Read all constants and compare their checksum, too, which takes longer.
            progress: As of `MLGraphBuilder.build_sync`.

        Raises:
            DataError: The file is damaged or no saved graph; the message says where. Damage to the
                contents of constants is only found with `verify`.
            NotSupportedError: A later version of webnn_py wrote it, or this context does not
                support an operator, or has not what the graph needs.
            ValidationError: `path` is no path.
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
        """As `load_graph_sync`, on a thread of the context: the event loop is never blocked.

        Args:
            path: The file.
            verify: As there.
            progress: As there, on that thread: `loop.call_soon_threadsafe` leads back.

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
            path: The file.
            progress: As of `MLGraphBuilder.build_sync`.

        Raises:
            InvalidStateError: This is a CPU context.
            DataError: The file is damaged or no saved program; the message says where.
            NotSupportedError: The device lacks what the program needs; the message says what.
            FileError: The file cannot be opened.
            OperationError: The device refused a kernel, or has no memory left.
            ContextLostError: The context is lost.

        Source: webnn_py, spec/programs.md, "Files".
        """
        return with_progress(progress, load_program, self, path)

    async def load_program_async(
        self, path: str | os.PathLike[str], *, progress: BuildProgress | None = None
    ) -> MLProgram:
        """As `load_program_sync`, on a thread of the context: the event loop is never blocked.

        Args:
            path: The file.
            progress: As there, on that thread: `loop.call_soon_threadsafe` leads back.

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

"""`show_progress`, a progress bar of builds for notebooks and terminals."""

from __future__ import annotations

import sys
import threading
from typing import Any, Protocol

BAR_LETTERS = 30


class _Bar(Protocol):
    def update(self, done: int, total: int) -> None:
        """Show the finished parts and their total."""


class _Bars(threading.local):
    """The bar of the build on each thread."""

    current: _Bar | None = None


_bars = _Bars()


def show_progress(done: int, total: int) -> None:
    """Show a build as a bar: in the cell of a notebook, or on a terminal's standard error.

    Pass it as `progress=` to whatever builds. It shows nothing elsewhere, such as in a log.

    Args:
        done: Finished parts of the build, such as pipelines of a GPU.
        total: All of its parts.

    Examples:
        >>> graph = webnn_py.onnx.load("model.onnx", ctx, progress=webnn_py.show_progress)

    Source: webnn_py.
    """
    if _bars.current is None or done == 0:
        _bars.current = _NotebookBar() if _in_notebook() else _TerminalBar()
    _bars.current.update(done, total)
    if done >= total:
        _bars.current = None


def _in_notebook() -> bool:
    """Return whether this code runs in the kernel of a notebook."""
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    return hasattr(shell, "kernel")


class _NotebookBar:
    """A bar of HTML in the output of a cell."""

    def __init__(self) -> None:
        self._handle: Any = None

    def update(self, done: int, total: int) -> None:
        """Display the bar, or change it."""
        from IPython.display import HTML, display

        bar = HTML(f'<progress value="{done}" max="{total}"></progress> {done} of {total} compiled')
        if self._handle is None:
            self._handle = display(bar, display_id=True)
        else:
            self._handle.update(bar)


class _TerminalBar:
    """A bar in the last line of a terminal."""

    def update(self, done: int, total: int) -> None:
        """Write the line again; leave it when the build ends."""
        if sys.stderr is None or not sys.stderr.isatty():
            return
        full = BAR_LETTERS * done // max(total, 1)
        bar = "#" * full + "." * (BAR_LETTERS - full)
        end = "\n" if done >= total else ""
        sys.stderr.write(f"\r[{bar}] {done} of {total} compiled{end}")
        sys.stderr.flush()

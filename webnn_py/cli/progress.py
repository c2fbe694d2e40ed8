"""Progress reports on standard error, for work that takes over two seconds."""

from __future__ import annotations

import sys
import threading
import time
from types import TracebackType
from typing import Any

from webnn_py.core.messages import printable

PROGRESS_DELAY_SECONDS = 2.0
"""Work that ends sooner shows no progress."""


class Progress:
    """A context manager that shows the progress of its block if that takes long.

    Args:
        title: The name of the work.
        total: Number of steps; None if unknown.

    Attributes:
        done: Finished steps, to be raised by the block.
    """

    def __init__(self, title: str, total: int | None = None) -> None:
        self.done = 0
        self._title = printable(title)
        self._total = total
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Progress:
        self._start = time.monotonic()
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._ended.set()
        self._thread.join()

    def reached(self, done: int, total: int) -> None:
        """Set the finished steps and the number of all."""
        self.done, self._total = done, total

    def _watch(self) -> None:
        if self._ended.wait(PROGRESS_DELAY_SECONDS):
            return
        try:
            import rich.progress as bars
        except ImportError:
            self._print_lines()
            return
        if sys.stderr.isatty():
            self._draw(bars)
        else:
            self._print_lines()

    def _draw(self, bars: Any) -> None:
        from rich.console import Console

        elapsed = bars.TimeElapsedColumn()
        columns = [bars.TextColumn("{task.description}"), bars.BarColumn(), elapsed]
        with bars.Progress(*columns, console=Console(stderr=True), transient=True) as bar:
            task = bar.add_task(self._title, total=self._total)
            while not self._ended.wait(0.1):
                bar.update(task, completed=self.done, total=self._total)

    def _print_lines(self) -> None:
        """Print a line now, and further lines at growing intervals."""
        pause = PROGRESS_DELAY_SECONDS
        while True:
            part = "" if self._total is None else f" {self.done} of {self._total},"
            seconds = time.monotonic() - self._start
            print(f"{self._title}:{part} {seconds:.0f} s", file=sys.stderr, flush=True)
            if self._ended.wait(pause):
                return
            pause *= 1.5

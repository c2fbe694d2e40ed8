"""What passes make of a graph with open dimensions, for one set of sizes after the other."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping

from webnn_py.core.messages import LOG, said
from webnn_py.ir import Graph
from webnn_py.ops.replay import fix

MOST_NODES = 1.5
"""Nodes after passes for all sizes, times those for the first ones: what follows from sizes, such
as ranges, is computed in each run. With more of them, passes run for each set of sizes."""

Run = Callable[[Graph], Graph]
Sizes = Mapping[str, int]


class OpenPasses:
    """Runs passes for the first sizes, of which more is known, and once for all others.

    Where they are refused for all, or leave far more to do, they run for each. Called from any
    thread.

    Args:
        graph: With open dimensions.
        run: Runs the passes on it.

    Attributes:
        opened: The graph after the passes, for all sizes; None as long as that is not known.
    """

    def __init__(self, graph: Graph, run: Run) -> None:
        self._graph = graph
        self._run = run
        self._first: tuple[Sizes, int] | None = None
        self._decided = False
        self._lock = threading.Lock()
        self.opened: Graph | None = None

    def at(self, sizes: Sizes, run: Run) -> Graph:
        """The graph after the passes for some sizes.

        Args:
            sizes: By name.
            run: Runs the passes on the graph recorded for them.
        """
        first = self._first
        if first is not None and first[0] != sizes:
            self.decide()
        if self.opened is not None:
            return fix(self.opened, sizes)
        made = run(fix(self._graph, sizes))
        if first is None:
            self._first = sizes, len(made.nodes)
        return made

    def decide(self) -> None:
        """Run them for all sizes, if that was not done: behind the first ones.

        A thread that is at it is not waited for, as it may have no hurry.
        """
        if self._decided or self._first is None:
            return
        opened = self._run_on_all(MOST_NODES * self._first[1])
        with self._lock:
            if not self._decided:
                self.opened, self._decided = opened, True

    def _run_on_all(self, most: float) -> Graph | None:
        """The graph after the passes for all sizes, if it has no more nodes than that."""
        try:
            opened = self._run(self._graph)
        except Exception as error:  # something is not known of open dimensions
            LOG.info("passes run for each set of sizes: %s", said(error))
            return None
        return opened if len(opened.nodes) <= most else None

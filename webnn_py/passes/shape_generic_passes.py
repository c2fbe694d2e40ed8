"""What passes make of a graph with open dimensions, for one set of sizes after the other."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping

from webnn_py.core.messages import LOG, said
from webnn_py.ir import Graph
from webnn_py.ops.replay import fix

MOST_NODES = 1.5
"""Nodes after passes for all sizes, times those for some: what follows from sizes, such as ranges,
is computed in each run. With more of them, passes run for each set of sizes."""

Run = Callable[[Graph], Graph]
Sizes = Mapping[str, int]


class OpenPasses:
    """Runs passes once for all sizes, or for the first ones by themselves, of which more is known.

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
        self._first: Sizes | None = None
        self._nodes: int | None = None  # for some sizes
        self._decided = False
        self._lock = threading.Lock()
        self.opened: Graph | None = None

    def at(self, sizes: Sizes, run: Run) -> Graph:
        """The graph after the passes for some sizes: the first ones, or all, if that is decided.

        Args:
            sizes: By name.
            run: Runs the passes on the graph recorded for them.
        """
        if self._first is not None and self._first != sizes:
            self.decide()
        if self.opened is not None:
            return fix(self.opened, sizes)
        return self.alone(sizes, run)

    def alone(self, sizes: Sizes, run: Run) -> Graph:
        """The graph after the passes for these sizes; arguments as of `at`."""
        self._first = self._first or sizes
        made = run(fix(self._graph, sizes))
        with self._lock:
            if self._nodes is None:
                self._nodes = len(made.nodes)
                self._compare()
        return made

    def decide(self) -> None:
        """Run them for all sizes, if that was not done.

        A thread that is at it is not waited for, as it may have no hurry.
        """
        if self._decided:
            return
        opened = self._run_on_all()
        with self._lock:
            if not self._decided:
                self.opened, self._decided = opened, True
                self._compare()

    def _compare(self) -> None:
        """Leave what was made for all sizes if it is far more than for some."""
        opened, nodes = self.opened, self._nodes
        if opened is not None and nodes is not None and len(opened.nodes) > MOST_NODES * nodes:
            self.opened = None

    def _run_on_all(self) -> Graph | None:
        """The graph after the passes for all sizes."""
        try:
            return self._run(self._graph)
        except Exception as error:  # something is not known of open dimensions
            LOG.info("passes run for each set of sizes: %s", said(error))
            return None

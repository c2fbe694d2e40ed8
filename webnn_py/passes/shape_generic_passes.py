"""Runs passes on a graph with open dimensions, once for all sizes or for each set of sizes."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping

from webnn_py.core.messages import LOG, describe_error
from webnn_py.ir import Graph
from webnn_py.ops.bind_sizes import fix

MAX_NODE_RATIO = 1.5
"""Most nodes of the graph for all sizes, relative to the graph for one set of sizes.

Passes without sizes cannot fold what depends on them, such as ranges. With more nodes than this,
passes run for each set of sizes."""

Run = Callable[[Graph], Graph]
Sizes = Mapping[str, int]


class OpenPasses:
    """The passes over a graph with open dimensions; thread-safe.

    The first set of sizes runs passes of its own, which can fold more. A second one runs the passes
    once for all sizes. If these fail or leave too many nodes, passes run for each set of sizes.

    Args:
        graph: The graph with open dimensions.
        run: Function that runs the passes for all sizes.

    Attributes:
        opened: The graph after the passes for all sizes; None if they have not run or do not pay.
    """

    def __init__(self, graph: Graph, run: Run) -> None:
        self._graph = graph
        self._run = run
        self._first: Sizes | None = None
        self._nodes: int | None = None  # number of nodes for the first set of sizes
        self._decided = False
        self._lock = threading.Lock()
        self.opened: Graph | None = None

    def at(self, sizes: Sizes, run: Run) -> Graph:
        """Return the graph after the passes, bound to `sizes`.

        Args:
            sizes: A number for each open dimension, by name.
            run: Function that runs the passes on the graph bound to `sizes`.
        """
        if self._first is not None and self._first != sizes:
            self.decide()
        if self.opened is not None:
            return fix(self.opened, sizes)
        return self.alone(sizes, run)

    def alone(self, sizes: Sizes, run: Run) -> Graph:
        """Run the passes for these sizes alone; the arguments are those of `at`."""
        self._first = self._first or sizes
        made = run(fix(self._graph, sizes))
        with self._lock:
            if self._nodes is None:
                self._nodes = len(made.nodes)
                self._compare()
        return made

    def decide(self) -> None:
        """Run the passes for all sizes, once.

        If another thread is running them, run them here too, because that thread may have a low
        priority.
        """
        if self._decided:
            return
        opened = self._run_on_all()
        with self._lock:
            if not self._decided:
                self.opened, self._decided = opened, True
                self._compare()

    def _compare(self) -> None:
        """Drop the graph for all sizes if it has too many nodes."""
        opened, nodes = self.opened, self._nodes
        if opened is not None and nodes is not None and len(opened.nodes) > MAX_NODE_RATIO * nodes:
            self.opened = None

    def _run_on_all(self) -> Graph | None:
        """Return the graph after the passes for all sizes, or None if they fail."""
        try:
            return self._run(self._graph)
        except Exception as error:  # a pass needs a size that is open
            LOG.info("passes run for each set of sizes: %s", describe_error(error))
            return None

"""What passes make of a graph with open dimensions, for one set of sizes after the other."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from webnn_py.core.messages import LOG, said
from webnn_py.ir import Array, Graph
from webnn_py.ops.replay import fix

SMALL = 1 << 12
"""Bytes of a constant that passes make anew each time; others follow from the graph's own."""

Run = Callable[[Graph], Graph]
Sizes = Mapping[str, int]


class OpenPasses:
    """Runs passes for the first two sets of sizes, as more is known of a graph then.

    Where they make of both what they make of the open graph, that holds for further sizes, too.
    Called from any thread.

    Args:
        graph: With open dimensions.
        run: Runs the passes on it.

    Attributes:
        opened: The graph after the passes, for all sizes; None where that is not known.
    """

    def __init__(self, graph: Graph, run: Run) -> None:
        self._graph = graph
        self._run = run
        self._first: tuple[Sizes, Graph] | None = None
        self.opened: Graph | None = None
        self._decided = False

    def at(self, sizes: Sizes, run: Run) -> Graph:
        """The graph after the passes for some sizes.

        Args:
            sizes: By name.
            run: Runs the passes on the graph recorded for them.
        """
        if self.opened is not None:
            return fix(self.opened, sizes)
        made = run(fix(self._graph, sizes))
        first = self._first
        if first is None:
            self._first = sizes, made
        elif not self._decided and first[0] != sizes:
            self._decided, self._first = True, None
            self._decide({(*first[0].items(),): first[1], (*sizes.items(),): made})
        return made

    def _decide(self, made: Mapping[tuple[tuple[str, int], ...], Graph]) -> None:
        try:
            opened = self._run(self._graph)
            same = all(_is_same(fix(opened, dict(at)), graph) for at, graph in made.items())
        except Exception as error:  # something is not known of open dimensions
            LOG.info("passes run for each set of sizes: %s", said(error))
            return
        if same:
            self.opened = opened


def _is_same(one: Graph, other: Graph) -> bool:
    """Whether graphs have the same nodes in the same order, and the same contents."""
    arrays = zip(one.constants.values(), other.constants.values(), strict=False)
    return str(one) == str(other) and all(a is b or _is_equal(a, b) for a, b in arrays)


def _is_equal(one: Array, other: Array) -> bool:
    """Whether small arrays are the same: bit by bit, as 0 is equal to -0."""
    return one.nbytes <= SMALL and one.dtype == other.dtype and one.tobytes() == other.tobytes()

"""Layered graph drawing: place boxes in layers from top to bottom, and route the lines.

After Sugiyama, Tagawa and Toda, "Methods for visual understanding of hierarchical system
structures", 1981. Each box gets a layer. A line that passes layers gets a point in each. The order
within a layer, and then the coordinates, follow the neighbours.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

BOX_HEIGHT = 58
"""Pixels."""
BETWEEN_LAYERS = 34
"""Pixels."""
BETWEEN_BOXES = 22
"""Pixels."""
SWEEPS = 6
MAX_ROUTE_POINTS = 60_000
"""Limit of points of lines in the layers they pass. Beyond it, the longest lines are straight."""


@dataclass(frozen=True)
class Drawing:
    """Coordinates of boxes and lines, in pixels.

    Attributes:
        boxes: The middle of each box's upper edge.
        lines: Start box, end box and points of each line.
        width: Width of the drawing.
        height: Height of the drawing.
    """

    boxes: Sequence[tuple[float, float]]
    lines: Sequence[tuple[int, int, Sequence[tuple[float, float]]]]
    width: float
    height: float


def draw(widths: Sequence[float], lines: Sequence[tuple[int, int]]) -> Drawing:
    """Place boxes and route lines.

    Args:
        widths: Widths of the boxes in pixels.
        lines: Start and end box of each line; the start has the smaller number.
    """
    return _Layers(widths, lines).drawing()


class _Layers:
    """The layers of boxes and of route points; points have the numbers behind the boxes."""

    def __init__(self, widths: Sequence[float], lines: Sequence[tuple[int, int]]) -> None:
        self._boxes = len(widths)
        self._lines = list(dict.fromkeys(lines))
        self._widths = [*widths]
        self._layer_of = self._ranks()
        self._paths = self._add_points()
        self._above: list[list[int]] = [[] for _ in self._widths]
        self._below: list[list[int]] = [[] for _ in self._widths]
        joined = {pair for path in self._paths for pair in itertools.pairwise(path)}
        for upper, lower in sorted(joined):
            self._below[upper].append(lower)
            self._above[lower].append(upper)
        self._layers: list[list[int]] = [[] for _ in range(max(self._layer_of, default=-1) + 1)]
        for number, layer in enumerate(self._layer_of):
            self._layers[layer].append(number)

    def drawing(self) -> Drawing:
        """Return the finished drawing."""
        self._sort()
        x = self._across()
        left = min((x[i] - w / 2 for i, w in enumerate(self._widths)), default=0)
        right = max((x[i] + w / 2 for i, w in enumerate(self._widths)), default=0)
        step = BOX_HEIGHT + BETWEEN_LAYERS
        at = [(x[i] - left, self._layer_of[i] * step) for i in range(len(x))]
        routes = []
        for path in self._paths:
            start, *between, end = path
            points = [(at[start][0], at[start][1] + BOX_HEIGHT)]
            for place in between:
                points += [at[place], (at[place][0], at[place][1] + BOX_HEIGHT)]
            routes.append((start, end, [*points, at[end]]))
        height = len(self._layers) * step
        return Drawing(at[: self._boxes], routes, right - left, height)

    def _ranks(self) -> list[int]:
        """Assign layers: a box below all it reads, a source just above its first reader."""
        ranks = [0] * self._boxes
        readers: list[list[int]] = [[] for _ in range(self._boxes)]
        sources = set(range(self._boxes))
        for upper, lower in sorted(self._lines, key=lambda line: line[1]):
            ranks[lower] = max(ranks[lower], ranks[upper] + 1)
            readers[upper].append(lower)
            sources.discard(lower)
        for box in sources:
            if readers[box]:
                ranks[box] = min(ranks[reader] for reader in readers[box]) - 1
        return ranks

    def _add_points(self) -> list[list[int]]:
        """Add route points; return the path of each line. Lines from one box share points."""
        points: dict[tuple[int, int], int] = {}
        paths = []
        for upper, lower in sorted(self._lines, key=self._length):
            path = [upper]
            passed = range(self._layer_of[upper] + 1, self._layer_of[lower])
            if len(points) + len(passed) <= MAX_ROUTE_POINTS:
                for layer in passed:
                    if (upper, layer) not in points:
                        points[upper, layer] = len(self._widths)
                        self._widths.append(1)
                        self._layer_of.append(layer)
                    path.append(points[upper, layer])
            paths.append([*path, lower])
        return paths

    def _length(self, line: tuple[int, int]) -> int:
        return self._layer_of[line[1]] - self._layer_of[line[0]]

    def _sort(self) -> None:
        """Sort each layer by the mean place of neighbours, sweeping down and up in turn."""
        place = [0.0] * len(self._widths)
        for layer in self._layers:
            for number, each in enumerate(layer):
                place[each] = number
        for sweep in range(SWEEPS):
            down = sweep % 2 == 0
            neighbours = self._above if down else self._below
            for layer in self._layers if down else reversed(self._layers):
                middle = {each: _mean([place[n] for n in neighbours[each]]) for each in layer}
                layer.sort(key=lambda each: place[each] if (m := middle[each]) is None else m)
                for number, each in enumerate(layer):
                    place[each] = number

    def _across(self) -> list[float]:
        """Return the middle x of all boxes and points, as near to their neighbours as possible."""
        x = [0.0] * len(self._widths)
        for layer in self._layers:
            self._spread(layer, [0.0] * len(layer), x)
        for sweep in range(2 * SWEEPS):
            down = sweep % 2 == 0
            neighbours = self._above if down else self._below
            for layer in self._layers if down else reversed(self._layers):
                wanted = []
                for each in layer:
                    middle = _mean([x[n] for n in neighbours[each]])
                    wanted.append(x[each] if middle is None else middle)
                self._spread(layer, wanted, x)
        return x

    def _spread(self, layer: Sequence[int], wanted: Sequence[float], x: list[float]) -> None:
        """Place a layer near the wanted x: least squares in the given order, without overlaps."""
        groups: list[tuple[float, int, float]] = []  # sum of wanted starts, members, start
        offsets, end = [], 0.0
        for each in layer:
            offsets.append(end + self._widths[each] / 2)
            end += self._widths[each] + BETWEEN_BOXES
        for want, offset in zip(wanted, offsets, strict=True):
            total, count = want - offset, 1
            while groups and groups[-1][2] >= total / count:
                total, count = total + groups[-1][0], count + groups[-1][1]
                groups.pop()
            groups.append((total, count, total / count))
        starts = [start for _, count, start in groups for _ in range(count)]
        for each, start, offset in zip(layer, starts, offsets, strict=True):
            x[each] = start + offset


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None

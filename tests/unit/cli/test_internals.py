"""Where the boxes of a drawn graph stand, and how long work is told of."""

from __future__ import annotations

import itertools
import random

import pytest

from webnn_py.api.view import drawing
from webnn_py.api.view.drawing import BETWEEN_BOXES, BOX_HEIGHT, Drawing, draw
from webnn_py.cli import progress


def overlaps(widths: list[float], made: Drawing) -> list[tuple[int, int]]:
    """Boxes of one layer that are nearer than they may be."""
    found = []
    for a, b in itertools.combinations(range(len(widths)), 2):
        (x, y), (other_x, other_y) = made.boxes[a], made.boxes[b]
        apart = (widths[a] + widths[b]) / 2 + BETWEEN_BOXES
        if y == other_y and abs(x - other_x) < apart - 1e-6:
            found.append((a, b))
    return found


def test_a_chain_is_a_straight_line() -> None:
    made = draw([50, 90, 70], [(0, 1), (1, 2)])
    assert [x for x, _ in made.boxes] == [45, 45, 45]
    assert made.width == 90
    assert [y for _, y in made.boxes] == sorted({y for _, y in made.boxes})
    assert made.lines[0][2] == [(45, BOX_HEIGHT), made.boxes[1]]


def test_a_line_passes_beside_the_boxes_that_it_skips() -> None:
    made = draw([60] * 4, [(0, 1), (1, 2), (2, 3), (0, 3)])
    (skipping,) = (points for start, end, points in made.lines if (start, end) == (0, 3))
    assert len(skipping) == 2 + 2 * 2
    x = made.boxes[1][0]
    assert all(abs(at - x) > 30 for at, _ in skipping[1:-1])


@pytest.mark.parametrize("seed", range(5))
def test_boxes_do_not_overlap_and_lines_lead_down(seed: int) -> None:
    chance = random.Random(seed)
    widths = [chance.uniform(40, 200) for _ in range(60)]
    lines = [(chance.randrange(b), b) for b in range(1, 60) for _ in range(chance.randint(0, 3))]
    made = draw(widths, lines)
    assert not overlaps(widths, made)
    assert {(start, end) for start, end, _ in made.lines} == set(lines)
    for start, end, points in made.lines:
        assert points[0] == (made.boxes[start][0], made.boxes[start][1] + BOX_HEIGHT)
        assert points[-1] == made.boxes[end]
        assert all(upper[1] < lower[1] for upper, lower in itertools.pairwise(points))
    for (x, y), width in zip(made.boxes, widths, strict=True):
        assert width / 2 - 1e-6 <= x <= made.width - width / 2 + 1e-6
        assert 0 <= y < made.height


def test_what_reads_nothing_stands_above_its_reader() -> None:
    made = draw([60] * 4, [(0, 1), (1, 3), (2, 3)])
    assert made.boxes[2][1] == made.boxes[1][1] > made.boxes[0][1]


def test_lines_get_no_more_points_than_there_may_be(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drawing, "MAX_ROUTE_POINTS", 3)
    chain = [(n, n + 1) for n in range(9)]
    made = draw([60] * 10, [*chain, (0, 9), (0, 3)])
    lengths = {(start, end): len(points) for start, end, points in made.lines}
    assert lengths[0, 3] == 2 + 2 * 2
    assert lengths[0, 9] == 2


def test_nothing_is_drawn_of_nothing() -> None:
    assert draw([], []) == Drawing([], [], 0, 0)


# test_run


@pytest.mark.parametrize("total", [None, 4])
def test_what_takes_long_is_shown(
    total: int | None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(progress, "PROGRESS_DELAY_SECONDS", 0.01)
    said = ""
    shown = progress.Progress("thinking", total)
    shown.done = 1
    with shown:
        while "\n" not in said:  # it is written by another thread
            said += capsys.readouterr().err
    assert said.startswith("thinking: 1 of 4, " if total else "thinking: ")
    assert said.splitlines()[0].endswith(" s")
    said = ""
    with progress.Progress("building") as built:
        built.reached(3, 7)
        while "3 of 7" not in said:
            said += capsys.readouterr().err
    monkeypatch.setattr(progress, "PROGRESS_DELAY_SECONDS", 60)
    with progress.Progress("thinking"):
        pass
    assert not capsys.readouterr().err

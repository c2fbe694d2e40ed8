"""Positions: an order to which one adds anywhere, against a plain list."""

from __future__ import annotations

import gc
import random

import pytest

from webnn_py.ordering.order_maintenance import MIN_SWEPT, Position, Positions


class Owner:
    """What has a position."""


def walked(positions: Positions) -> list[Position]:
    found, position = [], positions._ring.after
    while position is not positions._ring:
        found.append(position)
        position = position.after
    return found


@pytest.mark.parametrize("where", ["anywhere", "before one", "after one", "at the end"])
def test_labels_rise_in_the_order_of_a_list(where: str) -> None:
    chance, positions = random.Random(1), Positions()
    fixed, expected = positions.end(), [positions.end()]
    owners = {position: Owner() for position in (fixed, expected[0])}
    expected.insert(0, fixed)
    for position, owner in owners.items():
        positions.own(owner, position)
    for number in range(600):
        other = chance.choice(expected) if where == "anywhere" else fixed
        if where == "at the end":
            made, place = positions.end(), len(expected)
        elif where == "before one" or (where == "anywhere" and chance.random() < 0.5):
            made, place = positions.before(other), expected.index(other)
        else:
            made, place = positions.after(other), expected.index(other) + 1
        expected.insert(place, made)
        owners[made] = Owner()
        positions.own(owners[made], made)
        if where == "anywhere" and number % 3 == 0:
            gone = chance.choice(expected[1:])
            gone = made if gone is fixed else gone
            expected.remove(gone)
            positions.disown(owners[gone], gone)
    assert walked(positions) == expected
    labels = [position.label for position in expected]
    assert labels == sorted(set(labels))


def test_a_position_is_gone_with_the_last_that_has_it() -> None:
    positions, first, second = Positions(), Owner(), Owner()
    position = positions.end()
    positions.own(first, position)
    assert not position.shared
    positions.own(second, position)
    assert position.shared
    positions.disown(first, position)
    assert len(positions) == 1
    positions.disown(second, position)
    assert len(positions) == 0


def test_positions_of_what_went_without_a_word_do_not_pile_up() -> None:
    positions, kept = Positions(), Owner()
    positions.own(kept, positions.end())
    for _ in range(20 * MIN_SWEPT):
        positions.own(Owner(), positions.end())
    gc.collect()
    assert len(positions) <= MIN_SWEPT + 2

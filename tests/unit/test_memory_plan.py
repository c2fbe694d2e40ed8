"""Values that live at the same time never share a buffer."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from webnn_py.memory.plan import Plan, last_uses, plan_buffers

Steps = list[tuple[list[int], list[int]]]


@st.composite
def programs(draw: st.DrawFn) -> tuple[Steps, dict[int, int]]:
    """Steps in the form of a graph: each value is written once, and read only after that.

    Negative values are inputs and constants, which are not placed; so are some of the others.
    """
    steps: Steps = []
    known = [-1, -2]
    for _ in range(draw(st.integers(1, 12))):
        reads = draw(st.lists(st.sampled_from(known), max_size=3))
        first = max(known) + 1 if max(known) >= 0 else 0
        writes = list(range(first, first + draw(st.integers(1, 2))))
        steps.append((reads, writes))
        known += writes
    placed = draw(st.sets(st.sampled_from([v for v in known if v >= 0])))
    return steps, {value: draw(st.integers(1, 64)) for value in sorted(placed)}


def lifetimes(steps: Steps) -> dict[int, range]:
    """From the step that writes a value to the last one that reads it, counted afresh."""
    touched: dict[int, list[int]] = {}
    for number, (reads, writes) in enumerate(steps):
        for value in (*reads, *writes):
            touched.setdefault(value, []).append(number)
    return {value: range(min(at), max(at) + 1) for value, at in touched.items()}


@given(programs())
def test_two_live_values_never_share_a_slot(program: tuple[Steps, dict[int, int]]) -> None:
    steps, sizes = program
    made, live = plan_buffers(steps, sizes), lifetimes(steps)
    for a, b in itertools.combinations(sizes, 2):
        if made.slots[a] == made.slots[b]:
            assert not set(live[a]) & set(live[b])


@given(programs())
def test_a_step_never_reads_and_writes_one_slot(program: tuple[Steps, dict[int, int]]) -> None:
    steps, sizes = program
    slots = plan_buffers(steps, sizes).slots
    for reads, writes in steps:
        read = {slots[value] for value in reads if value in slots}
        written = [slots[value] for value in writes if value in slots]
        assert not read & set(written)
        assert len(set(written)) == len(written)


@given(programs())
def test_every_value_to_place_fits_its_slot(program: tuple[Steps, dict[int, int]]) -> None:
    steps, sizes = program
    made = plan_buffers(steps, sizes)
    assert set(made.slots) == set(sizes)
    assert all(made.sizes[made.slots[value]] >= size for value, size in sizes.items())
    assert made.total <= sum(sizes.values())


@given(programs())
def test_no_plan_takes_less_than_what_lives_at_once(program: tuple[Steps, dict[int, int]]) -> None:
    steps, sizes = program
    made, live = plan_buffers(steps, sizes), lifetimes(steps)
    at_once = [sum(sizes[v] for v in sizes if step in live[v]) for step in range(len(steps))]
    assert made.bound == max(at_once)
    assert made.total >= made.bound


@given(programs())
def test_last_uses(program: tuple[Steps, dict[int, int]]) -> None:
    steps, _ = program
    assert last_uses(steps) == {value: at[-1] for value, at in lifetimes(steps).items()}


def test_a_chain_needs_two_buffers() -> None:
    steps: Steps = [([-1], [0]), ([0], [1]), ([1], [2]), ([2], [3])]
    assert plan_buffers(steps, dict.fromkeys(range(4), 16)).sizes == (16, 16)


def test_the_tightest_free_buffer_is_taken_and_the_largest_grown() -> None:
    # 0 and 1 are free when 2 is written; so are they, 2 being dead, when 3 is.
    steps: Steps = [([], [0, 1]), ([0, 1], []), ([], [2]), ([], [3])]
    made = plan_buffers(steps, {0: 100, 1: 10, 2: 8, 3: 200})
    assert made == Plan(made.slots, (200, 10), 200)
    assert made.slots == {0: 0, 1: 1, 2: 1, 3: 0}


def test_a_large_value_is_not_put_beside_small_ones_that_died_before_it() -> None:
    """In their order the values would grow a buffer that is too small for the largest one."""
    steps: Steps = [([], [0]), ([0], [1]), ([1], [2]), ([2], [3]), ([3], [4]), ([4], [5])]
    sizes = {0: 10, 1: 20, 2: 30, 3: 40, 4: 50, 5: 60}
    made = plan_buffers(steps, sizes)
    assert (made.bound, made.total) == (110, 110)


def test_steps_may_outnumber_values() -> None:
    steps: Steps = [([], [0]), ([], [1]), ([], [2]), ([], [3]), ([], [4, 5])]
    assert len(set(plan_buffers(steps, {0: 2, 4: 1, 5: 1}).slots.values())) > 1


def test_skipped_blocks_take_little_more_than_lives_at_once() -> None:
    """As of networks whose blocks narrow what comes in and widen it again, growing on the way."""
    steps: Steps = [([], [0])]
    sizes = {0: 64}
    for block in range(12):
        given = 3 * block
        steps += [([given], [given + 1]), ([given + 1], [given + 2])]
        steps.append(([given, given + 2], [given + 3]))
        size = 64 * (1 + block % 4)
        sizes |= {given + 1: size // 4, given + 2: size, given + 3: size + 16}
    made = plan_buffers(steps, sizes)
    assert made.total <= 1.25 * made.bound

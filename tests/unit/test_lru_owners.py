"""Those that were used last keep what they have."""

from __future__ import annotations

import gc
import weakref

from webnn_py.core.lru_cache import LRUOwners


class Keeping:
    def __init__(self) -> None:
        self.keeps = True

    def release(self) -> None:
        self.keeps = False


def used(most: int, order: str) -> str:
    """Which of some keep what they have after they were used in an order."""
    last, made = LRUOwners(most), {name: Keeping() for name in sorted(set(order))}
    for name in order:
        made[name].keeps = True
        last.use(made[name])
    return "".join(name for name, keeper in made.items() if keeper.keeps)


def test_those_that_were_used_last_keep_what_they_have() -> None:
    assert used(1, "a") == "a"
    assert used(1, "ab") == "b"
    assert used(2, "abc") == "bc"
    assert used(2, "abcab") == "ab"
    assert used(2, "abac") == "ac"
    assert used(3, "aaabbbccc") == "abc"
    assert used(3, "abcdabcd") == "bcd"


def test_nobody_is_kept_alive() -> None:
    last, first = LRUOwners(2), Keeping()
    last.use(first)
    there = weakref.ref(first)
    del first
    gc.collect()
    assert there() is None
    others = [Keeping() for _ in range(2)]
    for other in others:
        last.use(other)
    assert all(other.keeps for other in others)

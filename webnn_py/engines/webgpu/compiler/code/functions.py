"""Which functions of a kernel are called."""

from __future__ import annotations

import re
from collections.abc import Sequence


def reachable(functions: Sequence[str], main: str) -> list[str]:
    """The functions that the entry point calls, directly or not; hooks may go unused."""
    names = {re.match(r"fn (\w+)", function).group(1): function for function in functions}  # type: ignore[union-attr]
    wanted: set[str] = set()
    frontier = [main]
    while frontier:
        text = frontier.pop()
        called = {name for name in names.keys() - wanted if names_word(text, name, "(")}
        wanted |= called
        frontier += [names[name].partition("{")[2] for name in called]
    return [function for name, function in names.items() if name in wanted]


def names_word(text: str, name: str, behind: str = "") -> bool:
    """Whether a word stands in code, and something right behind it; far faster than a pattern."""
    at = text.find(name + behind)
    while at >= 0:
        end = at + len(name)
        if not (_is_of_word(text[at - 1 : at]) or _is_of_word(text[end : end + 1])):
            return True
        at = text.find(name + behind, end)
    return False


def _is_of_word(letter: str) -> bool:
    return letter.isalnum() or letter == "_"

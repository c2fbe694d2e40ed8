"""Find names in WGSL text."""

from __future__ import annotations

from collections.abc import Iterator


def is_word(text: str) -> bool:
    """Whether an expression is a name or a number without a sign or point."""
    return bool(text) and all(map(_is_of_word, text))


def count_calls(text: str, name: str) -> int:
    """Return how often a text calls a function."""
    count, at = 0, text.find(f"{name}(")
    while at >= 0:
        count += not _is_of_word(text[at - 1 : at])
        at = text.find(f"{name}(", at + len(name))
    return count


def names_with_prefix(text: str, prefix: str) -> Iterator[str]:
    """Yield the names in a text that begin with a prefix, in order."""
    before, *pieces = text.split(prefix)
    for piece in pieces:
        if not _is_of_word(before[-1:]):
            length = next((n for n, letter in enumerate(piece) if not _is_of_word(letter)), None)
            yield prefix + piece[:length]
        before = piece


def names_word(text: str, name: str) -> bool:
    """Whether a name stands in a text as a whole word."""
    at = text.find(name)
    while at >= 0:
        end = at + len(name)
        if not (_is_of_word(text[at - 1 : at]) or _is_of_word(text[end : end + 1])):
            return True
        at = text.find(name, end)
    return False


def _is_of_word(letter: str) -> bool:
    return letter.isalnum() or letter == "_"

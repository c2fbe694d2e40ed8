"""Functions of a shader, and the calls and names in a text."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from webnn_py.engines.webgpu.program.pieces import Code


@dataclass(frozen=True, slots=True)
class Function:
    """A function of a shader.

    Attributes:
        name: Its name.
        parameters: Its parameters with their types.
        result: WGSL type of its result, or "".
        code: All between its braces.
    """

    name: str
    parameters: str
    result: str
    code: Code

    @classmethod
    def of(cls, name: str, parameters: str, result: str, text: str) -> Function:
        """Return a function by a template's text, one statement in a line or between spaces."""
        return cls(name, parameters, result, Code.of(text))

    @property
    def wgsl(self) -> str:
        """Its declaration in WGSL."""
        result = f" -> {self.result}" if self.result else ""
        return f"fn {self.name}({self.parameters}){result} {{{self.code.wgsl}}}"


def is_word(text: str) -> bool:
    """Whether an expression is a name or a number without a sign or point."""
    return bool(text) and all(map(_is_of_word, text))


def count_calls(code: Code, name: str) -> int:
    """Return how often a code calls a function."""
    text = code.wgsl
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

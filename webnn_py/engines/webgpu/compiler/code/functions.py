"""Functions of a shader, and the calls and names in a text."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from webnn_py.engines.webgpu.program.pieces import Code

PRELUDE = "wn_"
"""Prefix of the functions of the prelude, which are the same in all shaders."""


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
    if not name.startswith(PRELUDE):
        return code.names.count(name)
    return count_uses(code.wgsl, name, "(")


def count_uses(text: str, name: str, bracket: str) -> int:
    """Return how often a name stands before a bracket in WGSL."""
    use = name + bracket
    count, at = 0, text.find(use)
    while at >= 0:
        before = text[at - 1 : at]
        count += not (_is_of_word(before) or before == ".")
        at = text.find(use, at + len(use))
    return count


def names_with_prefix(text: str, prefix: str) -> Iterator[str]:
    """Yield the names in a text that begin with a prefix, in order."""
    before, *pieces = text.split(prefix)
    for piece in pieces:
        if not _is_of_word(before[-1:]):
            length = next((n for n, letter in enumerate(piece) if not _is_of_word(letter)), None)
            yield prefix + piece[:length]
        before = piece


def _is_of_word(letter: str) -> bool:
    return letter.isalnum() or letter == "_"

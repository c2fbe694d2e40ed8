"""WGSL under construction: text in which numbers, names and loops are declared.

Templates write WGSL as text, and write what later stages look for through the functions here, as in
`f"if (i < {u32(count)}) {{"`. A declared part stands between two brackets that WGSL does not have.
`Code` splits a text into its pieces once. Stages compare and replace pieces; `wgsl` prints them.
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal as OneOf

from webnn_py.core.shape_tracing import Traced, is_traced, mark_in, number_in

NumberType = OneOf["u", "i", "lu", "li", "f"]

_OPEN, _CLOSE = "⟦", "⟧"
_LITERAL, _DIVISOR, _NAME, _LOOP, _BODY, _END, _BRANCH = "#/$()}|"

MAX_CACHED_PIECES = 4096
"""Declared parts that are cached by their text."""


@dataclass(frozen=True, slots=True)
class Literal:
    """A number.

    Attributes:
        number: Its digits, or the mark of a traced number.
        type: The suffix of its type. Literals of i32 have none in WGSL.
        divides: It is a divisor. Compilers turn divisions by literals into products.
    """

    number: str
    type: NumberType
    divides: bool = False

    @property
    def mark(self) -> int | None:
        """The mark of its traced number; None for other numbers."""
        return mark_in(self.number)

    @property
    def tagged(self) -> str:
        """The literal as a template writes it."""
        return _tagged(self.number, self.type, self.divides)

    @property
    def wgsl(self) -> str:
        """The literal in WGSL; of a traced number, with its mark."""
        point = ".0" if self.type == "f" and self.mark is not None else ""
        return f"{self.number}{point}{'' if self.type == 'i' else self.type}"

    def exactly(self) -> Literal:
        """Return the literal of the number for the traced sizes, and require it for others."""
        traced = number_in(self.number) if self.mark is not None else None
        if not is_traced(traced):
            return self
        exact = traced.exactly()
        digits = str(float(exact) if self.type == "f" else exact)
        return Literal(digits, self.type, self.divides)

    @property
    def word(self) -> int:
        """The word from which a kernel reads the number."""
        return word_of(float(self.number) if self.type == "f" else int(self.number), self.type)


@dataclass(frozen=True, slots=True)
class Name:
    """The name of a binding, a workgroup array, or a function of a template."""

    text: str

    @property
    def tagged(self) -> str:
        """The name as a template writes it."""
        return f"{_OPEN}{_NAME}{self.text}{_CLOSE}"

    @property
    def wgsl(self) -> str:
        """The name."""
        return self.text


@dataclass(frozen=True, slots=True)
class Loop:
    """The beginning of a loop's head.

    Attributes:
        iterations: The most iterations: digits, or the mark of a traced number.
    """

    iterations: str

    @property
    def tagged(self) -> str:
        """The beginning as a template writes it."""
        return f"{_OPEN}{_LOOP}{self.iterations}{_CLOSE}"

    wgsl = ""


@dataclass(frozen=True, slots=True)
class LoopBody:
    """The end of a loop's head."""

    tagged = f"{_OPEN}{_BODY}{_CLOSE}"
    wgsl = ""


@dataclass(frozen=True, slots=True)
class LoopEnd:
    """The end of a loop."""

    tagged = f"{_OPEN}{_END}{_CLOSE}"
    wgsl = ""


@dataclass(frozen=True, slots=True)
class Branch:
    """The beginning of a fused kernel's branch, which runs one of the kernels."""

    tagged = f"{_OPEN}{_BRANCH}{_CLOSE}"
    wgsl = ""


Declared = Literal | Name | Loop | LoopBody | LoopEnd | Branch
Piece = str | Declared


class Code:
    """Statements or an expression: plain text and declared parts, immutable.

    Args:
        pieces: The pieces in order.
    """

    def __init__(self, pieces: Iterable[Piece]) -> None:
        self.pieces = tuple(pieces)

    @classmethod
    def of(cls, text: str) -> Code:
        """Return the pieces of a template's text."""
        return cls(_pieces_of(text))

    @property
    def tagged(self) -> str:
        """The code as a template writes it."""
        return "".join(p if isinstance(p, str) else p.tagged for p in self.pieces)

    @functools.cached_property
    def wgsl(self) -> str:
        """The code in WGSL."""
        return "".join([p if isinstance(p, str) else p.wgsl for p in self.pieces])

    @functools.cached_property
    def literals(self) -> dict[int, Literal]:
        """The numbers, by their places among the pieces."""
        return {n: piece for n, piece in enumerate(self.pieces) if isinstance(piece, Literal)}

    @property
    def is_traced(self) -> bool:
        """Whether it has traced numbers."""
        return any(literal.mark is not None for literal in self.literals.values())

    @functools.cached_property
    def names(self) -> Sequence[str]:
        """The declared names, with repetitions."""
        return [piece.text for piece in self.pieces if isinstance(piece, Name)]

    @functools.cached_property
    def loops(self) -> int:
        """The number of loops."""
        return sum(isinstance(piece, Loop) for piece in self.pieces)

    def replaced(self, replace: Callable[[Declared], Piece]) -> Code:
        """Return the code with each declared part replaced by what a function returns for it."""
        return Code(p if isinstance(p, str) else replace(p) for p in self.pieces)

    def split_at_loops(self) -> Iterator[Code | Loop | LoopEnd]:
        """Yield the beginnings and ends of loops, and the code before, between and behind them."""
        begin = 0
        for place, piece in enumerate(self.pieces):
            if isinstance(piece, (Loop, LoopEnd)):
                yield Code(self.pieces[begin:place])
                yield piece
                begin = place + 1
        yield Code(self.pieces[begin:])

    def __add__(self, other: Code) -> Code:
        return Code((*self.pieces, *other.pieces))


def word_of(number: float, type_: NumberType) -> int:
    """Return the word from which a kernel reads a number: the bits of a float, or the low ones."""
    if type_ == "f":
        return int.from_bytes(struct.pack("<f", number), "little")
    return int(number) & 0xFFFFFFFF


def printed(text: str) -> str:
    """Return a template's text in WGSL."""
    return Code.of(text).wgsl if _OPEN in text else text


def u32(number: int | Traced) -> str:
    """Write an unsigned number."""
    return _tagged(number, "u")


def divisor(number: int | Traced) -> str:
    """Write an unsigned number behind `/` or `%`."""
    return _tagged(number, "u", divides=True)


def i32(number: int | Traced) -> str:
    """Write a signed number."""
    return f"i32({_tagged(number, 'i')})"


def number(digits: object, type_: NumberType) -> str:
    """Write a number of any type."""
    return _tagged(digits, type_)


def declared(text: str) -> str:
    """Write the name of a binding, a workgroup array, or a function of a template."""
    return Name(text).tagged


def loop(head: str, iterations: int) -> str:
    """Write the head of a loop that makes at most `iterations`, up to its opening brace."""
    return f"{Loop(str(iterations)).tagged}{head}{LoopBody.tagged} {{"


BRANCH = Branch().tagged
"""What stands before a fused kernel's branch."""

END_LOOP = f"{LoopEnd.tagged}}}"
"""The closing brace of a loop."""


def _tagged(digits: object, type_: NumberType, divides: bool = False) -> str:
    """Return a literal as a template writes it; of a traced number, with its mark."""
    return f"{_OPEN}{_DIVISOR if divides else _LITERAL}{digits!s} {type_}{_CLOSE}"


def _pieces_of(text: str) -> Iterator[Piece]:
    plain, *tagged = text.split(_OPEN)
    if plain:
        yield plain
    for part in tagged:
        tag, _, plain = part.partition(_CLOSE)
        yield _declared(tag)
        if plain:
            yield plain


@functools.lru_cache(MAX_CACHED_PIECES)
def _declared(tag: str) -> Declared:
    """Return the declared part between two brackets."""
    kind, text = tag[0], tag[1:]
    if kind in (_LITERAL, _DIVISOR):
        digits, _, type_ = text.partition(" ")
        return Literal(digits, type_, kind == _DIVISOR)  # type: ignore[arg-type]  # by `tagged`
    if kind == _NAME:
        return Name(text)
    if kind == _LOOP:
        return Loop(text)
    return _MARKERS[kind]


_MARKERS: dict[str, Declared] = {_BODY: LoopBody(), _END: LoopEnd(), _BRANCH: Branch()}

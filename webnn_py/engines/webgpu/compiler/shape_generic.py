"""Kernels of a graph with open dimensions: those for further sizes have the same code.

Compiling takes most of the time until a graph runs for sizes that it has not met. The kernels for
its first sizes have these in their code, which runs fastest. From the second sizes on, alike
kernels share their code as those of one graph do (`sharing.py`), divisors included: numbers in
which any two of them differed are read from a uniform buffer. What sizes decide otherwise, such as
tiles and loads of four elements at once, is code of another form, of which there are few.
"""

from __future__ import annotations

import dataclasses
import re
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from webnn_py.engines.webgpu.compiler.kernel import Kernel
from webnn_py.engines.webgpu.compiler.rounds import without_said
from webnn_py.engines.webgpu.compiler.sharing import HEAD, SHORT, Span, reading, word_of
from webnn_py.engines.webgpu.program.storage import Features

MOST_NUMBERS = 512
"""That kernels read; with more of them they are compiled for their sizes."""

_NUMBER = re.compile(
    r"(\d(?<!\w\d)(?:\d*(?=(?:u|i|l[iu])\b)|\d*\.\d*(?:e[+-]?\d+)?(?=f\b)|\d*e[+-]?\d+(?=f\b)))"
)
"""A number without what tells its type."""
_TYPE = re.compile("u|f|i|l[iu]")

_KEPT = "\N{MASCULINE ORDINAL INDICATOR}"
"""Stands before numbers that stay, of a letter's kind, so that none is found there."""
_INT32 = re.compile(r"\bi32\((-?)(\d+)\)")
_SHORT_LOOP = re.compile(rf"\b(?=[0-{SHORT}]u\b)")
_LONG = re.compile(rf"\b(?=\d{{{len(str(2**31))},}}l[iu])")

Write = Callable[[], Sequence[Kernel]]


def parted(code: str) -> tuple[str, list[str]]:
    """The form of code, and the numbers that may as well be read: also divisors.

    Ends of short loops stay, which compilers write out, and what does not fit into a word.
    """
    parts = _NUMBER.split(_marked(code))
    return "#".join(parts[::2]), parts[1::2]


def _marked(code: str) -> str:
    """Code that says of each number of what type it is, and which of them stay."""
    code = _INT32.sub(r"i32(\1\2i)", without_said(code))
    code = HEAD.sub(lambda head: _SHORT_LOOP.sub(_KEPT, head[0]), code)
    return _LONG.sub(_KEPT, code)


@dataclass(slots=True)
class _Form:
    """What kernels have in common that differ in numbers alone.

    Attributes:
        first: The one met first; numbers that never differed stay as in its code.
        numbers: Those of its code.
        groups: For each of them the group of those that were always equal to each other; None
            for those that never differed from the first kernel's.
        leads: The first number of each group.
        code: That reads the numbers of groups; "" if it is to be written.
    """

    first: Kernel
    numbers: list[str]
    groups: list[int | None]
    leads: list[int] = field(default_factory=list)
    code: str = ""

    def meet(self, rows: Sequence[Sequence[str]]) -> None:
        """Part the numbers in which kernels differ.

        Args:
            rows: Of each kernel, its numbers.
        """
        if all(row == self._expected(row) for row in rows):
            return
        known: dict[tuple[object, ...], int] = {}
        self.leads, self.code = [], ""
        for place, (number, group, *values) in enumerate(
            zip(self.numbers, self.groups, *rows, strict=True)
        ):
            if group is not None or any(value != number for value in values):
                key = (number if group is None else group, *values)
                if key not in known:
                    known[key] = len(known)
                    self.leads.append(place)
                self.groups[place] = known[key]

    def _expected(self, row: Sequence[str]) -> list[str]:
        """A kernel's numbers, if they differ in no others than those of kernels before."""
        read = [row[lead] for lead in self.leads]
        pairs = zip(self.numbers, self.groups, strict=True)
        return [number if group is None else read[group] for number, group in pairs]

    def shared(self, kernel: Kernel, row: Sequence[str], features: Features) -> Kernel:
        """A kernel of this form with the code of all."""
        if not 0 < len(self.leads) <= MOST_NUMBERS:
            return kernel
        if not self.code:
            marked = dataclasses.replace(self.first, code=_marked(self.first.code))
            code = reading(marked, _spans(marked.code), self.groups, features)
            self.code = code.replace(_KEPT, "")
        words = tuple(word_of(row[lead]) for lead in self.leads)
        return dataclasses.replace(kernel, code=self.code, numbers=words)


def _spans(code: str) -> list[Span]:
    """Where the numbers of marked code stand, with what tells their types."""
    ends = (found.span() for found in _NUMBER.finditer(code))
    types = ((begin, _TYPE.match(code, end)) for begin, end in ends)
    return [(begin, found.end()) for begin, found in types if found]


class ShapeGenericKernels:
    """The kernels of one graph, for one set of sizes after the other. Called from any thread."""

    def __init__(self) -> None:
        self._forms: dict[str, _Form] = {}
        self._first: Write | None = None
        self._met = False
        self._lock = threading.Lock()

    def is_first(self, write: Write) -> bool:
        """Whether no sizes were met before.

        Args:
            write: Writes the kernels for these, each by itself; called if others follow.
        """
        with self._lock:
            is_first, self._met = not self._met, True
            if is_first:
                self._first = write
        return is_first

    def share(self, kernels: Sequence[Kernel], features: Features) -> list[Kernel]:
        """The kernels for further sizes, with the code of alike ones that were met before."""
        with self._lock:
            if self._first is not None:
                self._share(self._first(), features)
                self._first = None
            return self._share(kernels, features)

    def _share(self, kernels: Sequence[Kernel], features: Features) -> list[Kernel]:
        parts = {code: parted(code) for code in {kernel.code for kernel in kernels}}
        alike: dict[str, list[str]] = {}
        for code, (text, _) in parts.items():
            alike.setdefault(text, []).append(code)
        firsts = {kernel.code: kernel for kernel in reversed(kernels)}
        for text, codes in alike.items():
            rows = [parts[code][1] for code in codes]
            if text not in self._forms:
                self._forms[text] = _Form(firsts[codes[0]], rows[0], [None] * len(rows[0]))
            self._forms[text].meet(rows)
        return [
            self._forms[text].shared(kernel, row, features)
            for kernel, (text, row) in ((kernel, parts[kernel.code]) for kernel in kernels)
        ]

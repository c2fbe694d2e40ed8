"""Kernels of a graph with open dimensions: those for further sizes have the same code.

Compiling takes most of the time until a graph runs for sizes that it has not met. The kernels for
its first sizes have these in their code, which runs fastest. From the second sizes on, alike
kernels share their code as those of one graph do (`sharing.py`), divisors included: numbers in
which any two of them differed are read from a uniform buffer. What sizes decide otherwise, such as
tiles and loads of four elements at once, is code of another form, of which there are few.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from webnn_py.engines.webgpu.compiler.kernel import Kernel
from webnn_py.engines.webgpu.compiler.rounds import without_said
from webnn_py.engines.webgpu.compiler.sharing import (
    Span,
    all_spans,
    numbers_at,
    reading,
    with_numbers,
    without_numbers,
)
from webnn_py.engines.webgpu.program.storage import Features

MOST_NUMBERS = 512
"""That kernels read; with more of them they are compiled for their sizes."""

Write = Callable[[], Sequence[Kernel]]
Group = tuple[object, ...]


@dataclass(slots=True)
class _Form:
    """What kernels have in common that differ in numbers alone.

    Attributes:
        first: The one met first; numbers that never differed stay as in its code.
        spans: Where its numbers are.
        groups: For each of them the group of those that were always equal to each other; None
            for those that never differed from the first kernel's.
    """

    first: Kernel
    spans: list[Span]
    groups: list[int | None]

    def meet(self, rows: Sequence[Sequence[str]]) -> None:
        """Part the numbers in which kernels differ.

        Args:
            rows: Of each kernel, its numbers.
        """
        known: dict[Group, int] = {}
        columns = zip(numbers_at(self.first.code, self.spans), self.groups, *rows, strict=True)
        for place, (literal, group, *values) in enumerate(columns):
            if group is not None or any(value != literal for value in values):
                before = literal if group is None else group
                self.groups[place] = known.setdefault((before, *values), len(known))


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
        kernels = [replace(kernel, code=without_said(kernel.code)) for kernel in kernels]
        spans = {code: all_spans(code) for code in {kernel.code for kernel in kernels}}
        alike: dict[str, list[int]] = {}
        for place, kernel in enumerate(kernels):
            text = without_numbers(kernel.code, spans[kernel.code])
            alike.setdefault(text, []).append(place)
        shared = list(kernels)
        for text, places in alike.items():
            first = kernels[places[0]]
            form = self._forms.get(text)
            if form is None:
                found = spans[first.code]
                form = self._forms[text] = _Form(first, found, [None] * len(found))
            rows = [numbers_at(kernels[n].code, spans[kernels[n].code]) for n in places]
            form.meet(rows)
            if 0 < len({*form.groups} - {None}) <= MOST_NUMBERS:
                code = reading(form.first, form.spans, form.groups, features)
                for place, row in zip(places, rows, strict=True):
                    shared[place] = with_numbers(kernels[place], code, row, form.groups)
        return shared

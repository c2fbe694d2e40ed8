"""One pipeline for kernels that differ in numbers alone: they read theirs from a uniform buffer.

Compiling is by far the most expensive part of a small kernel, and a graph that takes a tensor apart
has one for each piece.
"""

from __future__ import annotations

import dataclasses
import re
import struct
from collections.abc import Iterator, Sequence

from webnn_py.engines.webgpu.compiler.kernel_builder import Kernel

FEWEST = 16
"""Kernels from which sharing pays: a number that is read costs a little at each run."""

MOST_NUMBERS = 64

_CONSTANT = re.compile(r"\n *const ")

_NUMBER = re.compile(r"\d(?<!\w\d)(?<![/%] \d)(?:\d*u|\d*\.\d*(?:e[+-]?\d+)?f|\d*e[+-]?\d+f)\b")
"""An unsigned integer or float. Divisors stay what they are: compilers make products of them.

What stands before it is looked at from behind its first digit, since digits are found fast.
"""


def share(kernels: Sequence[Kernel]) -> list[Kernel]:
    """The kernels, alike ones with the same code.

    Those with loops or constants of their own are left: compilers make use of their numbers.
    """
    forms: dict[str, str | None] = {}
    groups: dict[str, list[int]] = {}
    for place, kernel in enumerate(kernels):
        if kernel.code not in forms:
            forms[kernel.code] = _form(kernel.code)
        form = forms[kernel.code]
        if form is not None:
            groups.setdefault(form, []).append(place)
    shared = list(kernels)
    for places in groups.values():
        if len(places) >= FEWEST:
            made = _shared([kernels[place] for place in places])
            for place, kernel in zip(places, made, strict=True):
                shared[place] = kernel
    return shared


def _form(code: str) -> str | None:
    """The code without its numbers; None if it is better left as it is."""
    left = "for (" in code or _CONSTANT.search(code)
    return None if left else _NUMBER.sub("#", code)


def _shared(kernels: list[Kernel]) -> list[Kernel]:
    numbers = {code: _NUMBER.findall(code) for code in {kernel.code for kernel in kernels}}
    if len(numbers) == 1:
        return kernels
    columns = list(zip(*(numbers[kernel.code] for kernel in kernels), strict=True))
    differing = {place: column for place, column in enumerate(columns) if len(set(column)) > 1}
    if not 0 < len(differing) <= MOST_NUMBERS:
        return kernels
    names = {
        place: f"numbers[{number // 4}u].{'xyzw'[number % 4]}"
        for number, place in enumerate(differing)
    }
    first = kernels[0]
    code = f"{_binding(first, len(differing))}\n{_renamed(first.code, names)}"
    if first.code.startswith("enable"):
        head, _, rest = first.code.partition("\n")
        code = f"{head}\n{_binding(first, len(differing))}\n{_renamed(rest, names)}"
    rows: Iterator[tuple[str, ...]] = zip(*differing.values(), strict=True)
    return [
        dataclasses.replace(kernel, code=code, numbers=tuple(map(_word, row)))
        for kernel, row in zip(kernels, rows, strict=True)
    ]


def _binding(kernel: Kernel, count: int) -> str:
    place = len(kernel.reads) + 1
    return f"@group(0) @binding({place}) var<uniform> numbers: array<vec4<u32>, {-(-count // 4)}>;"


def _renamed(code: str, names: dict[int, str]) -> str:
    """The code with the numbers at some places read."""
    count = -1

    def read(match: re.Match[str]) -> str:
        nonlocal count
        count += 1
        name = names.get(count)
        if name is None:
            return match[0]
        return name if match[0].endswith("u") else f"bitcast<f32>({name})"

    return _NUMBER.sub(read, code)


def _word(number: str) -> int:
    """The bits of a literal."""
    if number.endswith("u"):
        return int(number[:-1])
    return int.from_bytes(struct.pack("<f", float(number[:-1])), "little")

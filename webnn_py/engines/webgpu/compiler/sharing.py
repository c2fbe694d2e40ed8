"""One pipeline for kernels that differ in numbers alone: they read theirs from a uniform buffer.

Compiling is by far the most expensive part of a small kernel, and a network has layers of one kind
in many sizes.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import re
import struct
from collections.abc import Iterator, Sequence

from webnn_py.engines.webgpu.compiler.kernel import Kernel

MOST_NUMBERS = 64

MOST_FORMS = 256
"""Of so many kernels it is kept what form they have, for those that are asked for as they are
written."""

SHORT = 8
"""Rounds of a loop up to which compilers write it out, if they know how many it makes."""

_LITERAL = r"\d(?<!\w\d){}(?:\d*u|\d*\.\d*(?:e[+-]?\d+)?f|\d*e[+-]?\d+f)\b"
"""An unsigned integer or float.

What stands before it is looked at from behind its first digit, since digits are found fast.
"""

_NUMBER = re.compile(_LITERAL.format(""))
_FACTOR = re.compile(_LITERAL.format(r"(?<![/%] \d)"))
"""Divisors stay what they are where it counts: compilers make products of them."""

_HEAD = re.compile(r"for \([^)]*\)")

_BRANCH = re.compile(
    r"^  (?:if|\} else if) \(wn_group\.x < .*$|^  \} else \{(?=\n.*\bwn_group\b)", re.MULTILINE
)
"""With what the branches of kernels side by side begin."""

_FUNCTION = re.compile(r"^fn (\w+\()(?:[^\n]*\}$|[^{]*\{\n.*?^\})", re.MULTILINE | re.DOTALL)

Span = tuple[int, int]
Column = tuple[str, ...]


def share(kernels: Sequence[Kernel]) -> list[Kernel]:
    """The kernels, alike ones with the same code."""
    spans = {code: _spans(code) for code in {kernel.code for kernel in kernels}}
    groups: dict[str, list[int]] = {}
    for place, kernel in enumerate(kernels):
        groups.setdefault(form_of(kernel.code), []).append(place)
    shared = list(kernels)
    for places in groups.values():
        made = _shared([kernels[place] for place in places], spans)
        for place, kernel in zip(places, made, strict=True):
            shared[place] = kernel
    return shared


@functools.lru_cache(MOST_FORMS)
def form_of(code: str) -> str:
    """Code without the numbers that may as well be read: kernels of one form may share theirs."""
    spans = _spans(code)
    return _replaced(code, spans, ["#"] * len(spans))


@functools.lru_cache(MOST_FORMS)
def _spans(code: str) -> list[Span]:
    """Where the numbers stand that may as well be read."""
    if "for (" not in code:
        return [match.span() for match in _FACTOR.finditer(code)]
    main = code.index("fn main(")
    loop = code.find("for (", main)
    # What an invocation does once, before its loop, may divide.
    parts = [(_FACTOR, 0, main), (_FACTOR, main, len(code))]
    if loop >= 0:
        parts[1:] = [(_NUMBER, main, loop), (_FACTOR, loop, len(code))]
    kept = {
        match.start()
        for head in _HEAD.finditer(code)
        for match in _NUMBER.finditer(code, *head.span())
        if int(match[0][:-1]) <= SHORT
    }
    parts += [(_NUMBER, *span) for span in _divided_once(code, main)]
    found = {match.span() for pattern, *part in parts for match in pattern.finditer(code, *part)}
    return sorted(span for span in found if span[0] not in kept)


def _divided_once(code: str, main: int) -> Iterator[Span]:
    """Where kernels side by side divide once: before their loops, and in what is called there."""
    begins = [branch.start() for branch in _BRANCH.finditer(code, main)]
    once = []
    for begin, end in itertools.pairwise([*begins, len(code)]):
        loop = code.find("for (", begin, end)
        once.append((begin, end if loop < 0 else loop))
    yield from once
    for function in _FUNCTION.finditer(code, 0, main if begins else 0):
        call = code.rfind(function[1])
        is_once = any(begin < call < end for begin, end in once)
        if is_once and code.count(function[1]) == 2 and "for (" not in function[0]:
            yield function.span()


def _replaced(code: str, spans: Sequence[Span], texts: Sequence[str]) -> str:
    """The code with texts in the place of numbers."""
    parts = []
    done = 0
    for (begin, end), text in zip(spans, texts, strict=True):
        parts += [code[done:begin], text]
        done = end
    return "".join([*parts, code[done:]])


def _shared(kernels: list[Kernel], spans: dict[str, list[Span]]) -> list[Kernel]:
    """Kernels of one form with the same code, if they do not read too many numbers."""
    numbers = {
        code: [code[begin:end] for begin, end in spans[code]]
        for code in {kernel.code for kernel in kernels}
    }
    if len(numbers) == 1:
        return kernels
    columns = list(zip(*(numbers[kernel.code] for kernel in kernels), strict=True))
    differing = list(dict.fromkeys(column for column in columns if len(set(column)) > 1))
    if not 0 < len(differing) <= MOST_NUMBERS:
        return kernels
    first = kernels[0]
    code = _reading(first, spans[first.code], columns, differing)
    rows = zip(*differing, strict=True)
    return [
        dataclasses.replace(kernel, code=code, numbers=tuple(map(_word, row)))
        for kernel, row in zip(kernels, rows, strict=True)
    ]


def _reading(kernel: Kernel, spans: list[Span], columns: list[Column], read: list[Column]) -> str:
    """The code of a kernel that reads some of its numbers."""
    words = {column: f"numbers[{n // 4}u].{'xyzw'[n % 4]}" for n, column in enumerate(read)}
    names = {column: f"number{n}" for n, column in enumerate(read)}
    main = kernel.code.index("fn main(")
    texts, named = [], {}
    for (begin, _), column in zip(spans, columns, strict=True):
        if column not in words:
            texts.append(column[0])
            continue
        value = words[column] if column[0].endswith("u") else f"bitcast<f32>({words[column]})"
        if begin > main:  # read before its loops: not every driver takes that out of them
            named[names[column]] = value
            value = names[column]
        texts.append(value)
    code = _replaced(kernel.code, spans, texts)
    head = code.index("@group(")  # behind directives
    body = code.index("{\n", code.index("fn main(")) + 2
    place, size = len(kernel.reads) + len(kernel.writes), -(-len(read) // 4)
    binding = f"@group(0) @binding({place}) var<uniform> numbers: array<vec4<u32>, {size}>;\n"
    lets = "".join(f"  let {name} = {value};\n" for name, value in named.items())
    return code[:head] + binding + code[head:body] + lets + code[body:]


def _word(number: str) -> int:
    """The bits of a literal."""
    if number.endswith("u"):
        return int(number[:-1])
    return int.from_bytes(struct.pack("<f", float(number[:-1])), "little")

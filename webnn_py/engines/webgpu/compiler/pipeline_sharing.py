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
from collections.abc import Iterable, Iterator, Sequence

from webnn_py.engines.webgpu.compiler.kernel import Kernel
from webnn_py.engines.webgpu.program.storage import Features

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

_KINDS = {
    "u": "{}",
    "f": "bitcast<f32>({})",
    "i": "bitcast<i32>({})",
    "li": "i64(bitcast<i32>({}))",
    "lu": "u64({})",
}
"""By what literals end with, how such a number is read from a word."""

_HEAD = re.compile(r"for \([^)]*\)")

_BRANCH = re.compile(
    r"^  (?:if|\} else if) \(wn_group\.x < .*$|^  \} else \{(?=\n.*\bwn_group\b)", re.MULTILINE
)
"""With what the branches of kernels side by side begin."""

_FUNCTION = re.compile(r"^fn (\w+\()(?:[^\n]*\}$|[^{]*\{\n.*?^\})", re.MULTILINE | re.DOTALL)

_FIRST = "var<private> wn_first: u32;\n"
_SET_FIRST = "  wn_first = wn_groups.x >> 31u;\n"
"""0, which drivers do not know.

Where a loop ends by what lies at a known place of a uniform buffer, lavapipe compiles the kernel
for what lies there, anew for each dispatch; that takes 1 to 40 ms.
"""

Span = tuple[int, int]
Groups = Sequence[int | None]


def share(kernels: Sequence[Kernel], features: Features) -> list[Kernel]:
    """The kernels, alike ones with the same code, for devices with these features."""
    spans = {code: _spans(code) for code in {kernel.code for kernel in kernels}}
    groups: dict[str, list[int]] = {}
    for place, kernel in enumerate(kernels):
        groups.setdefault(form_of(kernel.code), []).append(place)
    shared = list(kernels)
    for places in groups.values():
        made = _shared([kernels[place] for place in places], spans, features)
        for place, kernel in zip(places, made, strict=True):
            shared[place] = kernel
    return shared


@functools.lru_cache(MOST_FORMS)
def form_of(code: str) -> str:
    """Code without the numbers that may as well be read: kernels of one form may share theirs."""
    spans = _spans(code)
    return _replaced(code, spans, [f"#{number[-1]}" for number in _numbers_at(code, spans)])


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
    parts += [(_NUMBER, *span) for span in _divided_once(code, main)]
    found = {match.span() for pattern, *part in parts for match in pattern.finditer(code, *part)}
    return sorted(found - _short_loops(code))


def _short_loops(code: str) -> set[Span]:
    """Where numbers of short loops stand, which compilers write out."""
    return {
        match.span()
        for head in _HEAD.finditer(code)
        for match in _NUMBER.finditer(code, *head.span())
        if int(match[0][:-1]) <= SHORT
    }


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


def _numbers_at(code: str, spans: Iterable[Span]) -> list[str]:
    """The numbers that stand there."""
    return [code[begin:end] for begin, end in spans]


def _shared(
    kernels: list[Kernel], spans: dict[str, list[Span]], features: Features
) -> list[Kernel]:
    """Kernels of one form with the same code, if they do not read too many numbers."""
    numbers = {code: _numbers_at(code, spans[code]) for code in {kernel.code for kernel in kernels}}
    if len(numbers) == 1:
        return kernels
    columns = list(zip(*(numbers[kernel.code] for kernel in kernels), strict=True))
    differing = dict.fromkeys(column for column in columns if len(set(column)) > 1)
    if not 0 < len(differing) <= MOST_NUMBERS:
        return kernels
    places = {column: place for place, column in enumerate(differing)}
    groups = [places.get(column) for column in columns]
    first = kernels[0].code
    code = reading(kernels[0], spans[first], groups, features)
    return [_with_numbers(kernel, code, numbers[kernel.code], groups) for kernel in kernels]


def reading(kernel: Kernel, spans: Sequence[Span], groups: Groups, features: Features) -> str:
    """The code of a kernel that reads some of its numbers.

    Args:
        kernel: With all its numbers in its code.
        spans: Where those are.
        groups: For each of them which one is read in its place, None for those that stay.
        features: What the devices have.
    """
    hidden = features.kind == "cpu"
    main = kernel.code.index("fn main(")
    texts, named = [], {}
    for (begin, end), group in zip(spans, groups, strict=True):
        text = kernel.code[begin:end]
        if group is None:
            texts.append(text)
            continue
        place = f"wn_first + {group // 4}u" if hidden else f"{group // 4}u"
        value = _KINDS[_kind(text)].format(f"numbers[{place}].{'xyzw'[group % 4]}")
        if begin > main:  # read before its loops: not every driver takes that out of them
            named[f"number{group}"] = value
            value = f"number{group}"
        texts.append(value)
    code = _replaced(kernel.code, spans, texts)
    head = code.index("@group(")  # behind directives
    begin = code.index("fn main(") + len("fn main(")
    body = code.index("{\n", begin) + 2
    last, size = len(kernel.reads) + len(kernel.writes), -(-len({*groups} - {None}) // 4)
    binding = f"@group(0) @binding({last}) var<uniform> numbers: array<vec4<u32>, {size}>;\n"
    lets = "".join(f"  let {name} = {value};\n" for name, value in named.items())
    given = ""
    if hidden:
        binding, lets = f"{binding}{_FIRST}", f"{_SET_FIRST}{lets}"
        given = "@builtin(num_workgroups) wn_groups: vec3<u32>, "
    return code[:head] + binding + code[head:begin] + given + code[begin:body] + lets + code[body:]


def _with_numbers(kernel: Kernel, code: str, numbers: Sequence[str], groups: Groups) -> Kernel:
    """A kernel with code that reads its numbers.

    Args:
        kernel: Without.
        code: As `reading` writes it.
        numbers: All those of the kernel's own code.
        groups: As `reading` takes them.
    """
    read = dict(zip(groups, numbers, strict=True))  # those of a group are the same
    words = tuple(word_of(read[group]) for group in range(len(read.keys() - {None})))
    return dataclasses.replace(kernel, code=code, numbers=words, reads_words=True, shader=None)


def _kind(number: str) -> str:
    """What tells the type of a literal."""
    return number.lstrip("0123456789.e+-")


def word_of(number: str) -> int:
    """The bits of a literal, whatever it ends with."""
    digits = number.rstrip("fliu")
    if digits.removeprefix("-").isdecimal():
        return int(digits) & 0xFFFFFFFF
    return int.from_bytes(struct.pack("<f", float(digits)), "little")

"""Pipeline sharing: kernels that differ only in numbers read these from a uniform buffer.

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

MAX_SHARED_NUMBERS = 64
"""Differing numbers up to which kernels share their code."""

MAX_CACHED_FORMS = 256
"""Kernels whose forms are cached while others are written."""

MAX_UNROLLED_ITERATIONS = 8
"""Iterations up to which drivers unroll a loop if its bound is a literal."""

_LITERAL = r"\d(?<!\w\d){}(?:\d*u|\d*\.\d*(?:e[+-]?\d+)?f|\d*e[+-]?\d+f)\b"
"""An unsigned integer or float.

The lookbehind follows the first digit, since the search for a digit is fast.
"""

_NUMBER = re.compile(_LITERAL.format(""))
_FACTOR = re.compile(_LITERAL.format(r"(?<![/%] \d)"))
"""The same without divisors, which stay literals: compilers turn their divisions into products."""

_KINDS = {
    "u": "{}",
    "f": "bitcast<f32>({})",
    "i": "bitcast<i32>({})",
    "li": "i64(bitcast<i32>({}))",
    "lu": "u64({})",
}
"""For the suffix of a literal, the expression that reads it from a word."""

_HEAD = re.compile(r"for \([^)]*\)")

_BRANCH = re.compile(
    r"^  (?:if|\} else if) \(wn_group\.x < .*$|^  \} else \{(?=\n.*\bwn_group\b)", re.MULTILINE
)
"""The heads of the branches of a fused kernel."""

_FUNCTION = re.compile(r"^fn (\w+\()(?:[^\n]*\}$|[^{]*\{\n.*?^\})", re.MULTILINE | re.DOTALL)

_FIRST = "var<private> wn_first: u32;\n"
_SET_FIRST = "  wn_first = wn_groups.x >> 31u;\n"
"""A 0 that drivers cannot fold.

If a loop's bound lies at a constant index of a uniform buffer, lavapipe compiles the kernel for the
value there, anew for each dispatch, which takes 1 to 40 ms.
"""

Span = tuple[int, int]
Groups = Sequence[int | None]


def share(kernels: Sequence[Kernel], features: Features) -> list[Kernel]:
    """Return the kernels; those that differ only in numbers get the same code."""
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


@functools.lru_cache(MAX_CACHED_FORMS)
def form_of(code: str) -> str:
    """Return code without the numbers that it could read: kernels of one form may share code."""
    spans = _spans(code)
    return _replaced(code, spans, [f"#{number[-1]}" for number in _numbers_at(code, spans)])


@functools.lru_cache(MAX_CACHED_FORMS)
def _spans(code: str) -> list[Span]:
    """Return the spans of the numbers that a kernel could read."""
    if "for (" not in code:
        return [match.span() for match in _FACTOR.finditer(code)]
    main = code.index("fn main(")
    loop = code.find("for (", main)
    # Divisors may be read before the loop, where an invocation divides once.
    parts = [(_FACTOR, 0, main), (_FACTOR, main, len(code))]
    if loop >= 0:
        parts[1:] = [(_NUMBER, main, loop), (_FACTOR, loop, len(code))]
    parts += [(_NUMBER, *span) for span in _divided_once(code, main)]
    found = {match.span() for pattern, *part in parts for match in pattern.finditer(code, *part)}
    return sorted(found - _short_loops(code))


def _short_loops(code: str) -> set[Span]:
    """Return the spans of the numbers of short loops, which drivers unroll."""
    return {
        match.span()
        for head in _HEAD.finditer(code)
        for match in _NUMBER.finditer(code, *head.span())
        if int(match[0][:-1]) <= MAX_UNROLLED_ITERATIONS
    }


def _divided_once(code: str, main: int) -> Iterator[Span]:
    """Yield the spans where fused kernels divide once: before loops, in functions called there."""
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
    """Return the code with texts in place of numbers."""
    parts = []
    done = 0
    for (begin, end), text in zip(spans, texts, strict=True):
        parts += [code[done:begin], text]
        done = end
    return "".join([*parts, code[done:]])


def _numbers_at(code: str, spans: Iterable[Span]) -> list[str]:
    """Return the numbers at these spans."""
    return [code[begin:end] for begin, end in spans]


def _shared(
    kernels: list[Kernel], spans: dict[str, list[Span]], features: Features
) -> list[Kernel]:
    """Return kernels of one form with the same code, unless they would read too many numbers."""
    numbers = {code: _numbers_at(code, spans[code]) for code in {kernel.code for kernel in kernels}}
    if len(numbers) == 1:
        return kernels
    columns = list(zip(*(numbers[kernel.code] for kernel in kernels), strict=True))
    differing = dict.fromkeys(column for column in columns if len(set(column)) > 1)
    if not 0 < len(differing) <= MAX_SHARED_NUMBERS:
        return kernels
    places = {column: place for place, column in enumerate(differing)}
    groups = [places.get(column) for column in columns]
    first = kernels[0].code
    code = reading(kernels[0], spans[first], groups, features)
    return [_with_numbers(kernel, code, numbers[kernel.code], groups) for kernel in kernels]


def reading(kernel: Kernel, spans: Sequence[Span], groups: Groups, features: Features) -> str:
    """Return the code of a kernel that reads some of its numbers.

    Args:
        kernel: A kernel with all its numbers in its code.
        spans: The spans of these numbers.
        groups: For each number, the index of the word that replaces it; None to keep the number.
        features: The devices.
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
        if begin > main:  # read before loops, as not every driver hoists the read
            named[f"number{group}"] = value
            value = f"number{group}"
        texts.append(value)
    code = _replaced(kernel.code, spans, texts)
    head = code.index("@group(")  # after directives
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
    """Return a kernel with code that reads its numbers.

    Args:
        kernel: The kernel with its own code.
        code: The code by `reading`.
        numbers: All numbers of the kernel's own code.
        groups: The groups for `reading`.
    """
    read = dict(zip(groups, numbers, strict=True))  # numbers of one group are equal
    words = tuple(word_of(read[group]) for group in range(len(read.keys() - {None})))
    return dataclasses.replace(kernel, code=code, numbers=words, reads_words=True, shader=None)


def _kind(number: str) -> str:
    """Return the suffix of a literal."""
    return number.lstrip("0123456789.e+-")


def word_of(number: str) -> int:
    """Return the bits of a literal of any type."""
    digits = number.rstrip("fliu")
    if digits.removeprefix("-").isdecimal():
        return int(digits) & 0xFFFFFFFF
    return int.from_bytes(struct.pack("<f", float(digits)), "little")

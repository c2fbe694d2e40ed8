"""Kernels that run side by side and differ in numbers and buffers alone, as the same code.

Drivers take about as long to compile as code is, and branches of a network are often alike.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from dataclasses import dataclass

from webnn_py.engines.webgpu.compiler.sharing import form_of, replaced, spans_of

LONG = 4_000
"""Characters of code from which it is worth it: what differs is chosen as the code runs."""

_MAIN = "fn main(" + ") {\n"
_WRITTEN = re.compile(r" = ([^;]*);")
_OTHERWISE = re.compile(r"(?:\.\w+|\[[^]]*\])? (?:[-+*/%&|^]|<<|>>)?=[^=]")
"""What follows an element that is written in part, or from what it was."""


@dataclass(frozen=True, slots=True)
class Member:
    """A kernel of several that run side by side.

    Attributes:
        declarations: Its functions.
        place: The statements that name its place among its workgroups.
        body: The others.
        buffers: What its bindings are called in the code of all, by their own names.
        types: The types of its bindings, by their own names.
        begin: Its first workgroup.
    """

    declarations: str
    place: str
    body: str
    buffers: dict[str, str]
    types: dict[str, str]
    begin: int

    @property
    def text(self) -> str:
        """Declarations and statements."""
        return f"{self.declarations}{_MAIN}{self.place}\n{self.body}"


def renamed(code: str, names: dict[str, str]) -> str:
    """The code with other names."""
    if not names:
        return code
    return re.sub(rf"(?<![\w.])(?:{'|'.join(names)})\b", lambda found: names[found[0]], code)


def alike(members: Sequence[Member]) -> list[list[Member]]:
    """The members in order, together those that follow each other and can be the same code."""

    def form(numbered: tuple[int, Member]) -> object:
        number, member = numbered
        text = member.text
        if len(text) < LONG or any(_with_calls(text, own, 0) is None for own in member.buffers):
            return number
        return form_of(text), tuple(member.types.items())

    found = itertools.groupby(enumerate(members), form)
    return [[member for _, member in group] for _, group in found]


def as_one(members: Sequence[Member], number: int) -> tuple[str, str]:
    """Declarations and statements of members that are alike.

    Args:
        members: The members.
        number: Of these among the groups of members in the code.
    """
    first = members[0]
    if len(members) == 1:
        body = f"{first.place}\n{renamed(first.body, first.buffers)}"
        return renamed(first.declarations, first.buffers), body
    declared, statements, text = _numbers(members, number)
    names = {}
    for own, kind in first.types.items():
        buffers = [member.buffers[own] for member in members]
        if len(set(buffers)) == 1:
            names[own] = buffers[0]
            continue
        called = _with_calls(text, own, number)
        assert called is not None
        text = called
        declared += _accessors(text, buffers, kind, own, number)
    declarations, body = renamed(text, names).split(_MAIN)
    return "\n".join([*declared, declarations]), "\n".join([*statements, body])


def _numbers(members: Sequence[Member], number: int) -> tuple[list[str], list[str], str]:
    """Declarations and statements that choose what numbers are, and the text that reads them."""
    spans = [spans_of(member.text) for member in members]
    rows = [
        [member.text[begin:end] for begin, end in own]
        for member, own in zip(members, spans, strict=True)
    ]
    begins = [member.begin for member in members[1:]]
    declared = [f"var<private> part_{number}: u32;"]
    statements = [f"  let from{n} = wn_group.x >= {begin}u;" for n, begin in enumerate(begins)]
    parts = [f"{n}u" for n in range(len(members))]
    statements.append(f"  part_{number} = {_selected(parts)};")
    main = members[0].text.index(_MAIN)
    placed = range(main, main + len(_MAIN + members[0].place))
    texts = []
    for place, (begin, *column) in enumerate(zip((b for b, _ in spans[0]), *rows, strict=True)):
        if len(set(column)) == 1 and begin not in placed:  # so that others may share the code
            texts.append(column[0])
            continue
        name = f"own{place}_{number}"
        texts.append(name)
        let = "let "
        if begin < main:
            let = ""
            declared.append(f"var<private> {name}: {'u32' if column[0].endswith('u') else 'f32'};")
        statements.append(f"  {let}{name} = {_selected(column)};")
    return declared, statements, replaced(members[0].text, spans[0], texts)


def _selected(values: Sequence[str]) -> str:
    """The value of the member that runs."""
    found = values[0]
    for number, value in enumerate(values[1:]):
        found = f"select({found}, {value}, from{number})"
    return found


def _accessors(text: str, buffers: Sequence[str], kind: str, own: str, number: int) -> list[str]:
    """The functions of `_with_calls` that the text calls."""
    element = kind.removeprefix("array<").removesuffix(">")
    read, write = _names(own, number)
    *others, last = buffers
    declared = []
    if f"{read}(" in text:
        choice = (f"if (part_{number} == {n}u) {{ return {b}[i]; }}" for n, b in enumerate(others))
        lines = "\n  ".join([*choice, f"return {last}[i];"])
        declared.append(f"fn {read}(i: u32) -> {element} {{\n  {lines}\n}}")
    if f"{write}(" in text:
        choice = (
            f"if (part_{number} == {n}u) {{ {b}[i] = value; return; }}"
            for n, b in enumerate(others)
        )
        lines = "\n  ".join([*choice, f"{last}[i] = value;"])
        declared.append(f"fn {write}(i: u32, value: {element}) {{\n  {lines}\n}}")
    return declared


def _names(own: str, number: int) -> tuple[str, str]:
    """What the functions are called that read and write elements of a binding."""
    return f"read_{own}_{number}", f"write_{own}_{number}"


def _with_calls(text: str, own: str, number: int) -> str | None:
    """The text with calls in the place of a binding's elements; None if it does more with it."""
    read, write = _names(own, number)
    parts, done = [], 0
    for found in re.finditer(rf"(?<![\w.]){own}\b", text):
        begin = found.end()
        if begin < done:
            return None  # an element is the index of another one
        if text[begin : begin + 1] != "[":
            return None
        end = _end(text, begin)
        index = text[begin + 1 : end]
        parts.append(text[done : found.start()])
        written = _WRITTEN.match(text, end + 1)
        if written is not None:
            parts.append(f"{write}({index}, {written[1]});")
            end = written.end() - 1
        elif _OTHERWISE.match(text, end + 1):
            return None
        else:
            parts.append(f"{read}({index})")
        done = end + 1
    return "".join([*parts, text[done:]])


def _end(text: str, begin: int) -> int:
    """Where the bracket is that ends what one begins."""
    depth = 0
    for place in range(begin, len(text)):
        depth += {"[": 1, "]": -1}.get(text[place], 0)
        if not depth:
            return place
    raise AssertionError("no bracket ends it")

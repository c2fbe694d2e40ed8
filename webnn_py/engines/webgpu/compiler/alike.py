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

_MAIN = "fn main() {\n"
_WHICH = "own_part"
_WRITTEN = re.compile(r" = ([^;]*)")
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
        return number if len(text) < LONG else (form_of(text), tuple(member.types.items()))

    found: list[list[Member]] = []
    for _, numbered in itertools.groupby(enumerate(members), form):
        group = [member for _, member in numbered]
        may_choose = len(group) == 1 or all(
            _with_calls(group[0].text, own) is not None for own in group[0].buffers
        )
        found += [group] if may_choose else [[member] for member in group]
    return found


def as_one(members: Sequence[Member]) -> tuple[str, str]:
    """Declarations and statements of members that are alike."""
    first = members[0]
    if len(members) == 1:
        body = f"{first.place}\n{renamed(first.body, first.buffers)}"
        return renamed(first.declarations, first.buffers), body
    declared, statements, text = _choosing_numbers(members)
    names = {}
    for own, kind in first.types.items():
        buffers = [member.buffers[own] for member in members]
        if len(set(buffers)) == 1:
            names[own] = buffers[0]
            continue
        called = _with_calls(text, own)
        assert called is not None
        text = called
        declared += _accessors(text, buffers, kind, own)
    declarations, body = renamed(text, names).split(_MAIN)
    return "\n".join([*declared, declarations]), "\n".join([*statements, body])


def _choosing_numbers(members: Sequence[Member]) -> tuple[list[str], list[str], str]:
    """Declarations and statements that choose what numbers are, and the text that reads them."""
    spans = [spans_of(member.text) for member in members]
    rows = [
        [member.text[begin:end] for begin, end in own]
        for member, own in zip(members, spans, strict=True)
    ]
    begins = [member.begin for member in members[1:]]
    declared = [f"var<private> {_WHICH}: u32;"]
    statements = [f"  let from{n} = wn_group.x >= {begin}u;" for n, begin in enumerate(begins)]
    statements.append(f"  {_WHICH} = {_chosen([f'{n}u' for n in range(len(members))])};")
    main = members[0].text.index(_MAIN)
    placed = range(main, main + len(_MAIN + members[0].place))
    texts = []
    for number, ((begin, _), *column) in enumerate(zip(spans[0], *rows, strict=True)):
        if len(set(column)) == 1 and begin not in placed:  # else fewer kernels share the code
            texts.append(column[0])
            continue
        name = f"own{number}"
        texts.append(name)
        if begin < main:  # functions read it, too
            declared.append(f"var<private> {name}: {'u32' if column[0].endswith('u') else 'f32'};")
            statements.append(f"  {name} = {_chosen(column)};")
        else:
            statements.append(f"  let {name} = {_chosen(column)};")
    return declared, statements, replaced(members[0].text, spans[0], texts)


def _chosen(values: Sequence[str]) -> str:
    """The value of the member that runs."""
    found = values[0]
    for number, value in enumerate(values[1:]):
        found = f"select({found}, {value}, from{number})"
    return found


def _accessors(text: str, buffers: Sequence[str], kind: str, own: str) -> list[str]:
    """The functions of `_with_calls` that the text calls."""
    element = kind.removeprefix("array<").removesuffix(">")
    forms = {
        f"fn read_{own}(i: u32) -> {element} {{": "return {}[i];",
        f"fn write_{own}(i: u32, value: {element}) {{": "{}[i] = value; return;",
    }
    declared = []
    for head, form in forms.items():
        if head.split("(")[0].removeprefix("fn ") + "(" in text:
            *others, last = (form.format(buffer) for buffer in buffers)
            chosen = (f"  if ({_WHICH} == {n}u) {{ {one} }}" for n, one in enumerate(others))
            declared.append("\n".join([head, *chosen, f"  {last}", "}"]))
    return declared


def _with_calls(text: str, own: str) -> str | None:
    """The text with calls in the place of a binding's elements; None if it does more with it."""
    parts, done = [], 0
    # What stands before it is looked at from behind its first letter, as that is found fast.
    for found in re.finditer(rf"{own[0]}(?<![\w.]{own[0]}){own[1:]}\b", text):
        begin = found.end()
        if begin < done or text[begin : begin + 1] != "[":
            return None
        end = _end(text, begin)
        index = text[begin + 1 : end]
        parts.append(text[done : found.start()])
        written = _WRITTEN.match(text, end + 1)
        if written is not None:
            parts.append(f"write_{own}({index}, {written[1]})")
            done = written.end()
        elif _OTHERWISE.match(text, end + 1):
            return None
        else:
            parts.append(f"read_{own}({index})")
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

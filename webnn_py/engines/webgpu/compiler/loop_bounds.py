"""How often the loops of a kernel go round in one invocation, read off the WGSL.

Mesa's llvmpipe leaves every loop of an invocation once it has made 65,535 rounds, inner and outer
loops counted together, and says nothing. So no kernel may come near; long loops are split over
invocations and passes (`split_long_loop`), which is faster on any device, or written out where
they stand (`kernel_builder`).
"""

from __future__ import annotations

import functools
import re
from collections.abc import Collection, Mapping

from webnn_py.core.shape_tracing import ANY_MARK, number_in
from webnn_py.core.traced_queries import highest

MOST_ROUNDS = 65_000
"""Rounds that one invocation may make in all its loops together."""

LONG = 1 << 15
"""Elements up to which one loop goes over all of them: two such loops stay within the rounds."""

_COUNT = rf"(?:\d+|{ANY_MARK})"
# Patterns that begin with a few letters are found fast.
_HEAD = re.compile(r"fn (?<!\wfn )(\w+)\(")
_LOOP = r"[{}fw](?:(?<=[{}])|(?<!\w.)(?:(?<=f)or|(?<=w)hile) \((?P<head>.*?)\) \{)"
_SAID = re.compile(rf"/\* at most ({_COUNT}) rounds \*/")
_UPWARDS = re.compile(
    rf"var (\w+) = (\w+)(?: \+ {_COUNT}u)?; \1 < ({_COUNT})u; (?:\1\+\+|\1 \+= (\d+)u)"
)
_HALVING = re.compile(rf"var (\w+) = ({_COUNT})u; \1 > \d+u; \1 = \1 >> 1u")
_DOUBLING = re.compile(rf"var (\w+) = 1u; \1 < ({_COUNT})u; \1 = \1 << 1u")


def at_most(rounds: int) -> str:
    """What a loop says in its head if its bound is no number."""
    return f"/* at most {rounds} rounds */"


def without_said(code: str) -> str:
    """Code whose loops do not say how many rounds they make: what is left tells no sizes."""
    return _SAID.sub("", code)


def rounds_of(code: str) -> int:
    """The most rounds that an invocation of WGSL's `main` makes, those of its functions included.

    Raises:
        ValueError: A loop's head does not tell how often it goes round.
    """
    if not _loops(code):
        return 0
    code = re.sub(r"//[^\n]*", "", code)
    heads = list(_HEAD.finditer(code))
    ends = [head.start() for head in heads[1:]] + [len(code)]
    bodies = {
        head.group(1): code[code.index("{", head.end()) : end]
        for head, end in zip(heads, ends, strict=True)
    }
    going = {name for name, body in bodies.items() if _loops(body)}
    while callers := {n for n in bodies.keys() - going if _calls(bodies[n], going)}:
        going |= callers
    return _function("main", {name: bodies[name] for name in going}, {}) if "main" in going else 0


def _loops(code: str) -> bool:
    return "for (" in code or "while (" in code


def _calls(code: str, names: Collection[str]) -> bool:
    return any(f"{name}(" in code for name in names)


@functools.cache
def _tokens(called: tuple[str, ...]) -> re.Pattern[str]:
    """What matters of a function: its loops and other blocks, and calls of some functions."""
    return re.compile(rf"{_LOOP}|\b(?P<call>{'|'.join(called)})\(" if called else _LOOP)


def _function(name: str, bodies: Mapping[str, str], known: dict[str, int]) -> int:
    if name not in known:
        called = tuple(sorted(other for other in bodies if _calls(bodies[name], [other])))
        # What follows a function up to the next one are declarations, which call nothing.
        totals: list[int] = [0]
        counts: list[int | None] = []
        for token in _tokens(called).finditer(bodies[name]):
            if token.lastgroup == "call":
                totals[-1] += _function(token["call"], bodies, known)
            elif token.group() != "}":
                counts.append(None if token["head"] is None else _count(token["head"]))
                totals.append(0)
            else:
                inside, count = totals.pop(), counts.pop()
                totals[-1] += inside if count is None else count * (1 + inside)
                if not counts:
                    break
        known[name] = totals[0]
    return known[name]


def _count(head: str) -> int:
    """Rounds of one loop by its head."""
    if found := _SAID.search(head):
        return number_in(found.group(1))
    if found := _UPWARDS.fullmatch(head):
        first = found.group(2).removesuffix("u")
        start = int(first) if first.isdecimal() else 0
        return max(0, -(-(number_in(found.group(3)) - start) // int(found.group(4) or 1)))
    if found := _HALVING.fullmatch(head):
        return highest(number_in(found.group(2))).bit_length()
    if found := _DOUBLING.fullmatch(head):
        return max(0, highest(number_in(found.group(2))) - 1).bit_length()
    raise ValueError(f"a loop does not say how often it goes round: {head}")

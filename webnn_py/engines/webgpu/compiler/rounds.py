"""How often the loops of a kernel go round in one invocation, read off the WGSL.

Mesa's llvmpipe leaves every loop of an invocation once it has made 65,535 rounds, inner and outer
loops counted together, and says nothing. So no kernel may come near; long loops are split over
invocations and passes (`shorten`), which is faster on any device, or written out where they stand
(`kernel_builder`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping

MOST_ROUNDS = 65_000
"""Rounds that one invocation may make in all its loops together."""

LONG = 1 << 15
"""Elements up to which one loop goes over all of them: two such loops stay within the rounds."""

_TOKEN = re.compile(r"\b(for|while) \((.*?)\) \{|\b(\w+)\(|[{}]")
_SAID = re.compile(r"/\* at most (\d+) rounds \*/")
_UPWARDS = re.compile(r"var (\w+) = (\w+)(?: \+ \d+u)?; \1 < (\d+)u; (?:\1\+\+|\1 \+= (\d+)u)")
_HALVING = re.compile(r"var (\w+) = (\d+)u; \1 > 0u; \1 = \1 >> 1u")
_DOUBLING = re.compile(r"var (\w+) = 1u; \1 < (\d+)u; \1 = \1 << 1u")


def at_most(rounds: int) -> str:
    """What a loop says in its head if its bound is no number."""
    return f"/* at most {rounds} rounds */"


def rounds_of(code: str) -> int:
    """The most rounds that an invocation of WGSL's `main` makes, those of its functions included.

    Raises:
        ValueError: A loop's head does not tell how often it goes round.
    """
    if not _loops(code):
        return 0
    code = re.sub(r"//[^\n]*", "", code)
    heads = list(re.finditer(r"\bfn (\w+)\(", code))
    ends = [head.start() for head in heads[1:]] + [len(code)]
    bodies = {
        head.group(1): code[code.index("{", head.end()) : end]
        for head, end in zip(heads, ends, strict=True)
    }
    if not any(_loops(body) for name, body in bodies.items() if name != "main"):
        bodies = {"main": bodies["main"]}
    return _function("main", bodies, {})


def _loops(code: str) -> bool:
    return "for (" in code or "while (" in code


def _function(name: str, bodies: Mapping[str, str], known: dict[str, int]) -> int:
    if name not in known:
        # What follows a function up to the next one are declarations, which call nothing.
        totals: list[int] = [0]
        counts: list[int] = []
        for token in _TOKEN.finditer(bodies[name]):
            if token.group(1):
                counts.append(_count(token.group(2)))
                totals.append(0)
            elif token.group(3):
                if token.group(3) in bodies:
                    totals[-1] += _function(token.group(3), bodies, known)
            elif token.group() == "{":
                counts.append(-1)
                totals.append(0)
            else:
                inside, count = totals.pop(), counts.pop()
                totals[-1] += inside if count < 0 else count * (1 + inside)
                if not counts:
                    break
        known[name] = totals[0]
    return known[name]


def _count(head: str) -> int:
    """Rounds of one loop by its head."""
    if found := _SAID.search(head):
        return int(found.group(1))
    if found := _UPWARDS.fullmatch(head):
        first = found.group(2).removesuffix("u")
        start = int(first) if first.isdecimal() else 0
        return max(0, -(-(int(found.group(3)) - start) // int(found.group(4) or 1)))
    if found := _HALVING.fullmatch(head):
        return int(found.group(2)).bit_length()
    if found := _DOUBLING.fullmatch(head):
        return max(0, int(found.group(2)) - 1).bit_length()
    raise ValueError(f"a loop does not say how often it goes round: {head}")

"""Bounds of loops: how many iterations the loops of one invocation make together.

Mesa's llvmpipe leaves every loop of an invocation after 65,535 iterations, inner and outer loops
counted together, and reports nothing. So no kernel may come near. Long loops are split over
invocations and passes (`split_loops`), which is faster on any device, or unrolled where they stand
(`kernel_builder`).

A template declares the bound of each loop in a tag before the loop's head, and tags the loop's
end. Tags are removed when a kernel is printed.
"""

from __future__ import annotations

from collections.abc import Mapping

from webnn_py.core.shape_tracing import number_in
from webnn_py.core.traced_queries import highest
from webnn_py.engines.webgpu.compiler.code.functions import count_calls

MAX_ITERATIONS = 65_000
"""Iterations that one invocation may make in all its loops together."""

LONG = 1 << 15
"""Elements up to which one loop goes over all of them: two such loops stay within the bound."""

_OPEN, _CLOSE = "⟦", "⟧"
_END = f"{_OPEN}end{_CLOSE}"

END_LOOP = f"{_END}}}"
"""The closing brace of a loop."""


def loop(head: str, iterations: int) -> str:
    """Return the head of a loop that makes at most `iterations`, up to its opening brace."""
    return f"{_OPEN}{iterations}{_CLOSE}{head} {{"


def halvings(count: int) -> int:
    """Return the iterations of a loop that starts at `count` and halves it while it exceeds 0."""
    return highest(count).bit_length()


def doublings(count: int) -> int:
    """Return the iterations of a loop that starts at 1 and doubles it while it is below `count`."""
    return max(0, highest(count) - 1).bit_length()


def has_loop(text: str) -> bool:
    """Whether a tagged text contains loops."""
    return _OPEN in text


def count_loops(text: str) -> int:
    """Return the number of loops in a tagged text."""
    return text.count(_OPEN) - text.count(_END)


def without_tags(text: str) -> str:
    """Return a text without the tags of its loops."""
    first, *pieces = text.split(_OPEN)
    return first + "".join(piece.partition(_CLOSE)[2] for piece in pieces)


def iterations_of(text: str, functions: Mapping[str, str]) -> int:
    """Return the most iterations that one invocation makes in a tagged text and the calls in it.

    Args:
        text: Statements or an expression.
        functions: Tagged bodies of functions that it may call, by name.
    """
    looping = {name for name, body in functions.items() if has_loop(body)}
    while callers := {
        name
        for name in functions.keys() - looping
        if any(count_calls(functions[name], other) for other in looping)
    }:
        looping |= callers
    known: dict[str, int] = {}

    def of_function(name: str) -> int:
        if name not in known:
            known[name] = of_text(functions[name])
        return known[name]

    def of_calls(plain: str) -> int:
        calls = ((name, count_calls(plain, name)) for name in looping)
        return sum(count * of_function(name) for name, count in calls if count)

    def of_text(tagged: str) -> int:
        first, *pieces = tagged.split(_OPEN)
        totals = [of_calls(first)]
        bounds: list[int] = []
        for piece in pieces:
            tag, _, plain = piece.partition(_CLOSE)
            if tag == "end":
                inside = totals.pop()
                totals[-1] += bounds.pop() * (1 + inside)
            else:
                bounds.append(number_in(tag))
                totals.append(0)
            totals[-1] += of_calls(plain)
        (total,) = totals
        return total

    return of_text(text)

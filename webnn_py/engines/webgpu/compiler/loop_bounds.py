"""Bounds of loops: how many iterations the loops of one invocation make together.

Mesa's llvmpipe leaves every loop of an invocation after 65,535 iterations, inner and outer loops
counted together, and reports nothing. So no kernel may come near. Long loops are split over
invocations and passes (`split_loops`), which is faster on any device, or unrolled where they stand
(`kernel_builder`).

A template declares the bound of each loop with its head (`pieces.loop`).
"""

from __future__ import annotations

from collections.abc import Mapping

from webnn_py.core.shape_tracing import number_in
from webnn_py.core.traced_queries import highest
from webnn_py.engines.webgpu.compiler.code.functions import count_calls
from webnn_py.engines.webgpu.program.pieces import Code, Loop, LoopEnd

MAX_ITERATIONS = 65_000
"""Iterations that one invocation may make in all its loops together."""

MAX_LOOP_ELEMENTS = 1 << 15
"""Elements up to which one loop goes over all of them: two such loops stay within the bound."""


def halvings(count: int) -> int:
    """Return the iterations of a loop that starts at `count` and halves it while it exceeds 0."""
    return highest(count).bit_length()


def doublings(count: int) -> int:
    """Return the iterations of a loop that starts at 1 and doubles it while it is below `count`."""
    return max(0, highest(count) - 1).bit_length()


def iterations_of(code: Code, functions: Mapping[str, Code]) -> int:
    """Return the most iterations that one invocation makes in a code and the calls in it.

    Args:
        code: Statements or an expression.
        functions: Functions that it may call, by name.
    """
    looping = {name for name, body in functions.items() if body.loops}
    while callers := {
        name
        for name in functions.keys() - looping
        if any(count_calls(functions[name], other) for other in looping)
    }:
        looping |= callers
    known: dict[str, int] = {}

    def of_function(name: str) -> int:
        if name not in known:
            known[name] = of_code(functions[name])
        return known[name]

    def of_code(code: Code) -> int:
        totals = [0]
        bounds: list[int] = []
        for part in code.split_at_loops():
            if isinstance(part, Loop):
                bounds.append(number_in(part.iterations))
                totals.append(0)
            elif isinstance(part, LoopEnd):
                inside = totals.pop()
                totals[-1] += bounds.pop() * (1 + inside)
            else:
                calls = ((name, count_calls(part, name)) for name in looping)
                totals[-1] += sum(count * of_function(name) for name, count in calls if count)
        (total,) = totals
        return total

    return of_code(code)

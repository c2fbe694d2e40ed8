"""Counting the iterations of a kernel's loops, and parts of equal length."""

from __future__ import annotations

import pytest

from webnn_py.engines.webgpu.compiler.kernel import EntryPoint, Kernel, Shader
from webnn_py.engines.webgpu.compiler.legalize.split_loops import MIN_PART_ELEMENTS, part_lengths
from webnn_py.engines.webgpu.compiler.loop_bounds import (
    MAX_LOOP_ELEMENTS,
    doublings,
    halvings,
    iterations_of,
)
from webnn_py.engines.webgpu.program.pieces import END_LOOP, Code, declared, loop

INNER = declared("inner")


def nested(outer: int, inner: int) -> str:
    """Two loops, one in the other."""
    return "\n".join([loop("for (a)", outer), loop("for (b)", inner), END_LOOP, END_LOOP])


def count(text: str, **functions: str) -> int:
    """The iterations of a text with functions that it may call."""
    return iterations_of(Code.of(text), {name: Code.of(body) for name, body in functions.items()})


def test_a_loop_in_a_loop_counts_with_each_iteration_of_the_outer_one() -> None:
    assert count("out0[0] = 1u;") == 0
    assert count(nested(3, 5)) == 3 + 15
    assert count(f"{nested(3, 5)}\nif (t > 0u) {{ {nested(1, 4)} }}") == 18 + 5


def test_functions_count_where_they_are_called() -> None:
    functions = {
        "inner": f"{loop('for (i)', 4)} {END_LOOP} return x; }}",
        "outer": f"return {INNER}({INNER}(x)); }}",
        "unused": f"{loop('for (i)', 1000)} {END_LOOP} }}",
    }
    body = f"{loop('for (r)', 10)} t = {declared('outer')}(r); {END_LOOP}"
    assert count(body, **functions) == 10 * 9
    assert count(f"out0[0] = {INNER}(reused(1u), unused2(2u));", **functions) == 4


def test_loops_over_powers_of_two() -> None:
    assert [halvings(count) for count in (1, 2, 128)] == [1, 2, 8]
    assert [doublings(count) for count in (1, 2, 64, 65)] == [0, 1, 6, 7]


def test_bounds_are_not_printed() -> None:
    code = Code.of(nested(3, 5))
    assert code.loops == 2
    assert code.wgsl == "for (a) {\nfor (b) {\n}\n}"


def test_a_loop_must_declare_its_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    def kernel(head: str, end: str) -> Kernel:
        shader = Shader((), (), EntryPoint.of(1, (), [head, end]), frozenset())
        return Kernel.of("made", shader, (), (), (1, 1, 1))

    monkeypatch.setenv("WEBNN_VERIFY", "1")
    kernel(loop("for (;;)", 3), END_LOOP)
    with pytest.raises(ValueError, match="1 loops, 0 of them with a bound"):
        kernel("for (;;) {", "}")


@pytest.mark.parametrize(
    "count", [MAX_LOOP_ELEMENTS + 1, 65_536, 70_001, 1 << 20, (1 << 24) + 3, 1 << 30]
)
@pytest.mark.parametrize("multiple", [1, 16])
def test_parts_cover_everything_once(count: int, multiple: int) -> None:
    parts, length = part_lengths(count, multiple=multiple)
    assert (parts - 1) * length < count <= parts * length
    assert MIN_PART_ELEMENTS / 64 <= length <= MAX_LOOP_ELEMENTS
    assert parts <= 2 * count / MIN_PART_ELEMENTS + 64


def test_equal_parts_are_preferred() -> None:
    assert part_lengths(70_000)[0] * part_lengths(70_000)[1] == 70_000

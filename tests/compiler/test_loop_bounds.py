"""Counting the rounds of a kernel's loops, and parts of equal length."""

from __future__ import annotations

import pytest

from webnn_py.engines.webgpu.compiler.legalize.split_loops import MIN_PART_ELEMENTS, part_lengths
from webnn_py.engines.webgpu.compiler.loop_bounds import LONG, at_most, rounds_of


def _main(body: str) -> str:
    return f"@compute @workgroup_size(64)\nfn main(@builtin(x) g: vec3<u32>) {{\n{body}\n}}"


@pytest.mark.parametrize(
    ("body", "rounds"),
    [
        ("out0[0] = 1u;", 0),
        ("for (var r = 0u; r < 10u; r++) { t += r; }", 10),
        ("for (var r = t; r < 10u; r += 4u) { t += r; }", 3),
        ("for (var r = t + 4u; r < 10u; r += 4u) { t += r; }", 3),
        ("for (var s = 128u; s > 0u; s = s >> 1u) { t += s; }", 8),
        ("for (var s = 1u; s < 64u; s = s << 1u) { t += s; }", 6),
        ("for (var y = 0u; y < 3u; y++) { for (var x = 0u; x < 5u; x++) { t += x; } }", 3 + 15),
        ("for (var y = 0u; y < 3u; y++) { }\nif (t > 0u) { for (var x = 0u; x < 5u; x++) { } }", 8),
        (f"for (var r = a; r < b {at_most(7)}; r++) {{ }}", 7),
        (f"while (n != 0u {at_most(32)}) {{ n = n >> 1u; }}", 32),
    ],
)
def test_rounds(body: str, rounds: int) -> None:
    assert rounds_of(_main(body)) == rounds


def test_functions_count_where_they_are_called() -> None:
    code = (
        "fn inner(x: u32) -> u32 { for (var i = 0u; i < 4u; i++) { } return x; }\n"
        "fn unused() { for (var i = 0u; i < 1000u; i++) { } }\n"
        "fn outer(x: u32) -> u32 { return inner(inner(x)); }\n"
        "var<workgroup> sums: array<u32, 64>;\n"
    )
    assert rounds_of(code + _main("for (var r = 0u; r < 10u; r++) { t = outer(r); }")) == 10 * 9


def test_functions_that_nobody_calls_do_not_count() -> None:
    unused = "fn unused() { for (var i = 0u; i < 1000u; i++) { } }\n"
    assert rounds_of(unused + _main("out0[0] = reused();")) == 0


def test_loops_are_told_from_what_is_named_like_them() -> None:
    body = "let before (x); { whilefor (x) { } }\nfor (var r = 0u; r < 3u; r++) { if (a) { b(); } }"
    assert rounds_of(_main(body)) == 3


def test_a_loop_must_say_how_often_it_goes_round() -> None:
    with pytest.raises(ValueError, match="r < count"):
        rounds_of(_main("for (var r = 0u; r < count; r++) { }"))


@pytest.mark.parametrize("count", [LONG + 1, 65_536, 70_001, 1 << 20, (1 << 24) + 3, 1 << 30])
@pytest.mark.parametrize("multiple", [1, 16])
def test_parts_cover_everything_once(count: int, multiple: int) -> None:
    parts, length = part_lengths(count, multiple=multiple)
    assert (parts - 1) * length < count <= parts * length
    assert MIN_PART_ELEMENTS / 64 <= length <= LONG
    assert parts <= 2 * count / MIN_PART_ELEMENTS + 64


def test_equal_parts_are_preferred() -> None:
    assert part_lengths(70_000)[0] * part_lengths(70_000)[1] == 70_000

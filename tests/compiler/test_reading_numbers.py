"""Numbers that follow from sizes are read from a uniform buffer, where they can be."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from webnn_py.core.shape_tracing import Trace
from webnn_py.engines.webgpu.compiler.kernel import Kernel
from webnn_py.engines.webgpu.compiler.shape_generic import MAX_READ_NUMBERS, reading_marks
from webnn_py.engines.webgpu.program.storage import Features

HARDWARE, SOFTWARE = Features(), Features(kind="cpu")
Body = Callable[[Any], str]
Words = Callable[[int], Sequence[int] | None]


def kernel(body: str) -> Kernel:
    head = "@group(0) @binding(0) var<storage, read_write> out0: array<u32>;\n"
    main = "@compute @workgroup_size(64)\nfn main(@builtin(global_invocation_id) g: vec3<u32>) {\n"
    return Kernel("made", f"{head}{main}{body}}}\n", (), (), (1, 1, 1))


def read(body: Body, features: Features = HARDWARE, n: int = 6) -> tuple[str, Words]:
    """The code of a kernel with numbers that follow from n, and the words that it reads."""
    with Trace({"n": n}) as trace:
        made, reads = reading_marks(kernel(body(trace.sizes["n"])), trace, features)
    numbers_at = trace.calculate(read.mark for read in reads)

    def words(size: int) -> Sequence[int] | None:
        found = numbers_at({"n": size})
        return None if found is None else [read.word(found[0]) for read in reads]

    return made.code, words


def bits(number: float) -> int:
    return int.from_bytes(struct.pack("<f", number), "little")


@pytest.mark.parametrize(
    ("literal", "made", "word"),
    [
        ("{}u", "numbers[0u].x", lambda n: n),
        ("i32({})", "bitcast<i32>(numbers[0u].x)", lambda n: n),
        ("{}.0f", "bitcast<f32>(numbers[0u].x)", float),
        ("{}.5f", "bitcast<f32>(numbers[0u].x)", lambda n: n + 0.5),
        ("{}li", "i64(bitcast<i32>(numbers[0u].x))", lambda n: n),
        ("{}lu", "u64(numbers[0u].x)", lambda n: n),
    ],
)
def test_numbers_of_all_types_are_read(
    literal: str, made: str, word: Callable[[int], float]
) -> None:
    code, words = read(lambda n: f"  let a = {literal.format(n)};\n  let b = 3u / {n}u;\n")
    assert f"let number0 = {made};" in code
    for size in (6, 7, 1 << 20):
        expected = word(size)
        first = bits(expected) if isinstance(expected, float) else expected
        found = words(size)
        assert found is not None
        assert found[0] == first
        assert found[-1] == size


def test_negative_numbers_are_read() -> None:
    code, words = read(lambda n: f"  let a = i32({n - 9});\n  let b = i32(-{n});\n")
    assert "i32(-number1)" in code
    assert words(7) == [2**32 - 2, 7]


def test_fractions_are_read() -> None:
    _, words = read(lambda n: f"  let a = {1 / n}f;\n")
    assert words(3) == [bits(1 / 3)]
    assert words(1 << 20) == [bits(2.0**-20)]


def test_a_number_is_read_once() -> None:
    code, words = read(lambda n: f"  let a = {n * 2}u + {2 * n}u;\n  let b = {n * 2}u;\n")
    assert words(5) == [10, 10]
    assert code.count("numbers[") == 2


@pytest.mark.parametrize(
    "body",
    [
        lambda n: f"  var a: array<f32, {n}>;\n",
        lambda n: f"  let a = 1u << ({n} & 3u);\n",
        lambda n: f"  let a = {n + 2**31}li;\n",
        lambda n: f"  let a = {n:03}u;\n",
    ],
)
def test_what_cannot_be_read_is_a_condition(body: Body) -> None:
    code, words = read(body)
    assert code == kernel(body(6)).code
    assert words(6) == []
    assert words(7) is None


def test_too_many_numbers_are_conditions() -> None:
    def body(n: Any) -> str:
        return "".join(f"  let a{i} = {n + i}u;\n" for i in range(MAX_READ_NUMBERS + 1))

    code, words = read(body)
    assert code == kernel(body(6)).code
    assert words(7) is None


def test_software_adapters_do_not_know_where_numbers_lie() -> None:
    """As lavapipe would compile loops for what lies there."""
    code, _ = read(lambda n: f"  for (var r = 0u; r < {n}u; r += 1u) {{ }}\n", SOFTWARE)
    assert "let number0 = numbers[wn_first + 0u].x;" in code
    assert "fn main(@builtin(num_workgroups) wn_groups: vec3<u32>, @builtin(glob" in code

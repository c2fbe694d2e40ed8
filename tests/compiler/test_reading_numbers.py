"""Numbers that follow from sizes are read from a uniform buffer, where they can be."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from webnn_py.core.shape_tracing import Trace
from webnn_py.engines.webgpu.compiler.kernel import (
    BY_INVOCATION,
    Binding,
    EntryPoint,
    Kernel,
    Shader,
)
from webnn_py.engines.webgpu.compiler.shape_generic import MAX_READ_NUMBERS, reading_marks
from webnn_py.engines.webgpu.program.pieces import NumberType, divisor, i32, number, u32
from webnn_py.engines.webgpu.program.storage import Features

HARDWARE, SOFTWARE = Features(), Features(kind="cpu")
Body = Callable[[Any], str]
Words = Callable[[int], Sequence[int] | None]


def kernel(body: str) -> Kernel:
    entry = EntryPoint.of(64, BY_INVOCATION, body.splitlines())
    shader = Shader((Binding("out0", "read_write", "array<u32>"),), (), entry, frozenset())
    return Kernel.of("made", shader, (), (), (1, 1, 1))


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
    ("type_", "made", "word"),
    [
        ("u", "numbers[0u].x", lambda n: n),
        ("i", "bitcast<i32>(numbers[0u].x)", lambda n: n),
        ("f", "bitcast<f32>(numbers[0u].x)", float),
        ("li", "i64(bitcast<i32>(numbers[0u].x))", lambda n: n),
        ("lu", "u64(numbers[0u].x)", lambda n: n),
    ],
)
def test_numbers_of_all_types_are_read(
    type_: NumberType, made: str, word: Callable[[int], float]
) -> None:
    code, words = read(lambda n: f"  let a = {number(n, type_)};\n  let b = 3u / {divisor(n)};\n")
    assert f"let number0 = {made};" in code
    for size in (6, 7, 1 << 20):
        expected = word(size)
        first = bits(expected) if isinstance(expected, float) else expected
        found = words(size)
        assert found is not None
        assert found[0] == first
        assert found[-1] == size


def test_negative_numbers_are_read() -> None:
    code, words = read(lambda n: f"  let a = {i32(n - 9)};\n  let b = -{i32(n)};\n")
    assert "-i32(number1)" in code
    assert words(7) == [2**32 - 2, 7]


def test_fractions_are_read() -> None:
    _, words = read(lambda n: f"  let a = {number(1 / n, 'f')};\n")
    assert words(3) == [bits(1 / 3)]
    assert words(1 << 20) == [bits(2.0**-20)]


def test_a_number_is_read_once() -> None:
    code, words = read(
        lambda n: f"  let a = {u32(n * 2)} + {u32(2 * n)};\n  let b = {u32(n * 2)};\n"
    )
    assert words(5) == [10, 10]
    assert code.count("numbers[") == 2


@pytest.mark.parametrize(
    "body",
    [
        lambda n: f"  var a: array<f32, {n}>;\n",
        lambda n: f"  let a = 1u << ({n} & 3u);\n",
        lambda n: f"  let a = {number(n + 2**31, 'li')};\n",
        lambda n: f"  let a = {n:03}u;\n",
        lambda n: f"  let a = array(1u, 2u)[{n} - 5];\n",
    ],
)
def test_what_cannot_be_read_is_a_condition(body: Body) -> None:
    code, words = read(body)
    assert code == kernel(body(6)).code
    assert words(6) == []
    assert words(7) is None


def test_a_traced_number_is_written_as_a_literal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEBNN_VERIFY", "1")
    with pytest.raises(ValueError, match="outside a literal"):
        read(lambda n: f"  let a = {n!s}u;\n")


def test_too_many_numbers_are_conditions() -> None:
    def body(n: Any) -> str:
        return "".join(f"  let a{i} = {u32(n + i)};\n" for i in range(MAX_READ_NUMBERS + 1))

    code, words = read(body)
    assert code == kernel(body(6)).code
    assert words(7) is None


def test_software_adapters_do_not_know_where_numbers_lie() -> None:
    """As lavapipe would compile loops for what lies there."""
    code, _ = read(lambda n: f"  let r = {u32(n)};\n", SOFTWARE)
    assert "let number0 = numbers[wn_own_first + 0u].x;" in code
    assert "fn main(@builtin(num_workgroups) wn_groups: vec3<u32>, @builtin(glob" in code

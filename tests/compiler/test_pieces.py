"""Declared parts of WGSL: written as text, split into pieces, and verified."""

from __future__ import annotations

import pytest

from tests.compiler.compiled import legal
from webnn_py import MLGraphBuilder, MLOperand
from webnn_py.engines.webgpu.compiler.code.functions import Function
from webnn_py.engines.webgpu.compiler.compiled import compile_graph
from webnn_py.engines.webgpu.compiler.kernel import (
    BY_INVOCATION,
    Binding,
    EntryPoint,
    Kernel,
    Shader,
)
from webnn_py.engines.webgpu.program.pieces import (
    Code,
    Literal,
    Name,
    declared,
    divisor,
    i32,
    number,
    u32,
)
from webnn_py.engines.webgpu.program.storage import Features

OUT, TWICE = declared("out0"), declared("twice")


def made(line: str) -> Kernel:
    """A kernel of one function and one statement."""
    twice = Function.of("twice", "i: u32", "u32", f" return i * {u32(2)}; ")
    entry = EntryPoint.of(64, BY_INVOCATION, [line])
    bindings = (Binding("out0", "read_write", "array<u32>"),)
    return Kernel.of("made", Shader(bindings, (twice,), entry, frozenset()), (), (), (1, 1, 1))


def test_declared_parts_are_pieces() -> None:
    code = Code.of(f"{OUT}[i / {divisor(3)}] = {u32(5)};")
    assert code.pieces == (
        Name("out0"),
        "[i / ",
        Literal("3", "u", divides=True),
        "] = ",
        Literal("5", "u"),
        ";",
    )
    assert Code.of(code.tagged).pieces == code.pieces
    assert code.wgsl == "out0[i / 3u] = 5u;"


def test_literals_of_all_types() -> None:
    text = f"{u32(1)} {i32(-1)} {number(2, 'li')} {number(3, 'lu')} {number(0.5, 'f')}"
    code = Code.of(text)
    assert code.wgsl == "1u i32(-1) 2li 3lu 0.5f"
    assert [literal.word for literal in code.literals.values()] == [1, 2**32 - 1, 2, 3, 0x3F000000]


def test_a_compiled_graph_keeps_wgsl_alone() -> None:
    def what(builder: MLGraphBuilder) -> dict[str, MLOperand]:
        return {"y": builder.relu(builder.input("x", "float32", [4]))}

    features = Features()
    (kernel,) = compile_graph(legal(what, features), features).kernels
    assert "fn main" in kernel.code
    assert kernel.shader is None


@pytest.mark.parametrize("line", [f"{OUT}[0] = twice(1u);", f"out0[0] = {TWICE}(1u);"])
def test_names_of_a_shader_are_declared(line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEBNN_VERIFY", "1")
    assert "out0[0] = twice(1u);" in made(f"{OUT}[0] = {TWICE}(1u);").code
    with pytest.raises(ValueError, match=r"without `pieces\.declared`"):
        made(line)

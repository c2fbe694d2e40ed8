"""WGSL too deep for drivers, or that they expand to too much, is refused before they see it."""

from __future__ import annotations

import pytest

from tests.wgsl_limits import KINDS
from webnn_py import DataError, ValidationError
from webnn_py.engines.webgpu.program.document import _shader
from webnn_py.engines.webgpu.program.wgsl_interface import tokens_of
from webnn_py.storage.document import Field


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_over_a_limit_is_refused(kind: str) -> None:
    make, _, size, told = KINDS[kind]
    with pytest.raises(ValidationError, match=told):
        tokens_of(make(size))
    with pytest.raises(DataError, match=told):
        _shader(Field(make(size), "program.json"))


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_below_is_not(kind: str) -> None:
    make, size, _, _ = KINDS[kind]
    assert tokens_of(make(size))


@pytest.mark.parametrize(
    "code",
    [
        "fn sum(a: f32) -> f32 { var sum = a; sum += 1; return sum; }",
        "struct Options { scale: f32 } fn scale(by: Options) -> f32 { return by.scale; }",
        "fn f(g: f32) -> f32 { return 1.0; } fn g(f: f32) -> f32 { return 1.0; }",
    ],
)
def test_names_may_be_alike(code: str) -> None:
    assert tokens_of(code)


@pytest.mark.parametrize(
    "code", ["", "}", ")))]", "fn", "var<", "fn f", "var<storage", "@", ";;", "else"]
)
def test_fragments_are_no_error_of_pythons(code: str) -> None:
    assert isinstance(tokens_of(code), list)

"""Which reductions the kernel of what reads them computes for itself."""

from __future__ import annotations

import functools
import re
from typing import Any

import pytest

from tests.compiler.compiled import kernels
from tests.graphs import Build, normal
from webnn_py import MLGraphBuilder, MLOperand
from webnn_py.engines.webgpu.program.storage import Features

Outputs = dict[str, MLOperand]


def names(what: Build, **features: Any) -> list[str]:
    """What each kernel of a graph is named after: its last operator, or its loop."""
    return [kernel.name for kernel in kernels(what, Features(**features))]


def matrix(b: MLGraphBuilder, rows: int = 10, columns: int = 100) -> MLOperand:
    return b.input("x", "float32", [rows, columns])


def largest(b: MLGraphBuilder, x: MLOperand, axis: int = 1) -> MLOperand:
    return b.reduce_max(x, axes=[axis], keep_dimensions=True)


def softmax(b: MLGraphBuilder) -> Outputs:
    """Two reductions, of which the second reads the first."""
    return {"y": b.softmax(matrix(b), 1)}


def normalized(b: MLGraphBuilder) -> Outputs:
    """With what flows into the second: the root of a sum."""
    scale = b.constant(normal(100))
    return {"y": b.layer_normalization(matrix(b), scale=scale, bias=scale, axes=[1])}


def halves(b: MLGraphBuilder) -> Outputs:
    """Casts are elementwise."""
    return {"y": b.softmax(b.input("x", "float16", [10, 100]), 1)}


def of_several_axes(b: MLGraphBuilder) -> Outputs:
    """Which lie one after the other."""
    x = b.input("x", "float32", [2, 10, 100])
    return {"y": b.layer_normalization(x, axes=[1, 2])}


def of_columns(b: MLGraphBuilder) -> Outputs:
    """A column does not lie one element after the other."""
    return {"y": b.softmax(matrix(b, 100, 100), 0)}


def short(b: MLGraphBuilder) -> Outputs:
    """A workgroup is too much for it."""
    return {"y": b.softmax(matrix(b, 10, 63), 1)}


def of_whole_numbers(b: MLGraphBuilder) -> Outputs:
    """Of any data type whose elements can be written one by one."""
    x = b.input("x", "int32", [10, 100])
    return {"y": b.sub(x, largest(b, x))}


def read_further(b: MLGraphBuilder) -> Outputs:
    """What is read element by element behind a row goes with it."""
    return {"y": b.relu(b.add(b.softmax(matrix(b), 1), b.input("z", "float32", [10, 100])))}


ROWS = [
    softmax,
    normalized,
    halves,
    of_several_axes,
    of_columns,
    short,
    of_whole_numbers,
    read_further,
]


@pytest.mark.parametrize("kind", ["gpu", "cpu"])
@pytest.mark.parametrize("what", ROWS)
def test_one_kernel(what: Build, kind: str) -> None:
    assert len(names(what, kind=kind)) == 1


def test_invocations_that_compute_a_row() -> None:
    code = kernels(short, Features())[0].code
    assert "workgroupBarrier" not in code
    assert "workgroupBarrier" in kernels(softmax, Features())[0].code
    assert "workgroupBarrier" not in kernels(softmax, Features(kind="cpu"))[0].code


def long(b: MLGraphBuilder) -> Outputs:
    """And not enough for this."""
    return {"y": b.softmax(matrix(b, 10, 8193), 1)}


def read_twice(b: MLGraphBuilder) -> Outputs:
    """The result of a reduction is read by another kernel, too."""
    x = matrix(b)
    top = largest(b, x)
    return {"y": b.sub(x, top), "z": b.exp(b.transpose(top))}


def given_out(b: MLGraphBuilder) -> Outputs:
    """It is the user's."""
    x = matrix(b)
    top = largest(b, x)
    return {"y": b.sub(x, top), "z": top}


def of_other_rows(b: MLGraphBuilder) -> Outputs:
    """A row's elements are computed from what others were reduced to."""
    x = matrix(b, 100, 100)
    return {"y": b.sub(x, b.transpose(largest(b, x)))}


def without_dimensions(b: MLGraphBuilder) -> Outputs:
    """Results that are read along the other axis."""
    x = matrix(b, 100, 100)
    return {"y": b.sub(x, b.reduce_max(x, axes=[1]))}


@pytest.mark.parametrize(
    "what",
    [
        long,
        read_twice,
        given_out,
        of_other_rows,
        without_dimensions,
    ],
)
def test_reductions_that_are_stored(what: Build) -> None:
    made = names(what)
    assert len(made) > 1
    assert any(name.startswith("reduce_") for name in made)


def test_rows_that_are_turned() -> None:
    def turned(b: MLGraphBuilder) -> Outputs:
        x = matrix(b, 100, 100)
        return {"y": b.transpose(b.sub(x, largest(b, x)))}

    assert names(turned) == ["sub", "transpose"]


def test_rows_behind_rows() -> None:
    """What costs too much to compute for each reduction is stored in between."""

    def both(b: MLGraphBuilder) -> Outputs:
        scale = b.constant(normal(100))
        rows = b.layer_normalization(matrix(b), scale=scale, bias=scale, axes=[1])
        return {"y": b.softmax(rows, 1)}

    assert names(both) == ["exp", "div"]


def test_as_many_operands_as_can_be_bound() -> None:
    def scaled(b: MLGraphBuilder) -> Outputs:
        scale, bias = b.constant(normal(100)), b.input("b", "float32", [100])
        return {"y": b.layer_normalization(matrix(b), scale=scale, bias=bias, axes=[1])}

    assert len(names(scaled, max_bindings=6)) == 1
    made = kernels(scaled, Features(max_bindings=3))
    assert max(len(kernel.reads) for kernel in made) == 2


@pytest.mark.parametrize("kind", ["gpu", "cpu"])
def test_what_is_read_by_fours_and_one_by_one_is_bound_twice(kind: str) -> None:
    """Beside operands of more dimensions than the rows have."""

    def centered(b: MLGraphBuilder) -> Outputs:
        x, y, z = (b.input(name, "float32", [256, 256]) for name in "xyz")
        others = [b.reshape(b.input(name, "float32", [4, 64, 256]), x.shape) for name in "uv"]
        both = [b.add(one, b.reverse(one)) for one in (x, y, z)]
        rows = b.add(*both[:2])
        made = b.sub(rows, b.reduce_mean(rows, axes=[1], keep_dimensions=True))
        return {"y": functools.reduce(b.mul, (*both[2:], *others), made)}

    (kernel,) = kernels(centered, Features(kind=kind, max_bindings=8))
    assert len(kernel.bindings) <= 8


def test_many_operands_read_in_fours_have_names_of_their_own() -> None:
    def summed(b: MLGraphBuilder) -> Outputs:
        terms = [b.input(str(i), "float32", [10, 100]) for i in range(5)]
        return {"y": b.softmax(functools.reduce(b.add, terms), 1)}

    code = "".join(kernel.code for kernel in kernels(summed, Features(kind="cpu")))
    assert "array<vec4<f32>>" in code
    assert not re.search(r"> vec\d:", code)  # which is a type

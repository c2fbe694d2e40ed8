"""Kernels side by side that are the same code, and what keeps them from it."""

from __future__ import annotations

import re
from collections.abc import Sequence

import pytest

from tests.compiler.compiled import kernels, legal
from tests.compiler.test_abreast import GPU, fused, image, layer
from tests.graphs import Build, normal
from webnn_py import MLGraphBuilder, MLOperand
from webnn_py.engines.webgpu.compiler.abreast_code import quotient
from webnn_py.engines.webgpu.compiler.alike import LONG, Member, alike
from webnn_py.engines.webgpu.compiler.compiled import compile_graph
from webnn_py.engines.webgpu.compiler.kernel import Kernel
from webnn_py.engines.webgpu.program.wgsl_interface import read_module


def bodies(kernel: Kernel) -> int:
    """How many times products are multiplied in the code."""
    return len(re.findall(r"^  for \(var k0", kernel.code, re.MULTILINE))


def branches(*channels: int) -> Build:
    def network(b: MLGraphBuilder) -> dict[str, MLOperand]:
        x = image(b)
        return {str(n): layer(b, x, n) for n in channels}

    return network


def test_branches_are_one_body() -> None:
    apart = kernels(branches(32, 64), GPU)
    (kernel,) = fused(branches(32, 64))
    assert [bodies(one) for one in (*apart, kernel)] == [1, 1, 1]
    module = read_module(kernel.code).entry_point("main")
    assert len(module.bindings) == len(kernel.reads) + len(kernel.writes) == 5


def test_what_is_computed_otherwise_has_its_own_body() -> None:
    def network(b: MLGraphBuilder) -> dict[str, MLOperand]:
        x = image(b)
        plain = b.conv2d(x, b.constant(normal(32, 128, 1, 1, seed=1)))
        return {"y": layer(b, x), "z": plain}

    (kernel,) = fused(network)
    assert bodies(kernel) == 2


def member(body: str, begin: int = 0, buffer: str = "data0") -> Member:
    filled = body + "\n" + " " * LONG
    return Member("", "", filled, {"out": buffer}, {"out": "array<vec4<f32>>"}, begin)


def together(members: Sequence[Member]) -> list[int]:
    return [len(group) for group in alike(members)]


@pytest.mark.parametrize(
    "body",
    [
        "out[i].x = 1.0;",
        "out[i] += 1.0;",
        "let x = &out;",
        "out[out[i].x] = v;",
        "out[i] = out[j];",
    ],
)
def test_what_does_more_than_read_and_write_elements(body: str) -> None:
    assert together([member("out[i] = v;"), member("out[i] = v;", 3)]) == [2]
    assert together([member(body), member(body, 3)]) == [1, 1]


def test_others_between_and_short_code() -> None:
    one, other = member("out[i] = v;"), member("out[i] = v + v;", 3)
    assert together([one, other, one]) == [1, 1, 1]
    short = Member("", "", "out[i] = v;", {"out": "data0"}, {"out": "array<f32>"}, 0)
    assert together([short, short]) == [1, 1]


@pytest.mark.parametrize("end", [1, 7, 640, 3000, 46340])
def test_quotients(end: int) -> None:
    for divisor in (1, 2, 3, 5, 6, 7, 49, 50, 127, 1023, 3000, 46341):
        made = re.fullmatch(r"\(n \* (\d+)u\) >> (\d+)u", quotient("n", divisor, end))
        assert made is not None  # WGSL wants the parentheses, which some drivers do without
        factor, shift = map(int, made.groups())
        assert shift < 32
        assert (end - 1) * factor < 1 << 32
        for n in {0, end - 1, *range(0, end, 97), *range(divisor - 1, end, divisor)}:
            assert n * factor >> shift == n // divisor


def test_a_quotient_of_what_may_be_large() -> None:
    assert quotient("n", 7, 1 << 20) == "n / 7u"


def test_others_share_the_pipeline() -> None:
    """Of how many workgroups and channels follows in numbers alone."""

    def network(b: MLGraphBuilder) -> dict[str, MLOperand]:
        x = image(b)
        for n in (32, 96, 64):
            x = b.concat([layer(b, x, n), layer(b, x, 128 - n, seed=1)], 1)
        return {"y": x}

    compiled = compile_graph(legal(network, GPU), GPU)
    products = [kernel for kernel in compiled.kernels if "conv2d | conv2d" in kernel.name]
    assert len(products) == 3
    assert len({kernel.code for kernel in products}) == 1

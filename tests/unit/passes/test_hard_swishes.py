"""hard_swish that is spelled out becomes one node, and what is another function stays."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from tests.unit.passes.listings import after, assert_keeps, recorded, results
from webnn_py import MLGraphBuilder, MLOperand
from webnn_py.passes.hard_swishes import fuse_hard_swish

Number = Callable[[float], MLOperand]
Spelling = Callable[[MLGraphBuilder, MLOperand, Number], MLOperand]


def clamped(b: MLGraphBuilder, x: MLOperand, three: MLOperand, most: float = 6) -> MLOperand:
    return b.clamp(b.add(x, three), min_value=0, max_value=most)


SPELLINGS: dict[str, Spelling] = {
    "divided": lambda b, x, n: b.div(b.mul(x, clamped(b, x, n(3))), n(6)),
    "multiplied": lambda b, x, n: b.mul(n(1 / 6), b.mul(clamped(b, x, n(3)), x)),
}
OTHERS: dict[str, Spelling] = {
    "another summand": lambda b, x, n: b.div(b.mul(x, clamped(b, x, n(2))), n(6)),
    "another bound": lambda b, x, n: b.div(b.mul(x, clamped(b, x, n(3), 5)), n(6)),
    "another divisor": lambda b, x, n: b.div(b.mul(x, clamped(b, x, n(3))), n(5)),
    "the divisor above": lambda b, x, n: b.div(n(6), b.mul(x, clamped(b, x, n(3)))),
    "another factor": lambda b, x, n: b.div(b.mul(b.abs(x), clamped(b, x, n(3))), n(6)),
    "of another": lambda b, x, n: b.div(b.mul(x, clamped(b, b.abs(x), n(3))), n(6)),
    "a sum": lambda b, x, n: b.div(b.add(x, clamped(b, x, n(3))), n(6)),
    "more dimensions": lambda b, x, n: b.div(
        b.mul(x, clamped(b, x, n(3))), b.constant(np.full((1, 1, 1), 6, np.float32))
    ),
}


def body(spelling: Spelling) -> Callable[[MLGraphBuilder, MLOperand], MLOperand]:
    return lambda b, x: spelling(b, x, lambda number: b.constant(np.asarray(number, np.float32)))


@pytest.mark.parametrize("name", SPELLINGS)
def test_spelled_out(name: str) -> None:
    graph = recorded(body(SPELLINGS[name]))
    made = after(fuse_hard_swish, graph)
    assert [node.op for node in made.nodes] == ["hard_swish"]
    x = np.asarray([[-4, -3, -1], [0, 2, 5]], np.float32)
    for one, other in zip(results(graph, x), results(made, x), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-6)


@pytest.mark.parametrize("name", OTHERS)
def test_others(name: str) -> None:
    assert_keeps(fuse_hard_swish, recorded(body(OTHERS[name])))

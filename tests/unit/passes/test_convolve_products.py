"""Products in a row and heads are convolutions of one element; what gains nothing by it stays."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest

from tests.unit.passes.listings import after, assert_keeps, recorded, results
from webnn_py import MLGraphBuilder, MLOperand
from webnn_py.passes.convolve_products import convolve_products

Step = Callable[[MLGraphBuilder, MLOperand], MLOperand]
INNER, OUTER = 512, 1024
HEADS = {"permutation": [0, 2, 1, 3]}


def floats(b: MLGraphBuilder, *shape: int) -> MLOperand:
    array = np.random.default_rng(len(shape)).normal(0, 0.1, shape)
    return b.constant(array.astype(np.float32))


def widened(b: MLGraphBuilder, x: MLOperand) -> MLOperand:
    return b.add(b.matmul(x, floats(b, INNER, OUTER)), floats(b, OUTER))


def narrowed(b: MLGraphBuilder, x: MLOperand) -> MLOperand:
    return b.matmul(x, floats(b, OUTER, INNER))


CHAINS: dict[str, tuple[Step, list[str]]] = {
    "with a function": (lambda b, x: narrowed(b, b.gelu(widened(b, x))), ["gelu"]),
    "with summands": (
        lambda b, x: b.add(floats(b, INNER), narrowed(b, b.relu(widened(b, x)))),
        ["relu"],
    ),
    "alone": (lambda b, x: narrowed(b, b.matmul(x, floats(b, INNER, OUTER))), []),
}


@pytest.mark.parametrize("shape", [(3, INNER), (2, 3, INNER), (2, 1, 3, INNER)])
@pytest.mark.parametrize("name", CHAINS)
def test_chains_are_convolved(name: str, shape: Sequence[int]) -> None:
    step, between = CHAINS[name]
    graph = recorded(step, shape)
    made = after(convolve_products, graph)
    assert [node.op for node in made.nodes] == [
        "reshape",
        "transpose",
        "conv2d",
        *between,
        "conv2d",
        "transpose",
        "reshape",
    ]
    x = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    for one, other in zip(results(graph, x), results(made, x), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-4)


def test_rows_may_be_open() -> None:
    graph = recorded(CHAINS["with a function"][0], ["n", "m", INNER])
    made = after(convolve_products, graph)
    assert [node.op for node in made.nodes].count("conv2d") == 2


def attention(b: MLGraphBuilder, x: MLOperand, heads: int = 4) -> MLOperand:
    """Scores of heads, times values."""
    batch, length, width = x.shape

    def split(order: Sequence[int]) -> MLOperand:
        made = b.add(b.matmul(x, floats(b, width, width)), floats(b, width))
        parts = b.reshape(made, [batch, length, heads, width // heads])
        return b.transpose(parts, permutation=order)

    scores = b.matmul(split([0, 2, 1, 3]), split([0, 2, 3, 1]))
    return b.matmul(b.softmax(scores, 3), split([0, 2, 1, 3]))


@pytest.mark.parametrize("shape", [(2, 3, INNER), (1, 5, INNER)])
def test_heads_come_out_of_convolutions(shape: Sequence[int]) -> None:
    graph = recorded(attention, shape)
    made = after(convolve_products, graph)
    ops = [node.op for node in made.nodes]
    assert ops.count("conv2d") == 3
    assert ops.count("matmul") == 2
    assert [n.attrs["permutation"] for n in made.nodes if n.op == "transpose"] == [
        (0, 3, 1, 2),  # of the rows, once
        (0, 1, 3, 2),
        (0, 1, 3, 2),
    ]
    x = np.random.default_rng(0).normal(0, 0.1, shape).astype(np.float32)
    for one, other in zip(results(graph, x), results(made, x), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-4)


def _read_twice(b: MLGraphBuilder, x: MLOperand) -> MLOperand:
    wide = widened(b, x)
    return b.add(narrowed(b, b.relu(wide)), b.reduce_mean(wide, axes=[1], keep_dimensions=True))


STAYING: dict[str, tuple[Step, tuple[int, ...]]] = {
    "one product": (widened, (3, INNER)),
    "heads of few weights": (attention, (1, 3, 64)),
    "heads that are not multiplied": (
        lambda b, x: b.exp(b.transpose(b.reshape(widened(b, x), [1, 3, 4, 256]), **HEADS)),
        (1, 3, INNER),
    ),
    "columns in another order": (
        lambda b, x: b.matmul(
            b.transpose(b.reshape(widened(b, x), [1, 3, 4, 256]), permutation=[0, 3, 2, 1]),
            floats(b, 1, 256, 3, 2),
        ),
        (1, 3, INNER),
    ),
    "one row": (CHAINS["with a function"][0], (1, INNER)),
    "few weights": (lambda b, x: b.matmul(b.relu(b.matmul(x, x)), floats(b, 64, 64)), (64, 64)),
    "another function": (lambda b, x: narrowed(b, b.exp(widened(b, x))), (3, INNER)),
    "a product that others read": (_read_twice, (3, INNER)),
    "channels that fill no blocks": (
        lambda b, x: b.matmul(b.matmul(x, floats(b, INNER, 1032)), floats(b, 1032, INNER)),
        (3, INNER),
    ),
    "a summand of each row": (
        lambda b, x: narrowed(b, b.add(b.matmul(x, floats(b, INNER, OUTER)), floats(b, 3, 1))),
        (3, INNER),
    ),
}


@pytest.mark.parametrize("name", STAYING)
def test_others_stay(name: str) -> None:
    step, shape = STAYING[name]
    assert_keeps(convolve_products, recorded(step, shape))


def test_other_data_types_stay() -> None:
    def halves(b: MLGraphBuilder, x: MLOperand) -> MLOperand:
        wide = b.matmul(x, b.constant(np.ones((INNER, OUTER), np.float16)))
        return b.matmul(wide, b.constant(np.ones((OUTER, INNER), np.float16)))

    assert_keeps(convolve_products, recorded(halves, (3, INNER), "float16"))

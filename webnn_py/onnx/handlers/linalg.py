"""Matrix products, determinants and Einstein sums."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Sequence
from typing import Any

from webnn_py.core.dimensions import span
from webnn_py.onnx.emitter import Emitter
from webnn_py.onnx.registry import handles
from webnn_py.onnx.tensor import BrokenModelError, Tensor, check_rank, refuse

MAX_DETERMINANT = 6
"""Maximum number of rows of a matrix: each further row doubles the sets of columns."""


def product(g: Emitter, a: Any, b: Any) -> Any:
    """Multiply floats like NumPy's matmul; a vector counts as a matrix of one row or column."""
    check_rank(1, 10, a=a, b=b)
    row, column = a.rank == 1, b.rank == 1
    if row:
        a = g.reshape(a, [1, a.shape[0]])
    if column:
        b = g.reshape(b, [b.shape[0], 1])
    made = g.matmul(a, b)
    shape = list(made.shape)
    if row:
        del shape[-2]
    if column:
        del shape[-1]
    return g.moved(made, shape)


def integer_product(g: Emitter, a: Any, b: Any, data_type: str) -> Any:
    """Multiply integer matrices by elementwise products and an integer sum."""
    check_rank(1, 10, a=a, b=b)
    row, column = a.rank == 1, b.rank == 1
    a = g.reshape(a, [1, a.shape[0]]) if row else a
    b = g.reshape(b, [b.shape[0], 1]) if column else b
    left = g.reshape(g.to(a, data_type), [*a.shape, 1])
    right = g.reshape(g.to(b, data_type), [*b.shape[:-2], 1, *b.shape[-2:]])
    made = g.reduce_sum(g.mul(left, right), axes=[max(left.rank, right.rank) - 2])
    shape = list(made.shape)
    if row:
        del shape[-2]
    if column:
        del shape[-1]
    return g.moved(made, shape)


@handles("MatMul")
def matmul(g: Emitter, a: Tensor, b: Tensor) -> Any:
    """Multiply matrices, or batches of matrices."""
    if a.is_float:
        return product(g, a, b)
    return integer_product(g, a, b, a.data_type)


@handles("Gemm", since=7)
def gemm(
    g: Emitter,
    a: Tensor,
    b: Tensor,
    c: Tensor | None = None,
    *,
    alpha: float = 1.0,
    beta: float = 1.0,
    transA: int = 0,  # noqa: N803 - ONNX's name
    transB: int = 0,  # noqa: N803
) -> Any:
    """Return alpha * A x B + beta * C."""
    if not a.is_float:
        refuse(f"WebNN has no products of {a.data_type}")
    options = {} if c is None else {"c": c}
    return g.gemm(
        a,
        b,
        alpha=alpha,
        beta=beta,
        a_transpose=bool(transA),
        b_transpose=bool(transB),
        **options,
    )


@handles("Gemm")
def gemm_1(
    g: Emitter,
    a: Tensor,
    b: Tensor,
    c: Tensor,
    *,
    alpha: float = 1.0,
    beta: float = 1.0,
    broadcast: int = 0,
    transA: int = 0,  # noqa: N803
    transB: int = 0,  # noqa: N803
) -> Any:
    """Handle Gemm before opset 7."""
    return gemm(g, a, b, c, alpha=alpha, beta=beta, transA=transA, transB=transB)


@handles("Det")
def det(g: Emitter, x: Tensor) -> Any:
    """Compute determinants of small matrices by Laplace expansion along the rows.

    Each set of columns has one minor, which the next row reuses.
    """
    check_rank(2, 10, x=x)
    count = x.shape[-1]
    if x.shape[-2] is not count and x.shape[-2] != count:
        raise BrokenModelError(f"its input has shape {list(x.shape)}, expected square matrices")
    if span(count)[1] > MAX_DETERMINANT:
        refuse(f"determinants of matrices of over {MAX_DETERMINANT} rows")
    lead, zeros = list(x.shape[:-2]), [0] * (x.rank - 2)

    def element(row: int, column: int) -> Any:
        one = g.slice(x, [*zeros, row, column], [*lead, 1, 1])
        return g.reshape(one, lead)

    rest: dict[tuple[int, ...], Any] = {(): None}
    for row in reversed(range(count)):
        made = {}
        for columns in itertools.combinations(range(count), count - row):
            terms = []
            for i, column in enumerate(columns):
                minor = rest[columns[:i] + columns[i + 1 :]]
                term = element(row, column) if minor is None else g.mul(element(row, column), minor)
                terms.append(g.neg(term) if i % 2 else term)
            made[columns] = functools.reduce(g.add, terms)
        rest = made
    return rest[tuple(range(count))]


@handles("Einsum")
def einsum(g: Emitter, *inputs: Tensor, equation: str) -> Any:
    """Sum products over named indices: align the factors, multiply them, sum."""
    left, arrow, right = equation.replace(" ", "").partition("->")
    terms = left.split(",")
    if len(terms) != len(inputs):
        raise BrokenModelError(
            f"its equation {equation!r} has {len(terms)} terms, of {len(inputs)} inputs"
        )
    letters = [_letters(term, one.rank) for term, one in zip(terms, inputs, strict=True)]
    dots = max(([c for c in names if c.isdigit()] for names in letters), key=len, default=[])
    if arrow:
        at = right.partition("...")
        result = [*at[0], *(sorted(dots, reverse=True) if at[1] else []), *at[2]]
    else:
        flat = [c for names in letters for c in names]
        result = [*sorted(dots, reverse=True), *sorted(c for c in set(flat) if flat.count(c) == 1)]
        result = [*dict.fromkeys(result)]
    if len(set(result)) < len(result) or not set(result) <= {c for n in letters for c in n}:
        raise BrokenModelError(f"its equation {equation!r} has a result of other indices")
    prepared = [_diagonal(g, one, names) for one, names in zip(inputs, letters, strict=True)]
    summed = [
        c for c in dict.fromkeys(c for _, names in prepared for c in names) if c not in result
    ]
    order = [*result, *summed]
    if len(order) > 8:
        refuse(f"{len(order)} indices, more than WebNN has dimensions")
    if len(prepared) == 2 and inputs[0].is_float:
        made = _contracted(g, prepared[0], prepared[1], result, summed)
        if made is not None:
            return made
    factors = [_spread(g, one, names, order) for one, names in prepared]
    total = functools.reduce(g.mul, factors)
    if summed:
        total = g.reduce_sum(total, axes=list(range(len(result), len(order))))
    elif len(factors) == 1:
        total = g.identity(total)
    return total


def _letters(term: str, rank: int) -> list[str]:
    head, dots, tail = term.partition("...")
    count = rank - len(head) - len(tail)
    if count < 0 or (count and not dots):
        raise BrokenModelError(f"its term {term!r} has other indices than an input of rank {rank}")
    return [*head, *(str(i) for i in reversed(range(count))), *tail]


def _diagonal(g: Emitter, x: Any, names: list[str]) -> tuple[Any, list[str]]:
    """Reduce each repeated index to its diagonal: mask other elements with 0, then sum.

    Returns:
        The tensor and its index names, now distinct.
    """
    while len(set(names)) < len(names):
        twice = next(c for c in names if names.count(c) > 1)
        i, j = [k for k, c in enumerate(names) if c == twice][:2]
        rows, columns = (g.places(x.shape[k], k, x.rank) for k in (i, j))
        x = g.where(g.equal(rows, columns), x, g.constant(0, x))
        x = g.reduce_sum(x, axes=[j])
        names = [c for k, c in enumerate(names) if k != j]
    return x, names


def _spread(g: Emitter, x: Any, names: Sequence[str], order: Sequence[str]) -> Any:
    present = [c for c in order if c in names]
    moved = x
    if present != list(names):
        moved = g.transpose(x, permutation=[names.index(c) for c in present])
    sizes = dict(zip(names, x.shape, strict=True))
    return g.moved(moved, [sizes.get(c, 1) for c in order])


def _contracted(
    g: Emitter,
    a: tuple[Any, list[str]],
    b: tuple[Any, list[str]],
    result: Sequence[str],
    summed: Sequence[str],
) -> Any:
    """Compute two factors as one matrix product.

    Returns:
        The product in the order of `result`. None if nothing is summed, a summed index is in one
        factor alone, or the sizes of an index differ.
    """
    sizes: dict[str, int] = {}
    for x, names in (a, b):
        for c, n in zip(names, x.shape, strict=True):
            if sizes.setdefault(c, n) != n:
                return None
    if not summed or any(c not in a[1] or c not in b[1] for c in summed):
        return None
    batch = [c for c in result if c in a[1] and c in b[1]]
    rows = [c for c in result if c in a[1] and c not in b[1]]
    columns = [c for c in result if c not in a[1]]

    def matrix(side: tuple[Any, list[str]], first: Sequence[str], last: Sequence[str]) -> Any:
        order = [*batch, *first, *last]
        moved = g.transpose(side[0], permutation=[side[1].index(c) for c in order])
        outer = [sizes[c] for c in batch]
        ends = [math.prod(sizes[c] for c in names) for names in (first, last)]
        return g.reshape(moved, [*outer, *ends])

    made = g.matmul(matrix(a, rows, summed), matrix(b, summed, columns))
    named = [*batch, *rows, *columns]
    parted = g.reshape(made, [sizes[c] for c in named])
    return g.transpose(parted, permutation=[named.index(c) for c in result])

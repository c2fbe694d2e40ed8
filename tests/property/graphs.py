"""Random graphs: each maker adds a node, or a few that belong together."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from tests.property import layers
from tests.property.growing import (
    DATA_TYPES,
    FLOAT,
    Case,
    Grower,
    Picks,
    Rejected,
    SeededPicks,
    axes_of,
    axis_of,
    called,
    has_rank,
    types_of,
)
from webnn_py import MLOperand
from webnn_py.ops.declare import REGISTRY

Maker = Callable[[Grower], MLOperand | list[MLOperand]]

FAMILIES = ("elementwise", "activation")
POINTWISE = [op for op in REGISTRY.values() if op.elementwise and op.family in FAMILIES]
UNARY = [op for op in POINTWISE if len(op.limits) == 1]
BINARY = [op for op in POINTWISE if len(op.limits) == 2]
REDUCTIONS = [op for op in REGISTRY.values() if op.reduce is not None]
NUMBERS = (-1.0, 0.0, 0.25, 0.5, 1.0, 2.0)


def _shuffled(g: Grower, x: MLOperand) -> list[int]:
    """A permutation; of four dimensions rather the two that everybody uses."""
    if x.rank == 4 and g.chance(60):
        return g.choice([[0, 2, 3, 1], [0, 3, 1, 2]])
    rest = list(range(x.rank))
    return [rest.pop(g.picks.integer(0, len(rest) - 1)) for _ in range(x.rank)]


def first_input(g: Grower) -> MLOperand:
    rank = g.choice([4, 2, 3, 4, 1, 0])
    most = {4: 4, 3: 6, 2: 12}.get(rank, 20)
    shape = [g.picks.integer(1, most) for _ in range(rank)]
    return g.new_input(shape, g.choice([FLOAT, FLOAT, "int32", "uint8"]))


def _new_input(g: Grower) -> MLOperand:
    if g.chance(50):
        raise Rejected
    return first_input(g)


def _new_constant(g: Grower) -> MLOperand:
    """For nodes of constants alone, which are folded."""
    like = g.pick(*DATA_TYPES)
    return g.new_constant(like.shape, like.data_type)


def _unary(g: Grower) -> MLOperand:
    op = g.choice(UNARY)
    options: dict[str, Any] = {}
    if op.name == "cast":
        options["data_type"] = g.choice(DATA_TYPES)
    elif op.name == "clamp":
        low, high = g.choice([(None, 1), (0, None), (-1, 2), (0, 6)])
        options = {"min_value": low, "max_value": high}
    elif g.chance(50):
        options = {name: g.choice(NUMBERS) for name in op.converters}
    return called(op, g, g.pick(*types_of(op)), **options)  # type: ignore[no-any-return]


def _cast(g: Grower) -> MLOperand:
    return g.cast(g.pick(*DATA_TYPES), g.choice(DATA_TYPES))  # type: ignore[arg-type]


def _partner(g: Grower, x: MLOperand) -> MLOperand:
    """An operand that broadcasts to the first one's shape, of its type."""

    def fits(y: MLOperand) -> bool:
        tail = x.shape[x.rank - y.rank :] if y.rank <= x.rank else ()
        return len(tail) == y.rank and all(a in (1, b) for a, b in zip(y.shape, tail, strict=True))

    if g.chance(50):
        return g.pick(x.data_type, where=fits)
    kept = x.shape[g.picks.integer(0, x.rank) :]
    shape = [size if g.chance(70) else 1 for size in kept]
    return g.new_constant(shape, x.data_type)


def _binary(g: Grower) -> MLOperand:
    op = g.choice(BINARY)
    x = g.pick(*types_of(op))
    pair = [x, _partner(g, x)]
    if op.name != "prelu" and g.chance(40):
        pair.reverse()
    return called(op, g, *pair)  # type: ignore[no-any-return]


def _where(g: Grower) -> MLOperand:
    condition = g.pick("uint8")
    shape = condition.shape[g.picks.integer(0, condition.rank) :]
    x = g.new_constant(shape, g.choice(DATA_TYPES))
    return g.where(condition, x, _partner(g, x))


def _reduce(g: Grower) -> MLOperand:
    op = g.choice(REDUCTIONS)
    x = g.pick(*types_of(op))
    return called(op, g, x, axes=axes_of(g, x), keep_dimensions=g.chance(50))  # type: ignore[no-any-return]


def _reshape(g: Grower) -> MLOperand:
    x = g.pick(*DATA_TYPES)
    left, shape = x.size, []
    while left > 1 and len(shape) < 3:
        size = g.choice([d for d in range(1, left + 1) if left % d == 0])
        shape.append(size)
        left //= size
    return g.reshape(x, [*shape, left] if left > 1 or g.chance(50) else shape)


def _transpose(g: Grower) -> MLOperand:
    x = g.pick(*DATA_TYPES)
    return g.transpose(x, permutation=_shuffled(g, x))


def _expand(g: Grower) -> MLOperand:
    x = g.pick(*DATA_TYPES)
    shape = [g.picks.integer(1, 3) if size == 1 else size for size in x.shape]
    return g.expand(x, [2, *shape] if x.rank < 4 and g.chance(30) else shape)


def _slice(g: Grower) -> MLOperand:
    x = g.pick(*DATA_TYPES)
    starts = [g.picks.integer(0, (size - 1) // 2) for size in x.shape]
    sizes = [g.picks.integer(1, size - at) for size, at in zip(x.shape, starts, strict=True)]
    steps = [g.choice([1, 1, 2]) for _ in x.shape]
    return g.slice(x, starts, sizes, strides=steps)


def _concat(g: Grower) -> MLOperand:
    x = g.pick(*DATA_TYPES)
    axis = axis_of(g, x)

    def fits(y: MLOperand) -> bool:
        others = (*y.shape[:axis], x.shape[axis], *y.shape[axis + 1 :])
        return y.rank == x.rank and others == x.shape

    return g.concat(
        [x, *(g.pick(x.data_type, where=fits) for _ in range(g.picks.integer(0, 2)))], axis
    )


def _pad(g: Grower) -> MLOperand:
    x = g.pick(*DATA_TYPES)
    mode = g.choice(["constant", "edge", "reflection"])
    most = [min(2, size - 1) if mode == "reflection" else 2 for size in x.shape]
    low, high = ([g.picks.integer(0, m) if g.chance(50) else 0 for m in most] for _ in range(2))
    return g.pad(x, low, high, mode=mode, value=g.choice([0, 1, 3]))  # type: ignore[arg-type]


def _tile(g: Grower) -> MLOperand:
    x = g.pick(*DATA_TYPES)
    return g.tile(x, [g.choice([1, 1, 2]) for _ in x.shape])


def _reverse(g: Grower) -> MLOperand:
    x = g.pick(*DATA_TYPES)
    return g.reverse(x, axes=axes_of(g, x))


def _split(g: Grower) -> list[MLOperand]:
    x = g.pick(*DATA_TYPES)
    axis = axis_of(g, x)
    first = g.picks.integer(0, x.shape[axis] - 1)
    return g.split(x, [first, x.shape[axis] - first] if first else 1, axis=axis)


def _triangular(g: Grower) -> MLOperand:
    x = g.pick(*DATA_TYPES, where=lambda x: x.rank > 1)
    return g.triangular(x, upper=g.chance(50), diagonal=g.picks.integer(-2, 2))


def _sandwich(g: Grower) -> MLOperand:
    """Something between a transpose and its inverse."""
    x = g.pick(*DATA_TYPES, where=lambda x: x.rank > 1)
    order = _shuffled(g, x)
    y = g.transpose(x, permutation=order)
    others = g.pool
    try:
        for _ in range(g.picks.integer(1, 3)):
            g.pool = [y]
            y = g.choice([_unary, _binary, _binary, _concat, _pad, _slice, _tile, _reverse])(g)
    finally:
        g.pool = others
    return g.transpose(y, permutation=[order.index(axis) for axis in range(x.rank)])


def _arg(g: Grower) -> MLOperand:
    x = g.pick(*DATA_TYPES)
    op = g.choice([g.arg_max, g.arg_min])
    return op(x, axis_of(g, x), keep_dimensions=g.chance(50))


def _cumulative_sum(g: Grower) -> MLOperand:
    x = g.pick(FLOAT, "int32")
    return g.cumulative_sum(x, axis_of(g, x), exclusive=g.chance(50), reversed=g.chance(50))


def _gather(g: Grower) -> MLOperand:
    x = g.pick(*DATA_TYPES)
    axis = axis_of(g, x)
    size = x.shape[axis]
    shape = g.choice([[], [2], [3], [1, 2]])
    numbers = [g.picks.integer(-size, size - 1) for _ in range(math.prod(shape))]
    return g.gather(x, g.constant(np.array(numbers, np.int32).reshape(shape)), axis=axis)


def _resample2d(g: Grower) -> MLOperand:
    x = g.pick(FLOAT, where=has_rank(4))
    mode = g.choice(["nearest-neighbor", "linear"])
    axes = g.choice([[2, 3], [1, 2]])
    return g.resample2d(x, mode=mode, scales=g.choice([[2.0, 2.0], [1.0, 2.0]]), axes=axes)  # type: ignore[arg-type]


def _repeat(g: Grower) -> list[MLOperand]:
    """A node once more, for what merges equal ones."""
    if not g.nodes:
        raise Rejected
    node = g.choice(g.nodes)
    operands = {value: MLOperand(g, value) for value in node.operands}
    op = REGISTRY[node.op]
    made = called(op, g, **op.given_arguments(node, operands))
    return made if isinstance(made, list) else [made]


MAKERS: list[Maker] = [
    *[_unary, _binary] * 5,
    *[_reduce, _transpose, _sandwich, layers.normalized_product, layers.normalized_images] * 2,
    _new_input,
    _new_constant,
    *[_cast] * 2,
    _where,
    _reshape,
    _expand,
    _slice,
    _concat,
    _pad,
    _tile,
    _reverse,
    _split,
    _triangular,
    layers.matmul,
    layers.gemm,
    layers.conv2d,
    layers.conv_transpose2d,
    layers.pool,
    layers.softmax,
    layers.layer_normalization,
    layers.instance_normalization,
    layers.batch_normalization,
    _arg,
    _cumulative_sum,
    _gather,
    _resample2d,
    _repeat,
]
"""Each as likely as it stands here often."""


def grow(picks: Picks, most: int = 40) -> Case:
    """A random graph of 5 nodes or more."""
    grower = Grower(picks)
    for _ in range(picks.integer(1, 3)):
        grower.pool.append(first_input(grower))
    count = picks.integer(5, most)
    for _ in range(4 * count):
        if len(grower.nodes) >= count:
            break
        grower.attempt(grower.choice(MAKERS))
    return grower.finish()


def seeded_case(seed: int) -> Case:
    """The random graph of a seed: always the same."""
    return grow(SeededPicks(seed))

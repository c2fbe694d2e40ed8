"""Random graphs: each maker adds a node, or a few that belong together."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tests.property.growing import DATA_TYPES, Case, Grower, Picks, Rejected, SeededPicks
from webnn_py import MLOperand
from webnn_py.ops.declare import REGISTRY, Operator

Maker = Callable[[Grower], MLOperand | list[MLOperand]]

FAMILIES = ("elementwise", "activation")
POINTWISE = [op for op in REGISTRY.values() if op.elementwise and op.family in FAMILIES]
UNARY = [op for op in POINTWISE if len(op.limits) == 1]
BINARY = [op for op in POINTWISE if len(op.limits) == 2]
REDUCTIONS = [op for op in REGISTRY.values() if op.reduce is not None]
POOLS = [op for op in REGISTRY.values() if op.family == "pooling"]
NUMBERS = (-1.0, 0.0, 0.25, 0.5, 1.0, 2.0)
FLOAT = "float32"


def _call(op: Operator, g: Grower, *operands: Any, **options: Any) -> Any:
    return getattr(g, op.name)(*operands, **options)


def _types(op: Operator) -> list[str]:
    """Those of the first operand that the graphs have."""
    allowed = op.operand_types(next(iter(op.limits)))
    return [name for name in DATA_TYPES if name in allowed]


def _has_rank(*ranks: int) -> Callable[[MLOperand], bool]:
    return lambda operand: operand.rank in ranks


def _axis(g: Grower, x: MLOperand) -> int:
    if not x.rank:
        raise Rejected
    return g.picks.integer(0, x.rank - 1)


def _axes(g: Grower, x: MLOperand) -> list[int]:
    return [axis for axis in range(x.rank) if g.chance(50)]


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
    return _call(op, g, g.pick(*_types(op)), **options)  # type: ignore[no-any-return]


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
    x = g.pick(*_types(op))
    pair = [x, _partner(g, x)]
    if op.name != "prelu" and g.chance(40):
        pair.reverse()
    return _call(op, g, *pair)  # type: ignore[no-any-return]


def _where(g: Grower) -> MLOperand:
    condition = g.pick("uint8")
    shape = condition.shape[g.picks.integer(0, condition.rank) :]
    x = g.new_constant(shape, g.choice(DATA_TYPES))
    return g.where(condition, x, _partner(g, x))


def _reduce(g: Grower) -> MLOperand:
    op = g.choice(REDUCTIONS)
    x = g.pick(*_types(op))
    return _call(op, g, x, axes=_axes(g, x), keep_dimensions=g.chance(50))  # type: ignore[no-any-return]


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
    axis = _axis(g, x)

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
    return g.reverse(x, axes=_axes(g, x))


def _split(g: Grower) -> list[MLOperand]:
    x = g.pick(*DATA_TYPES)
    axis = _axis(g, x)
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


def _weights(g: Grower, shape: Sequence[int], fan_in: int) -> MLOperand:
    """A constant whose products with tame numbers have tame sums."""
    rng = np.random.default_rng(g.picks.integer(0, 2**32 - 1))
    return g.constant((rng.uniform(-1, 1, shape) / math.sqrt(fan_in)).astype(np.float32))


def _matmul(g: Grower) -> MLOperand:
    a = g.pick(FLOAT, where=lambda x: x.rank > 1)
    k = a.shape[-1]
    if g.chance(30):
        return g.matmul(
            a, g.pick(FLOAT, where=lambda b: b.shape == (*a.shape[:-2], k, a.shape[-2]))
        )
    batch = a.shape[:-2] if g.chance(30) else ()
    return g.matmul(a, _weights(g, [*batch, k, g.picks.integer(1, 9)], k))


def _gemm(g: Grower) -> MLOperand:
    a = g.pick(FLOAT, where=_has_rank(2))
    flips = {"a_transpose": g.chance(30), "b_transpose": g.chance(50)}
    m, k = a.shape[::-1] if flips["a_transpose"] else a.shape
    n = g.picks.integer(1, 9)
    b = _weights(g, [n, k] if flips["b_transpose"] else [k, n], k)
    c = g.new_constant(g.choice([[n], [], [1, n], [m, 1], [m, n]])) if g.chance(60) else None
    return g.gemm(a, b, c=c, alpha=g.choice([1.0, 0.5]), beta=g.choice([1.0, 2.0]), **flips)


def _conv2d(g: Grower, x: MLOperand | None = None) -> MLOperand:
    x = g.pick(FLOAT, where=_has_rank(4)) if x is None else x
    layout = g.choice(["nchw", "nchw", "nhwc"])
    sizes = dict(zip(layout, x.shape, strict=True))
    groups = g.choice([d for d in (1, 1, 2, 3, 4) if sizes["c"] % d == 0])
    window = [g.picks.integer(1, min(3, sizes[letter])) for letter in "hw"]
    out = groups * g.picks.integer(1, 3)
    taps = {"o": out, "i": sizes["c"] // groups, "h": window[0], "w": window[1]}
    filter_layout = g.choice(["oihw", "hwio", "ohwi", "ihwo"])
    weights = _weights(g, [taps[d] for d in filter_layout], taps["i"] * math.prod(window))
    return g.conv2d(
        x,
        weights,
        bias=g.new_constant([out]) if g.chance(40) else None,
        padding=[g.picks.integer(0, 1) for _ in range(4)],
        strides=[g.choice([1, 1, 2]) for _ in range(2)],
        groups=groups,
        input_layout=layout,  # type: ignore[arg-type]
        filter_layout=filter_layout,  # type: ignore[arg-type]
    )


def _conv_transpose2d(g: Grower) -> MLOperand:
    x = g.pick(FLOAT, where=_has_rank(4))
    layout = g.choice(["nchw", "nhwc"])
    channels = x.shape[layout.index("c")]
    groups = g.choice([d for d in (1, 2) if channels % d == 0])
    taps = {"i": channels, "o": g.picks.integer(1, 3), "h": 2, "w": g.picks.integer(1, 3)}
    filter_layout = g.choice(["iohw", "hwoi", "ohwi"])
    weights = _weights(g, [taps[d] for d in filter_layout], channels * 2)
    return g.conv_transpose2d(
        x,
        weights,
        bias=g.new_constant([groups * taps["o"]]) if g.chance(40) else None,
        strides=[g.picks.integer(1, 2) for _ in range(2)],
        groups=groups,
        input_layout=layout,  # type: ignore[arg-type]
        filter_layout=filter_layout,  # type: ignore[arg-type]
    )


def _pool(g: Grower) -> MLOperand:
    op = g.choice(POOLS)
    x = g.pick(*_types(op), where=_has_rank(4))
    layout = g.choice(["nchw", "nhwc"])
    sizes = dict(zip(layout, x.shape, strict=True))
    window = [g.picks.integer(1, min(3, sizes[letter])) for letter in "hw"]
    options = {
        "padding": [g.picks.integer(0, (window[i // 2] - 1) // 2) for i in range(4)],
        "strides": [g.picks.integer(1, 2) for _ in range(2)],
        "output_shape_rounding": g.choice(["floor", "ceil"]),
    }
    if options["output_shape_rounding"] == "ceil":
        # A last window that lies in the padding alone has no mean.
        options["strides"] = [min(2, size) for size in window]
    return _call(op, g, x, window_dimensions=window, layout=layout, **options)  # type: ignore[no-any-return]


def _softmax(g: Grower) -> MLOperand:
    x = g.pick(FLOAT)
    return g.softmax(x, _axis(g, x))


def _layer_normalization(g: Grower) -> MLOperand:
    x = g.pick(FLOAT)
    axes = _axes(g, x)
    if math.prod(x.shape[axis] for axis in axes) < 2:
        raise Rejected
    if g.chance(30):
        axes.reverse()
    shape = [x.shape[axis] for axis in axes]
    parts = {name: g.new_constant(shape) for name in ("scale", "bias") if g.chance(60)}
    return g.layer_normalization(x, axes=axes, epsilon=0.01, **parts)


def _instance_normalization(g: Grower) -> MLOperand:
    x = g.pick(FLOAT, where=_has_rank(4))
    layout = g.choice(["nchw", "nhwc"])
    shape = [x.shape[layout.index("c")]]
    parts = {name: g.new_constant(shape) for name in ("scale", "bias") if g.chance(60)}
    return g.instance_normalization(x, layout=layout, epsilon=0.01, **parts)  # type: ignore[arg-type]


def _normalized(g: Grower, x: MLOperand, axis: int) -> MLOperand:
    shape = [x.shape[axis]]
    parts = {name: g.new_constant(shape) for name in ("scale", "bias") if g.chance(60)}
    rng = np.random.default_rng(g.picks.integer(0, 2**32 - 1))
    variance = g.constant(rng.uniform(0.25, 2, shape).astype(np.float32))
    return g.batch_normalization(x, g.new_constant(shape), variance, axis=axis, **parts)


def _batch_normalization(g: Grower) -> MLOperand:
    x = g.pick(FLOAT)
    return _normalized(g, x, _axis(g, x))


def _normalized_product(g: Grower) -> MLOperand:
    """What passes fold: a product, and something for each channel of it."""
    maker = g.choice([_conv2d, _conv2d, _conv_transpose2d, _matmul, _gemm])
    y = maker(g)
    layout = g.nodes[-1].attrs.get("input_layout")
    axis = y.rank - 1 if layout is None else layout.index("c")
    if g.chance(60):
        y = _normalized(g, y, axis)
    shape = [y.shape[axis], *[1] * (y.rank - 1 - axis)]
    for _ in range(g.picks.integer(0, 2)):
        op = g.choice([g.add, g.sub, g.mul])
        pair = [y, g.new_constant(shape if g.chance(80) else [])]
        y = op(*pair if g.chance(70) else pair[::-1])
    return g.relu(y) if g.chance(50) else y


def _arg(g: Grower) -> MLOperand:
    x = g.pick(*DATA_TYPES)
    op = g.choice([g.arg_max, g.arg_min])
    return op(x, _axis(g, x), keep_dimensions=g.chance(50))


def _cumulative_sum(g: Grower) -> MLOperand:
    x = g.pick(FLOAT, "int32")
    return g.cumulative_sum(x, _axis(g, x), exclusive=g.chance(50), reversed=g.chance(50))


def _gather(g: Grower) -> MLOperand:
    x = g.pick(*DATA_TYPES)
    axis = _axis(g, x)
    size = x.shape[axis]
    shape = g.choice([[], [2], [3], [1, 2]])
    numbers = [g.picks.integer(-size, size - 1) for _ in range(math.prod(shape))]
    return g.gather(x, g.constant(np.array(numbers, np.int32).reshape(shape)), axis=axis)


def _resample2d(g: Grower) -> MLOperand:
    x = g.pick(FLOAT, where=_has_rank(4))
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
    made = _call(op, g, **op.given_arguments(node, operands))
    return made if isinstance(made, list) else [made]


def _normalized_images(g: Grower) -> MLOperand:
    """What passes scale by channels: a normalization that a convolution reads."""
    y = _normalized(g, g.pick(FLOAT, where=_has_rank(4)), axis=1)
    return _conv2d(g, g.relu(y) if g.chance(50) else y)


MAKERS: list[Maker] = [
    *[_unary, _binary] * 5,
    *[_reduce, _transpose, _sandwich, _normalized_product, _normalized_images] * 2,
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
    _matmul,
    _gemm,
    _conv2d,
    _conv_transpose2d,
    _pool,
    _softmax,
    _layer_normalization,
    _instance_normalization,
    _batch_normalization,
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

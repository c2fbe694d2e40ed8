"""What a signature cannot say: shapes that belong together, lists of a certain length.

A rule gives the shapes of the operands, and the options that no annotation describes.
"""

from __future__ import annotations

import itertools
import math
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from hypothesis import strategies as st

from tests.property.drawing import (
    Draw,
    Operator,
    Shape,
    broadcasting,
    divisors,
    present,
    shapes,
    sizes,
)
from webnn_py import MLGraphBuilder

Rule = Callable[[Draw, Operator], tuple[Mapping[str, Any], dict[str, Any]]]
RULES: dict[str, Rule] = {}


def rule(*names: str) -> Callable[[Rule], Rule]:
    def register(function: Rule) -> Rule:
        RULES.update(dict.fromkeys(names, function))
        return function

    return register


def general(draw: Draw, op: Operator) -> tuple[Mapping[str, Any], dict[str, Any]]:
    """Operands that broadcast with each other, in the ranks of the declaration."""
    low, high = next(iter(op.limits.values())).rank_range
    whole = draw(shapes(low, high))
    if len(op.limits) == 1:
        return dict.fromkeys(op.limits, whole), {}
    return {name: draw(broadcasting(whole)) for name in op.limits}, {}


@rule("clamp")
def _clamp(draw: Draw, op: Operator) -> Any:
    low, high = draw(st.integers(-4, 0)), draw(st.integers(1, 4))
    bounds = {"min_value": low + draw(st.sampled_from([0, 0.5])), "max_value": high}
    return {"input": draw(shapes())}, {k: v for k, v in bounds.items() if draw(st.booleans())}


@rule("matmul")
def _matmul(draw: Draw, op: Operator) -> Any:
    batch = draw(shapes(0, 6, 2))
    m, k, n = (draw(sizes()) for _ in range(3))
    a, b = draw(broadcasting(batch)), draw(broadcasting(batch))
    return {"a": (*a, m, k), "b": (*b, k, n)}, {}


@rule("gemm")
def _gemm(draw: Draw, op: Operator) -> Any:
    m, k, n = (draw(sizes()) for _ in range(3))
    flip_a, flip_b = draw(st.booleans()), draw(st.booleans())
    wanted = {"a": (k, m) if flip_a else (m, k), "b": (n, k) if flip_b else (k, n)}
    wanted |= draw(present({"c": draw(broadcasting((m, n)))}))
    return wanted, {"a_transpose": flip_a, "b_transpose": flip_b}


def _placed(shape: Mapping[str, int], layout: str) -> Shape:
    return tuple(shape[letter] for letter in layout)


def _layout(draw: Draw, op: Operator, name: str) -> str:
    hint = typing.get_type_hints(getattr(MLGraphBuilder, op.name))[name]
    return str(draw(st.sampled_from(typing.get_args(hint))))


def _window(draw: Draw) -> dict[str, list[int]]:
    return {
        "padding": [draw(st.integers(0, 2)) for _ in range(4)],
        "strides": [draw(sizes(3)) for _ in range(2)],
        "dilations": [draw(sizes(2)) for _ in range(2)],
    }


@rule("conv2d", "conv2d_integer", "conv_transpose2d")
def _convolution(draw: Draw, op: Operator) -> Any:
    transposed = op.name == "conv_transpose2d"
    groups, channels, out = draw(sizes(2)), draw(sizes(2)), draw(sizes(2))
    window = {"h": draw(sizes(3)), "w": draw(sizes(3))}
    options: dict[str, Any] = _window(draw) | {"groups": groups}
    spans = [(n - 1) * d + 1 for n, d in zip(window.values(), options["dilations"], strict=True)]
    size = [draw(st.integers(1, 3)) for _ in spans]
    if transposed:
        tap = {"i": channels * groups, "o": out}
        steps = options["strides"]
        full = [(n - 1) * s + span for n, s, span in zip(size, steps, spans, strict=True)]
        pads = options["padding"]
        # At least one row and column is left.
        for i in (0, 1):
            pads[2 * i] = min(pads[2 * i], full[i] - 1)
            pads[2 * i + 1] = min(pads[2 * i + 1], full[i] - 1 - pads[2 * i])
        extra = [draw(st.integers(0, stride - 1)) for stride in options["strides"]]
        left = [full[i] - pads[2 * i] - pads[2 * i + 1] for i in (0, 1)]
        if draw(st.booleans()):
            options["output_padding"] = extra
        elif draw(st.booleans()):
            options["output_sizes"] = [a + b for a, b in zip(left, extra, strict=True)]
    else:
        tap = {"i": channels, "o": out * groups}
        size = [n + span for n, span in zip(size, spans, strict=True)]
    image = {"n": draw(sizes(2)), "c": channels * groups, "h": size[0], "w": size[1]}
    options["input_layout"] = _layout(draw, op, "input_layout")
    options["filter_layout"] = _layout(draw, op, "filter_layout")
    wanted = {
        "input": _placed(image, options["input_layout"]),
        "filter": _placed(tap | window, options["filter_layout"]),
    }
    optional: dict[str, Any] = {"bias": (out * groups,)}
    if op.name == "conv2d_integer":
        of_channels = st.sampled_from([(), (1,), (out * groups,)])
        optional = {
            "input_zero_point": draw(st.sampled_from([(), (1,)])),
            "filter_zero_point": draw(of_channels),
        }
    return wanted | draw(present(optional)), options


@rule("average_pool2d", "l2_pool2d", "max_pool2d")
def _pool(draw: Draw, op: Operator) -> Any:
    image = {"n": draw(sizes(2)), "c": draw(sizes(2)), "h": draw(sizes(6)), "w": draw(sizes(6))}
    layout = _layout(draw, op, "layout")
    wanted = {"input": _placed(image, layout)}
    if draw(st.booleans()):
        return wanted, {"layout": layout}
    options: dict[str, Any] = {"layout": layout, "window_dimensions": [], "dilations": [1, 1]}
    options["strides"] = [draw(sizes(3)) for _ in range(2)]
    options["padding"] = []
    for size in (image["h"], image["w"]):
        window = draw(sizes(size))
        # A window that lies in the padding as a whole has no elements.
        options["padding"] += [draw(st.integers(0, window - 1)) for _ in range(2)]
        options["window_dimensions"].append(window)
    return wanted, options


@rule("arg_top_k")
def _arg_top_k(draw: Draw, op: Operator) -> Any:
    shape = draw(shapes(1))
    axis = draw(st.integers(0, len(shape) - 1))
    return {"input": shape}, {"axis": axis, "k": draw(st.integers(1, shape[axis]))}


@rule("batch_normalization")
def _batch_normalization(draw: Draw, op: Operator) -> Any:
    shape = draw(shapes(1))
    axis = draw(st.integers(0, len(shape) - 1))
    along = (shape[axis],)
    wanted = {"input": shape, "mean": along, "variance": along}
    return wanted | draw(present({"scale": along, "bias": along})), {"axis": axis}


@rule("instance_normalization")
def _instance_normalization(draw: Draw, op: Operator) -> Any:
    shape, layout = draw(shapes(4, 4)), _layout(draw, op, "layout")
    along = (shape[layout.index("c")],)
    return {"input": shape} | draw(present({"scale": along, "bias": along})), {"layout": layout}


@rule("layer_normalization")
def _layer_normalization(draw: Draw, op: Operator) -> Any:
    shape = draw(shapes())
    axes = draw(st.lists(st.sampled_from(range(len(shape))), unique=True)) if shape else []
    is_given = draw(st.booleans())
    along = tuple(shape[axis] for axis in axes) if is_given else shape[1:]
    options = {"axes": axes if is_given else None}
    return {"input": shape} | draw(present({"scale": along, "bias": along})), options


@rule("concat")
def _concat(draw: Draw, op: Operator) -> Any:
    shape = draw(shapes(1))
    axis = draw(st.integers(0, len(shape) - 1))
    lengths = draw(st.lists(sizes(3), min_size=1, max_size=4))
    parts = [(*shape[:axis], length, *shape[axis + 1 :]) for length in lengths]
    return {"inputs": parts}, {"axis": axis}


@rule("expand")
def _expand(draw: Draw, op: Operator) -> Any:
    shape = draw(shapes())
    return {"input": draw(broadcasting(shape))}, {"new_shape": list(shape)}


@rule("reshape")
def _reshape(draw: Draw, op: Operator) -> Any:
    shape = draw(shapes(0, 5))
    factors = [1, 1, *shape]
    order = draw(st.permutations(factors))
    cut = draw(st.integers(0, len(order)))
    merged = [*order[:cut], math.prod(order[cut:])]
    return {"input": shape}, {"new_shape": merged}


@rule("pad")
def _pad(draw: Draw, op: Operator) -> Any:
    shape = draw(shapes(0, 8, 3))
    mode = draw(st.sampled_from(["constant", "edge", "reflection"]))
    total = 1
    pads: list[list[int]] = []
    for size in shape:
        most = size - 1 if mode == "reflection" else 2
        pair = [draw(st.integers(0, most if total < 4096 else 0)) for _ in range(2)]
        total *= size + sum(pair)
        pads.append(pair)
    options = {
        "beginning_padding": [low for low, _ in pads],
        "ending_padding": [high for _, high in pads],
        "mode": mode,
    }
    return {"input": shape}, options | ({"value": 3} if draw(st.booleans()) else {})


@rule("slice")
def _slice(draw: Draw, op: Operator) -> Any:
    shape = draw(shapes())
    starts = [draw(st.integers(0, size - 1)) for size in shape]
    lengths = [draw(sizes(n - start)) for n, start in zip(shape, starts, strict=True)]
    options = {"starts": starts, "sizes": lengths}
    if draw(st.booleans()):
        options["strides"] = [draw(sizes(3)) for _ in shape]
    return {"input": shape}, options


@rule("split")
def _split(draw: Draw, op: Operator) -> Any:
    shape = draw(shapes(1, 8, 6))
    axis = draw(st.integers(0, len(shape) - 1))
    size = shape[axis]
    if draw(st.booleans()):
        (count,) = draw(divisors((size,)))
        return {"input": shape}, {"axis": axis, "splits": count}
    cuts = sorted(draw(st.sets(st.integers(1, size - 1)))) if size > 1 else []
    ends = [0, *cuts, size]
    parts = [b - a for a, b in itertools.pairwise(ends)]
    return {"input": shape}, {"axis": axis, "splits": parts}


@rule("tile")
def _tile(draw: Draw, op: Operator) -> Any:
    shape = draw(shapes(0, 8, 3))
    return {"input": shape}, {"repetitions": [draw(sizes(2)) for _ in shape]}


def scales(size: int) -> st.SearchStrategy[float]:
    """Factors that leave at least one element."""
    factors = (0.25, 0.3, 0.5, 0.7, 1.0, 1.1, 1.5, 2.0, 2.6)
    return st.sampled_from([factor for factor in factors if factor * size > 1.01 or factor >= 1])


@rule("resample2d")
def _resample2d(draw: Draw, op: Operator) -> Any:
    shape = draw(shapes(4, 4))
    axes = draw(st.permutations(range(4)))[:2]
    options: dict[str, Any] = {"axes": axes}
    if draw(st.booleans()):
        options["sizes"] = [draw(sizes(7)) for _ in axes]
    else:
        options["scales"] = [draw(scales(shape[axis])) for axis in axes]
    return {"input": shape}, options


def _recurrent(draw: Draw, op: Operator, gates: int, states: Sequence[str]) -> Any:
    batch, features, hidden = (draw(sizes(3)) for _ in range(3))
    cell = op.name.endswith("_cell")
    options: dict[str, Any] = {"hidden_size": hidden}
    front: Shape = ()
    rows: Shape = (batch, features)
    if not cell:
        steps = draw(sizes(3))
        options["direction"] = draw(st.sampled_from(["forward", "backward", "both"]))
        options["steps"] = steps
        front = (2 if options["direction"] == "both" else 1,)
        rows = (steps, batch, features)
    wanted: dict[str, Shape] = {
        "input": rows,
        "weight": (*front, gates * hidden, features),
        "recurrent_weight": (*front, gates * hidden, hidden),
    }
    state = dict.fromkeys(states, (*front, batch, hidden))
    optional = dict.fromkeys(("bias", "recurrent_bias"), (*front, gates * hidden))
    if "peephole_weight" in op.limits:
        optional["peephole_weight"] = (*front, 3 * hidden)
    wanted |= state if cell else draw(present(state))
    wanted |= draw(present(optional))
    if draw(st.booleans()):
        names = st.sampled_from(["relu", "sigmoid", "tanh"])
        options["activations"] = [draw(names) for _ in range(gates - 1)]
    return {name: wanted[name] for name in op.limits if name in wanted}, options


@rule("gru", "gru_cell")
def _gru(draw: Draw, op: Operator) -> Any:
    state = "hidden_state" if op.name == "gru_cell" else "initial_hidden_state"
    return _recurrent(draw, op, 3, [state])


@rule("lstm", "lstm_cell")
def _lstm(draw: Draw, op: Operator) -> Any:
    front = "" if op.name == "lstm_cell" else "initial_"
    return _recurrent(draw, op, 4, [f"{front}hidden_state", f"{front}cell_state"])


@rule("lstm_packed")
def _lstm_packed(draw: Draw, op: Operator) -> Any:
    steps, batch, features, hidden = (draw(sizes(3)) for _ in range(4))
    direction = draw(st.sampled_from(["forward", "backward", "both"]))
    front = 2 if direction == "both" else 1
    each = front, 4 * hidden
    columns = [draw(st.sampled_from([(front, 1), each])) for _ in range(2)]
    states = ("initial_hidden_state", "initial_cell_state")
    optional: dict[str, Shape] = {
        "weight_zero_point": columns[0],
        "recurrent_zero_point": columns[1],
        **dict.fromkeys(("bias", "recurrent_bias"), each),
        **dict.fromkeys(states, (front, batch, hidden)),
    }
    wanted = {
        "input": (steps, batch, features),
        "weight": (front, features, 4 * hidden),
        "recurrent_weight": (front, hidden, 4 * hidden),
        "weight_scale": columns[0],
        "recurrent_scale": columns[1],
    } | draw(present(optional))
    return wanted, {"direction": direction, "layout": draw(st.sampled_from(["iofg", "ifgo"]))}


@rule("scaled_dot_product_attention")
def _attention(draw: Draw, op: Operator) -> Any:
    batch, shared, group, rows, keys, size, width = (draw(sizes(3)) for _ in range(7))
    heads = shared * group
    wanted: dict[str, Shape] = {
        "query": (batch, heads, rows, size),
        "key": (batch, shared, keys, size),
        "value": (batch, shared, keys, width),
    }
    mask = draw(broadcasting((batch, heads, rows, keys)))
    optional = {"mask": mask, "lengths": (draw(st.sampled_from([1, batch])),)}
    options = {
        "scale": draw(st.sampled_from([None, 0.25, 1.0])),
        "window": draw(st.none() | sizes(4)),
        "softcap": draw(st.sampled_from([None, 0.5, 8.0])),
    }
    return wanted | draw(present(optional)), options


@rule("rotary_embedding")
def _rotary_embedding(draw: Draw, op: Operator) -> Any:
    batch, heads, rows, pairs = (draw(sizes(3)) for _ in range(4))
    x = (batch, heads, rows, 2 * pairs + draw(st.integers(0, 2)))
    lead = draw(st.sampled_from([(), (1,), (batch,)]))
    if draw(st.booleans()):
        angles = (*lead, rows, pairs)
        return {"x": x, "cos": angles, "sin": angles}, {}
    table = (draw(sizes(4)), pairs)
    return {"x": x, "cos": table, "sin": table, "positions": (*lead, rows)}, {}


@rule("rms_normalization")
def _rms_normalization(draw: Draw, op: Operator) -> Any:
    shape = draw(shapes(1))
    axes = draw(st.none() | st.lists(st.sampled_from(range(len(shape))), unique=True))
    along = shape[-1:] if axes is None else tuple(shape[axis] for axis in axes)
    return {"x": shape, "scale": along}, {"axes": axes}


@rule("scatter_rows")
def _scatter_rows(draw: Draw, op: Operator) -> Any:
    shape = draw(shapes(2))
    axis = draw(st.integers(1, len(shape) - 1))
    rows = (*shape[:axis], draw(sizes(4)), *shape[axis + 1 :])
    starts = (draw(st.sampled_from([1, shape[0]])),)
    return {"cache": shape, "rows": rows, "starts": starts}, {"axis": axis}


@rule("matmul_packed")
def _matmul_packed(draw: Draw, op: Operator) -> Any:
    block = draw(st.sampled_from([1, 3, 4, 16]))
    columns, depth = draw(sizes(4)), draw(sizes(3 * block))
    blocks = -(-depth // block)
    wanted = {
        "x": (*draw(shapes(0, 3, 3)), depth),
        "codes": (columns, depth),
        "scales": (columns, blocks),
    }
    optional: dict[str, Shape] = {"zero_points": (columns, blocks)}
    return wanted | draw(present(optional)), {"block_size": block}


@rule("matmul_integer")
def _matmul_integer(draw: Draw, op: Operator) -> Any:
    batch = draw(shapes(0, 3, 2))
    m, n, k = draw(sizes()), draw(sizes()), draw(st.sampled_from([1, 3, 300]))
    a, b = (*draw(broadcasting(batch)), m, k), (*draw(broadcasting(batch)), k, n)
    rows = st.sampled_from([(), (1,), (m,), (m, 1), (*a[:-1], 1)])
    columns = st.sampled_from([(), (1,), (n,), (1, n), (*b[:-2], 1, n)])
    optional = {"a_zero_point": draw(rows), "b_zero_point": draw(columns)}
    return {"a": a, "b": b} | draw(present(optional)), {}

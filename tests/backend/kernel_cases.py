"""Small graphs that together take every template of kernels through each of its forms."""

from __future__ import annotations

import functools
import itertools
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tests.attention_cases import Attention, of_sizes
from tests.backend.emitted import AnyTiles
from tests.public import REDUCTIONS
from webnn_py import MLGraphBuilder, MLOperand

Array = np.ndarray[Any, Any]


SETTINGS: dict[str, dict[str, Any]] = {
    "gpu": {"kind": "gpu"},
    "gpu, folded": {"kind": "gpu", "grid": 13},
    "gpu, plain": {"kind": "gpu", "f16": False, "int64": False},
    "gpu, in parts": {"kind": "gpu", "binding_bytes": 4096},
    "gpu, small": {
        "kind": "gpu",
        "workgroup_bytes": 1024,
        "invocations": 64,
        "max_bindings": 8,
    },
    "gpu, by fours": {"kind": "gpu", "large": 1},
    "gpu, by fours, plain": {"kind": "gpu", "large": 1, "f16": False, "int64": False},
    "gpu, by fours, few": {"kind": "gpu", "large": 1, "max_bindings": 4},
    "cpu": {"kind": "cpu"},
    "cpu, folded": {"kind": "cpu", "grid": 13},
    "gpu, tuned": {"kind": "gpu", "tiles": AnyTiles("gpu")},
    "cpu, tuned": {"kind": "cpu", "tiles": AnyTiles("cpu")},
}
"""What a device is taken for, beyond what it is."""

GPU = ("gpu", "gpu, folded")
BETTER = ("arg_max", "arg_min")
ALL = (*GPU, "cpu", "cpu, folded")
TUNED = ("gpu, tuned", "cpu, tuned")


@dataclass(frozen=True, eq=False)
class Case:
    """A graph of a few nodes, what it is fed with, and the devices it is compiled for."""

    name: str
    apply: Callable[..., MLOperand]
    inputs: Mapping[str, Array]
    settings: Sequence[str] = ALL
    constants: Mapping[str, Array] = field(default_factory=dict)

    def __call__(self, builder: MLGraphBuilder) -> dict[str, MLOperand]:
        operands = {
            name: builder.input(name, array.dtype.name, array.shape)
            for name, array in self.inputs.items()
        }
        operands |= {name: builder.constant(array) for name, array in self.constants.items()}
        return {"y": self.apply(builder, **operands)}


def numbers(what: str, shape: Sequence[int], data_type: str = "float32", reach: int = 3) -> Array:
    """Numbers with few digits, so that sums are exact and ties happen."""
    rng = np.random.default_rng(zlib.crc32(what.encode()))
    low = -reach if np.dtype(data_type).kind != "u" else 0
    values = rng.integers(low, reach, shape, endpoint=True)
    return (values / 4 if np.dtype(data_type).kind == "f" else values).astype(data_type)


def _option_text(options: Mapping[str, Any]) -> str:
    return " ".join(str(value).replace(" ", "") for value in options.values())


def _one(
    op: str, data_type: str, shape: Sequence[int], settings: Sequence[str], **options: Any
) -> Case:
    """An operator of one operand, with an epilogue."""

    def apply(builder: MLGraphBuilder, x: MLOperand) -> MLOperand:
        made: MLOperand = getattr(builder, op)(x, **options)
        twice: MLOperand = builder.add(made, made)
        return twice

    name = f"{op} {data_type} {list(shape)} {_option_text(options)}"
    # A product of many twos and more would leave every range.
    x = numbers(name, shape, data_type, 1 if op == "reduce_product" else 3)
    if op == "reduce_product" and data_type.startswith("float"):
        x = np.where(x < 0, -1, 1).astype(x.dtype)
    if op == "reduce_log_sum":
        x = np.abs(x) + 1
    return Case(name, apply, {"x": x.astype(data_type)}, settings)


def reductions() -> Iterator[Case]:
    """A workgroup for each result: of 64 or 256 threads, along any axes, in any type."""
    for name in REDUCTIONS:
        yield _one(name, "float32", (3, 70, 5), GPU, axes=[1])
    for data_type in ("float16", "int32", "uint32", "int64", "uint64"):
        yield _one("reduce_sum", data_type, (4, 300, 4), ("gpu", "gpu, plain"), axes=[1])
    for op_name in ("reduce_l2", "reduce_max"):
        yield _one(op_name, "float32", (7, 600, 3), ALL, axes=[1])
        yield _one(op_name, "float32", (7, 600), ("gpu, small",), axes=[1], keep_dimensions=True)
    for op_name, shape in itertools.product(("reduce_l2", "reduce_max"), ((70, 257), (3, 66, 420))):
        yield _one(op_name, "float32", shape, (*GPU, "gpu, small"), axes=[len(shape) - 2])
    yield _one("reduce_sum", "float32", (2, 7, 15, 600), ("gpu",), axes=[1, 2])
    yield _one("reduce_sum", "float16", (300, 1100), ("gpu",), axes=[0])
    yield _one("reduce_min", "int64", (3, 5, 70), (*GPU, "gpu, plain"), axes=[0, 2])
    yield _one("reduce_max", "int8", (4, 300), ("gpu",), axes=[1])
    yield _one("reduce_sum", "float32", (4, 30), ("gpu", "cpu"), axes=[1])
    yield _one("reduce_sum", "float32", (4, 1100), ("cpu",), axes=[1])
    yield _one("reduce_sum", "float32", (4, 768), ("cpu",), axes=[1])  # whole blocks


def rows() -> Iterator[Case]:
    """Reduced and then computed by one workgroup each: short and long, more than a grid holds."""
    settings = (*GPU, "gpu, plain", "gpu, small", "gpu, in parts")
    for data_type, shape in itertools.product(("float32", "float16"), ((20, 70), (3, 5, 300))):
        yield _one("softmax", data_type, shape, settings, axis=len(shape) - 1)
        yield _one("layer_normalization", data_type, shape, settings, axes=[len(shape) - 1])
    yield _one("softmax", "float32", (2, 1100), GPU, axis=1)
    yield _one("softmax", "float32", (2, 70, 3), GPU, axis=1)
    yield _one("softmax", "float32", (2, 8193), ("gpu",), axis=1)
    yield _one("layer_normalization", "float32", (3, 9, 10), GPU, axes=[1, 2])
    for count in (70, 64):
        scale = numbers("s", (count,))
        yield Case(
            f"rows of {count} scaled",
            lambda b, x, s, t: b.layer_normalization(b.mul(x, t), scale=s, bias=s, axes=[1]),
            {"x": numbers("x", (4, count)), "s": scale, "t": numbers("t", (4, 1))},
            ALL,
        )

    def of_many(b: MLGraphBuilder, x: MLOperand, **others: MLOperand) -> MLOperand:
        """So many that the result of the second reduction is stored for want of bindings."""
        first, *rest = others.values()
        x = b.sub(x, b.reduce_max(x, axes=[1], keep_dimensions=True))
        for other in rest[:3]:
            x = b.mul(x, other)
        total = b.reduce_sum(x, axes=[1], keep_dimensions=True)
        return b.sub(total, functools.reduce(b.add, rest[3:], first))

    shape = (4, 70)
    yield Case(
        "rows of many", of_many, {name: numbers(name, shape) for name in "xpqrstuv"}, settings
    )


def positions() -> Iterator[Case]:
    """The place of the best: many equals, both ends of the line, and halves of workgroups."""
    for name in BETTER:
        for size, settings in ((70, GPU), (600, ALL)):
            yield _one(name, "float32", (5, size, 3), settings, axis=1)
        yield _one(name, "float32", (5, 300), ("gpu, small",), axis=1)
        for shape in ((70, 257), (2, 300, 515)):  # several side by side
            yield _one(name, "float32", shape, (*GPU, "gpu, small"), axis=len(shape) - 2)
        yield _one(name, "float32", (5, 20), GPU, axis=1)
        wide = {"output_data_type": "int64"}
        yield _one(name, "int64", (15, 300), ("gpu", "gpu, plain"), axis=1, **wide)
        for place in (0, 255, 256, 299):
            yield _best(name, place)


def no_numbers() -> Iterator[Case]:
    """NaN wins, and the first one of several, whichever thread meets it."""
    x = numbers("x", (6, 600))
    for row, places in enumerate(([0], [599], [255, 256], [300, 44], [64])):
        x[row, places] = np.nan
    x[:, 5] = np.inf
    for name, given in itertools.product(
        (*BETTER, "reduce_max", "reduce_min", "reduce_log_sum_exp"), (x, np.tile(x, (50, 1)).T)
    ):
        axis = int(given is x)
        yield Case(
            f"{name} of no numbers along {axis}",
            functools.partial(
                _applied,
                name=name,
                options={"axis": axis} if name in BETTER else {"axes": [axis]},
            ),
            {"x": np.ascontiguousarray(given)},
            ("gpu", "cpu"),
        )


def _applied(builder: MLGraphBuilder, x: MLOperand, name: str, options: Any) -> MLOperand:
    made: MLOperand = getattr(builder, name)(x, **options)
    return made


def _best(name: str, place: int) -> Case:
    x = np.zeros((1, 300), np.float32)
    x[0, place] = 1 if name == "arg_max" else -1

    apply = functools.partial(_applied, name=name, options={"axis": 1})
    return Case(f"{name} at {place}", apply, {"x": x}, ("gpu",))


def running_sums() -> Iterator[Case]:
    """Each direction, with the element itself and without; runs of one, of several, ragged ones."""
    for exclusive, reverse in itertools.product((False, True), repeat=2):
        options = {"axis": 1, "exclusive": exclusive, "reversed": reverse}
        yield _one("cumulative_sum", "float32", (5, 70, 3), ALL, **options)
        yield _one("cumulative_sum", "int64", (2, 1100), ("gpu", "gpu, plain"), **options)
    yield _one("cumulative_sum", "int32", (2, 1100), ("gpu, small", "cpu"), axis=1)
    yield _one("cumulative_sum", "float32", (2, 40, 2), GPU, axis=1)
    yield _one("cumulative_sum", "float32", (3, 70, 2), ("gpu",), axis=1)


def scattering() -> Iterator[Case]:
    """To elements and to slices, several updates to one place, in and out of range."""
    for data_type in ("float32", "int64", "uint8", "float16"):
        settings = (*GPU, "gpu, plain")
        x = numbers("x", (30, 50), data_type)
        rows = np.random.default_rng(0).integers(-32, 32, (40, 1), np.int32)
        elements = np.repeat(rows, 50, axis=1)
        updates = numbers("u", (40, 50), data_type, 60)
        yield Case(
            f"scatter_nd {data_type}",
            lambda b, x, i, u: b.scatter_nd(x, i, u),
            {"x": x, "i": rows, "u": updates},
            settings,
        )
        yield Case(
            f"scatter_elements {data_type}",
            lambda b, x, i, u: b.scatter_elements(x, i, u, axis=0),
            {"x": x, "i": elements, "u": updates},
            settings,
        )
    cache, rows = numbers("cache", (3, 30, 20)), numbers("rows", (3, 4, 20))
    yield Case(
        "scatter_rows in place",
        lambda b, cache, rows, starts: b.scatter_rows(cache, rows, starts, axis=1),
        {"cache": cache, "rows": rows, "starts": np.array([5, 28, 0], np.int32)},
        (*GPU, "gpu, in parts"),
    )


def gathered() -> Iterator[Case]:
    """One invocation an element, or a word of several; tensors that no single binding shows."""
    settings = ("gpu", "gpu, folded", "gpu, plain", "gpu, in parts")
    for data_type in ("float32", "int8", "uint8", "float16", "int64"):
        for count in (1800, 2501):
            few = settings if count == 1800 else ("gpu, in parts", "gpu, plain")
            x = numbers(f"x{count}", (count,), data_type)
            yield Case(
                f"reversed sum {data_type} {count}",
                lambda b, x: b.add(b.reverse(x), x),
                {"x": x},
                few,
            )
    for mode in ("constant", "edge", "reflection"):
        pads = {"beginning_padding": [3, 0, 2], "ending_padding": [1, 4, 3], "mode": mode}
        yield _one("pad", "float32", (4, 5, 6), ("gpu",), **pads)
    x = numbers("x", (2, 3, 21, 22))
    for pool in ("average_pool2d", "l2_pool2d", "max_pool2d"):
        options = {"window_dimensions": [3, 2], "padding": [1, 1, 0, 1], "strides": [2, 1]}
        yield _one(pool, "float32", x.shape, ("gpu", "gpu, in parts"), **options)
    for data_type in ("float32", "float16"):
        responses = numbers("x", (2, 6, 5, 7), data_type)
        yield Case(f"responses {data_type}", _responses, {"x": responses}, ("gpu", "gpu, plain"))
        inputs = {
            "x": numbers("x", (1, 6, 5, 7), data_type),
            "w": numbers("w", (6, 1, 3, 3), data_type),
        }
        yield Case(f"shuffled {data_type}", _shuffled, inputs, ("gpu", "gpu, in parts"))
    yield Case("pooled", lambda b, x: b.max_pool2d(x), {"x": numbers("x", x.shape, "int8")})


def _responses(b: MLGraphBuilder, x: MLOperand) -> MLOperand:
    """Divided by a power of the mean of the squares of five channels, zeros around them."""
    batch, channels, height, width = x.shape
    squares = b.pad(b.mul(x, x), [0, 2, 0, 0], [0, 2, 0, 0])
    rows = b.reshape(squares, [batch, 1, channels + 4, height * width])
    means = b.reshape(b.average_pool2d(rows, window_dimensions=[5, 1]), x.shape)
    root = b.sqrt(b.add(means, b.constant(np.ones((), x.data_type))))
    return b.div(x, b.mul(root, b.sqrt(root)))


LOOPS: dict[str, Callable[[MLGraphBuilder, MLOperand], MLOperand]] = {
    "conv2d": lambda b, x: b.conv2d(x, x),
    "matmul": lambda b, x: b.matmul(x, b.transpose(x, permutation=[0, 1, 3, 2])),
    "softmax": lambda b, x: b.softmax(x, 3),
    "layer_normalization": lambda b, x: b.layer_normalization(x, axes=[2, 3]),
    "reduce_sum": lambda b, x: b.reduce_sum(x, axes=[3]),
    "average_pool2d": lambda b, x: b.average_pool2d(x, window_dimensions=[2, 3]),
    "cumulative_sum": lambda b, x: b.cumulative_sum(x, axis=2),
}


def meeting_again() -> Iterator[Case]:
    """Loops whose results part behind them and meet again."""
    for (name, loop), data_type in itertools.product(LOOPS.items(), ("float32", "float16")):

        def apply(b: MLGraphBuilder, x: MLOperand, loop: Any = loop) -> MLOperand:
            made = loop(b, x)
            return b.mul(made, b.neg(b.sigmoid(made)))

        x = numbers("x", (4, 4, 12, 16), data_type)
        yield Case(f"{name} met again {data_type}", apply, {"x": x}, ("gpu", "gpu, plain", "cpu"))


def _shuffled(b: MLGraphBuilder, x: MLOperand, w: MLOperand) -> MLOperand:
    """Each channel of another group convolved by itself."""
    batch, channels, height, width = x.shape
    parts = b.reshape(x, [batch, 3, channels // 3, height, width])
    mixed = b.reshape(b.transpose(parts, permutation=[0, 2, 1, 3, 4]), x.shape)
    return b.conv2d(mixed, w, groups=channels, padding=[1, 1, 1, 1])


def _joined(builder: MLGraphBuilder, *operands: MLOperand, axis: int) -> MLOperand:
    """A result in its place, and inputs; read as a whole and in part."""
    largest = builder.reduce_max(operands[0], axes=[1], keep_dimensions=True)
    made = builder.concat([operands[1], largest, *operands[2:]], axis)
    return builder.concat([builder.add(made, largest), made], 1)


def joined() -> Iterator[Case]:
    """Concats of which some operands are in their places, and some are not."""
    for axis, data_type in ((1, "float32"), (1, "float16"), (1, "int64")):
        inputs = {
            f"x{n}": numbers(f"{n}", (40, size, 9), data_type) for n, size in enumerate((2, 3, 1))
        }
        yield Case(
            f"joined {data_type}",
            lambda b, axis=axis, **given: _joined(b, *given.values(), axis=axis),
            inputs,
        )


def _recurrent(op: str, hidden: int, rows: int, **options: Any) -> Case:
    """Three steps with everything that may be given, or with nothing."""
    gates = 4 if op == "lstm" else 3
    directions = 2 if options.get("direction") == "both" else 1
    shapes = {"weight": (gates * hidden, 3), "recurrent_weight": (gates * hidden, hidden)}
    if options.pop("full", False):
        shapes |= dict.fromkeys(("bias", "recurrent_bias"), (gates * hidden,))
        shapes |= {"initial_hidden_state": (rows, hidden)}
        if op == "lstm":
            shapes |= {"peephole_weight": (3 * hidden,), "initial_cell_state": (rows, hidden)}
    name = f"{op} {hidden} {rows} {sorted(shapes)} {_option_text(options)}"

    def apply(builder: MLGraphBuilder, **given: MLOperand) -> MLOperand:
        input_, weight, recurrent, *_ = given.values()
        more = dict(list(given.items())[3:])
        made = getattr(builder, op)(input_, weight, recurrent, 3, hidden, **more, **options)
        last: MLOperand = made[-1]
        return last

    inputs = {"input": numbers(name, (3, rows, 3))}
    inputs |= {key: numbers(key, (directions, *shape), reach=1) for key, shape in shapes.items()}
    return Case(name, apply, inputs)


def sequences() -> Iterator[Case]:
    """Rows of one unit and of four, more units than fit a row of workgroups, every option."""
    for op, hidden, direction in itertools.product(
        ("lstm", "gru"), (5, 12), ("forward", "backward", "both")
    ):
        yield _recurrent(op, hidden, 8, direction=direction, full=True, return_sequence=True)
    for op in ("lstm", "gru"):
        yield _recurrent(op, 12, 30)
    yield _recurrent("gru", 12, 8, full=True, reset_after=False)


def attention() -> Iterator[Case]:
    """Operands in vectors and one by one, all of a tile and parts of it, every change of scores."""
    for case in (
        *of_sizes([(16, 128, 16, 64), (35, 150, 40, 12)]),
        *of_sizes([(17, 33, 7, 130)], batch=(11,)),
        *of_sizes([(32, 64, 76, 96)], mask=(64,), packed=True, batch=(1, 3)),
        Attention(rows=18, columns=66, mask=(1, 66), chosen=True, turned=True),
    ):
        # Where there are no halves, what makes floats of so many needs a larger grid.
        settings = GPU if case.data_type == "float32" else ("gpu",)
        yield Case(f"{case}", case.apply, case.inputs(), settings)


def attention_by_position() -> Iterator[Case]:
    """Keys that are ignored by their position, and few rows with their keys in parts."""
    for batch, rows, shared, keys, size, width, lengths, options in (
        (4, 1, 1, 150, 64, 64, [70], {"scale": 1.0}),
        (4, 3, 2, 150, 33, 6, [150, 70, 9, 90], {"causal": True}),
        (4, 9, 2, 150, 250, 130, None, {"window": 40, "softcap": 1.5}),
        (4, 3, 1, 150, 8, 8, None, {}),
        (4, 20, 2, 150, 8, 8, None, {"causal": True, "window": 40}),
        (4, 1, 4, 9000, 4, 4, None, {"window": 5000}),
        (3, 1, 4, 40, 20, 7, None, {}),
        (1, 15, 1, 70, 8, 8, None, {"causal": True}),
        (1, 16, 4, 16400, 4, 4, None, {"causal": True}),
    ):
        inputs: dict[str, Array] = {
            "query": numbers("query", (batch, 4, rows, size)),
            "key": numbers("key", (batch, shared, keys, size)),
            "value": numbers("value", (batch, shared, keys, width)),
        }
        if lengths is not None:
            inputs["lengths"] = np.array(lengths, np.int32)

        def apply(
            b: MLGraphBuilder,
            query: MLOperand,
            key: MLOperand,
            value: MLOperand,
            lengths: MLOperand | None = None,
            options: Any = options,
        ) -> MLOperand:
            return b.scaled_dot_product_attention(query, key, value, lengths=lengths, **options)

        # There, the sums of all parts are too large for one binding.
        settings = (*ALL, "gpu, in parts") if rows == 15 else ALL if keys < 1000 else ("gpu", "cpu")
        yield Case(f"attention of {rows} rows, {keys} keys, {options}", apply, inputs, settings)


CASES = [
    *sequences(),
    *attention(),
    *attention_by_position(),
    *reductions(),
    *rows(),
    *positions(),
    *no_numbers(),
    *running_sums(),
    *scattering(),
    *gathered(),
    *joined(),
    *meeting_again(),
]

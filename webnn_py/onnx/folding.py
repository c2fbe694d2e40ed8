"""What can be computed at import, above all arithmetic on shapes."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx

from webnn_py.onnx.tensor import Array

MAX_ELEMENTS = 1 << 16
"""Nodes with larger operands are left to the graph, whose passes fold what is worth it."""
MAX_MADE = 1 << 22
"""Elements of what a node may make of a few numbers."""
MAX_TOTAL = 1 << 25
"""The same, of all nodes of a model, but for small results."""
SMALL = 1 << 10
"""Elements of a result that is not counted, as shapes have them."""


def _broadcast(arrays: Sequence[Array]) -> int:
    target = [int(n) for n in arrays[1].reshape(-1)]
    rank = max(len(target), arrays[0].ndim)
    shapes = [[1] * (rank - len(s)) + list(s) for s in (target, arrays[0].shape)]
    return math.prod(max(pair) for pair in zip(*shapes, strict=True))


def _range(arrays: Sequence[Array]) -> int:
    start, limit, delta = (array.reshape(-1)[0].item() for array in arrays)
    return max(0, math.ceil((limit - start) / delta)) if delta else MAX_MADE + 1


def _gathered(arrays: Sequence[Array]) -> int:
    """At most: along the shortest axis."""
    data, indices = arrays
    return data.size // min(data.shape or (1,)) * indices.size


def _gathered_along(node: Any, arrays: Sequence[Array]) -> int:
    data, indices = arrays
    axis = next((one.i for one in node.attribute if one.name == "axis"), 0)
    return int(data.size // data.shape[axis] * indices.size)


def _mel(arrays: Sequence[Array]) -> int:
    bins, length = (int(array.reshape(-1)[0]) for array in arrays[:2])
    return bins * (length // 2 + 1)


def _together(arrays: Sequence[Array]) -> int:
    return math.prod(np.broadcast_shapes(*(array.shape for array in arrays)))


MADE: dict[str, Callable[[Sequence[Array]], int]] = {
    "ConstantOfShape": lambda arrays: math.prod(int(n) for n in arrays[0].reshape(-1)),
    "Expand": _broadcast,
    "GatherND": _gathered,
    "MelWeightMatrix": _mel,
    "Range": _range,
    "Tile": lambda arrays: arrays[0].size * math.prod(int(n) for n in arrays[1].reshape(-1)),
    **dict.fromkeys(
        (
            *("Add", "Sub", "Mul", "Div", "Mod", "Pow", "Sum", "Mean", "Max", "Min", "Where"),
            *("Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual", "And", "Or", "Xor"),
            *("BitShift", "BitwiseAnd", "BitwiseOr", "BitwiseXor"),
        ),
        _together,
    ),
}
"""How many elements a node makes that can make more than it has."""

# fmt: off
FOLDED = frozenset(
    [
        "Abs", "Acos", "Acosh", "Add", "And", "ArgMax", "ArgMin", "Asin", "Asinh", "Atan",
        "Atanh", "BitShift", "BitwiseAnd", "BitwiseNot", "BitwiseOr", "BitwiseXor", "Cast",
        "CastLike", "Ceil", "Clip", "Compress", "Concat", "ConstantOfShape", "Cos", "Cosh",
        "CumSum", "Div", "Equal", "Erf", "Exp", "Expand", "Flatten", "Floor", "Gather",
        "GatherElements", "GatherND", "Greater", "GreaterOrEqual", "Identity", "IsInf", "IsNaN",
        "Less", "LessOrEqual", "Log", "Max", "Mean", "MelWeightMatrix", "Min", "Mod", "Mul",
        "Neg", "NonZero", "Not", "Or", "Pow", "Range", "Reciprocal", "ReduceL1", "ReduceL2",
        "ReduceLogSum", "ReduceLogSumExp", "ReduceMax", "ReduceMean", "ReduceMin", "ReduceProd",
        "ReduceSum", "ReduceSumSquare", "Relu", "Reshape", "Round", "ScatterElements", "ScatterND",
        "Shape", "Sign", "Sin", "Sinh", "Size", "Slice", "Split", "Sqrt", "Squeeze", "Sub", "Sum",
        "Tan", "Tanh", "Tile", "TopK", "Transpose", "Trilu", "Unique", "Unsqueeze", "Where", "Xor",
    ]
)
# fmt: on


OWN_TYPE = ("Cum", "Reduce")
"""Operators whose results the reference leaves in the type that NumPy adds and multiplies in."""


def _expand(data: Array, shape: Array) -> Array:
    sizes = tuple(int(n) for n in shape)
    return np.broadcast_to(data, np.broadcast_shapes(data.shape, sizes)).copy()


def _axes(axes: Any) -> tuple[int, ...]:
    return tuple(int(axis) for axis in np.asarray(axes).reshape(-1))


MOVED: dict[str, Callable[..., Array]] = {
    "Concat": lambda *arrays, axis: np.concatenate(arrays, axis),
    "Expand": _expand,
    "Identity": lambda data: data,
    "Squeeze": lambda data, axes=None: np.squeeze(data, None if axes is None else _axes(axes)),
    "Transpose": lambda data, perm=None: np.transpose(data, perm),
    "Unsqueeze": lambda data, axes: np.expand_dims(data, _axes(axes)),
}
"""What moves elements, of operands and attributes: importing ONNX's reference takes 50 ms."""


def can_fold(node: Any, arrays: Sequence[Array | None], affords: Callable[[int], bool]) -> bool:
    """Whether a node is one to compute at import: its inputs are known, and it is small.

    Args:
        node: What to compute.
        arrays: Its inputs.
        affords: Whether so many elements may be made of a few.
    """
    if node.op_type not in FOLDED or node.domain not in ("", "ai.onnx"):
        return False
    given = [array for array in arrays if array is not None]
    if sum(array.size for array in given) > MAX_ELEMENTS:
        return False
    try:
        if node.op_type == "Gather":
            made = _gathered_along(node, given)
        elif node.op_type in MADE:
            made = MADE[node.op_type](given)
        else:
            made = sum(array.size for array in given)
    except (ValueError, IndexError, OverflowError, ZeroDivisionError):
        return False
    return made <= SMALL or affords(made)


def fold(node: Any, arrays: Sequence[Array | None], opsets: Mapping[str, int]) -> list[Array]:
    """Compute a node, by ONNX's reference implementation where that takes more than to move.

    Raises:
        Exception: Whatever that raises for a node that is not valid.
    """
    move = MOVED.get(node.op_type)
    if move is not None:
        attributes = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
        try:
            return [move(*arrays, **attributes)]
        except Exception:  # as above; or it is of a version that has other attributes
            pass
    bare = onnx.NodeProto()
    bare.CopyFrom(node)
    bare.name = ""
    del bare.input[:], bare.output[:]
    bare.input.extend("" if array is None else f"x{i}" for i, array in enumerate(arrays))
    bare.output.extend(f"y{i}" if name else "" for i, name in enumerate(node.output))
    given = {f"x{i}": array for i, array in enumerate(arrays) if array is not None}
    elements = tuple(map(_element, given.values()))
    evaluator = _evaluator(bare.SerializeToString(), elements, tuple(opsets.items()))
    with np.errstate(all="ignore"):
        results = evaluator.run(None, given)
    made = [np.asarray(result) for result in results]
    if node.op_type.startswith(OWN_TYPE) and arrays[0] is not None:
        return [one.astype(arrays[0].dtype, copy=False) for one in made]
    return made


@functools.lru_cache
def _evaluator(node: bytes, elements: Sequence[int], opsets: Sequence[tuple[str, int]]) -> Any:
    """What computes a node, and others with the same attributes."""
    from onnx.reference import ReferenceEvaluator  # imported late: 20 ms

    bare = onnx.NodeProto.FromString(node)
    inputs = zip(filter(None, bare.input), elements, strict=True)
    graph = onnx.helper.make_graph(
        [bare],
        "folded",
        [onnx.helper.make_tensor_value_info(name, element, None) for name, element in inputs],
        [onnx.ValueInfoProto(name=name) for name in bare.output if name],
    )
    ids = [onnx.helper.make_opsetid(domain, version) for domain, version in opsets]
    return ReferenceEvaluator(onnx.helper.make_model(graph, opset_imports=ids))


def _element(array: Array) -> int:
    return int(onnx.helper.np_dtype_to_tensor_dtype(array.dtype))

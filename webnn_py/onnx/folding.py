"""Constant folding at import, mainly of arithmetic on shapes.

The handler of a node with constant inputs emits operators, as for any node, and the reference
engine computes them. So a constant gives the same bits as an input of the same contents.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx

from webnn_py.core.errors import MLError
from webnn_py.core.polynomials import TooLargeError
from webnn_py.engines.reference import evaluate
from webnn_py.ir import Node
from webnn_py.onnx import arithmetic
from webnn_py.onnx.emitter import BOOL, MAX_MADE, Emitter
from webnn_py.onnx.handlers import handler_of
from webnn_py.onnx.tensor import WEBNN_TYPES, Array, Tensor, UnmappableError, of_array, refuse
from webnn_py.ops.graph_builder import GraphBuilder
from webnn_py.ops.operand import MLOperand

MAX_ELEMENTS = 1 << 16
"""Largest total of input elements of a folded node; the graph's passes fold larger ones."""
MAX_SIZES = 1 << 10
"""Largest total of input elements of a folded node with open dimensions."""
MAX_UNCOUNTED_ELEMENTS = 1 << 10
"""Largest result, in elements, that does not count towards the import limit, such as a shape."""


def _broadcast(arrays: Sequence[Array]) -> int:
    target = [int(n) for n in arrays[1].reshape(-1)]
    rank = max(len(target), arrays[0].ndim)
    shapes = [[1] * (rank - len(s)) + list(s) for s in (target, arrays[0].shape)]
    return math.prod(max(pair) for pair in zip(*shapes, strict=True))


def _range(arrays: Sequence[Array]) -> int:
    start, limit, delta = (array.reshape(-1)[0].item() for array in arrays)
    return max(0, math.ceil((limit - start) / delta)) if delta else MAX_MADE + 1


def _gathered(arrays: Sequence[Array]) -> int:
    """Return an upper bound of the result's elements: a gather along the shortest axis."""
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
"""Result size, in elements, of operators whose result can be larger than their inputs."""

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

MOVES: dict[str, tuple[int, ...] | None] = {
    **dict.fromkeys(("Expand", "Flatten", "Gather", "GatherElements", "GatherND"), (0,)),
    **dict.fromkeys(("Identity", "Reshape", "Slice", "Split", "Squeeze", "Tile"), (0,)),
    **dict.fromkeys(("Transpose", "Unsqueeze"), (0,)),
    **dict.fromkeys(("ScatterElements", "ScatterND"), (0, 2)),
    "Concat": None,
    "Where": (1, 2),
}
"""Inputs whose elements an operator moves without computing; None means all inputs."""

BY_ONNX = frozenset(
    [
        *("MelWeightMatrix", "NonZero", "Unique"),  # WebNN cannot express them
        *("Cast", "CastLike", "Range"),  # data types that WebNN lacks, and fractional ranges
        *("Compress", "ConstantOfShape", "Expand", "Slice", "Split", "Tile"),  # empty results
    ]
)
"""Operators that ONNX's reference computes if WebNN can express the inputs but not the results."""

OWN_TYPE = ("Cum", "Reduce")
"""Operators that ONNX's reference returns in NumPy's accumulation type instead of the input's."""


class _Computing(GraphBuilder):
    """Graph builder that computes each operator on constants as soon as it is called."""

    def emit(self, node: Node) -> list[MLOperand]:
        """Compute a node and return its results as constants."""
        arrays = [None if value is None else self._constants[value] for value in node.inputs]
        made = evaluate(node, arrays)
        return [
            self.add_constant(np.ascontiguousarray(array).reshape(value.shape), value.data_type)
            for array, value in zip(made, node.outputs, strict=True)
        ]

    def constant(self, value: Any, data_type: Any, name: str = "") -> MLOperand:
        """Add a constant from an array or a number, as `MLGraphBuilder.constant` does."""
        array = np.array(value, dtype=data_type)
        return self.add_constant(array, data_type, name)


class _Folder(Emitter):
    """Emitter for handlers with constant operands only."""

    builder: Any

    def __init__(self, outer: Emitter) -> None:
        super().__init__(_Computing())  # type: ignore[arg-type]
        self.label, self.outputs = outer.label, outer.outputs
        self._outer = outer

    def affords(self, count: int, most: int = MAX_MADE) -> bool:
        """Return whether a node may generate `count` elements, by the importer's counter."""
        return self._outer.affords(count, most)

    def operand(self, tensor: Tensor) -> MLOperand:
        """Return the constant of a tensor; add it to the builder at its first use."""
        if tensor.operand is None:
            if tensor.array is None or not tensor.array.size:
                refuse("WebNN has no tensors without elements")
            tensor.operand = self.builder.constant(tensor.array, tensor.data_type)
        return tensor.operand

    def result(self, made: Any) -> Tensor:
        """Return the result of a handler as a tensor with contents."""
        assert isinstance(made, Tensor)
        if made.array is not None:
            return of_array(made.array, made.name)
        array = self.builder.array_of(made.operand)
        return of_array(array.astype(np.bool_) if made.elem == BOOL else array)


def can_fold(node: Any, arrays: Sequence[Array | None], affords: Callable[[int], bool]) -> bool:
    """Return whether to fold a node at import: a listed operator with small inputs and results.

    Args:
        node: The onnx.NodeProto.
        arrays: The contents of its inputs; None for omitted ones.
        affords: A function that tells whether the node may generate a number of elements.
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
    return made <= MAX_UNCOUNTED_ELEMENTS or affords(made)


@dataclass(frozen=True, slots=True)
class FoldedNode:
    """A node to fold.

    Attributes:
        g: The importer's emitter.
        node: The onnx.NodeProto.
        attributes: Its attributes by name, with tensors as arrays.
        opsets: The versions of the model's operator sets.
    """

    g: Emitter
    node: Any
    attributes: Mapping[str, Any]
    opsets: Mapping[str, int]


def fold(one: FoldedNode, arrays: Sequence[Array | None]) -> list[Tensor] | None:
    """Compute a node with constant inputs by its handler and the reference engine.

    ONNX's reference implementation computes nodes that WebNN tensors cannot hold: other data types,
    tensors without elements, and the operators in `BY_ONNX`.

    Returns:
        The outputs, or None if the graph should compute the node or the node is invalid. Its
        handler reports an invalid node later.
    """
    node = one.node
    elements = [0 if array is None else _element(array) for array in arrays]
    given = [array for array in arrays if array is not None]
    lacks_types = not {*elements} <= {0, *WEBNN_TYPES}
    if lacks_types and node.op_type in MOVES and all(map(np.size, given)):
        return _moved(one, arrays)
    try:
        if lacks_types and not node.op_type.startswith("Cast"):
            refuse("WebNN has not the data type")
        return _by_handler(one, arrays)
    except (MLError, UnmappableError):
        is_bare = lacks_types or not all(map(np.size, given))
        if not is_bare and node.op_type not in BY_ONNX:
            return None
    except Exception:  # an invalid node makes a handler raise any error
        return None
    try:
        return list(map(of_array, _by_onnx(node, arrays, one.opsets)))
    except Exception:  # ONNX's reference documents no error types
        return None


def _by_handler(one: FoldedNode, arrays: Sequence[Array | None]) -> list[Tensor]:
    handler = handler_of("", one.node.op_type, one.opsets.get("", 1))
    if handler is None or not one.attributes.keys() <= handler.attributes.keys():
        refuse("there is no handler")
    inputs = [None if array is None else of_array(array) for array in arrays]
    folder = _Folder(one.g)
    folder.outputs = [bool(name) for name in one.node.output]
    made = handler.function(folder, *inputs, **one.attributes)
    return list(map(folder.result, made if isinstance(made, (tuple, list)) else [made]))


def _moved(one: FoldedNode, arrays: Sequence[Array | None]) -> list[Tensor] | None:
    """Fold a node that moves elements of any type: fold it on indices, then look these up."""
    places, table = placed(one.node, arrays)
    made = fold(one, places)
    return None if made is None else [of_array(table[part.known("places")]) for part in made]


def placed(
    node: Any, arrays: Sequence[Array | None]
) -> tuple[list[Array | None], np.ndarray[tuple[int], Any]]:
    """Replace the moved inputs of a node in `MOVES` by indices into a table of their elements.

    Returns:
        The inputs with indices, and the table.
    """
    sources = MOVES[node.op_type]
    places: list[Array | None] = []
    table: list[Array] = []
    start = 0
    for i, array in enumerate(arrays):
        if array is None or not (sources is None or i in sources):
            places.append(array)
            continue
        numbers = np.arange(start, start + array.size, dtype=np.int64)
        places.append(numbers.reshape(array.shape))
        table.append(array.reshape(-1))
        start += array.size
    return places, np.concatenate(table)


def fold_sizes(one: FoldedNode, inputs: Sequence[Tensor | None]) -> list[Tensor] | None:
    """Compute a node whose inputs contain constants and expressions in open dimensions.

    Returns:
        The outputs, or None if the result is not one expression for all sizes or no rule exists.
    """
    node = one.node
    known = [x.sizes if x.array is None else x.array for x in inputs if x is not None]
    size = sum(0 if numbers is None else numbers.size for numbers in known)
    if node.domain not in ("", "ai.onnx") or size > MAX_SIZES:
        return None
    try:
        if node.op_type in MOVES:
            return _moved_sizes(one, inputs)
        return arithmetic.fold(node, inputs, one.attributes)
    except TooLargeError:
        raise
    except (arithmetic.UndecidedError, ArithmeticError, ValueError):
        return None


def _moved_sizes(one: FoldedNode, inputs: Sequence[Tensor | None]) -> list[Tensor] | None:
    node = one.node
    sources = MOVES[node.op_type]
    arrays: list[Array | None] = []
    elem = 0
    for i, x in enumerate(inputs):
        if x is not None and (sources is None or i in sources):
            arrays.append(arithmetic.elements_of(x))
            elem = x.elem
        elif x is not None and x.array is None:
            return None
        else:
            arrays.append(None if x is None else x.array)
    places, table = placed(node, arrays)
    if not can_fold(node, places, lambda made: made <= MAX_ELEMENTS):
        return None
    made = fold(one, places)
    if made is None:
        return None
    parts = [x.known("places") for x in made]
    return [
        arithmetic.tensor_of([table[i] for i in part.reshape(-1)], part.shape, elem)
        for part in parts
    ]


def _by_onnx(node: Any, arrays: Sequence[Array | None], opsets: Mapping[str, int]) -> list[Array]:
    """Compute a node by ONNX's reference implementation.

    Raises:
        Exception: The node is invalid; ONNX documents no error types.
    """
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
    """Return ONNX's evaluator of a serialized node, cached by node, input types and opsets."""
    from onnx.reference import ReferenceEvaluator  # the import takes 20 ms

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

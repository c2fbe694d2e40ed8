"""Pass that removes no-ops and merges consecutive nodes of one operator.

It ensures that all results stay identical bit for bit.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from webnn_py.core.convert import MLNumber
from webnn_py.core.dtypes import DTYPES
from webnn_py.core.shapes import Shape
from webnn_py.ir import Array, Graph, Node, Value
from webnn_py.ops.declare import REGISTRY
from webnn_py.ops.operand import MLOperand
from webnn_py.passes.rewrite import Rewriter
from webnn_py.passes.target import Target

Rule = Callable[[Rewriter, Node], MLOperand | None]


def simplify(graph: Graph, target: Target) -> Graph:
    """Apply the rule of each node's operator once, in order, so that operands come first."""
    reshaped = _shapes_behind(graph)

    def rule(rewriter: Rewriter, node: Node) -> list[MLOperand] | None:
        simpler = RULES.get(node.op)
        made = None if simpler is None else simpler(rewriter, node)
        if made is None and node in reshaped:
            made = _before_reshapes(rewriter, node, reshaped[node])
        return None if made is None else [made]

    return Rewriter(graph).run(rule)


def _operand(rewriter: Rewriter, node: Node) -> MLOperand:
    """Return the simplified first operand."""
    return rewriter.map[next(node.operands)]


def _inner(rewriter: Rewriter, node: Node) -> tuple[Node, MLOperand] | None:
    """Return the first operand's producer and its first operand, if its operator is the same."""
    inner = rewriter.producer_of(_operand(rewriter, node))
    if inner is None or inner.op != node.op:
        return None
    return inner, MLOperand(rewriter, next(inner.operands))


def _is_like(operand: MLOperand, value: Value) -> bool:
    return (operand.data_type, operand.shape) == (value.data_type, value.shape)


def _unchanged(rewriter: Rewriter, node: Node) -> MLOperand | None:
    """Rule that removes an operator which is a no-op whenever type and shape stay the same."""
    operand = _operand(rewriter, node)
    return operand if len(node.outputs) == 1 and _is_like(operand, node.output) else None


def _reshape(rewriter: Rewriter, node: Node) -> MLOperand | None:
    below = _inner(rewriter, node)
    if below is None:
        return _unchanged(rewriter, node)
    source = below[1]
    if _is_like(source, node.output):
        return source
    return rewriter.reshape(source, node.output.shape)


def _shapes_behind(graph: Graph) -> dict[Node, Shape]:
    """Return the elementwise nodes whose readers all end in reshapes to one shape, with it."""
    found: dict[Node, Shape] = {}
    for node in reversed(graph.nodes):
        if not REGISTRY[node.op].elementwise or node.output in graph.results:
            continue
        readers = graph.readers.get(node.output, ())
        shapes = {
            reader.output.shape if reader.op == "reshape" else found.get(reader)
            for reader in readers
        }
        shape = shapes.pop() if len(shapes) == 1 else None
        if shape is not None:
            found[node] = shape
    return found


def _before_reshapes(rewriter: Rewriter, node: Node, shape: Shape) -> MLOperand | None:
    """Apply an elementwise node before the reshapes of its operands, in the later shape."""
    operands: dict[Value, MLOperand] = {}
    for value in node.operands:
        operand = rewriter.map[value]
        maker = rewriter.producer_of(operand)
        if operand.size != 1:
            if maker is None or maker.op != "reshape" or operand.shape != node.output.shape:
                return None
            operand = MLOperand(rewriter, next(maker.operands))
        if operand.shape != shape and (operand.size != 1 or operand.rank > len(shape)):
            return None
        operands[value] = operand
    if all(operand.shape != shape for operand in operands.values()):
        return None
    (made,) = rewriter.apply_again(node, operands)
    return rewriter.reshape(made, node.output.shape)


def _expand(rewriter: Rewriter, node: Node) -> MLOperand | None:
    below = _inner(rewriter, node)
    if below is None or _is_like(below[1], node.output):
        return _unchanged(rewriter, node)
    return rewriter.expand(below[1], node.output.shape)


def _transpose(rewriter: Rewriter, node: Node) -> MLOperand | None:
    """Rule that merges two permutations, and removes one that moves only dimensions of size 1."""
    below = _inner(rewriter, node)
    order, source = node.attrs["permutation"], _operand(rewriter, node)
    if below is not None:
        inner, source = below
        order = tuple(inner.attrs["permutation"][axis] for axis in order)
    moved = [axis for axis in order if source.shape[axis] != 1]
    if _is_like(source, node.output) and moved == sorted(moved):
        return source
    if below is None:
        return None
    return rewriter.transpose(source, permutation=order)


def _reverse(rewriter: Rewriter, node: Node) -> MLOperand | None:
    operand = _operand(rewriter, node)
    return operand if all(operand.shape[axis] == 1 for axis in node.attrs["axes"]) else None


def _cast(rewriter: Rewriter, node: Node) -> MLOperand | None:
    below = _inner(rewriter, node)
    if below is None:
        return _unchanged(rewriter, node)
    between, source = below[0].output, below[1]
    if not _is_one_cast(source.data_type, between.data_type, node.output.data_type):
        return _unchanged(rewriter, node)
    if _is_like(source, node.output):
        return source
    return rewriter.cast(source, node.attrs["data_type"])


def _is_one_cast(first: str, between: str, last: str) -> bool:
    """Whether casting first -> between -> last equals first -> last for every number."""
    kinds = [DTYPES[name].kind == "f" for name in (first, between, last)]
    if not any(kinds):
        # Integers wrap: it suffices that `between` keeps the low bits or the whole number.
        keeps_low_bits = DTYPES[between].bits >= DTYPES[last].bits
        return keeps_low_bits or _holds(between, first)
    if kinds == [False, True, False]:
        # Floats saturate where integers wrap; they agree if no number is out of range.
        return _holds(between, first) and _holds(last, first)
    return _holds(between, first)


def _holds(name: str, other: str) -> bool:
    """Whether data type `name` represents every number of `other`."""
    info, small = DTYPES[name], DTYPES[other]
    if info.kind != "f":
        return small.kind != "f" and info.min <= small.min and small.max <= info.max
    if small.kind == "f":
        return info.bits >= small.bits
    return small.bits <= int(np.finfo(info.numpy).nmant) + 1


def _twice_is_once(rewriter: Rewriter, node: Node) -> MLOperand | None:
    """Rule for idempotent operators."""
    return None if _inner(rewriter, node) is None else _operand(rewriter, node)


def _twice_is_none(rewriter: Rewriter, node: Node) -> MLOperand | None:
    """Rule for operators that are their own inverse."""
    below = _inner(rewriter, node)
    return None if below is None else below[1]


def _clamp(rewriter: Rewriter, node: Node) -> MLOperand | None:
    """Rule that merges two clamps, if the bounds stay in order and zeros have the same sign."""
    low, high = node.attrs["min_value"], node.attrs["max_value"]
    if low is None and high is None:
        return _operand(rewriter, node)
    below = _inner(rewriter, node)
    if below is None:
        return None
    inner, source = below
    inner_low, inner_high = inner.attrs["min_value"], inner.attrs["max_value"]
    bounds = [bound for bound in (low, high, inner_low, inner_high) if bound is not None]
    if len({repr(bound) for bound in bounds if bound == 0}) > 1:
        return None
    new_low = _tightest(max, inner_low, low)
    new_high = _tightest(min, inner_high, high)
    if new_low is not None and new_high is not None and not new_low < new_high:
        return None
    return rewriter.clamp(source, min_value=new_low, max_value=new_high)


def _quantize(rewriter: Rewriter, node: Node) -> MLOperand | None:
    """Rule that removes a relu before a quantization that saturates negative numbers at zero."""
    value, scale, zero_point = (rewriter.map[operand] for operand in node.operands)
    relu = rewriter.producer_of(value)
    if relu is None or relu.op != "relu" or rewriter.graph.uses[next(node.operands)] > 1:
        return None
    scales, zeros = rewriter.array_of(scale), rewriter.array_of(zero_point)
    if scales is None or zeros is None or not (scales > 0).all():
        return None
    if not (zeros == DTYPES[zero_point.data_type].min).all():
        return None
    (made,) = rewriter.apply_again(node, input=MLOperand(rewriter, next(relu.operands)))
    return made


def _tightest(
    choose: Callable[[MLNumber, MLNumber], MLNumber], a: MLNumber | None, b: MLNumber | None
) -> MLNumber | None:
    if a is None or b is None:
        return b if a is None else a
    return choose(a, b)


def _identity_element(number: float, *, either: bool) -> Rule:
    """Return a rule that removes an operator whose constant operand is its identity element.

    For addition this is -0.0, because x + 0.0 turns -0.0 into 0.0.

    Args:
        number: The identity element.
        either: It may be either operand; False: only the second one.
    """

    def rule(rewriter: Rewriter, node: Node) -> MLOperand | None:
        a, b = (rewriter.map[value] for value in node.operands)
        for operand, other in ((a, b), (b, a)) if either else ((a, b),):
            array = rewriter.array_of(other)
            if array is not None and _is_like(operand, node.output) and _is_filled(array, number):
                return operand
        return None

    return rule


def _is_filled(array: Array, number: float) -> bool:
    """Whether all elements equal `number`; float zeros must also have its sign."""
    if array.reshape(-1)[0] != number or not (array == number).all():
        return False
    if array.dtype.kind != "f":
        return True
    return bool((np.signbit(array) == np.signbit(number)).all())


RULES: dict[str, Rule] = {
    **dict.fromkeys(("identity", "slice", "pad", "tile", "concat", "split"), _unchanged),
    **dict.fromkeys(("abs", "ceil", "floor", "round_even", "sign", "relu"), _twice_is_once),
    "neg": _twice_is_none,
    "reshape": _reshape,
    "expand": _expand,
    "transpose": _transpose,
    "reverse": _reverse,
    "cast": _cast,
    "clamp": _clamp,
    "quantize_linear": _quantize,
    "add": _identity_element(-0.0, either=True),
    "sub": _identity_element(0.0, either=False),
    "mul": _identity_element(1.0, either=True),
    "div": _identity_element(1.0, either=False),
}

"""Lowerings of reductions, arg_max, arg_min, arg_top_k, cumulative_sum and softmax."""

from __future__ import annotations

from collections.abc import Callable

from webnn_py.engines.onnx_lowering.emitter import Emitter, NotLowered, Tensor, lowering
from webnn_py.ir import Node

REDUCED = {
    "reduce_l1": "ReduceL1",
    "reduce_l2": "ReduceL2",
    "reduce_log_sum": "ReduceLogSum",
    "reduce_log_sum_exp": "ReduceLogSumExp",
    "reduce_max": "ReduceMax",
    "reduce_mean": "ReduceMean",
    "reduce_min": "ReduceMin",
    "reduce_product": "ReduceProd",
    "reduce_sum": "ReduceSum",
    "reduce_sum_square": "ReduceSumSquare",
}


def reduced(e: Emitter, node: Node, kind: str, x: Tensor) -> Tensor:
    """Write an ONNX reduction of `kind` over the axes of a node."""
    axes = sorted(node.attrs["axes"])
    if axes:
        return e.op(kind, x, e.constant(axes), keepdims=int(node.attrs["keep_dimensions"]))
    # Without axes, reduce each element by itself: ONNX would reduce over all axes.
    unsqueezed = e.op("Unsqueeze", x, e.constant([0]))
    return e.op(kind, unsqueezed, e.constant([0]), keepdims=0)


def _reduced(kind: str) -> Callable[..., Tensor]:
    def function(e: Emitter, node: Node, x: Tensor) -> Tensor:
        return reduced(e, node, kind, x)

    return function


for _name, _kind in REDUCED.items():
    _function = _reduced(_kind)
    _function.__name__ = _name
    lowering(_function)


def _position(e: Emitter, node: Node, kind: str, x: Tensor) -> Tensor:
    keep = int(node.attrs["keep_dimensions"])
    found = e.op(kind, x, to="int64", axis=node.attrs["axis"], keepdims=keep)
    return e.cast(found, node.output.data_type)


@lowering
def arg_max(e: Emitter, node: Node, x: Tensor) -> Tensor:
    """Write ArgMax."""
    return _position(e, node, "ArgMax", x)


@lowering
def arg_min(e: Emitter, node: Node, x: Tensor) -> Tensor:
    """Write ArgMin."""
    return _position(e, node, "ArgMin", x)


@lowering
def arg_top_k(e: Emitter, node: Node, x: Tensor) -> Tensor:
    """Write TopK; cast data types for which ONNX Runtime has no kernel."""
    wide = {"float16": "float32", "uint32": "int64", "int8": "int32", "uint8": "int32"}
    if x.data_type == "uint64":
        raise NotLowered("TopK of uint64 has no data type to compare in")
    count = e.constant([node.attrs["k"]])
    options = {"axis": node.attrs["axis"], "largest": int(node.attrs["largest"])}
    number = e.cast(x, wide.get(x.data_type, x.data_type))
    _, found = e.ops("TopK", [number, count], [number.data_type, "int64"], **options)
    assert found is not None
    return found


@lowering
def cumulative_sum(e: Emitter, node: Node, x: Tensor) -> Tensor:
    """Write CumSum, which has the same options."""
    exclusive, reverse = int(node.attrs["exclusive"]), int(node.attrs["reversed"])
    axis = e.constant(node.attrs["axis"])
    return e.op("CumSum", x, axis, exclusive=exclusive, reverse=reverse)


@lowering
def softmax(e: Emitter, node: Node, x: Tensor) -> Tensor:
    """Write Softmax."""
    return e.op("Softmax", x, axis=node.attrs["axis"])

"""Calls of single operators, computed on a GPU and on the reference backend."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import numpy as np
from hypothesis import assume
from hypothesis import strategies as st

from tests.internals import built_from, context_of
from tests.property.drawing import Array, Call, Tensor
from tests.property.strategies import calls
from tests.property.test_valid_calls import frozen
from tests.public import WHOLE_BYTES
from webnn_py import MLAwaitedExecution, MLContext, MLExecution, MLGraph, MLGraphBuilder
from webnn_py.ir import Graph
from webnn_py.ops.declare import REGISTRY, Operator

ROUNDINGS = {"float32": 64, "float16": 8}
"""Units in the last place that a result may be off, relative to the largest one."""


try:
    from webnn_py.engines.openvino.unsupported import FINITE_ONLY
except ImportError:  # then nothing is compared on OpenVINO
    FINITE_ONLY = ()

QUANTIZED = ("resample2d", "quantize_linear", "dynamic_quantize_linear")
"""Operators whose integers lie between two, of which either is right."""
MAY_QUANTIZE = ("lstm_packed",)
"""Operators whose operands an engine may quantize; tests of composites bound the difference."""
NOT_OF_INFINITIES = {"openvino": FINITE_ONLY}
"""Operators that an engine computes of finite numbers alone."""
ELEMENTWISE = sorted(name for name, op in REGISTRY.items() if op.elementwise)


def declared(name: str) -> Operator:
    """Return the declaration of an operator."""
    return REGISTRY[name]


def built(context: MLContext, recipe: Graph) -> MLGraph:
    """Build on a context what was recorded without one."""
    return built_from(context, recipe)


def applied(name: str, operands: Mapping[str, Array], **options: Any) -> Call:
    """A call of an operator on these inputs."""
    members = {n: Tensor(a.dtype.name, np.asarray(a), False) for n, a in operands.items()}
    return Call(REGISTRY[name], members, options)


def drawn(data: st.DataObject, name: str) -> Call:
    """A call of an operator whose results can be compared, perhaps with constants among it."""
    call: Call = data.draw(calls(name))
    if data.draw(st.booleans()):
        call = frozen(call, constant=False)
    assume(stays_in_range(call))
    return call


def stays_in_range(call: Call) -> bool:
    """Whether no product leaves its data type's range.

    Orders differ in where one leaves float32's, and ONNX Runtime cuts integers to theirs.
    """
    if call.op.name != "reduce_product":
        return True
    values = np.abs(call.operands["input"].array.astype(np.float64))  # type: ignore[union-attr]
    return bool(np.sum(np.log(np.maximum(values, 1))) < np.log(6e4))


def units_apart(name: str) -> int:
    """By how much integers may differ: what lies between two of them may be rounded to either."""
    return 1 if name in QUANTIZED else 0


def compute(context: MLContext, call: Call) -> list[Array]:
    """The results of a call; behind identities, so that constants can be folded before them."""
    builder = MLGraphBuilder(context)
    made = [builder.identity(o) if o.data_type in WHOLE_BYTES else o for o in call(builder)]
    graph = builder.build_sync({str(i): operand for i, operand in enumerate(made)})
    inputs = {name: call.inputs[name] for name in graph.inputs}
    if context.device_type == "cpu":
        return list(MLExecution(context).compute(graph, inputs).values())
    results = asyncio.run(_awaited(graph, inputs))
    graph.destroy()
    return list(results.values())


async def _awaited(graph: MLGraph, inputs: Mapping[str, Array]) -> dict[str, Array]:
    return await MLAwaitedExecution(context_of(graph)).compute(graph, inputs)


def assert_close(got: Array, wanted: Array, integers: int = 0, nan: bool = True) -> None:
    """Equal, but for roundings of floats and so many units of integers.

    Without `nan`, nothing is asked of elements that are not a number: a driver may take none to
    occur, and make 0 of a product with 0.
    """
    assert (got.dtype, got.shape) == (wanted.dtype, wanted.shape)
    if got.dtype.kind != "f":
        difference = np.abs(got.astype(object) - wanted.astype(object))
        assert np.max(difference, initial=0) <= integers, (got, wanted)
        return
    if not nan:
        got, wanted = got[~np.isnan(wanted)], wanted[~np.isnan(wanted)]
    finite = np.abs(wanted[np.isfinite(wanted)])
    relative = ROUNDINGS[got.dtype.name] * float(np.finfo(got.dtype).eps)
    absolute = relative * float(np.max(finite, initial=0))
    np.testing.assert_allclose(got, wanted, rtol=relative, atol=absolute)


def assert_like_reference(
    context: MLContext, reference: MLContext, call: Call, integers: int = 0, nan: bool = True
) -> None:
    """Both contexts agree on a call, as `assert_close` has it."""
    for got, wanted in zip(compute(context, call), compute(reference, call), strict=True):
        assert_close(got, wanted, integers, nan)


def assert_indices_are_clamped(context: MLContext, reference: MLContext, indices: Array) -> None:
    """Gathers and scatters at these places of a dimension of 5 give what the reference does."""
    table = np.arange(15, dtype=np.float32).reshape(5, 3)
    columns = np.repeat(indices[:, np.newaxis], 3, axis=1)
    for name, places in (
        ("gather", indices),
        ("gather_elements", columns),
        ("gather_nd", indices[:, np.newaxis]),
    ):
        call = applied(name, {"input": table, "indices": places})
        assert_like_reference(context, reference, call)
    for index in indices:
        place = np.array([[index]], indices.dtype)
        row = np.full((1, 3), 99, np.float32)
        operands = {"input": table, "indices": place, "updates": row}
        assert_like_reference(context, reference, applied("scatter_nd", operands))
        operands["indices"] = np.repeat(place, 3, axis=1)
        assert_like_reference(context, reference, applied("scatter_elements", operands))

"""Which quantized products of ONNX models subgroup matrices multiply, and in how many kernels."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import webnn_py.onnx
from tests.compiler.compiled import legal, optimized
from tests.internals import recipe_of
from webnn_py import MLGraphBuilder, MLOperand, ml
from webnn_py.engines.webgpu.compiler.kernel import Kernel
from webnn_py.engines.webgpu.compiler.kernel_list import kernels_of
from webnn_py.engines.webgpu.compiler.legalize.legalize import legalize
from webnn_py.engines.webgpu.program.storage import Features, MatrixShape
from webnn_py.passes import TILES, multiply_integers

MATRICES = Features(
    workgroup_bytes=49152,
    invocations=1024,
    f16_matrix=MatrixShape(16, 16, 16),
    i8_matrix=MatrixShape(16, 16, 32),
)
ROWS, DEPTH, COLUMNS = 512, 256, 384
Array = np.ndarray[Any, Any]


def kernels(
    op: str,
    inputs: dict[str, int],
    constants: dict[str, Array],
    order: list[str],
    result: int,
    **attributes: Any,
) -> list[Kernel]:
    """The kernels of an ONNX node whose first input has many rows."""
    node = helper.make_node(op, order, ["y"], **attributes)
    values = [helper.make_tensor_value_info(n, t, [ROWS, DEPTH]) for n, t in inputs.items()]
    result_info = helper.make_tensor_value_info("y", result, [ROWS, COLUMNS])
    weights = [numpy_helper.from_array(array, name) for name, array in constants.items()]
    graph = helper.make_graph([node], "g", values, [result_info], weights)
    domains = [helper.make_opsetid("", 21)]
    if "domain" in attributes:
        domains.append(helper.make_opsetid(attributes["domain"], 1))
    model = helper.make_model(graph, opset_imports=domains, ir_version=10)
    with ml.create_context_sync(engine="reference") as context:
        recipe = recipe_of(webnn_py.onnx.load(model, context))
    passes = (multiply_integers, *TILES)
    return [*kernels_of(legalize(optimized(recipe, MATRICES, passes), MATRICES), MATRICES)]


def multiplying(made: list[Kernel], element: str) -> int:
    return sum(f"subgroup_matrix_left<{element}" in kernel.code for kernel in made)


WEIGHTS = np.random.default_rng(0).integers(-128, 128, (DEPTH, COLUMNS)).astype(np.int8)


def test_integer_products_are_one_kernel() -> None:
    """With a zero point of the rows, whose correction is part of the kernel."""
    constants = {"w": WEIGHTS, "z": np.array(128, np.uint8)}
    made = kernels(
        "MatMulInteger", {"x": TensorProto.UINT8}, constants, ["x", "w", "z"], TensorProto.INT32
    )
    assert [multiplying(made, "i8"), len(made)] == [1, 1]


def test_products_between_codes_are_one_kernel() -> None:
    """It writes bytes."""
    scale, zero = np.array(0.05, np.float32), np.array(120, np.uint8)
    constants = {"w": WEIGHTS, "s": scale, "z": zero, "zw": np.array(0, np.int8)}
    order = ["x", "s", "z", "w", "s", "zw", "s", "z"]
    made = kernels("QLinearMatMul", {"x": TensorProto.UINT8}, constants, order, TensorProto.UINT8)
    assert [multiplying(made, "i8"), len(made)] == [1, 1]
    assert [part.value.data_type for part in made[0].writes] == ["uint8"]


@pytest.mark.parametrize("bits", [4, 8])
def test_products_by_packed_weights_are_one_kernel(bits: int) -> None:
    """The kernel unpacks weights into its tiles of float16."""
    block = 32
    codes = np.random.default_rng(0).integers(
        0, 256, (COLUMNS, DEPTH // block, block * bits // 8), np.uint8
    )
    scales = np.full((COLUMNS, DEPTH // block), 0.01, np.float16)
    made = kernels(
        "MatMulNBits",
        {"x": TensorProto.FLOAT16},
        {"codes": codes, "scales": scales},
        ["x", "codes", "scales"],
        TensorProto.FLOAT16,
        domain="com.microsoft",
        K=DEPTH,
        N=COLUMNS,
        bits=bits,
        block_size=block,
    )
    assert [multiplying(made, "f16"), len(made)] == [1, 1]


@pytest.mark.parametrize(
    ("shape", "options", "convolved"),
    [
        ([2, 8, 6, 3], {}, (2, 4, 3, 16)),
        ([2, 8, 6, 3], {"padding": [3, 0, 1, 2]}, (2, 4, 3, 16)),
        ([2, 8, 6, 3], {"strides": [2, 1]}, (2, 8, 6, 4)),
        ([2, 8, 6, 3], {"dilations": [2, 1]}, (2, 8, 6, 4)),
        ([2, 8, 7, 3], {}, (2, 8, 7, 4)),
        ([2, 8, 6, 8], {}, (2, 8, 6, 8)),
    ],
)
def test_squares_are_convolved_where_they_fit_steps_of_two(
    shape: list[int], options: dict[str, Any], convolved: tuple[int, ...]
) -> None:
    def body(b: MLGraphBuilder) -> dict[str, MLOperand]:
        w = b.constant(np.ones((16, 3, 3, shape[-1]), np.int8))
        layouts: Any = {"input_layout": "nhwc", "filter_layout": "ohwi"}
        given: Any = {"strides": [2, 2]} | options
        return {"y": b.conv2d_integer(b.input("x", "int8", shape), w, **layouts, **given)}

    (node,) = (node for node in legal(body, MATRICES).nodes if node.op == "conv2d_codes")
    assert next(node.operands).shape == convolved


@pytest.mark.parametrize(("scale", "zero", "left"), [(0.5, 3, 1), (0.25, 3, 3), (0.5, 4, 3)])
def test_codes_are_pooled_as_they_are(scale: float, zero: int, left: int) -> None:
    """Where the greatest one is quantized again by the same scale and zero point."""

    def body(b: MLGraphBuilder) -> dict[str, MLOperand]:
        def parameters(scale: float, zero: int) -> list[MLOperand]:
            arrays = np.full([1] * 4, scale, np.float32), np.full([1] * 4, zero, np.uint8)
            return [b.constant(array) for array in arrays]

        x = b.dequantize_linear(b.input("x", "uint8", [1, 8, 8, 8]), *parameters(0.5, 3))
        y = b.max_pool2d(x, window_dimensions=[3, 3], padding=[1, 1, 1, 1])
        return {"y": b.quantize_linear(y, *parameters(scale, zero))}

    assert len(legal(body, MATRICES).nodes) == left

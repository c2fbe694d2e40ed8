"""Runnable examples of all operators, which their docstrings show."""

from __future__ import annotations

from typing import NamedTuple


class Example(NamedTuple):
    """Code that makes the operand `y`, with a builder `b`, and what prints as its value."""

    code: str
    printed: str

    def __str__(self) -> str:
        return "\n".join(
            [
                "b = MLGraphBuilder(ctx)",
                self.code.strip(),
                'result = MLExecution(ctx).compute(b.build_sync({"y": y}), {})["y"]',
                f"print(result.round(3))  # {self.printed}",
            ]
        )


PREAMBLE = """
import numpy as np

from webnn_py import MLExecution, MLGraphBuilder, ml

ctx = ml.create_context_sync(device_type="cpu")
"""
"""Code that stands before any examples."""

EXAMPLES = {
    "conv2d": Example(
        """
x = b.constant(np.ones((1, 1, 3, 3), np.float32))
kernel = b.constant(np.ones((1, 1, 3, 3), np.float32))
y = b.conv2d(x, kernel, padding=[1, 1, 1, 1])
""",
        "[[[[4. 6. 4.] [6. 9. 6.] [4. 6. 4.]]]]",
    ),
    "conv_transpose2d": Example(
        """
x = b.constant(np.float32([[[[1, 2]]]]))
kernel = b.constant(np.ones((1, 1, 1, 2), np.float32))
y = b.conv_transpose2d(x, kernel, strides=[1, 2])
""",
        "[[[[1. 1. 2. 2.]]]]",
    ),
    "abs": Example(
        """
x = b.constant(np.float32([-1.5, 0, 2.5]))
y = b.abs(x)
""",
        "[1.5 0. 2.5]",
    ),
    "ceil": Example(
        """
x = b.constant(np.float32([-1.5, 0, 2.5]))
y = b.ceil(x)
""",
        "[-1. 0. 3.]",
    ),
    "cos": Example(
        """
x = b.constant(np.float32([0, 0.5, 1]))
y = b.cos(x)
""",
        "[1. 0.878 0.54 ]",
    ),
    "erf": Example(
        """
x = b.constant(np.float32([0, 0.5, 1]))
y = b.erf(x)
""",
        "[0. 0.52 0.843]",
    ),
    "exp": Example(
        """
x = b.constant(np.float32([0, 0.5, 1]))
y = b.exp(x)
""",
        "[1. 1.649 2.718]",
    ),
    "floor": Example(
        """
x = b.constant(np.float32([-1.5, 0, 2.5]))
y = b.floor(x)
""",
        "[-2. 0. 2.]",
    ),
    "identity": Example(
        """
x = b.constant(np.float32([-1.5, 0, 2.5]))
y = b.identity(x)
""",
        "[-1.5 0. 2.5]",
    ),
    "log": Example(
        """
x = b.constant(np.float32([0.25, 1, 4]))
y = b.log(x)
""",
        "[-1.386 0. 1.386]",
    ),
    "neg": Example(
        """
x = b.constant(np.float32([-1.5, 0, 2.5]))
y = b.neg(x)
""",
        "[ 1.5 -0. -2.5]",
    ),
    "reciprocal": Example(
        """
x = b.constant(np.float32([0.25, 1, 4]))
y = b.reciprocal(x)
""",
        "[4. 1. 0.25]",
    ),
    "round_even": Example(
        """
x = b.constant(np.float32([-1.5, 0, 2.5]))
y = b.round_even(x)
""",
        "[-2. 0. 2.]",
    ),
    "sign": Example(
        """
x = b.constant(np.float32([-1.5, 0, 2.5]))
y = b.sign(x)
""",
        "[-1. 0. 1.]",
    ),
    "sin": Example(
        """
x = b.constant(np.float32([0, 0.5, 1]))
y = b.sin(x)
""",
        "[0. 0.479 0.841]",
    ),
    "sqrt": Example(
        """
x = b.constant(np.float32([0.25, 1, 4]))
y = b.sqrt(x)
""",
        "[0.5 1. 2. ]",
    ),
    "tan": Example(
        """
x = b.constant(np.float32([0, 0.5, 1]))
y = b.tan(x)
""",
        "[0. 0.546 1.557]",
    ),
    "add": Example(
        """
x = b.constant(np.float32([1, 2, 3]))
y = b.add(x, b.constant(np.float32([2, 2, 2])))
""",
        "[3. 4. 5.]",
    ),
    "sub": Example(
        """
x = b.constant(np.float32([1, 2, 3]))
y = b.sub(x, b.constant(np.float32([2, 2, 2])))
""",
        "[-1. 0. 1.]",
    ),
    "mul": Example(
        """
x = b.constant(np.float32([1, 2, 3]))
y = b.mul(x, b.constant(np.float32([2, 2, 2])))
""",
        "[2. 4. 6.]",
    ),
    "div": Example(
        """
x = b.constant(np.float32([1, 2, 3]))
y = b.div(x, b.constant(np.float32([2, 2, 2])))
""",
        "[0.5 1. 1.5]",
    ),
    "max": Example(
        """
x = b.constant(np.float32([1, 2, 3]))
y = b.max(x, b.constant(np.float32([2, 2, 2])))
""",
        "[2. 2. 3.]",
    ),
    "min": Example(
        """
x = b.constant(np.float32([1, 2, 3]))
y = b.min(x, b.constant(np.float32([2, 2, 2])))
""",
        "[1. 2. 2.]",
    ),
    "pow": Example(
        """
x = b.constant(np.float32([1, 2, 3]))
y = b.pow(x, b.constant(np.float32([2, 2, 2])))
""",
        "[1. 4. 9.]",
    ),
    "equal": Example(
        """
x = b.constant(np.float32([1, 2, 3]))
y = b.equal(x, b.constant(np.float32([2, 2, 2])))
""",
        "[0 1 0]",
    ),
    "not_equal": Example(
        """
x = b.constant(np.float32([1, 2, 3]))
y = b.not_equal(x, b.constant(np.float32([2, 2, 2])))
""",
        "[1 0 1]",
    ),
    "greater": Example(
        """
x = b.constant(np.float32([1, 2, 3]))
y = b.greater(x, b.constant(np.float32([2, 2, 2])))
""",
        "[0 0 1]",
    ),
    "greater_or_equal": Example(
        """
x = b.constant(np.float32([1, 2, 3]))
y = b.greater_or_equal(x, b.constant(np.float32([2, 2, 2])))
""",
        "[0 1 1]",
    ),
    "lesser": Example(
        """
x = b.constant(np.float32([1, 2, 3]))
y = b.lesser(x, b.constant(np.float32([2, 2, 2])))
""",
        "[1 0 0]",
    ),
    "lesser_or_equal": Example(
        """
x = b.constant(np.float32([1, 2, 3]))
y = b.lesser_or_equal(x, b.constant(np.float32([2, 2, 2])))
""",
        "[1 1 0]",
    ),
    "logical_and": Example(
        """
x = b.constant(np.uint8([0, 0, 1, 1]))
y = b.logical_and(x, b.constant(np.uint8([0, 1, 0, 1])))
""",
        "[0 0 0 1]",
    ),
    "logical_or": Example(
        """
x = b.constant(np.uint8([0, 0, 1, 1]))
y = b.logical_or(x, b.constant(np.uint8([0, 1, 0, 1])))
""",
        "[0 1 1 1]",
    ),
    "logical_xor": Example(
        """
x = b.constant(np.uint8([0, 0, 1, 1]))
y = b.logical_xor(x, b.constant(np.uint8([0, 1, 0, 1])))
""",
        "[0 1 1 0]",
    ),
    "logical_not": Example(
        """
x = b.constant(np.uint8([0, 1]))
y = b.logical_not(x)
""",
        "[1 0]",
    ),
    "is_nan": Example(
        """
x = b.constant(np.float32([1, np.nan, np.inf]))
y = b.is_nan(x)
""",
        "[0 1 0]",
    ),
    "is_infinite": Example(
        """
x = b.constant(np.float32([1, np.nan, np.inf]))
y = b.is_infinite(x)
""",
        "[0 0 1]",
    ),
    "where": Example(
        """
x = b.constant(np.float32([1, 2, 3]))
mask = b.constant(np.uint8([1, 0, 1]))
y = b.where(mask, x, b.neg(x))
""",
        "[ 1. -2. 3.]",
    ),
    "cast": Example(
        """
x = b.constant(np.float32([-1.5, 0, 2.5]))
y = b.cast(x, "int32")
""",
        "[-1 0 2]",
    ),
    "clamp": Example(
        """
x = b.constant(np.float32([-1, 0.5, 9]))
y = b.clamp(x, min_value=0, max_value=6)
""",
        "[0. 0.5 6. ]",
    ),
    "elu": Example(
        """
x = b.constant(np.float32([-1, 0, 2]))
y = b.elu(x)
""",
        "[-0.632 0. 2. ]",
    ),
    "gelu": Example(
        """
x = b.constant(np.float32([-1, 0, 2]))
y = b.gelu(x)
""",
        "[-0.159 0. 1.954]",
    ),
    "hard_sigmoid": Example(
        """
x = b.constant(np.float32([-1, 0, 2]))
y = b.hard_sigmoid(x)
""",
        "[0.3 0.5 0.9]",
    ),
    "hard_swish": Example(
        """
x = b.constant(np.float32([-1, 0, 2]))
y = b.hard_swish(x)
""",
        "[-0.333 0. 1.667]",
    ),
    "leaky_relu": Example(
        """
x = b.constant(np.float32([-1, 0, 2]))
y = b.leaky_relu(x, alpha=0.1)
""",
        "[-0.1 0. 2. ]",
    ),
    "linear": Example(
        """
x = b.constant(np.float32([-1, 0, 2]))
y = b.linear(x, alpha=2, beta=1)
""",
        "[-1. 1. 5.]",
    ),
    "prelu": Example(
        """
x = b.constant(np.float32([-1, 0, 2]))
y = b.prelu(x, b.constant(np.float32([0.5, 0.5, 0.5])))
""",
        "[-0.5 0. 2. ]",
    ),
    "relu": Example(
        """
x = b.constant(np.float32([-1, 0, 2]))
y = b.relu(x)
""",
        "[0. 0. 2.]",
    ),
    "sigmoid": Example(
        """
x = b.constant(np.float32([-1, 0, 2]))
y = b.sigmoid(x)
""",
        "[0.269 0.5 0.881]",
    ),
    "softplus": Example(
        """
x = b.constant(np.float32([-1, 0, 2]))
y = b.softplus(x)
""",
        "[0.313 0.693 2.127]",
    ),
    "softsign": Example(
        """
x = b.constant(np.float32([-1, 0, 2]))
y = b.softsign(x)
""",
        "[-0.5 0. 0.667]",
    ),
    "tanh": Example(
        """
x = b.constant(np.float32([-1, 0, 2]))
y = b.tanh(x)
""",
        "[-0.762 0. 0.964]",
    ),
    "scaled_dot_product_attention": Example(
        """
x = b.constant(np.float32([[[[1, 0], [0, 1]]]]))
y = b.scaled_dot_product_attention(x, x, x, causal=True)
""",
        "[[[[1. 0. ] [0.33 0.67]]]]",
    ),
    "rotary_embedding": Example(
        """
x = b.constant(np.float32([[[[1, 0], [1, 0]]]]))
angles = np.float32([[0], [np.pi / 2]])
y = b.rotary_embedding(x, b.constant(np.cos(angles)), b.constant(np.sin(angles)))
""",
        "[[[[ 1. 0.] [-0. 1.]]]]",
    ),
    "gather": Example(
        """
x = b.constant(np.float32([[1, 2], [3, 4], [5, 6]]))
y = b.gather(x, b.constant(np.int32([2, 0])), axis=0)
""",
        "[[5. 6.] [1. 2.]]",
    ),
    "gather_elements": Example(
        """
x = b.constant(np.float32([[1, 2], [3, 4]]))
y = b.gather_elements(x, b.constant(np.int32([[1, 0]])), axis=0)
""",
        "[[3. 2.]]",
    ),
    "gather_nd": Example(
        """
x = b.constant(np.float32([[1, 2], [3, 4]]))
y = b.gather_nd(x, b.constant(np.int32([[0, 1], [1, 0]])))
""",
        "[2. 3.]",
    ),
    "scatter_elements": Example(
        """
x = b.constant(np.float32([1, 2, 3]))
places = b.constant(np.int32([2, 0]))
y = b.scatter_elements(x, places, b.constant(np.float32([8, 9])))
""",
        "[9. 2. 8.]",
    ),
    "scatter_nd": Example(
        """
x = b.constant(np.float32([[1, 2], [3, 4]]))
places = b.constant(np.int32([[1, 0]]))
y = b.scatter_nd(x, places, b.constant(np.float32([9])))
""",
        "[[1. 2.] [9. 4.]]",
    ),
    "scatter_rows": Example(
        """
cache = b.constant(np.zeros((1, 1, 3, 2), np.float32))
rows = b.constant(np.float32([[[[1, 2]]]]))
y = b.scatter_rows(cache, rows, b.constant(np.int32([1])))
""",
        "[[[[0. 0.] [1. 2.] [0. 0.]]]]",
    ),
    "matmul": Example(
        """
x = b.constant(np.float32([[1, 2], [3, 4]]))
y = b.matmul(x, b.constant(np.float32([[1, 0], [1, 1]])))
""",
        "[[3. 2.] [7. 4.]]",
    ),
    "gemm": Example(
        """
x = b.constant(np.float32([[1, 2], [3, 4]]))
c = b.constant(np.float32([10, 20]))
y = b.gemm(x, x, c=c, alpha=0.5, b_transpose=True)
""",
        "[[12.5 25.5] [15.5 32.5]]",
    ),
    "concat": Example(
        """
x = b.constant(np.float32([[1, 2]]))
y = b.concat([x, b.neg(x)], 0)
""",
        "[[ 1. 2.] [-1. -2.]]",
    ),
    "expand": Example(
        """
x = b.constant(np.float32([[1], [2]]))
y = b.expand(x, [2, 3])
""",
        "[[1. 1. 1.] [2. 2. 2.]]",
    ),
    "pad": Example(
        """
x = b.constant(np.float32([1, 2, 3]))
y = b.pad(x, [1], [2], value=9)
""",
        "[9. 1. 2. 3. 9. 9.]",
    ),
    "reshape": Example(
        """
x = b.constant(np.float32([1, 2, 3, 4]))
y = b.reshape(x, [2, 2])
""",
        "[[1. 2.] [3. 4.]]",
    ),
    "reverse": Example(
        """
x = b.constant(np.float32([[1, 2], [3, 4]]))
y = b.reverse(x, axes=[1])
""",
        "[[2. 1.] [4. 3.]]",
    ),
    "slice": Example(
        """
x = b.constant(np.float32([0, 1, 2, 3, 4]))
y = b.slice(x, [1], [4], strides=[2])
""",
        "[1. 3.]",
    ),
    "split": Example(
        """
x = b.constant(np.float32([0, 1, 2, 3, 4]))
x, y = b.split(x, [2, 3])
""",
        "[2. 3. 4.]",
    ),
    "tile": Example(
        """
x = b.constant(np.float32([[1, 2]]))
y = b.tile(x, [2, 2])
""",
        "[[1. 2. 1. 2.] [1. 2. 1. 2.]]",
    ),
    "transpose": Example(
        """
x = b.constant(np.float32([[1, 2], [3, 4]]))
y = b.transpose(x, permutation=[1, 0])
""",
        "[[1. 3.] [2. 4.]]",
    ),
    "triangular": Example(
        """
x = b.constant(np.ones((3, 3), np.float32))
y = b.triangular(x, upper=False)
""",
        "[[1. 0. 0.] [1. 1. 0.] [1. 1. 1.]]",
    ),
    "batch_normalization": Example(
        """
x = b.constant(np.float32([[1, 2], [3, 4]]))
mean, variance = b.constant(np.float32([2, 3])), b.constant(np.float32([1, 4]))
y = b.batch_normalization(x, mean, variance)
""",
        "[[-1. -0.5] [ 1. 0.5]]",
    ),
    "instance_normalization": Example(
        """
x = b.constant(np.float32([[[[1, 3]], [[10, 30]]]]))
y = b.instance_normalization(x)
""",
        "[[[[-1. 1.]] [[-1. 1.]]]]",
    ),
    "layer_normalization": Example(
        """
x = b.constant(np.float32([[1, 3], [10, 30]]))
y = b.layer_normalization(x, axes=[1])
""",
        "[[-1. 1.] [-1. 1.]]",
    ),
    "rms_normalization": Example(
        """
x = b.constant(np.float32([[3, 4]]))
y = b.rms_normalization(x, b.constant(np.float32([1, 2])))
""",
        "[[0.849 2.263]]",
    ),
    "softmax": Example(
        """
x = b.constant(np.float32([[0, 0], [0, 1]]))
y = b.softmax(x, 1)
""",
        "[[0.5 0.5 ] [0.269 0.731]]",
    ),
    "average_pool2d": Example(
        """
x = b.constant(np.arange(4, dtype=np.float32).reshape(1, 1, 1, 4))
y = b.average_pool2d(x, window_dimensions=[1, 2], strides=[1, 2])
""",
        "[[[[0.5 2.5]]]]",
    ),
    "l2_pool2d": Example(
        """
x = b.constant(np.arange(4, dtype=np.float32).reshape(1, 1, 1, 4))
y = b.l2_pool2d(x, window_dimensions=[1, 2], strides=[1, 2])
""",
        "[[[[1. 3.606]]]]",
    ),
    "max_pool2d": Example(
        """
x = b.constant(np.arange(4, dtype=np.float32).reshape(1, 1, 1, 4))
y = b.max_pool2d(x, window_dimensions=[1, 2], strides=[1, 2])
""",
        "[[[[1. 3.]]]]",
    ),
    "dequantize_linear": Example(
        """
x = b.constant(np.uint8([126, 128, 129]))
scale, zero_point = b.constant(np.float32([0.5])), b.constant(np.uint8([128]))
y = b.dequantize_linear(x, scale, zero_point)
""",
        "[-1. 0. 0.5]",
    ),
    "quantize_linear": Example(
        """
x = b.constant(np.float32([-1, 0, 0.5]))
scale, zero_point = b.constant(np.float32([0.5])), b.constant(np.uint8([128]))
y = b.quantize_linear(x, scale, zero_point)
""",
        "[126 128 129]",
    ),
    "dynamic_quantize_linear": Example(
        """
x = b.constant(np.float32([0, 1, 2.55]))
y, scale, zero_point = b.dynamic_quantize_linear(x)
""",
        "[ 0 100 255]",
    ),
    "matmul_packed": Example(
        """
x = b.constant(np.float32([[1, 2]]))
codes = b.constant(np.int8([[1, 1], [3, -1]]))
y = b.matmul_packed(x, codes, b.constant(np.float32([[0.5], [2]])))
""",
        "[[1.5 2. ]]",
    ),
    "matmul_integer": Example(
        """
x = b.constant(np.uint8([[1, 2], [3, 4]]))
y = b.matmul_integer(x, b.constant(np.int8([[1], [-1]])))
""",
        "[[-1] [-1]]",
    ),
    "conv2d_integer": Example(
        """
x = b.constant(np.uint8([[[[126, 128, 129]]]]))
taps, zero_point = b.constant(np.int8([[[[1, -1]]]])), b.constant(np.uint8([128]))
y = b.conv2d_integer(x, taps, input_zero_point=zero_point)
""",
        "[[[[-2 -1]]]]",
    ),
    "gru_cell": Example(
        """
x, state = b.constant(np.float32([[1, 2]])), b.constant(np.float32([[0]]))
weight, recurrent = (b.constant(np.full((3, n), 0.5, np.float32)) for n in (2, 1))
y = b.gru_cell(x, weight, recurrent, state, 1)
""",
        "[[0.165]]",
    ),
    "gru": Example(
        """
x = b.constant(np.float32([[[1, 2]], [[3, 4]]]))
weight, recurrent = (b.constant(np.full((1, 3, n), 0.5, np.float32)) for n in (2, 1))
(y,) = b.gru(x, weight, recurrent, 2, 1)
""",
        "[[[0.188]]]",
    ),
    "lstm_cell": Example(
        """
x, state = b.constant(np.float32([[1, 2]])), b.constant(np.float32([[0]]))
weight, recurrent = (b.constant(np.full((4, n), 0.5, np.float32)) for n in (2, 1))
y, cell = b.lstm_cell(x, weight, recurrent, state, state, 1)
""",
        "[[0.514]]",
    ),
    "lstm": Example(
        """
x = b.constant(np.float32([[[1, 2]], [[3, 4]]]))
weight, recurrent = (b.constant(np.full((1, 4, n), 0.5, np.float32)) for n in (2, 1))
y, cell = b.lstm(x, weight, recurrent, 2, 1)
""",
        "[[[0.914]]]",
    ),
    "lstm_packed": Example(
        """
x = b.constant(np.float32([[[1, 2]], [[3, 4]]]))
weight, recurrent = (b.constant(np.full((1, n, 4), 50, np.int8)) for n in (2, 1))
scale = b.constant(np.float32([[0.01]]))
y, cell, states = b.lstm_packed(x, weight, recurrent, scale, scale)
""",
        "[[[0.914]]]",
    ),
    "reduce_l1": Example(
        """
x = b.constant(np.float32([[1, 2], [3, 4]]))
y = b.reduce_l1(x, axes=[1])
""",
        "[3. 7.]",
    ),
    "reduce_l2": Example(
        """
x = b.constant(np.float32([[1, 2], [3, 4]]))
y = b.reduce_l2(x, axes=[1])
""",
        "[2.236 5. ]",
    ),
    "reduce_log_sum": Example(
        """
x = b.constant(np.float32([[1, 2], [3, 4]]))
y = b.reduce_log_sum(x, axes=[1])
""",
        "[1.099 1.946]",
    ),
    "reduce_log_sum_exp": Example(
        """
x = b.constant(np.float32([[1, 2], [3, 4]]))
y = b.reduce_log_sum_exp(x, axes=[1])
""",
        "[2.313 4.313]",
    ),
    "reduce_max": Example(
        """
x = b.constant(np.float32([[1, 2], [3, 4]]))
y = b.reduce_max(x, axes=[1])
""",
        "[2. 4.]",
    ),
    "reduce_mean": Example(
        """
x = b.constant(np.float32([[1, 2], [3, 4]]))
y = b.reduce_mean(x, axes=[1])
""",
        "[1.5 3.5]",
    ),
    "reduce_min": Example(
        """
x = b.constant(np.float32([[1, 2], [3, 4]]))
y = b.reduce_min(x, axes=[1])
""",
        "[1. 3.]",
    ),
    "reduce_product": Example(
        """
x = b.constant(np.float32([[1, 2], [3, 4]]))
y = b.reduce_product(x, axes=[1])
""",
        "[ 2. 12.]",
    ),
    "reduce_sum": Example(
        """
x = b.constant(np.float32([[1, 2], [3, 4]]))
y = b.reduce_sum(x, axes=[1])
""",
        "[3. 7.]",
    ),
    "reduce_sum_square": Example(
        """
x = b.constant(np.float32([[1, 2], [3, 4]]))
y = b.reduce_sum_square(x, axes=[1])
""",
        "[ 5. 25.]",
    ),
    "resample2d": Example(
        """
x = b.constant(np.float32([[[[1, 3]]]]))
y = b.resample2d(x, mode="linear", sizes=[1, 4])
""",
        "[[[[1. 1.5 2.5 3. ]]]]",
    ),
    "arg_max": Example(
        """
x = b.constant(np.float32([[1, 5, 2], [7, 3, 4]]))
y = b.arg_max(x, 1)
""",
        "[1 0]",
    ),
    "arg_min": Example(
        """
x = b.constant(np.float32([[1, 5, 2], [7, 3, 4]]))
y = b.arg_min(x, 1)
""",
        "[0 1]",
    ),
    "arg_top_k": Example(
        """
x = b.constant(np.float32([1, 5, 2, 4]))
y = b.arg_top_k(x, 0, 2)
""",
        "[1 3]",
    ),
    "cumulative_sum": Example(
        """
x = b.constant(np.float32([1, 2, 3]))
y = b.cumulative_sum(x, 0, exclusive=True)
""",
        "[0. 1. 3.]",
    ),
}

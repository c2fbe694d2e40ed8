"""Messages say what to do about the mistakes that are common."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.graphs import ONES, assert_works, doubling
from webnn_py import MLContext, MLExecution, MLGraphBuilder, ValidationError, ml

CONV = r"do not fit .*; they would with "

MISTAKES: dict[str, tuple[Callable[[Any, Any], Any], str]] = {
    "axis": (lambda b, t: b.softmax(t.v, -1), r"count from 0, and the last .* rank - 1: give 2$"),
    "axes": (lambda b, t: b.reduce_sum(t.v, axes=[-1, 0]), r"axes count from 0.* give \[2, 0\]$"),
    "permutation": (
        lambda b, t: b.transpose(t.v, permutation=[0, -1, 1]),
        r"axes count from 0.* give \[0, 2, 1\]$",
    ),
    "axis of a list": (lambda b, t: b.concat([t.v, t.v], -3), r"axes count from 0.* give 0$"),
    "axis too low": (lambda b, t: b.softmax(t.v, -4), r"got -4, expected an integer in 0..\d+$"),
    "reshape": (lambda b, t: b.reshape(t.v, [-1, 4]), r"not inferred: give \[6, 4\]$"),
    "reshape, no size": (lambda b, t: b.reshape(t.v, [-1, 5]), r"expected an integer in 0..\d+$"),
    "number": (lambda b, t: b.add(t.v, 2.5), r"got 2.5, .* with constant\(2.5, 'float32'\)$"),
    "integer": (lambda b, t: b.mul(3, t.i), r"constant\(3, 'int32'\)$"),
    "member": (lambda b, t: b.concat([t.i, 1], 0), r"inputs\[1\]': .*constant\(1, 'int32'\)$"),
    "array": (lambda b, t: b.add(t.v, np.ones(4)), r"got array float64\[4\], .*constant\(array\)$"),
    "list": (
        lambda b, t: b.relu(b.split(t.v, 3, axis=1)),
        r"a list of 3, as split makes them: take one of it by its index$",
    ),
    "outputs": (lambda b, t: b.build_sync(b.relu(t.v)), r'name it: \{"name": operand\}$'),
    "list of outputs": (
        lambda b, t: b.build_sync({"y": b.split(t.v, 2)}),
        "list of 2, as split makes them",
    ),
    "bias": (
        lambda b, t: b.conv2d(t.nhwc, t.oihw, input_layout="nhwc", bias=t.bias),
        r"expected 1; make it 1-D with reshape\(bias, \[8\]\)$",
    ),
    "mean": (
        lambda b, t: b.batch_normalization(t.bias, t.bias, t.bias),
        r"make it 1-D with reshape\(mean, \[8\]\)$",
    ),
    "input layout": (lambda b, t: b.conv2d(t.nhwc, t.oihw), CONV + "input_layout='nhwc'$"),
    "filter layout": (lambda b, t: b.conv2d(t.nchw, t.hwio), CONV + "filter_layout='hwio'$"),
    "both layouts": (
        lambda b, t: b.conv2d(t.nhwc, t.ohwi),
        CONV + "input_layout='nhwc', filter_layout='ohwi'$",
    ),
    "groups": (lambda b, t: b.conv2d(t.nchw, t.depthwise), CONV + "groups=6$"),
    "no layout": (lambda b, t: b.conv2d(t.nchw, t.odd), r"\[5, 4, 5, 4\] oihw\)$"),
    "transposed layout": (
        lambda b, t: b.conv_transpose2d(t.nchw, t.hwoi),
        CONV + "filter_layout='hwoi'$",
    ),
    "window": (
        lambda b, t: b.max_pool2d(t.nchw, window_dimensions=[9, 2]),
        r"max_pool2d: a window of 9 x 2 is larger than the input of 7 x 7$",
    ),
    "dilated window": (
        lambda b, t: b.average_pool2d(
            t.nchw, window_dimensions=[4, 4], dilations=[3, 3], padding=[1, 0, 0, 0]
        ),
        r"4 x 4 with dilations \[3, 3\] is larger than .* 7 x 7 with padding \[1, 0, 0, 0\]$",
    ),
    "pooling layout": (
        lambda b, t: b.l2_pool2d(t.nhwc, window_dimensions=[5, 5]),
        r"larger than the input of 7 x 3; it would fit with layout='nhwc'$",
    ),
    "filter": (
        lambda b, t: b.conv2d(t.nchw, b.constant(np.ones((1, 6, 9, 9), np.float32))),
        r"conv2d: a window of 9 x 9 is larger than the input of 7 x 7$",
    ),
    "padding of a transposed one": (
        lambda b, t: b.conv_transpose2d(t.nchw, t.depthwise, padding=[5, 5, 5, 5]),
        r"padding \[5, 5, 5, 5\] leaves nothing of the output: \[-1, -1\]$",
    ),
    "option": (
        lambda b, t: b.conv2d(t.nhwc, t.oihw, inputLayout="nhwc"),
        r"'inputLayout'; names are in snake_case here: input_layout; the signature is"
        r" conv2d\(input, filter, \*, bias=None, padding=",
    ),
    "option misspelt": (
        lambda b, t: b.conv2d(t.nhwc, t.oihw, input_layuot="nhwc"),
        "did you mean input_layout",
    ),
    "label": (lambda b, t: b.relu(t.v, label=1), "^relu: option 'label': got 1, expected a string"),
    "long list": (lambda b, t: b.expand(t.v, [10**9] * 60000), r"^.{,300}$"),
    "endless list": (lambda b, t: b.expand(t.v, iter(int, 1)), "more than 65536 members"),
    "set": (lambda b, t: b.reshape(t.v, {2, 12}), r"got \{2, 12\}, expected a list"),
    "NumPy": (lambda b, t: np.tanh(t.v), "an MLOperand has no contents: build its graph"),
    "NumPy's operators": (lambda b, t: ONES + t.v, "an MLOperand has no contents"),
    "float64": (lambda b, t: b.constant(np.ones(3)), r"; convert it with \.astype\(np\.float32\)$"),
    "other data type": (
        lambda b, t: b.constant(np.ones(3), "float16"),
        r"float64, expected float16; convert it with \.astype\(np\.float16\)$",
    ),
}


class Operands:
    """Some operands of a builder, by what they are."""

    def __init__(self, builder: MLGraphBuilder) -> None:
        self.v = builder.input("v", "float32", [2, 3, 4])
        self.i = builder.input("i", "int32", [3])
        self.nchw = builder.input("nchw", "float32", [1, 6, 7, 7])
        self.nhwc = builder.input("nhwc", "float32", [1, 7, 7, 3])
        self.bias = builder.input("bias", "float32", [1, 8, 1, 1])
        self.oihw = builder.input("oihw", "float32", [8, 3, 2, 2])
        self.ohwi = builder.input("ohwi", "float32", [8, 2, 2, 3])
        self.hwio = builder.input("hwio", "float32", [2, 2, 6, 8])
        self.hwoi = builder.input("hwoi", "float32", [2, 2, 8, 6])
        self.odd = builder.input("odd", "float32", [5, 4, 5, 4])
        self.depthwise = builder.input("depthwise", "float32", [6, 1, 3, 3])


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_message_says_what_to_do(cpu: MLContext, mistake: str) -> None:
    call, message = MISTAKES[mistake]
    builder = MLGraphBuilder(cpu)
    with pytest.raises(ValidationError, match=message):
        call(builder, Operands(builder))
    assert_works(cpu)


@pytest.mark.parametrize(
    ("owner", "name", "meant"),
    [
        ("builder", "convTranspose2d", "names are in snake_case here: conv_transpose2d"),
        ("builder", "gatherND", "gather_nd"),
        ("builder", "isNaN", "is_nan"),
        ("builder", "build", r"did you mean build_sync\?"),
        ("builder", "sofmax", r"did you mean softmax\?"),
        ("context", "createTensor", r"did you mean create_tensor_sync\?"),
        ("context", "opSupportLimits", "op_support_limits"),
        ("ml", "createContext", r"did you mean create_context_sync\?"),
        ("graph", "output", r"did you mean outputs\?"),
        ("operand", "dataType", "data_type"),
        ("builder", "quite_something_else", "no attribute 'quite_something_else'$"),
        ("builder", "__nothing__", "no attribute '__nothing__'$"),
    ],
)
def test_a_missing_attribute_says_which_one_was_meant(
    cpu: MLContext, owner: str, name: str, meant: str
) -> None:
    builder = MLGraphBuilder(cpu)
    owners = {
        "builder": builder,
        "context": cpu,
        "ml": ml,
        "graph": doubling(cpu),
        "operand": builder.input("x", "float32", [1]),
    }
    with pytest.raises(AttributeError, match=meant):
        getattr(owners[owner], name)
    assert not hasattr(owners[owner], name)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (ONES.astype(np.float64), r"convert it with \.astype\(np\.float32\)"),
        (ONES.T, r"shape \[3, 2\], expected \[2, 3\]; .*: change it with \.transpose\(1, 0\)$"),
        (ONES.tolist(), r"got list, .*; make one with np\.array"),
    ],
)
def test_data_that_does_not_fit_says_how_it_would(cpu: MLContext, value: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        MLExecution(cpu).compute(doubling(cpu), {"x": value})
    tensor = cpu.create_tensor_sync("float32", [2, 3], writable=True)
    with pytest.raises(ValueError, match=message):
        cpu.write_tensor(tensor, value)

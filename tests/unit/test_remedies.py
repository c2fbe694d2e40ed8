"""Messages say what to do about the mistakes that are common."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import webnn_py.onnx
from tests.graphs import ONES, assert_works, doubling
from webnn_py import (
    DataError,
    MLAwaitedExecution,
    MLContext,
    MLError,
    MLExecution,
    MLGraphBuilder,
    MLOperandDescriptor,
    ValidationError,
    ml,
)

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
    "shape first": (
        lambda b, t: b.input("z", [2, 3], "float32"),
        "the data type comes before the shape$",
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


CALLS: dict[str, tuple[str, str, Any]] = {
    # the operator's call, the advice, and the wrong option
    "padding": ("b.conv2d(t.nchw, t.depthwise, groups=6, padding={})", r"[1, 1, 1, 1]", 1),
    "padding of axes": (
        "b.conv2d(t.nchw, t.depthwise, groups=6, padding={})",
        "[1, 1, 2, 2]",
        [1, 2],
    ),
    "strides": ("b.conv2d(t.nchw, t.depthwise, groups=6, strides={})", "[2, 2]", 2),
    "dilations": ("b.max_pool2d(t.nchw, window_dimensions=[2, 2], dilations={})", "[2, 2]", 2),
    "window": ("b.average_pool2d(t.nchw, window_dimensions={})", "[3, 3]", 3),
    "output sizes": (
        "b.max_pool2d(t.nchw, window_dimensions=[2, 2], output_sizes={})",
        "[6, 6]",
        6,
    ),
    "sizes": ("b.resample2d(t.nchw, sizes={})", "[9, 9]", 9),
    "scales": ("b.resample2d(t.nchw, scales={})", "[1.5, 1.5]", 1.5),
    "axes": ("b.reduce_sum(t.v, axes={})", "[1]", 1),
    "last axis": ("b.reduce_sum(t.v, axes={})", "[2]", -1),
    "new shape": ("b.reshape(t.v, {})", "[24]", 24),
    "repetitions": ("b.tile(t.i, {})", "[2]", 2),
    "data type": ("b.input('q', {}, [2])", "'float32'", np.float32),
    "data type of NumPy": ("b.input('q', {}, [2])", "'int64'", np.dtype("int64")),
}


@pytest.mark.parametrize("case", CALLS)
def test_what_a_message_gives_is_taken(cpu: MLContext, case: str) -> None:
    code, advice, wrong = CALLS[case]
    builder = MLGraphBuilder(cpu)
    call = {"b": builder, "t": Operands(builder)}
    with pytest.raises(ValidationError, match=rf"; give {re.escape(advice)}$"):
        eval(code.format("wrong"), call | {"wrong": wrong})
    eval(code.format(advice), call)
    assert_works(cpu)


def test_a_number_for_a_list_is_not_repeated_where_it_may_mean_another_axis(cpu: MLContext) -> None:
    builder = MLGraphBuilder(cpu)
    v = builder.input("v", "float32", [2, 3])
    for call in (
        lambda: builder.tile(v, 2),
        lambda: builder.slice(v, 0, 1),
        lambda: builder.pad(v, 1, 1),
    ):
        with pytest.raises(ValidationError, match=r"expected a list$"):
            call()


@pytest.mark.parametrize("name", ["float64", "double", "float", "half", "bool", "Float32"])
def test_data_types_of_other_names(cpu: MLContext, name: str) -> None:
    with pytest.raises(ValidationError, match="; did you mean") as caught:
        MLGraphBuilder(cpu).input("x", name, [1])  # type: ignore[arg-type]
    meant = re.search("did you mean '(.*)'", str(caught.value))
    assert meant
    MLGraphBuilder(cpu).input("x", meant[1], [1])  # type: ignore[arg-type]


def test_none_in_a_shape(cpu: MLContext) -> None:
    for make in (
        lambda shape: MLGraphBuilder(cpu).input("x", "float32", shape),
        lambda shape: MLOperandDescriptor("float32", shape),
    ):
        with pytest.raises(ValidationError, match=r"got None, .* has a name, such as 'batch', or"):
            make([None, 3])
        assert len(make(["batch", 3]).shape) == 2


CONTEXTS: dict[str, tuple[dict[str, Any], str, dict[str, Any]]] = {
    "gpu": ({"device": "gpu"}, "; give it by name: device_type='gpu'", {"device_type": "gpu"}),
    "CPU": ({"device": "CPU"}, "; give it by name: device_type='cpu'", {"device_type": "cpu"}),
    "cuda": ({"device": "cuda"}, "; give it by name: device_type='gpu'", {"device_type": "gpu"}),
    "cuda by name": ({"device_type": "cuda"}, "; did you mean 'gpu'?", {"device_type": "gpu"}),
    "case": ({"device_type": "CPU"}, "; did you mean 'cpu'?", {"device_type": "cpu"}),
    "ort": ({"engine": "ort"}, "; did you mean 'onnxruntime'?", {"engine": "onnxruntime"}),
    "ORT": ({"device": "ORT"}, "by name: engine='onnxruntime'", {"engine": "onnxruntime"}),
    "typo": ({"engine": "refrence"}, "; did you mean 'reference'?", {"engine": "reference"}),
    "wgpu": ({"engine": "webgpu"}, " it needs device_type='gpu'", {"device_type": "gpu"}),
}


@pytest.mark.parametrize("case", CONTEXTS)
def test_how_a_context_is_made(case: str, request: pytest.FixtureRequest) -> None:
    wrong, message, right = CONTEXTS[case]
    with pytest.raises(MLError, match=re.escape(message) + "$"):
        ml.create_context_sync(**wrong)
    if right == {"device_type": "gpu"}:
        request.getfixturevalue("gpu")  # skips where there is no adapter
    ml.create_context_sync(**right).destroy()


KEYWORDS: dict[str, tuple[Callable[[MLContext, dict[str, Any]], Any], str, str]] = {
    "context": (lambda _, o: ml.create_context_sync(**o), "deviceType", "device_type"),
    "awaited context": (
        lambda _, o: asyncio.run(ml.create_context_async(**o)),
        "powerPreference",
        "power_preference",
    ),
    "execution": (lambda c, o: MLExecution(c, **o), "allowBlocking", "allow_blocking"),
    "awaited execution": (lambda c, o: MLAwaitedExecution(c, **o), "maxBatch", "max_batch"),
    "builder": (lambda c, o: MLGraphBuilder(c, **o), "dimension", "dimensions"),
    "constant": (lambda c, o: MLGraphBuilder(c).constant(1, "int32", **o), "nam", "name"),
    "build": (lambda c, o: MLGraphBuilder(c).build_sync({}, **o), "progres", "progress"),
    "tensor": (lambda c, o: c.create_tensor_sync("int8", **o), "readible", "readable"),
    "descriptor": (lambda _, o: MLOperandDescriptor("int8", **o), "shapes", "shape"),
    "load": (lambda c, o: c.load_graph_sync("x", **o), "verfy", "verify"),
    "prepare": (lambda c, o: doubling(c).prepare_sync({}, **o), "Progress", "progress"),
    "profile": (lambda c, o: doubling(c).profile({}, **o), "run", "runs"),
    "onnx": (lambda c, o: webnn_py.onnx.load("x", c, **o), "inputShapes", "input_shapes"),
}


@pytest.mark.parametrize("case", KEYWORDS)
def test_a_misspelt_option_names_the_nearest_one(cpu: MLContext, case: str) -> None:
    call, wrong, right = KEYWORDS[case]
    with pytest.raises(TypeError, match=rf"keyword argument '{wrong}'; .* {right}\??$"):
        call(cpu, {wrong: None})
    with pytest.raises(TypeError, match=r"keyword argument 'quite_other'; it takes "):
        call(cpu, {"quite_other": None})
    with contextlib.suppress(MLError):  # None is no value of it
        call(cpu, {right: None})


async def made() -> None:
    """Something that must be awaited."""


def test_what_was_not_awaited_is_said_so(cpu: MLContext) -> None:
    graph, builder = doubling(cpu), MLGraphBuilder(cpu)
    tensor = cpu.create_tensor_sync("float32", [2, 3])
    uses: list[Callable[[Any], Any]] = [
        lambda it: MLExecution(it),
        lambda it: MLExecution(cpu).compute(it, {}),
        lambda it: MLExecution(cpu).compute(graph, it),
        lambda it: MLExecution(cpu).compute(graph, {"x": it}),
        lambda it: MLExecution(cpu).compute(graph, {"x": ONES}, {"y": it}),
        lambda it: cpu.dispatch(graph, {"x": tensor}, {"y": it}),
        lambda it: cpu.write_tensor(it, ONES),
        lambda it: builder.constant(it),
        lambda it: builder.relu(it),
        lambda it: cpu.load_graph_sync(it),
        lambda it: webnn_py.onnx.load(it, cpu),
    ]
    for use in uses:
        coroutine = made()
        with pytest.raises(MLError, match=r"got a coroutine \(put await before the call of made\)"):
            use(coroutine)
        coroutine.close()
        with pytest.raises(MLError, match=r"got MLPromise \(put await before it\)"):
            use(cpu.lost)


@pytest.mark.parametrize("batch", [None, "n"])
def test_a_result_that_was_not_awaited_is_named(cpu: MLContext, batch: str | None) -> None:
    builder = MLGraphBuilder(cpu)
    x = builder.input("x", "float32", [2 if batch is None else "n", 3])
    graph = builder.build_sync({"y": builder.add(x, x)})
    execution: Any = MLAwaitedExecution(cpu, batch=batch)
    for inputs in ({"x": ONES}, {"x": ONES[0]}):
        with (
            pytest.warns(RuntimeWarning, match=r"'MLAwaitedExecution.compute' was never awaited"),
            pytest.raises(TypeError, match="'coroutine' object is not subscriptable"),
        ):
            execution.compute(graph, inputs)["y"]


def test_files_of_other_kinds(cpu: MLContext, tmp_path: Path) -> None:
    graph, saved, model = doubling(cpu), tmp_path / "x.mlgraph", tmp_path / "x.onnx"
    graph.save(saved)
    contents = webnn_py.onnx.to_onnx(graph).SerializeToString()
    for path in (model, tmp_path / "without an ending"):
        path.write_bytes(contents)
        with pytest.raises(DataError, match=r"got an ONNX model, which webnn_py\.onnx\.load reads"):
            cpu.load_graph_sync(path)
        assert webnn_py.onnx.load(path, cpu).inputs
    for source in (saved, saved.read_bytes()):
        with pytest.raises(DataError, match=r"got a saved graph, which MLContext\.load_graph_sync"):
            webnn_py.onnx.load(source, cpu)
    assert cpu.load_graph_sync(saved).inputs


def test_what_is_saved_is_not_called_an_onnx_model(cpu: MLContext, tmp_path: Path) -> None:
    graph, path = doubling(cpu), tmp_path / "m.ONNX"
    for save in (graph.save, graph.compile_to):
        with pytest.raises(ValidationError, match=r"no ONNX model; .*webnn_py\.onnx\.to_onnx"):
            save(path)
    assert not path.exists()

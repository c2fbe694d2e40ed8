"""Local functions of a model: each of its own operator sets, attributes and overloads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import parser

from tests.onnx.models import model
from webnn_py import DataError, MLContext, MLExecution, NotSupportedError
from webnn_py.onnx import load

HEAD = '<ir_version: 10, opset_import: ["" : 21, "own" : 1]>\n'
LEAKY = """
<domain: "own", opset_import: ["" : 21]>
leaky <alpha: float = 0.25> (a) => (r) { r = LeakyRelu <alpha: float = @alpha> (a) }
"""
CALLED = """
<domain: "own", opset_import: ["" : 21, "own" : 1]>
twice (a) => (r) {
    b = own.leaky (a)
    r = own.leaky <alpha = 0.5> (b)
}
"""
BRANCHES = """y = If (c) <
    then_branch = one () => (float[2] s) { s = own.leaky (x) },
    else_branch = other () => (float[2] t) { t = own.leaky <alpha = 0.5> (x) }
>"""


@pytest.mark.parametrize(
    ("body", "slope"),
    [
        ("y = own.leaky (x)", 0.25),
        ("y = own.leaky <alpha = 0.5> (x)", 0.5),
        ("y = own.twice (x)", 0.125),
        (f"c = Constant <value = bool {{1}}> ()\n{BRANCHES}", 0.25),
    ],
    ids=["default", "given", "nested", "in a branch"],
)
def test_attributes_that_are_not_given_have_their_defaults(
    cpu: MLContext, body: str, slope: float
) -> None:
    made = parser.parse_model(f"{HEAD}g (float[2] x) => (float[2] y) {{ {body} }}{LEAKY}{CALLED}")
    before = made.SerializeToString()
    found = MLExecution(cpu).compute(load(made, cpu), {"x": np.asarray([-8, 8], np.float32)})
    assert found["y"].tolist() == [-8 * slope, 8]
    assert made.SerializeToString() == before


def softmax(x: np.ndarray, version: int) -> Any:
    """Along the last axis; before version 13 along all from the second one on."""
    axes = (2,) if version >= 13 else (1, 2)
    e = np.exp(x)
    return e / e.sum(axes, keepdims=True)


CUBE = np.random.default_rng(0).normal(size=(2, 3, 4)).astype(np.float32)


@pytest.mark.parametrize(("outer", "inner"), [(13, 12), (21, 11), (11, 13), (24, 17)])
def test_a_function_s_operators_are_of_its_own_version(
    cpu: MLContext, outer: int, inner: int
) -> None:
    made = parser.parse_model(
        f"""<ir_version: 10, opset_import: ["" : {outer}, "own" : 1]>
        g (float[2,3,4] x) => (float[2,3,4] y, float[2,3,4] z) {{
            y = own.weighed (x)
            z = Softmax (x)
        }}
        <domain: "own", opset_import: ["" : {inner}]>
        weighed (a) => (r) {{ r = Softmax (a) }}"""
    )
    found = MLExecution(cpu).compute(load(made, cpu), {"x": CUBE})
    np.testing.assert_allclose(found["y"], softmax(CUBE, inner), rtol=1e-5)
    np.testing.assert_allclose(found["z"], softmax(CUBE, outer), rtol=1e-5)


def test_functions_that_call_functions_of_other_versions(cpu: MLContext) -> None:
    made = parser.parse_model(
        """<ir_version: 10, opset_import: ["" : 21, "own" : 2]>
        g (float[2,3,4] x) => (float[2,3,4] y) { y = own.outer <by = 2.0> (x) }
        <domain: "own", opset_import: ["" : 13, "own" : 1]>
        outer <by> (a) => (r) {
            b = own.inner (a)
            c = Softmax (b)
            d = Constant <value_float: float = @by> ()
            r = Mul (c, d)
        }
        <domain: "own", opset_import: ["" : 11]>
        inner (a) => (r) { r = Softmax (a) }"""
    )
    found = MLExecution(cpu).compute(load(made, cpu), {"x": CUBE})
    np.testing.assert_allclose(found["y"], 2 * softmax(softmax(CUBE, 11), 13), rtol=1e-5)


def function(name: str, op: str, domain: str = "own", **options: Any) -> onnx.FunctionProto:
    """A function of one operator."""
    opsets = [onnx.helper.make_opsetid("", 20)]
    nodes = [onnx.helper.make_node(op, ["a"], ["b"], name=f"the_{op}")]
    return onnx.helper.make_function(domain, name, ["a"], ["b"], nodes, opsets, **options)


def calling(*nodes: onnx.NodeProto, functions: Sequence[onnx.FunctionProto]) -> onnx.ModelProto:
    made = model(nodes, {"x": [2]}, [nodes[-1].output[0]])
    made.functions.extend(functions)
    made.opset_import.append(onnx.helper.make_opsetid("own", 1))
    made.ir_version = 10
    return made


@pytest.mark.parametrize("domain", ["", "ai.onnx"])
@pytest.mark.parametrize("name", ["Relu", "Shape", "HardSwish", "Constant", "If"])
def test_functions_that_are_called_like_operators(cpu: MLContext, domain: str, name: str) -> None:
    """They go before these, whether these would be mapped, folded, or are functions themselves."""
    node = onnx.helper.make_node(name, ["x"], ["y"], domain=domain)
    made = calling(node, functions=[function(name, "Neg", domain)])
    x = np.asarray([-1, 2], np.float32)
    assert MLExecution(cpu).compute(load(made, cpu), {"x": x})["y"].tolist() == [1, -2]


def test_overloads_of_a_function(cpu: MLContext) -> None:
    nodes = [
        onnx.helper.make_node("f", ["x"], ["m"], domain="own", overload="down"),
        onnx.helper.make_node("f", ["m"], ["y"], domain="own"),
    ]
    both = [function("f", "Neg", overload="down"), function("f", "Abs")]
    x = np.asarray([-1, 2], np.float32)
    made = calling(*nodes, functions=both)
    assert MLExecution(cpu).compute(load(made, cpu), {"x": x})["y"].tolist() == [1, 2]
    with pytest.raises(NotSupportedError, match=r"own\.f \[m\]: webnn_py has no importer for it"):
        load(calling(nodes[0], functions=both[1:]), cpu)


def test_attributes_of_a_function_reach_into_its_branches(cpu: MLContext) -> None:
    made = parser.parse_model(
        """<ir_version: 10, opset_import: ["" : 21, "own" : 1]>
        g (float[2] x) => (float[2] y) { y = own.leaky <alpha = 0.5, first = 1> (x) }
        <domain: "own", opset_import: ["" : 16]>
        leaky <alpha, first, absent> (a) => (r) {
            c = Constant <value_int: int = @first> ()
            b = Cast <to = 9> (c)
            r = If (b) <
                then_branch = one () => (s) {
                    s = LeakyRelu <alpha: float = @alpha> (a)
                },
                else_branch = other () => (t) {
                    t = LeakyRelu <alpha: float = @absent> (a)
                }
            >
        }"""
    )
    x = np.asarray([-8, 8], np.float32)
    assert MLExecution(cpu).compute(load(made, cpu), {"x": x})["y"].tolist() == [-4, 8]


@pytest.mark.parametrize(
    ("inputs", "outputs", "told"),
    [
        (["x", "x"], ["y"], r"\(f\): got 2 inputs, expected at most 1, as local function own\.f"),
        (["x"], ["y", "z"], r"\(f\): got 2 outputs, expected at most 1, as local function own\.f"),
        ([], ["y"], r"\(Neg\)"),
    ],
)
def test_calls_that_do_not_fit_their_function(
    cpu: MLContext, inputs: list[str], outputs: list[str], told: str
) -> None:
    node = onnx.helper.make_node("f", inputs, outputs, domain="own", name="call")
    made = calling(node, functions=[function("f", "Neg")])
    made.graph.output[0].name = "y"
    with pytest.raises(DataError, match=told):
        load(made, cpu)


def test_functions_may_call_each_other_99_deep(cpu: MLContext) -> None:
    opsets = [onnx.helper.make_opsetid("own", 1)]
    functions = [
        onnx.helper.make_function(
            "own",
            f"f{i}",
            ["a"],
            ["b"],
            [onnx.helper.make_node(f"f{i + 1}", ["a"], ["b"], domain="own")],
            opsets,
        )
        for i in range(98)
    ]
    functions.append(function("f98", "Neg"))
    made = calling(onnx.helper.make_node("f0", ["x"], ["y"], domain="own"), functions=functions)
    x = np.asarray([-1, 2], np.float32)
    assert MLExecution(cpu).compute(load(made, cpu), {"x": x})["y"].tolist() == [1, -2]

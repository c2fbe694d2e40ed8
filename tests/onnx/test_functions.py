"""Local functions of a model are written out where they are called."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import parser

from webnn_py import MLContext, MLExecution
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

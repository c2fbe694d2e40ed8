"""Random ONNX models that calculate with sizes: what is accepted open is what ONNX Runtime gives.

WEBNN_RANDOM_CASES is the number of models (30 if not set).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import onnx
import pytest

from webnn_py import DataError, MLContext, MLExecution, NotSupportedError
from webnn_py.onnx import load

CASES = int(os.environ.get("WEBNN_RANDOM_CASES", "30"))
BASE = {"n": 4, "m": 3}
OTHERS = ({"n": 1, "m": 2}, {"n": 6, "m": 5}, {"n": 2, "m": 7}, {"n": 5, "m": 1})
MOST = 2000
TOLD = ("input_shapes", "without elements", "do not broadcast")
"""What a refusal says: which sizes to give, or what no size that is wanted elsewhere allows."""


class Chain:
    """A model that grows node by node; what ONNX Runtime does not run is taken back."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.runtime = pytest.importorskip("onnxruntime")
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []
        self.inputs = {"x": [self.pick(*BASE, 2, 3) for _ in range(self.pick(1, 2, 3))]}
        self.made: dict[str, Any] = self.arrays(BASE)

    def pick(self, *choices: Any) -> Any:
        return choices[self.rng.integers(len(choices))]

    def arrays(self, sizes: Mapping[str, int]) -> dict[str, Any]:
        return {
            name: self.rng.normal(size=[sizes.get(d, d) for d in shape]).astype(np.float32)
            for name, shape in self.inputs.items()
        }

    def number(self, value: Any, data_type: Any = np.int64) -> str:
        name = f"c{len(self.weights)}"
        self.weights.append(onnx.numpy_helper.from_array(np.asarray(value, data_type), name))
        return name

    def add(self, operator: str, *inputs: str, outputs: int = 1, **attributes: Any) -> str:
        """Returns the last output."""
        names = [f"{operator}{len(self.nodes)}_{i}" for i in range(outputs)]
        self.nodes.append(onnx.helper.make_node(operator, inputs, names, names[0], **attributes))
        return names[-1]

    def size(self, x: str, axis: int) -> str:
        """One of a tensor's sizes, or what is calculated of it."""
        found = self.add("Gather", self.add("Shape", x), self.number([axis]))
        for _ in range(self.pick(0, 1, 2)):
            operator = self.pick("Mul", "Add", "Sub", "Div")
            found = self.add(operator, found, self.number([self.pick(1, 2, 3)]))
        return found

    def model(self, outputs: list[str]) -> onnx.ModelProto:
        """A model of the nodes that outputs depend on: the others bound no sizes."""
        needed, nodes = set(outputs), []
        for node in reversed(self.nodes):
            if needed & {*node.output}:
                needed |= {*node.input}
                nodes.append(node)
        graph = onnx.helper.make_graph(
            nodes[::-1],
            "g",
            [onnx.helper.make_tensor_value_info(n, 1, shape) for n, shape in self.inputs.items()],
            [onnx.helper.make_tensor_value_info(name, 1, None) for name in outputs],
            self.weights,
        )
        opset = onnx.helper.make_opsetid("", 17)
        return onnx.helper.make_model(graph, opset_imports=[opset], ir_version=8)

    def session(self, outputs: list[str]) -> Any:
        options = self.runtime.SessionOptions()
        options.log_severity_level = 4
        options.intra_op_num_threads = 1
        return self.runtime.InferenceSession(self.model(outputs).SerializeToString(), options)

    def grow(self) -> None:
        nodes, weights = len(self.nodes), len(self.weights)
        x = self.pick(*self.made)
        rank = self.made[x].ndim
        made = STEPS[self.pick(*STEPS)](self, x, self.pick(*range(rank)), rank)
        try:
            (array,) = self.session([made]).run(None, self.arrays(BASE))
        except Exception:  # of ONNX Runtime, which has no common one
            array = np.empty(0)
        if 0 < array.size < MOST and 0 < array.ndim < 5:
            self.made[made] = array
        else:
            del self.nodes[nodes:], self.weights[weights:]


def whole(g: Chain, x: str, axis: int, rank: int, one: str, else_: int = 1) -> str:
    """A list with one number for an axis, and another for the rest."""
    parts = [one if i == axis else g.number([else_]) for i in range(rank)]
    return g.add("Concat", *parts, axis=0)


def parts(g: Chain, x: str, axis: int, rank: int) -> str:
    size = g.add("Gather", g.add("Shape", x), g.number([axis]))
    half = g.add("Div", size, g.number([2]))
    lengths = g.add("Concat", half, g.add("Sub", size, half), axis=0)
    return g.add("Split", x, lengths, outputs=2, axis=axis)


def one_hot(g: Chain, x: str, axis: int, rank: int) -> str:
    depth = g.add("Squeeze", g.size(x, axis), g.number([0]))
    places = g.add("Cast", x, to=onnx.TensorProto.INT64)
    return g.add("OneHot", places, depth, g.number([0, 2], np.float32))


def counted(g: Chain, x: str, axis: int, rank: int) -> str:
    end = g.add("Squeeze", g.size(x, axis), g.number([0]))
    made = g.add("Range", g.number(g.pick(0, 1)), end, g.number(1))
    return g.add("Cast", made, to=onnx.TensorProto.FLOAT)


STEPS: dict[str, Callable[[Chain, str, int, int], str]] = {
    "from": lambda g, x, a, r: g.add("Slice", x, g.size(x, a), g.number([2**40]), g.number([a])),
    "last": lambda g, x, a, r: g.add(
        "Slice", x, g.add("Neg", g.size(x, a)), g.number([2**40]), g.number([a])
    ),
    "until": lambda g, x, a, r: g.add("Slice", x, g.number([0]), g.size(x, a), g.number([a])),
    "flat": lambda g, x, a, r: g.add("Reshape", x, g.number([-1])),
    "rows": lambda g, x, a, r: g.add(
        "Reshape", x, g.add("Concat", g.number([-1]), g.size(x, a), axis=0)
    ),
    "tile": lambda g, x, a, r: g.add("Tile", x, whole(g, x, a, r, g.size(x, a))),
    "pad": lambda g, x, a, r: g.add("Pad", x, whole(g, x, a, 2 * r, g.size(x, a), 0)),
    "expand": lambda g, x, a, r: g.add(
        "Expand", x, g.add("Concat", g.size(x, a), g.add("Shape", x), axis=0)
    ),
    "filled": lambda g, x, a, r: g.add("ConstantOfShape", g.size(x, a)),
    "sum": lambda g, x, a, r: g.add("Add", x, g.pick(*g.made)),
    "mean": lambda g, x, a, r: g.add("ReduceMean", x, axes=[a], keepdims=g.pick(0, 1)),
    "turned": lambda g, x, a, r: g.add("Transpose", x),
    "parts": parts,
    "one hot": one_hot,
    "counted": counted,
}


def compared(context: MLContext, chain: Chain, output: str) -> int:
    """At how many sizes the open model gave what ONNX Runtime gives."""
    model = chain.model([output])
    try:
        graph = load(model, context)
    except NotSupportedError as error:
        for line in str(error).splitlines()[1:]:
            assert any(text in line for text in TOLD), line
        return 0
    if {*graph.inputs} != {*chain.inputs}:  # sizes may follow from what is no input of the graph
        return 0
    session, count = chain.session([output]), 0
    for sizes in (BASE, *OTHERS):
        arrays = chain.arrays(sizes)
        try:
            found = MLExecution(context).compute(graph, arrays)[output]
        except DataError:  # sizes at which a node would not work, or work otherwise
            continue
        (wanted,) = session.run(None, arrays)
        assert found.shape == wanted.shape, f"{sizes}\n{onnx.printer.to_text(model)}"
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-4)
        count += 1
    return count


def test_random_models_that_calculate_with_sizes(cpu: MLContext) -> None:
    count = 0
    for seed in range(CASES):
        chain = Chain(seed)
        for _ in range(8):
            chain.grow()
        if len(chain.made) > len(chain.inputs):
            count += compared(cpu, chain, list(chain.made)[-1])
    assert count >= CASES // 4

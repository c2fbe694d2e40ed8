"""Which values get a kernel, and that deep graphs take no more than their share."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest

from tests.compiler.compiled import kernels, legal
from tests.graphs import Build, normal
from webnn_py import MLGraphBuilder, MLOperand
from webnn_py.engines.webgpu.compiler import kernels as templates
from webnn_py.engines.webgpu.compiler.fusing import op_traits
from webnn_py.engines.webgpu.compiler.fusing.fusion import (
    MAX_INLINE_ELEMENTS,
    MAX_RECOMPUTED_OPS,
    Fusion,
)
from webnn_py.engines.webgpu.compiler.kernel_list import kernels_of
from webnn_py.engines.webgpu.compiler.legalize.legalize import legalize
from webnn_py.engines.webgpu.compiler.pipeline_sharing import share
from webnn_py.engines.webgpu.program.storage import Features
from webnn_py.ir import Graph, Value
from webnn_py.ops.all import Operators
from webnn_py.ops.declare import REGISTRY
from webnn_py.ops.graph_builder import GraphBuilder
from webnn_py.ops.operand import value_of

Outputs = dict[str, MLOperand]


def image(b: MLGraphBuilder) -> MLOperand:
    return b.input("x", "float32", [1, 2, 8, 8])


def repeated(b: MLGraphBuilder, x: MLOperand, times: int) -> MLOperand:
    for _ in range(times):
        x = b.sin(x)
    return x


def epilogue(b: MLGraphBuilder) -> Outputs:
    """What follows a loop element by element is part of its kernel."""
    return {"y": b.relu(b.add(b.max_pool2d(image(b)), b.constant(normal(2, 1, 1))))}


def read_elsewhere(b: MLGraphBuilder) -> Outputs:
    """What is read at other places than its own is stored."""
    return {"y": b.transpose(b.max_pool2d(image(b), window_dimensions=[2, 2]))}


def read_twice(b: MLGraphBuilder) -> Outputs:
    pooled = b.max_pool2d(image(b), window_dimensions=[2, 2])
    return {"y": b.add(b.neg(pooled), b.abs(pooled))}


def cheap(b: MLGraphBuilder) -> Outputs:
    x = repeated(b, image(b), MAX_RECOMPUTED_OPS)
    return {"y": b.add(b.neg(x), b.abs(x))}


def dear(b: MLGraphBuilder) -> Outputs:
    x = repeated(b, image(b), MAX_RECOMPUTED_OPS + 1)
    return {"y": b.add(b.neg(x), b.abs(x))}


def read_by_windows(b: MLGraphBuilder) -> Outputs:
    return {"y": b.average_pool2d(b.exp(image(b)), window_dimensions=[3, 3])}


def pooled_by_few(b: MLGraphBuilder) -> Outputs:
    """What is cheap, and read by small windows alone, is computed as it is read."""
    return {"y": b.average_pool2d(b.exp(image(b)), window_dimensions=[2, 2])}


def pooled_dear(b: MLGraphBuilder) -> Outputs:
    return {"y": b.max_pool2d(repeated(b, image(b), 3), window_dimensions=[2, 2])}


def meeting_again(b: MLGraphBuilder) -> Outputs:
    """What follows a loop element by element may part, if it meets again."""
    x = b.sqrt(b.average_pool2d(image(b)))
    return {"y": b.mul(x, b.neg(b.sqrt(x)))}


def gated(b: MLGraphBuilder) -> Outputs:
    x = b.conv2d(image(b), b.constant(normal(4, 2, 3, 3)))
    return {"y": b.mul(x, b.sigmoid(x))}


def meeting_elsewhere(b: MLGraphBuilder) -> Outputs:
    x = b.average_pool2d(image(b), window_dimensions=[2, 2])
    return {"y": b.mul(x, b.transpose(b.neg(x), permutation=[0, 1, 3, 2]))}


def meeting_and_leaving(b: MLGraphBuilder) -> Outputs:
    x = b.sqrt(b.average_pool2d(image(b)))
    y = b.sqrt(x)
    return {"x": x, "y": b.mul(x, y)}


def reduced(b: MLGraphBuilder) -> Outputs:
    """Each element is read once."""
    return {"y": b.reduce_sum(b.exp(image(b)), axes=[3])}


def spread(b: MLGraphBuilder) -> Outputs:
    x = b.exp(b.input("x", "float32", [8]))
    return {"y": b.add(x, b.input("z", "float32", [4, 8]))}


KERNELS: dict[str, tuple[Build, list[str]]] = {
    "epilogue": (epilogue, ["relu"]),
    "read elsewhere": (read_elsewhere, ["max_pool2d", "transpose"]),
    "read twice": (read_twice, ["max_pool2d", "add"]),
    "cheap": (cheap, ["add"]),
    "dear": (dear, ["sin", "add"]),
    "read by windows": (read_by_windows, ["exp", "average_pool2d"]),
    "pooled by few": (pooled_by_few, ["average_pool2d"]),
    "pooled, dear": (pooled_dear, ["sin", "max_pool2d"]),
    "meeting again": (meeting_again, ["mul"]),
    "gated": (gated, ["mul"]),
    "meeting elsewhere": (meeting_elsewhere, ["average_pool2d", "mul"]),
    "meeting and leaving": (meeting_and_leaving, ["sqrt", "mul"]),
    "reduced": (reduced, ["reduce_sum"]),
    "spread": (spread, ["exp", "add"]),
}


@pytest.mark.parametrize("name", KERNELS)
def test_what_is_stored(name: str) -> None:
    what, wanted = KERNELS[name]
    graph = legal(what, Features())
    producers = {value: node.op for node in graph.nodes for value in node.outputs}
    assert [producers[root] for root in Fusion(graph, Features()).roots] == wanted


def test_a_kernel_reads_no_more_than_it_can_bind() -> None:
    def sums(b: MLGraphBuilder) -> Outputs:
        total = b.input("x", "float32", [4])
        for number in range(20):
            total = b.add(total, b.input(f"x{number}", "float32", [4]))
        return {"y": total}

    for most in (4, 8):
        made = kernels(sums, Features(max_bindings=most))
        assert max(len(kernel.reads) for kernel in made) == most - 1


def test_what_is_bound_in_parts_leaves_less_to_be_bound_twice() -> None:
    """Operands of a large result, read by fours and one by one."""

    def sums(b: MLGraphBuilder) -> Outputs:
        total = b.slice(b.input("x", "float32", [192, 64]), [0, 0], [192, 64], strides=[3, 1])
        for name in "abc":
            other = b.input(name, "float32", [64, 64])
            total = b.add(total, b.add(other, b.transpose(other)))
        return {"y": total}

    (kernel,) = kernels(sums, Features(max_bindings=8, binding_bytes=64 * 64 * 4, large=1))
    assert "vec4<f32>" in kernel.code
    assert len(kernel.bindings) <= 8


def test_the_compilers_own_operators() -> None:
    assert set(op_traits.OWN) == set(templates.OWN)
    assert not set(op_traits.OWN) & set(REGISTRY)

    def network(b: MLGraphBuilder) -> Outputs:
        x = b.input("x", "float32", [3, 1, 4])
        weights = (b.constant(normal(1, 12, 4)), b.constant(normal(1, 12, 4)))
        (last,) = b.gru(x, *weights, 3, 4)
        return {"y": last}

    graph = legal(network, Features())
    own = [node for node in graph.nodes if node.op in op_traits.OWN]
    assert own
    fusion = Fusion(graph, Features())
    assert all(fusion.anchor_of(node.output) is node for node in own)
    assert max(kernel.times for kernel in kernels_of(graph, Features())) == 3


# Deep graphs


def _exp(b: Operators, x: MLOperand, y: MLOperand, i: int) -> MLOperand:
    return b.exp(y)


def _mixed(b: Operators, x: MLOperand, y: MLOperand, i: int) -> MLOperand:
    return b.relu(y) if i % 2 else b.add(y, x)


def _loops(b: Operators, x: MLOperand, y: MLOperand, i: int) -> MLOperand:
    return b.cumulative_sum(y, i % 2)


def _products(b: Operators, x: MLOperand, y: MLOperand, i: int) -> MLOperand:
    return b.sub(b.reduce_max(y, axes=[1], keep_dimensions=True), x) if i % 2 else b.matmul(y, x)


Step = Callable[[Operators, MLOperand, MLOperand, int], MLOperand]
CHAINS: list[Step] = [_exp, _mixed, _loops, _products]


def chain(step: Step, length: int) -> Graph:
    """So many steps, each over the one before and the input."""
    builder = GraphBuilder()
    y = x = MLOperand(builder, Value("float32", (4, 4), "x"))
    for i in range(length):
        y = step(builder, x, y, i)
    return builder.recorded().replace(inputs=[value_of(x)], outputs=[("y", value_of(y))])


def compiled(graph: Graph) -> int:
    return len(share(list(kernels_of(legalize(graph, Features()), Features())), Features()))


class _Calls:
    """Counts the calls of Python functions, and how deep they go."""

    def __init__(self) -> None:
        self.count = 0
        self.deepest = 0
        self._depth = 0

    def __call__(self, frame: FrameType, event: str, argument: Any) -> None:
        if event == "call":
            self.count += 1
            self._depth += 1
            self.deepest = max(self.deepest, self._depth)
        elif event == "return":
            self._depth -= 1

    def of(self, graph: Graph) -> _Calls:
        before = sys.getprofile()
        sys.setprofile(self)
        try:
            compiled(graph)
        finally:
            sys.setprofile(before)
        return self


@pytest.mark.parametrize("step", CHAINS)
def test_twice_the_nodes_are_twice_the_work(step: Step) -> None:
    compiled(chain(step, 64))  # what is made once a process
    few, many = (_Calls().of(chain(step, length)) for length in (300, 600))
    assert many.count < 2.2 * few.count
    assert many.deepest == few.deepest < 12 * MAX_INLINE_ELEMENTS


@pytest.mark.parametrize("step", [_exp, _mixed])
def test_a_chain_of_twenty_thousand(step: Step) -> None:
    graph = chain(step, 20_000)
    assert 20_000 / MAX_INLINE_ELEMENTS <= compiled(graph) <= 2 * 20_000 / MAX_INLINE_ELEMENTS


LOOPS: dict[str, Callable[[MLGraphBuilder, MLOperand], MLOperand]] = {
    "convolution": lambda b, x: b.relu(b.conv2d(x, b.constant(normal(4, 4, 3, 3)))),
    "row": lambda b, x: b.softmax(x, 3),
    "reduction": lambda b, x: b.reduce_sum(x, axes=[2, 3]),
}


@pytest.mark.parametrize("kind", ["cpu", "gpu"])
@pytest.mark.parametrize("loop", [*LOOPS, ""])
def test_loops_neither_read_nor_write_float16_in_words(loop: str, kind: str) -> None:
    """What is cast around them has kernels of its own; around single elements it has none."""

    def around(b: MLGraphBuilder) -> Outputs:
        x = b.cast(b.input("x", "float16", [1, 4, 8, 8]), "float32")
        return {"y": b.cast(LOOPS.get(loop, MLGraphBuilder.relu)(b, x), "float16")}

    made = kernels(around, Features(f16=False, kind=kind))
    in_words = [kernel.name for kernel in made if "array<u32>" in kernel.code]
    assert in_words == (["cast", "cast"] if loop else ["cast"])
    assert (len(made) > 2) == bool(loop)

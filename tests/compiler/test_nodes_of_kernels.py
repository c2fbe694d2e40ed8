"""Which nodes each kernel computes."""

from __future__ import annotations

import pytest

from tests.compiler.compiled import legal
from tests.compiler.test_fusion import KERNELS
from tests.graphs import Build
from webnn_py import MLGraphBuilder, MLOperand
from webnn_py.engines.webgpu.compiler import horizontal_fusion
from webnn_py.engines.webgpu.compiler.compiled import compile_graph
from webnn_py.engines.webgpu.program.storage import Features

Outputs = dict[str, MLOperand]


@pytest.fixture(autouse=True)
def one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels that could run side by side stay apart."""
    monkeypatch.setattr(horizontal_fusion, "MAX_INVOCATIONS", 0)


def scattered(b: MLGraphBuilder) -> Outputs:
    """Kernels before find out which update wins."""
    x, updates = b.input("x", "float32", [9]), b.exp(b.input("u", "float32", [4]))
    return {"y": b.neg(b.scatter_elements(x, b.input("i", "int32", [4]), updates, axis=0))}


def halves(b: MLGraphBuilder) -> Outputs:
    upper, lower = b.split(b.input("x", "float32", [4, 2]), 2)
    return {"y": b.matmul(upper, b.transpose(lower)), "z": b.exp(lower)}


GRAPHS: dict[str, Build] = {name: what for name, (what, _) in KERNELS.items()}
GRAPHS |= {"scattered": scattered, "halves": halves}


@pytest.mark.parametrize("name", GRAPHS)
def test_every_node_is_computed_by_the_kernels_after_what_it_reads(name: str) -> None:
    compiled = compile_graph(legal(GRAPHS[name], Features()), Features())
    computed = compiled.nodes()
    assert len(computed) == len(compiled.kernels)
    assert {node for nodes in computed for node in nodes} == set(compiled.graph.nodes)
    producers = compiled.graph.producers
    for kernel, nodes in zip(compiled.kernels, computed, strict=True):
        read = {part.value for kernel in compiled.kernels for part in kernel.reads}
        made = {value for node in nodes for value in node.outputs}
        if kernel.writes[0].value in producers:
            assert kernel.writes[0].value in nodes[-1].outputs
        for node in nodes:
            assert all(v in made or v in read or v.size == 1 for v in node.operands)


def test_cheap_nodes_are_computed_by_all_who_read_them() -> None:
    compiled = compile_graph(legal(halves, Features()), Features())
    (product,) = (i for i, k in enumerate(compiled.kernels) if k.name == "matmul")
    operators = [[node.op for node in nodes] for nodes in compiled.nodes()]
    assert "matmul" in operators[product]
    assert [name for names in operators for name in names].count("exp") == 1


def test_scratch_kernels_compute_what_they_are_made_for() -> None:
    compiled = compile_graph(legal(scattered, Features()), Features())
    before, last = [
        place
        for place, nodes in enumerate(compiled.nodes())
        if "scatter_elements" in [node.op for node in nodes]
    ][-2:]
    assert compiled.kernels[before].writes[0].value not in compiled.graph.producers
    assert compiled.nodes()[before] == compiled.nodes()[last]

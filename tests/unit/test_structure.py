"""Values that are computed alike share the code of their kernels, each with its own operands."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.graphs import build, normal
from tests.internals import recipe_of
from webnn_py import MLContext, MLGraphBuilder, MLOperand
from webnn_py.engines.webgpu.compiler import kernel_list
from webnn_py.engines.webgpu.compiler.kernel import Kernel
from webnn_py.engines.webgpu.compiler.kernel_key import Structure, Structures
from webnn_py.engines.webgpu.compiler.legalize.legalize import legalize
from webnn_py.engines.webgpu.program.storage import Features
from webnn_py.ir import Graph, Value

Apply = Callable[[MLGraphBuilder, MLOperand], MLOperand]


def graph_of(context: MLContext, *applied: Apply) -> Graph:
    """One output for each function, all of them of the same input."""

    def outputs(b: MLGraphBuilder) -> dict[str, MLOperand]:
        x = b.input("x", "float32", [1, 4, 6, 6])
        return {f"y{i}": apply(b, x) for i, apply in enumerate(applied)}

    return legalize(recipe_of(build(context, outputs)), Features())


def convolution(seed: int, **options: Any) -> Apply:
    weights = normal(4, 4, 3, 3, seed=seed)
    return lambda b, x: b.relu(b.conv2d(x, b.constant(weights), padding=[1] * 4, **options))


def scaled(number: float) -> Apply:
    return lambda b, x: b.mul(x, b.constant(number, "float32"))


def scattered(seed: int) -> Apply:
    indices = np.random.default_rng(seed).integers(0, 6, (1, 4, 6, 2)).astype(np.int32)
    updates = normal(1, 4, 6, 2, seed=seed)
    return lambda b, x: b.scatter_elements(x, b.constant(indices), b.constant(updates), axis=3)


def codes(kernels: list[Kernel]) -> set[str]:
    return {kernel.code for kernel in kernels}


def test_layers_of_one_shape_have_one_code(cpu: MLContext) -> None:
    graph = graph_of(cpu, convolution(1), convolution(2))
    first, second = list(kernel_list.kernels_of(graph, Features()))
    assert first.code is second.code
    x, *weights = {part.value for part in (*first.reads, *second.reads)}
    assert len({x, *weights}) == 3
    assert [kernel.writes[0].value for kernel in (first, second)] == [v for _, v in graph.outputs]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (convolution(1), convolution(1, strides=[2, 2])),
        (scaled(2.0), scaled(3.0)),
        (scaled(0.0), scaled(-0.0)),
        (lambda b, x: b.sub(x, x), lambda b, x: b.sub(x, b.constant(normal(1, 4, 6, 6)))),
        (lambda b, x: b.split(x, 2, axis=1)[0], lambda b, x: b.split(x, 2, axis=1)[1]),
        (lambda b, x: b.reshape(x, [144]), lambda b, x: b.cast(b.reshape(x, [144]), "int32")),
    ],
)
def test_what_differs_has_code_of_its_own(cpu: MLContext, one: Apply, other: Apply) -> None:
    assert len(codes(kernel_list.kernels_of(graph_of(cpu, one, other), Features()))) == 2


def test_kernels_hand_on_values_of_their_own(cpu: MLContext) -> None:
    kernels = list(kernel_list.kernels_of(graph_of(cpu, scattered(1), scattered(2)), Features()))
    assert len(codes(kernels)) == len(kernels) / 2
    written = {kernel.writes[0].value for kernel in kernels}
    assert len(written) == 4  # the outputs, and who won in each
    for clear, find, follow in (kernels[:3], kernels[3:]):
        assert clear.writes == find.writes
        assert find.writes[0].value in {part.value for part in follow.reads}


def test_shared_code_is_what_would_have_been_written(
    cpu: MLContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    applied = [convolution(1), scaled(2.0), scattered(1), scaled(-1.5)] * 2
    graph = graph_of(cpu, *applied)
    shared = list(kernel_list.kernels_of(graph, Features()))
    monkeypatch.setattr(Structures, "of", lambda self, root: Structure((root,), (root,)))
    anew = list(kernel_list.kernels_of(graph, Features()))

    def facts(kernel: Kernel, known: set[Value]) -> Any:
        parts = (*kernel.reads, *kernel.writes)
        places = [(p.value if p.value in known else "scratch", p.offset, p.size) for p in parts]
        return kernel.name, kernel.code, kernel.workgroups, kernel.times, places

    known = {*graph.inputs, *graph.constants, *graph.producers}
    assert [facts(kernel, known) for kernel in shared] == [facts(kernel, known) for kernel in anew]
    assert len({id(kernel.code) for kernel in shared}) < len({id(kernel.code) for kernel in anew})

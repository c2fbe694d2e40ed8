"""Kernels that run side by side as one dispatch, and what keeps them from it."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from tests.compiler.compiled import kernels, legal, legalized, optimized
from tests.graphs import Build, build, normal
from tests.internals import recipe_of
from tests.property.graphs import seeded_case
from webnn_py import MLGraphBuilder, MLOperand, ml
from webnn_py.core.shape_tracing import Trace
from webnn_py.engines.webgpu.compiler import horizontal_fusion
from webnn_py.engines.webgpu.compiler.compiled import compile_graph, written
from webnn_py.engines.webgpu.compiler.fusing.fusion import Fusion
from webnn_py.engines.webgpu.compiler.horizontal_fusion import (
    MAX_INVOCATIONS,
    WINDOW,
    fuse_abreast,
)
from webnn_py.engines.webgpu.compiler.kernel import Kernel, Part
from webnn_py.engines.webgpu.compiler.kernel_list import kernels_of, parallel_products
from webnn_py.engines.webgpu.compiler.legalize.legalize import legalize
from webnn_py.engines.webgpu.compiler.pipeline_sharing import share
from webnn_py.engines.webgpu.program.storage import Features
from webnn_py.engines.webgpu.program.wgsl_interface import read_module
from webnn_py.ir import Value
from webnn_py.ops.bind_sizes import at_sizes

Outputs = dict[str, MLOperand]
Groups = Callable[[Sequence[Kernel]], list[list[Kernel]]]
GPU = Features(workgroup_bytes=49152, max_bindings=16)


def layer(
    b: MLGraphBuilder, x: MLOperand, channels: int = 32, window: int = 1, seed: int = 0
) -> MLOperand:
    weights = b.constant(normal(channels, x.shape[1], window, window, seed=seed))
    return b.relu(b.conv2d(x, weights, padding=[window // 2] * 4))


def image(b: MLGraphBuilder, channels: int = 128, size: int = 14) -> MLOperand:
    return b.input("x", "float32", [1, channels, size, size])


def branches(b: MLGraphBuilder) -> Outputs:
    """As Inception has them: concats are written in place."""
    x = image(b)
    for _ in range(2):
        pooled = b.max_pool2d(x, window_dimensions=[3, 3], padding=[1, 1, 1, 1])
        wide = layer(b, layer(b, x, seed=1), window=3)
        x = b.concat([layer(b, x), wide, layer(b, pooled)], 1)
    return {"y": b.max_pool2d(x)}


def two(b: MLGraphBuilder, size: int = 14) -> Outputs:
    x = image(b, size=size)
    return {"y": layer(b, x), "z": layer(b, x, 48)}


def fused(what: Build, features: Features = GPU) -> list[Kernel]:
    return list(fuse_abreast(kernels(what, features), features))


@pytest.fixture
def groups(monkeypatch: pytest.MonkeyPatch) -> Groups:
    """Which kernels run as one, by kernels in order."""

    def found(apart: Sequence[Kernel]) -> list[list[Kernel]]:
        made: list[Any] = []
        monkeypatch.setattr(
            horizontal_fusion, "fused_kernel", lambda pairs: [kernel for kernel, _ in pairs]
        )
        made += fuse_abreast(apart, GPU)
        monkeypatch.undo()
        return [[each] if isinstance(each, Kernel) else each for each in made]

    return found


def values(parts: Iterable[Part]) -> set[Value]:
    return {part.value for part in parts}


def assert_ordered(apart: Sequence[Kernel], groups: Sequence[Sequence[Kernel]]) -> None:
    """All runs once, after what it depends on; no dispatch reads and writes one buffer."""
    steps = {id(kernel): step for step, group in enumerate(groups) for kernel in group}
    assert len(steps) == sum(map(len, groups)) == len(apart)
    for number, kernel in enumerate(apart):
        for before in apart[:number]:
            written = values(before.writes) & values(kernel.writes)
            if (
                values(before.writes) & values(kernel.reads)
                or values(before.reads) & values(kernel.writes)
                or (written and before.roots == kernel.roots)
            ):
                assert steps[id(before)] < steps[id(kernel)]
    for group in groups:
        written = set().union(*(values(kernel.writes) for kernel in group))
        assert not written & set().union(*(values(kernel.reads) for kernel in group))


def test_branches_are_levels(groups: Groups) -> None:
    apart = kernels(branches, GPU)
    found = groups(apart)
    assert_ordered(apart, found)
    names = [sorted(kernel.name for kernel in group) for group in found]
    first, second = ["conv2d", "conv2d", "max_pool2d"], ["conv2d", "conv2d"]
    added = ["conv2d"]  # a product is divided, and its second kernel adds up
    assert names == [first, second, added, first, second, added, ["max_pool2d"]]


@pytest.mark.parametrize("seed", range(25))
def test_random_graphs(groups: Groups, seed: int) -> None:
    apart = list(kernels_of(legalized(seeded_case(seed).graph, GPU), GPU))
    assert_ordered(apart, groups(apart))


def test_a_kernel_of_several_is_whole() -> None:
    (kernel,) = fused(two)
    assert (len(kernel.roots), len(kernel.writes), len(kernel.reads)) == (2, 2, 3)
    module = read_module(kernel.code).entry_point("main")
    bound = [(binding.binding, binding.written) for binding in module.bindings]
    assert bound == [(0, False), (1, False), (2, False), (3, True), (4, True)]
    one, other = kernels(two, GPU)
    counts = [x * y * z for x, y, z in (one.workgroups, other.workgroups)]
    assert kernel.workgroups == (sum(counts), 1, 1)


def test_dispatches_that_differ_in_sizes_alone_are_one_code() -> None:
    """Whichever branch divides by a size, if it does so once."""

    def products(rows: int, cols: int) -> Build:
        def build(b: MLGraphBuilder) -> Outputs:
            x = b.input("x", "float32", [rows, 64])
            y, z = (b.matmul(x, b.constant(normal(64, n))) for n in (cols, 2 * cols))
            return {"y": y, "z": z, "sums": b.reduce_sum(x, axes=[1])}

        return build

    sizes = (128, 96), (192, 128), (224, 160)
    found = share([kernel for size in sizes for kernel in fused(products(*size))], Features())
    assert [len(kernel.roots) for kernel in found] == [3, 3, 3]
    assert len({kernel.code for kernel in found}) == 1
    assert len({kernel.numbers for kernel in found}) == 3


def test_what_depends_stays_apart() -> None:
    def chain(b: MLGraphBuilder) -> Outputs:
        x = layer(b, image(b))
        return {"y": layer(b, x), "x": x}

    assert len(fused(chain)) == 2


def test_what_reads_a_written_buffer_stays_apart(groups: Groups) -> None:
    """A part of a concat is read while another one could be written."""

    def network(b: MLGraphBuilder) -> Outputs:
        one = layer(b, image(b))
        other = layer(b, b.input("z", "float32", [1, 128, 14, 14]), 48)
        return {"y": layer(b, b.concat([one, other], 1)), "z": layer(b, one, window=3)}

    apart = kernels(network, GPU)
    found = groups(apart)
    assert_ordered(apart, found)
    assert [len(group) for group in found] == [2, 2, 1]


def test_software_adapters_run_one_after_the_other() -> None:
    features = replace(GPU, kind="cpu")
    assert len(fused(two, features)) == len(kernels(two, features)) == 2


@pytest.mark.parametrize("limit", ["max_bindings", "grid"])
def test_limits(limit: str) -> None:
    (kernel,) = fused(two)
    needed = {"max_bindings": 5, "grid": kernel.workgroups[0]}[limit]
    assert len(fused(two, replace(GPU, **{limit: needed}))) == 1
    features = replace(GPU, **{limit: needed - 1})
    found = fused(two, features)
    assert len(found) == 2
    for kernel in found:
        assert len(kernel.reads) + len(kernel.writes) <= features.max_bindings


def with_entry(kernel: Kernel, **changes: Any) -> Kernel:
    """A kernel whose entry point differs."""
    shader = kernel.shader
    assert shader is not None
    return replace(kernel, shader=replace(shader, entry=replace(shader.entry, **changes)))


def test_memory_of_workgroups_is_shared_or_within_limits() -> None:
    one, other = kernels(two, GPU)
    made = (one, *fused(two))
    alone, both = (read_module(k.code).entry_point("main").workgroup_bytes for k in made)
    assert alone == both  # arrays of one type serve both
    assert other.shader is not None
    first, *rest = other.shader.entry.arrays
    nested = replace(first, lengths=(1, *first.lengths))
    odd = with_entry(other, arrays=(nested, *rest))
    assert len(list(fuse_abreast([one, odd], GPU))) == 1
    assert len(list(fuse_abreast([one, odd], replace(GPU, workgroup_bytes=alone)))) == 2


def test_workgroups_of_other_sizes_stay_apart() -> None:
    one, other = kernels(two, GPU)
    assert other.shader is not None
    odd = with_entry(other, invocations=1000 + other.shader.entry.invocations)
    assert len(list(fuse_abreast([one, odd], GPU))) == 2


def test_large_kernels_stay_apart() -> None:
    size = int((4 * MAX_INVOCATIONS) ** 0.5)

    def network(b: MLGraphBuilder) -> Outputs:
        x = b.input("x", "float32", [size, size])
        return {"y": b.erf(x), "z": b.sin(x)}

    assert len(fused(network)) == 2


def test_results_do_not_wait_for_long() -> None:
    """Chains of one input: what comes far behind is not computed with the first ones."""

    def network(b: MLGraphBuilder) -> Outputs:
        x = image(b)
        made, seeds = [], itertools.count()
        for _ in range(WINDOW):
            y = x
            for _ in range(8):
                y = layer(b, y, seed=next(seeds))
            made.append(b.reduce_sum(y, axes=[1, 2, 3]))
        return {str(number): y for number, y in enumerate(made)}

    compiled = compile_graph(legal(network, GPU), GPU)
    assert len(compiled.kernels) < len(kernels(network, GPU))
    assert compiled.plan.total <= 2 * (WINDOW // 9 + 2) * 4 * 32 * 14 * 14


def test_products_beside_others_have_workgroups_of_one_size() -> None:
    def network(b: MLGraphBuilder) -> Outputs:
        x = image(b, 256)
        one, other = layer(b, x, 128, 3), layer(b, x, 16, seed=1)
        return {"y": layer(b, one, 512), "z": b.concat([other, x], 1)}

    graph = legal(network, GPU)
    (beside,) = parallel_products(Fusion(graph, GPU))
    assert [value.shape[1] for value in beside] == [128, 16]
    apart = [kernel for kernel in kernels_of(graph, GPU) if kernel.roots[0] in beside]
    assert sizes(apart) == {"64"}


def sizes(found: Sequence[Kernel]) -> set[str]:
    """Of workgroups."""
    return {re.findall(r"@workgroup_size\((\d+)", kernel.code)[0] for kernel in found}


def of_halves(*products: tuple[int, int]) -> Build:
    """Products of 169 rows by matrices of these columns and rows."""

    def network(b: MLGraphBuilder) -> Outputs:
        made = {}
        for number, (n, k) in enumerate(products):
            x = b.input(f"x{number}", "float16", [169, k])
            weights = b.input(f"w{number}", "float16", [n, k])
            made[f"y{number}"] = b.matmul(x, b.transpose(weights))
        return made

    return network


def test_halves_beside_others_have_workgroups_of_one_size_where_that_pays() -> None:
    """As in squeezenet, in place of two dispatches; not in Inception, where all are alike."""
    apart = (192, 48), (192, 432)
    assert sizes([kernel for size in apart for kernel in kernels(of_halves(size), GPU)]) == {
        "64",
        "256",
    }
    assert sizes(kernels(of_halves(*apart), GPU)) == {"64"}
    assert sizes(kernels(of_halves((160, 512), (112, 512), (24, 512)), GPU)) == {"256"}


@pytest.mark.parametrize("waits", [False, True])
def test_who_waits_gets_long_code_apart(waits: bool) -> None:
    """Side by side it follows, as it takes drivers longer so."""

    def products(b: MLGraphBuilder) -> Outputs:
        x = b.input("x", "float32", [1, "length", 384])
        weights = (b.constant(normal(384, 384, seed=seed)) for seed in range(3))
        return {f"y{n}": b.matmul(x, weight) for n, weight in enumerate(weights)}

    with ml.create_context_sync(engine="reference") as context:
        recipe = optimized(recipe_of(build(context, products)), GPU)
    with Trace({"length": 129}, for_any=waits) as trace:
        made = written(legalize(at_sizes(recipe, trace.sizes), GPU), GPU)
    found = trace.calculate([])({"length": 129})
    assert found is not None
    assert found[1] == waits
    assert any(" | " in kernel.name for kernel in made) != waits

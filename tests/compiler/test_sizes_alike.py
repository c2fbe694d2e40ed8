"""What compiling makes of a graph for some sizes serves those that compiling does the same for."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Mapping

import pytest

from tests.compiler.compiled import optimized
from tests.property.most_open import MostOpen, most_open_calls
from webnn_py import MLError
from webnn_py.core.shape_tracing import MARK, Numbers, Trace, Traced, calculated, marks_in
from webnn_py.engines.webgpu.compiler.compiled import written
from webnn_py.engines.webgpu.compiler.kernel import Kernel
from webnn_py.engines.webgpu.compiler.kernels import row_loop
from webnn_py.engines.webgpu.compiler.legalize.legalize import legalize
from webnn_py.engines.webgpu.program.storage import Features
from webnn_py.ir import Graph
from webnn_py.ops.bind_sizes import at_sizes, fix
from webnn_py.ops.declare import REGISTRY

DRAWN = 6
MORE = 80
TRIED = 24
MOST_ELEMENTS = 1 << 18
Sizes = Mapping[str, int]


def opened(recipe: Graph, features: Features) -> Graph | None:
    """A graph with open dimensions after passes, where these do not ask for sizes."""
    try:
        return optimized(recipe, features)
    except MLError:
        return None


def drawn_sizes(made: MostOpen) -> Iterator[Sizes]:
    """Larger sizes than drawn, and some near them."""
    rng = random.Random(5)
    more = MORE
    while True:
        first = {name: size + rng.randint(0, more) for name, size in made.sizes.items()}
        try:
            if largest(made.record(first)) <= MOST_ELEMENTS:
                break
        except MLError:
            pass
        more = max(1, more * 3 // 4)
    yield first
    for _ in range(TRIED):
        changed = rng.sample(sorted(first), rng.randint(1, len(first)))
        yield first | {name: max(1, first[name] + rng.randint(-5, 5)) for name in changed}


def largest(graph: Graph) -> int:
    """Elements of the largest tensor."""
    made = (value for node in graph.nodes for value in node.outputs)
    return max(value.size for value in (*graph.inputs, *made))


def marks_of(kernels: list[Kernel]) -> Iterator[int]:
    for kernel in kernels:
        yield from (int(mark) for mark in MARK.findall(kernel.code))
        yield from marks_in((*kernel.workgroups, kernel.times))
        for part in (*kernel.reads, *kernel.writes):
            yield from marks_in((part.offset, part.size, *part.value.shape))


def shown(kernel: Kernel, numbers: Numbers) -> object:
    """All that is known of a kernel for some sizes."""
    parts = [
        (part.value.data_type, part.value.shape, part.offset, part.size)
        for part in (*kernel.reads, *kernel.writes)
    ]
    code = MARK.sub(lambda mark: str(numbers[int(mark[1])]), kernel.code)
    rest = kernel.name, kernel.workgroups, kernel.times, tuple(parts)
    return code, calculated(rest, numbers)


def held(graph: Graph, first: Sizes, others: Iterable[Sizes], features: Features) -> int:
    """For how many sizes a trace of the first serves, with the kernels written for each.

    Others may do with its kernels, as those that divide where it does not: see `tests/backend`.
    """
    with Trace(first) as trace:
        kernels = written(legalize(at_sizes(graph, trace.sizes), features), features)
    numbers_at, served = trace.calculate(marks_of(kernels)), 0
    for sizes in (first, *others):
        try:
            fixed = fix(graph, sizes)
        except MLError:  # out of bounds
            continue
        found = numbers_at(sizes)
        assert found is not None or sizes != first
        if found is not None and not found[1]:
            numbers, _ = found
            alone = written(legalize(fixed, features), features)
            for kernel, own in zip(kernels, alone, strict=True):
                assert shown(kernel, numbers) == shown(own, {}), (first, sizes)
            served += 1
    return served


@pytest.fixture(params=["cpu", "gpu"])
def features(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Features:
    """Of a kind of device; nothing is estimated, and for each of some sizes decided anew."""
    monkeypatch.setattr(Traced, "sampled", lambda number: number)
    monkeypatch.setattr(Traced, "may_leave_remainder", lambda number, by: bool(number % by))
    monkeypatch.setattr(row_loop, "is_traced", lambda number: False)
    return Features(kind=request.param)


NAMED_APART = {"scatter_rows"}
"""Composites whose kernels for traced sizes name an index that those for fixed sizes repeat.

What they compute for open sizes is compared with the reference in `tests/backend`.
"""


@pytest.mark.parametrize("name", sorted(REGISTRY.keys() - NAMED_APART))
def test_kernels_for_sizes_alike_differ_in_numbers(name: str, features: Features) -> None:
    for made in most_open_calls(name, DRAWN, MORE):
        graph = opened(made.record(), features)
        if graph is not None and graph.open_sizes:
            first, *others = drawn_sizes(made)
            held(graph, first, others, features)


@pytest.mark.parametrize("name", ["softmax", "conv2d", "gemm", "reshape", "gru_cell"])
def test_one_trace_serves_several_sizes(name: str, features: Features) -> None:
    """Else those above would show little."""
    served = []
    for made in most_open_calls(name, DRAWN, MORE):
        if (graph := opened(made.record(), features)) is not None:
            first, *others = drawn_sizes(made)
            served.append(held(graph, first, others, features))
    assert sum(served) > 2 * len(served), served

"""Kernels for several sizes differ in numbers that may be read, or are of another kind."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from tests.compiler.compiled import legalized
from tests.property.most_open import MostOpen, most_open_calls
from webnn_py import MLError
from webnn_py.engines.webgpu.compiler.kernel_list import kernels_of
from webnn_py.engines.webgpu.compiler.shape_generic import parted
from webnn_py.engines.webgpu.program.storage import Features
from webnn_py.ir import Graph
from webnn_py.ops.declare import REGISTRY

DRAWN = 6
LARGER = (16, 32, 48, 64)
MOST_ELEMENTS = 1 << 24
SHORT_LOOP = re.compile(r"n < .[1-8]u; n\+\+")
"""Over dimensions that are looked up."""


def at_sizes(made: MostOpen) -> Iterator[Graph]:
    """A call for larger sizes, one after the other."""
    for size in made.sizes:
        for more in LARGER:
            try:
                graph = made.record({**made.sizes, size: made.sizes[size] + more})
            except MLError:  # too large
                continue
            if all(value.size <= MOST_ELEMENTS for _, value in graph.outputs):
                yield graph


@pytest.mark.parametrize("kind", ["cpu", "gpu"])
@pytest.mark.parametrize("name", sorted(REGISTRY))
def test_numbers_that_follow_from_sizes_may_be_read(name: str, kind: str) -> None:
    features = Features(kind=kind)
    forms: dict[str, set[str]] = {}
    for made in most_open_calls(name, DRAWN):
        for graph in at_sizes(made):
            for kernel in kernels_of(legalized(graph, features), features):
                form = SHORT_LOOP.sub("", parted(kernel.code)[0])
                forms.setdefault(re.sub(r"\d+", "0", form), set()).add(form)
    for alike in forms.values():
        assert len(alike) <= 2, min(alike)

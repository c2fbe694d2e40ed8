"""Cache on disk of the kernels of graphs.

Kernels follow from a graph's structure, its constants of one element and the device. Weights may
differ. A cached graph needs neither compilation nor the compiler's modules.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from typing import Any

from webnn_py.core import cache
from webnn_py.engines.webgpu.compiler.kernel import Kernel, Part
from webnn_py.engines.webgpu.program.storage import Features
from webnn_py.ir import Graph, Value
from webnn_py.ops.declare import REGISTRY

KIND = "kernels"
MAX_CACHE_BYTES = 64 << 20
"""Bytes of all files; the least recently used are deleted."""
MIN_CACHED_NODES = 16
"""Nodes from which a graph is cached: smaller ones compile as fast as a file is read."""

SOURCES = ("core", "ir", "memory", "ops", "engines/webgpu/compiler", "engines/webgpu/program")
"""Packages whose source code the cache's keys contain."""


class KnownKernels:
    """The entry of one graph in the cache.

    Args:
        graph: The graph after legalization.
        features: The devices.
    """

    def __init__(self, graph: Graph, features: Features) -> None:
        self._values = list(_values(graph))
        self._numbers = {value: number for number, value in enumerate(self._values)}
        self._key = "\n".join(self._describe(graph, features)) if _is_large(graph) else ""

    def load(self) -> list[Kernel] | None:
        """Return the cached kernels for the values of this graph, or None."""
        try:
            return self._read(cache.load_json(KIND, self._key)) if self._key else None
        except (ValueError, TypeError, LookupError):  # damaged, or written by another program
            return None

    def store(self, kernels: Sequence[Kernel]) -> None:
        """Store the kernels of this graph."""
        if self._key:
            cache.store_json(KIND, self._key, self._written(kernels), MAX_CACHE_BYTES)

    def _describe(self, graph: Graph, features: Features) -> Iterator[str]:
        """Yield the parts of the key: all that kernels depend on. Names are not among them."""
        yield f"{cache.source_fingerprint(*SOURCES)} {features}"
        for value in self._values:
            array = graph.constants.get(value)
            # repr distinguishes 0 from -0 and 1 from 1.0.
            known = "" if array is None or array.size > 1 else repr(array.item())
            yield f"{value.data_type}{value.shape}{known}"
        numbers = self._numbers
        for node in graph.nodes:
            operands = [None if value is None else numbers[value] for value in node.inputs]
            yield f"{node.op}{operands}{len(node.outputs)}{dict(node.attrs)}"
        ends = [numbers[value] for value in (*graph.inputs, *(v for _, v in graph.outputs))]
        yield f"{len(graph.inputs)} {len(graph.constants)} {ends}"

    def _written(self, kernels: Sequence[Kernel]) -> dict[str, Any]:
        numbers, scratch = dict(self._numbers), []
        codes = {code: n for n, code in enumerate(dict.fromkeys(k.code for k in kernels))}

        def part_of(part: Part) -> tuple[int, int, int]:
            value = part.value
            if value not in numbers:  # a scratch value
                numbers[value] = len(numbers)
                scratch.append((value.data_type, value.shape))
            return numbers[value], part.offset, part.size

        lines = [
            {
                "name": kernel.name,
                "code": codes[kernel.code],
                "reads": [part_of(part) for part in kernel.reads],
                "writes": [part_of(part) for part in kernel.writes],
                "workgroups": kernel.workgroups,
                "times": kernel.times,
                "numbers": kernel.numbers,
                "roots": [numbers[root] for root in kernel.roots],
                "tile": kernel.tile,
                "features": sorted(kernel.features),
                "reads_words": kernel.reads_words,
            }
            for kernel in kernels
        ]
        return {"codes": list(codes), "scratch": scratch, "kernels": lines}

    def _read(self, found: Any) -> list[Kernel]:
        codes = found["codes"]
        scratch = [Value(data_type, tuple(shape)) for data_type, shape in found["scratch"]]
        values = self._values + scratch

        def part_of(number: int, offset: int, size: int) -> Part:
            return Part(values[number], offset, size)

        return [
            Kernel(
                name=line["name"],
                code=codes[line["code"]],
                reads=tuple(part_of(*part) for part in line["reads"]),
                writes=tuple(part_of(*part) for part in line["writes"]),
                workgroups=tuple(line["workgroups"]),
                times=line["times"],
                numbers=tuple(line["numbers"]),
                roots=tuple(values[root] for root in line["roots"]),
                tile=line["tile"],
                features=frozenset(line["features"]),
                reads_words=line["reads_words"],
            )
            for line in found["kernels"]
        ]


def _is_large(graph: Graph) -> bool:
    return len(graph.nodes) >= MIN_CACHED_NODES


def _values(graph: Graph) -> Iterator[Value]:
    yield from graph.inputs
    yield from graph.constants
    for node in graph.nodes:
        yield from node.outputs


@functools.cache
def lowered_operators() -> frozenset[str]:
    """Return the names of operators with lowerings, from the cache if it has them."""
    key = f"{cache.source_fingerprint(*SOURCES)} lowerings"
    try:
        return frozenset(cache.load_json(KIND, key))
    except (ValueError, TypeError):  # as above
        from webnn_py.engines.webgpu.compiler.lower import has_lowering

        names = [name for name in REGISTRY if has_lowering(name)]
        cache.store_json(KIND, key, names, MAX_CACHE_BYTES)
        return frozenset(names)

"""The kernels of a graph, in order; those that would be alike are written once."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

from webnn_py.core.cooperation import checkpoints
from webnn_py.engines.webgpu.compiler.fusion import Fusion
from webnn_py.engines.webgpu.compiler.kernel import Kernel
from webnn_py.engines.webgpu.compiler.kernel_builder import KernelBuilder
from webnn_py.engines.webgpu.compiler.kernels import concat_kernel, emit
from webnn_py.engines.webgpu.compiler.lower import lowering_of
from webnn_py.engines.webgpu.compiler.siblings import products_beside
from webnn_py.engines.webgpu.compiler.structure import Structures, key_of
from webnn_py.engines.webgpu.program.storage import Features
from webnn_py.ir import Graph, Value


def kernels_of(graph: Graph, features: Features) -> Iterator[Kernel]:
    """The kernels of a graph for a device with these features, in order, as they are written."""
    fusion = Fusion(graph, features)
    producers = graph.producers
    places = fusion.places
    structures = Structures(graph, producers, fusion.is_stored, places)
    shared = (graph, producers, fusion.is_stored, places, lowering_of, features)
    written: dict[tuple[Any, ...], tuple[list[Kernel], tuple[Value, ...]]] = {}
    beside = set() if features.kind == "cpu" else products_beside(fusion)
    for root in checkpoints(fusion.roots):
        left = places.left.get(root)
        if left == ():  # the kernels of its operands write all of it
            continue
        structure = structures.of(root)
        tile = features.tiles.get(key_of(structure), "") if features.tiles else ""

        def make(
            writes: Value | None = None, root: Value = root, tile: str = tile
        ) -> KernelBuilder:
            target = root if writes is None else writes
            return KernelBuilder(*shared, target, tile, root in beside)

        key = (root in beside, *structure.key)
        if key in written:
            made, values = written[key]
            made = _with_values(made, dict(zip(values, structure.values, strict=True)))
        else:
            if left is not None:
                made = [concat_kernel.emit(make(), producers[root], left)]
            else:
                made = emit(make, fusion.anchor_of(root))
            written[key] = made, structure.values
        for kernel in made:
            yield dataclasses.replace(kernel, roots=(root,), tile=tile)


def _with_values(kernels: Sequence[Kernel], values: dict[Value, Value]) -> list[Kernel]:
    """The same code for other values; what only these kernels know is made anew."""

    def other(value: Value) -> Value:
        if value not in values:
            values[value] = Value(value.data_type, value.shape, value.name)
        return values[value]

    return [
        dataclasses.replace(
            kernel,
            reads=tuple(
                dataclasses.replace(part, value=other(part.value)) for part in kernel.reads
            ),
            writes=tuple(
                dataclasses.replace(part, value=other(part.value)) for part in kernel.writes
            ),
        )
        for kernel in kernels
    ]

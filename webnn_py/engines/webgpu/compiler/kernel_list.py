"""The kernels of a graph, in order; those that would be alike are written once."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from webnn_py.core.cooperation import checkpoints
from webnn_py.engines.webgpu.compiler.fusion import Fusion
from webnn_py.engines.webgpu.compiler.kernel import Kernel
from webnn_py.engines.webgpu.compiler.kernel_builder import KernelBuilder
from webnn_py.engines.webgpu.compiler.kernels import concat_kernel, emit, product_kernel
from webnn_py.engines.webgpu.compiler.kernels.costs import agree
from webnn_py.engines.webgpu.compiler.kernels.gemm_types import GemmProblem
from webnn_py.engines.webgpu.compiler.kernels.matmul import FEW_ROWS
from webnn_py.engines.webgpu.compiler.kernels.matmul_kernel import gemm_limits
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
    beside: set[Value] = set()
    if features.kind != "cpu":
        beside = _of_one_size(fusion, structures, lambda v: KernelBuilder(*shared, v, "", True))
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


def _of_one_size(
    fusion: Fusion, structures: Structures, make: Callable[[Value], KernelBuilder]
) -> set[Value]:
    """The products that may run beside others, with workgroups of one size."""
    problems: dict[tuple[Any, ...], GemmProblem | None] = {}

    def problem_of(builder: KernelBuilder) -> GemmProblem | None:
        """The sizes of a product of halves, if it is one through tiles."""
        key = structures.of(builder.root).key
        if key not in problems:
            found = product_kernel.product_of(builder, fusion.anchor_of(builder.root))
            tiled = found is not None and min(found.problem.m, found.problem.n) > FEW_ROWS
            halves = found is not None and found.problem.compute == "f16"
            problems[key] = found.problem if found is not None and tiled and halves else None
        return problems[key]

    alike: set[Value] = set()
    for group in products_beside(fusion):
        builders = [make(root) for root in group]
        found = [problem for builder in builders if (problem := problem_of(builder)) is not None]
        if not found or agree(found, gemm_limits(builders[0])):
            alike.update(group)
    return alike


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

"""Candidates for tuning: the kernels that a graph's products and convolutions could have."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from webnn_py.core.errors import NotSupportedError
from webnn_py.engines.webgpu.compiler.fusing.fusion import Fusion
from webnn_py.engines.webgpu.compiler.kernel import Kernel
from webnn_py.engines.webgpu.compiler.kernel_builder import KernelBuilder
from webnn_py.engines.webgpu.compiler.kernel_key import Structures, key_of
from webnn_py.engines.webgpu.compiler.kernel_list import PRODUCTS
from webnn_py.engines.webgpu.compiler.kernels import emit
from webnn_py.engines.webgpu.compiler.kernels.matmul import named_tiles
from webnn_py.engines.webgpu.compiler.lower import lowering_of
from webnn_py.engines.webgpu.program.storage import Features
from webnn_py.ir import Graph, Node, Value


@dataclass(frozen=True, slots=True)
class Candidates:
    """The kernels that could compute a value, and all values with the same key.

    Attributes:
        key: The key under which the fastest tile is cached.
        node: The product or convolution.
        count: Values of the graph with this key.
        kernels: Kernels by the name of their tile; "" for the tile without measurements.
    """

    key: str
    node: Node
    count: int
    kernels: Mapping[str, list[Kernel]]


def candidates(graph: Graph, features: Features) -> Iterator[Candidates]:
    """Yield the candidates of each product and convolution of a graph, once per key.

    Args:
        graph: The graph after legalization.
        features: The device.
    """
    fusion = Fusion(graph, features)
    producers = graph.producers
    shared = (graph, producers, fusion.is_stored, fusion.places, lowering_of, features)
    structures = Structures(graph, producers, fusion.is_stored, fusion.places)
    alike: dict[str, list[tuple[Value, Node]]] = {}
    for root in fusion.roots:
        node = fusion.anchor_of(root)
        if node is not None and node.op in PRODUCTS:
            alike.setdefault(key_of(structures.of(root)), []).append((root, node))

    def made(root: Value, node: Node, tile: str) -> list[Kernel]:
        def make(writes: Value | None = None) -> KernelBuilder:
            return KernelBuilder(*shared, root if writes is None else writes, tile)

        return emit(make, node)

    for key, found in alike.items():
        kernels = {"": made(*found[0], "")}
        codes = {_code(kernels[""])}
        for tile in named_tiles(features.kind):
            try:
                others = made(*found[0], tile)
            except (NotSupportedError, ValueError):  # too many iterations or workgroups
                continue
            if _code(others) not in codes:  # else the tile does not fit
                codes.add(_code(others))
                kernels[tile] = others
        if len(kernels) > 1:
            yield Candidates(key, found[0][1], len(found), kernels)


def _code(kernels: Sequence[Kernel]) -> str:
    return "".join(kernel.code for kernel in kernels)

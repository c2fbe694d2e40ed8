"""The kernels that a graph's products and convolutions could have: what there is to measure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from webnn_py.core.errors import NotSupportedError
from webnn_py.engines.webgpu.compiler.fusing.fusion import Fusion
from webnn_py.engines.webgpu.compiler.fusing.parallel_products import PRODUCTS
from webnn_py.engines.webgpu.compiler.kernel import Kernel
from webnn_py.engines.webgpu.compiler.kernel_builder import KernelBuilder
from webnn_py.engines.webgpu.compiler.kernel_key import Structures, key_of
from webnn_py.engines.webgpu.compiler.kernels import emit
from webnn_py.engines.webgpu.compiler.kernels.matmul import named_tiles
from webnn_py.engines.webgpu.compiler.lower import lowering_of
from webnn_py.engines.webgpu.program.storage import Features
from webnn_py.ir import Graph, Node, Value


@dataclass(frozen=True, slots=True)
class Candidates:
    """What could compute a value, and others alike.

    Attributes:
        key: What the choice is remembered by.
        node: The product or convolution.
        count: How many values of the graph are computed alike.
        kernels: By the name of their tile; "" for what is taken when nothing is known.
    """

    key: str
    node: Node
    count: int
    kernels: Mapping[str, list[Kernel]]


def candidates(graph: Graph, features: Features) -> Iterator[Candidates]:
    """What could compute each product and convolution of a graph, alike ones once.

    Args:
        graph: As `compile_graph` leaves it.
        features: The device's.
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
            except (NotSupportedError, ValueError):  # its loops or its grid would be too long
                continue
            if _code(others) not in codes:  # else the tile does not fit
                codes.add(_code(others))
                kernels[tile] = others
        if len(kernels) > 1:
            yield Candidates(key, found[0][1], len(found), kernels)


def _code(kernels: Sequence[Kernel]) -> str:
    return "".join(kernel.code for kernel in kernels)

"""From a graph to its kernels."""

from __future__ import annotations

from webnn_py.core.cooperation import checkpoints
from webnn_py.engines.webgpu.compiler.fusion import Fusion
from webnn_py.engines.webgpu.compiler.kernel_builder import Kernel, KernelBuilder
from webnn_py.engines.webgpu.compiler.kernels import emit
from webnn_py.engines.webgpu.compiler.lower import lowering_of
from webnn_py.engines.webgpu.compiler.storage import Features
from webnn_py.ir import Graph, Value


def kernels_of(graph: Graph, features: Features) -> list[Kernel]:
    """The kernels of a graph for a device with these features, in order."""
    fusion = Fusion(graph, features)
    kernels: list[Kernel] = []
    shared = (graph, graph.producers, fusion.is_stored, lowering_of, features)
    for root in checkpoints(fusion.roots):

        def make(writes: Value | None = None, root: Value = root) -> KernelBuilder:
            return KernelBuilder(*shared, root if writes is None else writes)

        kernels += emit(make, fusion.anchor_of(root))
    return kernels

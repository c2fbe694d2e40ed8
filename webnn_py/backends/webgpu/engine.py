"""WebGPUBackend: what the device runs, and graphs compiled for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from webnn_py.backends.base import Backend, BackendLimits, Queue
from webnn_py.backends.webgpu.device import Device, find_adapter
from webnn_py.backends.webgpu.device_queue import DeviceQueue
from webnn_py.backends.webgpu.emission import Emission, Kernel
from webnn_py.backends.webgpu.executable import WebGPUExecutable
from webnn_py.backends.webgpu.kernels import emit
from webnn_py.backends.webgpu.legalize import legalize
from webnn_py.backends.webgpu.lower import has_lowering, lowering_of
from webnn_py.backends.webgpu.partition import Partition
from webnn_py.backends.webgpu.sequences import is_sequence
from webnn_py.backends.webgpu.sharing import share
from webnn_py.backends.webgpu.storage import Features
from webnn_py.courtesy import offering
from webnn_py.ir import Graph, Node, Value
from webnn_py.schedule import Run
from webnn_py.shapes import MAX_BYTE_LENGTH, MAX_RANK


def kernels_of(graph: Graph, features: Features) -> list[Kernel]:
    """The kernels of a graph for a device with these features, in order."""
    partition = Partition(graph, features)
    kernels: list[Kernel] = []
    shared = (graph, graph.producers(), partition.is_stored, lowering_of, features)
    for root in offering(partition.roots):

        def make(writes: Value | None = None, root: Value = root) -> Emission:
            return Emission(*shared, root if writes is None else writes)

        kernels += emit(make, partition.heavy_of(root))
    return kernels


class WebGPUBackend(Backend):
    """Runs graphs in a wgpu device's queue."""

    name = "webgpu"

    def __init__(self, gpu: Device) -> None:
        self.gpu = gpu
        self.device = gpu.handle
        self.accelerated = gpu.hardware

    def limits(self) -> BackendLimits:
        """The largest tensor is the largest buffer; it is bound in parts if need be."""
        return BackendLimits(MAX_RANK, min(MAX_BYTE_LENGTH, self.gpu.max_buffer_bytes))

    def has_kernel(self, node: Node) -> bool:
        """Whether there is a lowering; composites without one are decomposed."""
        return has_lowering(node.op) or is_sequence(node, self.gpu.features)

    def destroy(self) -> None:
        """Give back the memory kept for readback; the device is the user's or goes with us."""
        self.gpu.staging.clear()

    def queue(self, worker: Callable[[Run], None]) -> Queue:
        """Recorded in batches, in the device queue's order."""
        return DeviceQueue(self.gpu, worker)

    def compile(self, graph: Graph) -> WebGPUExecutable:
        """Generate kernels, make pipelines and buffers, upload constants."""
        legal = legalize(graph, self.gpu.features)
        return WebGPUExecutable(self.gpu, legal, share(kernels_of(legal, self.gpu.features)))


def open_backend(device: Any, power_preference: str, hardware: bool) -> WebGPUBackend | None:
    """A backend on the user's device or a new one; None if only hardware will do and is not there.

    Raises:
        NotSupportedError: There is no adapter.
    """
    if hardware and find_adapter(power_preference, hardware=True) is None:
        return None
    return WebGPUBackend(Device(device, power_preference, hardware))

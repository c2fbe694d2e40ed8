"""WebGPUEngine, which compiles graphs for a wgpu device and loads them.

The compiler is imported when the first graph is built, or while the driver opens a device. Loaded
programs run without it.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from webnn_py.core.devices import Float32Precision
from webnn_py.core.errors import ValidationError
from webnn_py.core.gil_yield import is_in_background
from webnn_py.core.shapes import MAX_BYTE_LENGTH, MAX_RANK
from webnn_py.engines.device import CommandQueue, Commands, DeviceEngine, ForSizes
from webnn_py.engines.limits import EngineLimits
from webnn_py.engines.profile import Roof
from webnn_py.engines.webgpu.program.plan import Plan
from webnn_py.engines.webgpu.runtime import bind_resources
from webnn_py.engines.webgpu.runtime.compiler_imports import compiler_imported
from webnn_py.engines.webgpu.runtime.device_graph import LoadedGraph, RunBuffers
from webnn_py.engines.webgpu.runtime.device_queue import DeviceQueue
from webnn_py.engines.webgpu.runtime.device_template import LoadedTemplate, pipelines_of
from webnn_py.engines.webgpu.runtime.devices.adapters import find_adapter
from webnn_py.engines.webgpu.runtime.devices.device import Device
from webnn_py.engines.webgpu.runtime.devices.errors import device_errors
from webnn_py.engines.webgpu.runtime.devices.pipelines import PipelineKey
from webnn_py.engines.webgpu.runtime.executable import ProgramExecutable, WebGPUExecutable
from webnn_py.engines.webgpu.runtime.program import LoadedProgram
from webnn_py.engines.webgpu.runtime.recording import Recording
from webnn_py.engines.webgpu.runtime.roofline import measure_roof, wake
from webnn_py.engines.webgpu.runtime.textures import conversion
from webnn_py.engines.webgpu.runtime.textures.parts import is_texture
from webnn_py.engines.webgpu.runtime.webgpu_api import implementation_named
from webnn_py.ir import Graph, Node, Shape
from webnn_py.memory.overlap import Region
from webnn_py.ordering.operation import Run
from webnn_py.passes import (
    LOOPS,
    TILES,
    multiply_by_halves,
    multiply_integers,
    widen_halves,
)

if TYPE_CHECKING:
    from webnn_py.engines.webgpu.compiler.compiled import Compiled
    from webnn_py.engines.webgpu.compiler.kernel import Kernel
    from webnn_py.engines.webgpu.compiler.template import Template

LONG_CODE = 12_000
"""WGSL characters from which a kernel compiles slowly and rarely shares its code."""


class WebGPUEngine(DeviceEngine):
    """Engine that runs one context's graphs in a wgpu device's queue."""

    def __init__(self, gpu: Device) -> None:
        self.name = gpu.webgpu.NAME
        self.gpu = gpu
        self.device = gpu.handle
        self.accelerated = gpu.hardware
        self.has_tensor_cores = gpu.features.f16_matrix is not None
        passes = TILES if gpu.hardware else LOOPS
        self.passes = passes if gpu.features.f16 else (widen_halves, *passes)
        if gpu.features.i8_matrix is not None:
            self.passes = (multiply_integers, *self.passes)
        if self.has_tensor_cores and gpu.features.float32_precision == "medium":
            self.passes += (multiply_by_halves,)
        # Set by `queue`, which a context calls first.
        self._queue: DeviceQueue
        self._worker: Callable[[Run], None]
        self._roof: Roof | None = None

    def limits(self) -> EngineLimits:
        """Return the limits; the largest tensor is the largest buffer, bound in parts if needed."""
        return EngineLimits(MAX_RANK, min(MAX_BYTE_LENGTH, self.gpu.max_buffer_bytes))

    @property
    def rewrites_by(self) -> str:
        """Return the features, limits and passes, on which the rewritten graph depends."""
        passes = [one.__name__ for one in self.passes]
        return f"{self.gpu.features} {self.limits()} {passes}"

    def supports(self, node: Node) -> bool:
        """Whether the operator has a lowering; composites without one are decomposed."""
        from webnn_py.engines.webgpu.compiler.kernel_cache import lowered_operators
        from webnn_py.engines.webgpu.compiler.legalize.legalize import has_own_operator

        return node.op in lowered_operators() or has_own_operator(node, self.gpu.features)

    def keeps_whole(self, node: Node) -> bool:
        """Whether the operator has a lowering, and its decomposition would not be faster."""
        from webnn_py.engines.webgpu.compiler.legalize.attention import is_faster_whole
        from webnn_py.engines.webgpu.compiler.legalize.integer_products import fills_matrices

        is_faster = is_faster_whole(node, self.gpu.features) and fills_matrices(node)
        return is_faster and self.supports(node)

    def takes(self, value: object) -> bool:
        """Whether a value is a buffer, a binding, a texture, a view or a part of one."""
        return bind_resources.is_device_resource(value)

    def region(self, resource: Any) -> Region:
        """Return the region of the whole buffer or texture; of everything for other values."""
        return bind_resources.whole_of(resource)

    def shape_of(self, resource: Any, shape: Shape, what: str) -> Shape | None:
        """Return the tensor shape of a texture if it is unambiguous, else None."""
        return conversion.shape_of(resource, shape, what) if is_texture(resource) else None

    def destroy(self) -> None:
        """Release pooled staging and upload buffers; not the device, which may be the user's."""
        self.gpu.staging.clear()
        self.gpu.uploads.clear()

    def wake(self) -> None:
        """Run an arithmetic kernel until the device reaches its full clock rate."""
        with device_errors("waking the device"):
            wake(self.gpu)

    def roof(self) -> Roof:
        """Return the peak rates, measured with two kernels and cached."""
        if self._roof is None:
            with device_errors("measuring the device"):
                self._roof = measure_roof(self.gpu)
        return self._roof

    def queue(self, worker: Callable[[Run], None], width: int = 1) -> DeviceQueue:
        """Create the context's queue, which records in batches."""
        self._worker = worker
        self._queue = DeviceQueue(self.gpu, worker)
        return self._queue

    def commands(self, queue: CommandQueue, encoder: Any) -> Commands:
        """Return a recording into the user's GPUCommandEncoder or a new one."""
        return Recording(self.gpu, queue, encoder)

    def compile(self, graph: Graph) -> WebGPUExecutable:
        """Generate kernels, create pipelines and buffers, and upload constants."""
        from webnn_py.engines.webgpu.compiler.compiled import compile_graph

        self._worker(self.gpu.staging.begin)
        compiled = compile_graph(graph, self.gpu.features, EarlyPipelines(self.gpu), True)
        return self.load(compiled, LoadedTemplate(self.gpu, compiled))

    def for_sizes(self) -> ForSizes:
        """Return a compiler whose kernels serve all sizes that would compile alike."""
        return ShapeGenericCompiler(self)

    def load(
        self, compiled: Compiled, template: LoadedTemplate, buffers: RunBuffers | None = None
    ) -> WebGPUExecutable:
        """Create the buffers of a compiled graph; arguments as in `LoadedGraph`."""
        loaded = LoadedGraph(self.gpu, compiled, template, buffers)
        return WebGPUExecutable(loaded, self._queue.recorder)

    def load_program(self, plan: Plan) -> ProgramExecutable:
        """Create the pipelines and buffers of a compiled program.

        Raises:
            NotSupportedError: The device lacks what the program needs.
            OperationError: The device refused a kernel, or has no memory left.
        """
        loaded = LoadedProgram(self.gpu, plan)
        return ProgramExecutable(loaded, self._queue.recorder)


class ShapeGenericCompiler(ForSizes):
    """Compiler of one graph for sets of sizes, which reuses kernels of similar sizes."""

    def __init__(self, engine: WebGPUEngine) -> None:
        from webnn_py.engines.webgpu.compiler.shape_generic import CompiledForSizes

        self._engine = engine
        self._buffers = RunBuffers(engine.gpu)
        templates: weakref.WeakValueDictionary[Template, LoadedTemplate]
        early: weakref.WeakKeyDictionary[Template, Any]
        self._templates = templates = weakref.WeakValueDictionary()
        self._early_pipelines = early = weakref.WeakKeyDictionary()
        self._compiled = CompiledForSizes(
            engine.gpu.features, lambda template: template in templates or template in early
        )

    def known(self, sizes: Mapping[str, int]) -> WebGPUExecutable | None:
        """Load kernels compiled for other sizes, if they serve these."""
        found = self._compiled.known(sizes)
        return None if found is None else self._loaded(found)

    def compile(
        self, opened: Graph, sizes: Mapping[str, int], fixed: Graph, for_any: bool
    ) -> WebGPUExecutable:
        """Compile and load, or load the kernels of sizes that compile alike."""
        begin = EarlyPipelines(self._engine.gpu)
        return self._loaded(self._compiled.compile(opened, sizes, fixed, begin, for_any))

    def compile_ahead(self, opened: Graph, sizes: Mapping[str, int]) -> None:
        """Compile ahead for sizes that may follow, and begin to create the pipelines."""
        made = self._compiled.compile_ahead(opened, sizes)
        if made is not None:
            self._early_pipelines[made.template] = pipelines_of(self._engine.gpu, made.template)

    def _loaded(self, compiled: Compiled) -> WebGPUExecutable:
        template = self._templates.get(compiled.template)
        if template is None:
            template = LoadedTemplate(self._engine.gpu, compiled)
            self._templates[compiled.template] = template
        return self._engine.load(compiled, template, self._buffers)


class EarlyPipelines:
    """Callback that begins pipelines of long kernels while others are still being generated.

    Of kernels that may share their code, it begins the first only, as sharing is decided later. In
    the background it begins none, to leave the threads to foreground work.
    """

    def __init__(self, gpu: Device) -> None:
        self._pipelines = gpu.pipelines
        self._forms: set[str] = set()

    def __call__(self, kernel: Kernel) -> None:
        """Begin the pipeline of a generated kernel if it is long."""
        if is_in_background() or len(kernel.code) < LONG_CODE:
            return
        from webnn_py.engines.webgpu.compiler.pipeline_sharing import form_of

        form = form_of(kernel)
        if form not in self._forms:
            self._forms.add(form)
            self._pipelines.begin(kernel.name, PipelineKey.of_graph(kernel))


def open_engine(
    device: Any,
    power_preference: str,
    hardware: bool,
    engine: str,
    precision: Float32Precision,
) -> WebGPUEngine | None:
    """Open an engine on the user's device or a new one; None if required hardware is missing.

    Args:
        device: The user's GPUDevice, or None for a new one.
        power_preference: As of `find_adapter`.
        hardware: Accept no software adapter.
        engine: "auto", "webgpu" or "dawn".
        precision: How products of float32 may be computed.

    Raises:
        NotSupportedError: There is no adapter, or the engine's library is not installed.
        ValidationError: The device is of another library than the engine's.
    """
    with compiler_imported() if device is None else contextlib.nullcontext():
        own = "webgpu" if engine == "auto" else engine
        if device is None and hardware and find_adapter(power_preference, True, own) is None:
            return None
        gpu = Device(device, power_preference, hardware, engine=own)
        gpu.features = replace(gpu.features, float32_precision=precision)
        opened = WebGPUEngine(gpu)
        if engine != "auto" and implementation_named(engine) is not opened.gpu.webgpu:
            raise ValidationError(
                f"engine {engine!r} contradicts the given device, which is of"
                f" {opened.gpu.webgpu.LIBRARY.__name__}: leave the engine out"
            )
        return opened

"""The pipeline cache: compiles each kernel once, on several threads."""

from __future__ import annotations

import contextlib
import os
import threading
import weakref
from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import wgpu

from webnn_py.core import gil_yield, progress, thread_priority
from webnn_py.core.completion import Completion
from webnn_py.core.workers import Workers
from webnn_py.engines.webgpu.program.plan import COUNTED_LOOP_MARK, BindingLayout, ProgramKernel
from webnn_py.engines.webgpu.runtime.devices.device_lifetime import life_of
from webnn_py.engines.webgpu.runtime.devices.errors import device_errors
from webnn_py.engines.webgpu.runtime.webgpu_api import WebGPU

if TYPE_CHECKING:
    from webnn_py.engines.webgpu.compiler.kernel import Kernel

MAX_COMPILE_THREADS = 12
"""Threads that compile pipelines of one graph. Drivers share locks and gain little from more."""

MAX_EARLY_COMPILE_THREADS = 8
"""Threads that compile pipelines while the graph's other kernels are still being generated."""

MAX_RECENT_PIPELINES = 256
"""Pipelines kept without a user, for graphs that are built again and for texture formats."""


@dataclass(frozen=True, slots=True)
class PipelineKey:
    """Everything a pipeline depends on.

    Attributes:
        code: The WGSL code.
        entry_point: The name of the entry point.
        constants: Values of pipeline-overridable constants.
        bindings: The layout of the bind group; None for the layout that the code implies.
        target: The texture format that a render pipeline draws to; "" for a compute pipeline.
        has_offsets: Whether uniform buffers have dynamic offsets.
        ends: Whether all loops are known to end, as those of generated kernels are.
    """

    code: str
    entry_point: str = "main"
    constants: tuple[tuple[str, float], ...] = ()
    bindings: tuple[BindingLayout, ...] | None = None
    target: str = ""
    has_offsets: bool = False
    ends: bool = False

    @classmethod
    def of_graph(cls, kernel: Kernel) -> PipelineKey:
        """Return the key of a graph's kernel."""
        bindings = tuple(BindingLayout(n, type, 0) for n, type in enumerate(kernel.bindings))
        return cls(kernel.code, bindings=bindings, has_offsets=True, ends=True)

    @classmethod
    def of_program(cls, kernel: ProgramKernel, shaders: Sequence[str]) -> PipelineKey:
        """Return the key of a program's kernel."""
        code = shaders[kernel.shader]
        return cls(code, kernel.entry_point, kernel.constants, kernel.bindings, ends=kernel.ends)


def _lower_priority() -> None:
    """Lower this thread's priority below threads that a caller waits for."""
    gil_yield.enable()
    thread_priority.lower_priority()


def _compile_cost(key: PipelineKey) -> int:
    """Return the estimated compile cost, in characters of WGSL."""
    return len(key.code)


class PipelineCache:
    """A weak cache of a device's pipelines; the latest ones are kept without a user, too.

    Args:
        device: The GPUDevice.
        webgpu: Its implementation of WebGPU.
    """

    def __init__(self, device: Any, webgpu: WebGPU) -> None:
        self._device = device
        self._webgpu = webgpu
        self._pipelines: weakref.WeakValueDictionary[PipelineKey, Any] = (
            weakref.WeakValueDictionary()
        )
        self._recent: deque[Any] = deque(maxlen=MAX_RECENT_PIPELINES)
        self._lock = threading.Lock()
        self._begun: dict[PipelineKey, Completion[None]] = {}
        self._waiting: dict[PipelineKey, str] = {}  # begun without a thread yet, with names
        others = max(1, (os.cpu_count() or 1) - 1)  # cores besides the code generator's
        self._early = Workers("webnn-early-pipelines", min(MAX_EARLY_COMPILE_THREADS, others))
        weakref.finalize(self, self._early.finish).atexit = False

    def begin(self, name: str, key: PipelineKey) -> None:
        """Begin to compile a pipeline in the background; `get_all` reports its errors."""
        done: Completion[None] = Completion()
        with self._lock:
            if key not in self._pipelines and key not in self._begun:
                self._begun[key] = done
                self._waiting[key] = name
                self._early.submit(self._compile_costliest, done.set_exception)

    def _compile_costliest(self) -> None:
        """Compile the costliest of the waiting pipelines, if there is one."""
        with self._lock:
            key = max(self._waiting, key=_compile_cost, default=None)
            name = "" if key is None else self._waiting.pop(key)
        if key is not None:
            with contextlib.suppress(Exception):  # `get_all` compiles it again and raises
                self._compile_claimed(name, key)

    def _claim(self, key: PipelineKey) -> bool:
        """Claim a waiting pipeline for the calling thread; return False if it is not waiting."""
        with self._lock:
            return self._waiting.pop(key, None) is not None

    def _compile_claimed(self, name: str, key: PipelineKey) -> Any:
        try:
            return self._compile(name, key)
        finally:
            self._complete(key)

    def _complete(self, key: PipelineKey) -> None:
        """End the wait of other threads for a pipeline, compiled or not."""
        with self._lock:
            done = self._begun.pop(key, None)
        if done is not None:
            done.set_result(None)

    def _drop_all_but(self, wanted: Collection[PipelineKey]) -> None:
        """Cancel waiting pipelines of kernels that were replaced by shared code meanwhile."""
        with self._lock:
            needless = [key for key in self._waiting if key not in wanted]
        for key in needless:
            if self._claim(key):
                self._complete(key)

    def get(self, name: str, code: str, target: str = "") -> Any:
        """Return the pipeline of one kernel.

        Args:
            name: The kernel's name, for messages.
            code: WGSL with an entry point "main", and a vertex shader "corners" if it draws.
            target: The texture format to draw to; "" for a compute pipeline.

        Raises:
            OperationError: The device refused the code.
        """
        return self._get(name, PipelineKey(code, target=target))

    def get_all(
        self,
        kernels: Iterable[tuple[str, PipelineKey]],
        meanwhile: Callable[[], None] = lambda: None,
    ) -> list[Any]:
        """Return the pipelines of several kernels, compiled on several threads.

        Args:
            kernels: Names, for messages, and keys.
            meanwhile: Work for the calling thread until they are compiled.

        Raises:
            OperationError: The device refused the code of a kernel.
        """
        wanted = list(kernels)
        with self._lock:
            found = {key: self._pipelines.get(key) for _, key in wanted}
        self._drop_all_but(found)
        # Costliest first, as it would otherwise end last. Pipelines that another thread compiles
        # already come at the end.
        lacking = {key: name for name, key in wanted if found[key] is None}
        lacking = dict(sorted(lacking.items(), key=self._compile_order))
        threads = min(len(lacking), MAX_COMPILE_THREADS, os.cpu_count() or 1)
        if threads <= 1:
            one_by_one = (self._get(name, key) for key, name in lacking.items())
            compiled = list(progress.report_each(gil_yield.checkpoints(one_by_one), len(lacking)))
            meanwhile()
        else:
            begin = _lower_priority if gil_yield.is_in_background() else gil_yield.enable
            with ThreadPoolExecutor(
                threads, thread_name_prefix="webnn-pipelines", initializer=begin
            ) as pool:
                try:
                    results = pool.map(self._get, lacking.values(), lacking)
                    meanwhile()
                    done = gil_yield.checkpoints(results)
                    compiled = list(progress.report_each(done, len(lacking)))
                except BaseException:
                    pool.shutdown(cancel_futures=True)
                    raise
        found |= zip(lacking, compiled, strict=True)
        return [found[key] for _, key in wanted]

    def _compile_order(self, lacking: tuple[PipelineKey, str]) -> tuple[bool, int]:
        key, _ = lacking
        return key in self._begun and key not in self._waiting, -_compile_cost(key)

    def _get(self, name: str, key: PipelineKey) -> Any:
        """Return a pipeline: cached, compiled here, or compiled by another thread."""
        claimed = False
        try:
            with self._lock:
                found, begun = self._pipelines.get(key), self._begun.get(key)
                claimed = found is None and (begun is None or key in self._waiting)
                if claimed and self._waiting.pop(key, None) is None:
                    self._begun[key] = Completion()
            if claimed:
                return self._compile_claimed(name, key)
        except BaseException:  # an interrupt may come before the compilation
            if claimed:
                self._complete(key)
            raise
        if found is not None:
            return found
        assert begun is not None
        begun.wait()
        with self._lock:
            found = self._pipelines.get(key)
        return self._compile(name, key) if found is None else found

    def _compile(self, name: str, key: PipelineKey) -> Any:
        device = self._device
        # Generated kernels enable nothing that the device's compiler refuses.
        code = key.code if key.ends else self._webgpu.wgsl(key.code)
        # Dawn crashes if the device is destroyed meanwhile.
        with life_of(device), device_errors(f"compiling the kernel {name}"):
            if key.ends and COUNTED_LOOP_MARK not in code:
                module = self._webgpu.module_of_ending_loops(device, code, name)
            else:
                module = device.create_shader_module(code=code, label=name)
            main = {
                "module": module,
                "entry_point": key.entry_point,
                "constants": dict(key.constants),
            }
            layout = "auto" if key.bindings is None else self._layout(key.bindings, key.has_offsets)
            if key.target:
                pipeline = device.create_render_pipeline(
                    label=name,
                    layout=layout,
                    vertex={"module": module, "entry_point": "corners"},
                    fragment=main | {"targets": [{"format": key.target}]},
                )
            else:
                pipeline = device.create_compute_pipeline(label=name, layout=layout, compute=main)
        with self._lock:
            self._recent.append(pipeline)
            return self._pipelines.setdefault(key, pipeline)

    def _layout(self, bindings: Sequence[BindingLayout], has_offsets: bool) -> Any:
        """Make the layout of a pipeline with one bind group, of buffers."""
        entries = [
            {
                "binding": layout.binding,
                "visibility": wgpu.ShaderStage.COMPUTE,
                "buffer": {
                    "type": layout.type,
                    "min_binding_size": layout.min_size,
                    "has_dynamic_offset": has_offsets and layout.type == "uniform",
                },
            }
            for layout in bindings
        ]
        group = self._device.create_bind_group_layout(entries=entries)
        return self._device.create_pipeline_layout(bind_group_layouts=[group])

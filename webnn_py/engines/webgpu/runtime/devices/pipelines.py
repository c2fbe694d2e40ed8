"""Pipelines, each compiled once for the same code."""

from __future__ import annotations

import contextlib
import os
import re
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
from webnn_py.engines.webgpu.program.plan import COUNTED, BindingLayout, ProgramKernel
from webnn_py.engines.webgpu.runtime.devices.errors import device_errors
from webnn_py.engines.webgpu.runtime.wgpu_native import native

if TYPE_CHECKING:
    from webnn_py.engines.webgpu.compiler.kernel import Kernel

MOST_THREADS = 12
"""That make pipelines at once for one graph; drivers share locks, and gain little from more."""

MOST_BEGUN = 8
"""Threads that make pipelines while the kernels of a graph are still being written."""

RECENT_PIPELINES = 256
"""Pipelines kept though no graph has them: those of graphs built again, of texture formats."""

_ENABLE = re.compile(r"\benable\s+\w+(\s*,\s*\w+)*\s*,?\s*;")
_SUBGROUPS = re.compile(r",\s*subgroups\b|\bsubgroups\b\s*,?")


def _without_subgroups(directive: re.Match[str]) -> str:
    """An `enable` without what wgpu-native refuses, though it has it; nothing else moves."""
    rest = _SUBGROUPS.sub(lambda found: " " * len(found[0]), directive[0])
    return rest if re.search(r"\w", rest[len("enable") :]) else " " * len(rest)


@dataclass(frozen=True, slots=True)
class PipelineKey:
    """What a pipeline is made of.

    Attributes:
        code: WGSL.
        entry_point: Its function.
        constants: What pipeline-overridable constants are.
        bindings: The layout of its bind group; None for what the code has.
        target: The texture format that a render pipeline draws to; "" for a compute pipeline.
        has_offsets: What it has as uniforms lies at an offset that is told with each dispatch.
        ends: Its loops are known to end, as those of kernels are that were written here.
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
        """That of a graph's kernel."""
        bindings = tuple(BindingLayout(n, type, 0) for n, type in enumerate(kernel.bindings))
        return cls(kernel.code, bindings=bindings, has_offsets=True, ends=True)

    @classmethod
    def of_program(cls, kernel: ProgramKernel, shaders: Sequence[str]) -> PipelineKey:
        """That of a program's kernel."""
        code = shaders[kernel.shader]
        return cls(code, kernel.entry_point, kernel.constants, kernel.bindings)


def _stand_back() -> None:
    """Leave the cores to what somebody waits for."""
    gil_yield.enable()
    thread_priority.stand_back()


def _length(key: PipelineKey) -> int:
    """What drivers take about as long for as a pipeline."""
    return len(key.code)


class PipelineCache:
    """The pipelines of a device, kept as long as a graph has them, and for a while after."""

    def __init__(self, device: Any) -> None:
        self._device = device
        self._pipelines: weakref.WeakValueDictionary[PipelineKey, Any] = (
            weakref.WeakValueDictionary()
        )
        self._recent: deque[Any] = deque(maxlen=RECENT_PIPELINES)
        self._lock = threading.Lock()
        self._begun: dict[PipelineKey, Completion[None]] = {}
        self._waiting: dict[PipelineKey, str] = {}  # what no thread is at yet, with names
        others = max(1, (os.cpu_count() or 1) - 1)  # than the one that writes
        self._early = Workers("webnn-early-pipelines", min(MOST_BEGUN, others))
        weakref.finalize(self, self._early.finish).atexit = False

    def begin(self, name: str, key: PipelineKey) -> None:
        """Begin to make a pipeline that will be asked for; who asks is told why there is none."""
        done: Completion[None] = Completion()
        with self._lock:
            if key not in self._pipelines and key not in self._begun:
                self._begun[key] = done
                self._waiting[key] = name
                self._early.submit(self._make_longest, done.set_exception)

    def _make_longest(self) -> None:
        """Make what was begun and takes longest, if nobody is at all of it."""
        with self._lock:
            key = max(self._waiting, key=_length, default=None)
            name = "" if key is None else self._waiting.pop(key)
        if key is not None:
            with contextlib.suppress(Exception):  # which who asks is told
                self._make_taken(name, key)

    def _take(self, key: PipelineKey) -> bool:
        """Whether nobody is at a pipeline that was begun; then the caller is."""
        with self._lock:
            return self._waiting.pop(key, None) is not None

    def _make_taken(self, name: str, key: PipelineKey) -> Any:
        try:
            return self._make(name, key)
        finally:
            self._end(key)

    def _end(self, key: PipelineKey) -> None:
        with self._lock:
            done = self._begun.pop(key, None)
        if done is not None:
            done.set_result(None)

    def _drop_all_but(self, wanted: Collection[PipelineKey]) -> None:
        """Leave what was begun for kernels that share their code by now."""
        with self._lock:
            needless = [key for key in self._waiting if key not in wanted]
        for key in needless:
            if self._take(key):
                self._end(key)

    def get(self, name: str, code: str, target: str = "") -> Any:
        """The pipeline of a kernel.

        Args:
            name: Of the kernel, for messages.
            code: WGSL with an entry point "main", and a vertex shader "corners" if it draws.
            target: The texture format that is drawn to; "" for a kernel that computes.

        Raises:
            OperationError: The device refused the code.
        """
        return self._made(name, PipelineKey(code, target=target))

    def get_all(
        self,
        kernels: Iterable[tuple[str, PipelineKey]],
        meanwhile: Callable[[], None] = lambda: None,
    ) -> list[Any]:
        """The pipelines of several kernels, made on several threads: drivers take their time.

        Args:
            kernels: Name of each, for messages, and what it is made of.
            meanwhile: What this thread does until they are there.

        Raises:
            OperationError: The device refused the code of one.
        """
        wanted = list(kernels)
        with self._lock:
            found = {key: self._pipelines.get(key) for _, key in wanted}
        self._drop_all_but(found)
        # The longest first, which would keep others waiting at the end; what another thread is at
        # needs no thread.
        lacking = {key: name for name, key in wanted if found[key] is None}
        lacking = dict(sorted(lacking.items(), key=self._turn))
        threads = min(len(lacking), MOST_THREADS, os.cpu_count() or 1)
        if threads <= 1:
            one_by_one = (self._made(name, key) for key, name in lacking.items())
            made = list(progress.counted(gil_yield.checkpoints(one_by_one), len(lacking)))
            meanwhile()
        else:
            begin = _stand_back if gil_yield.in_background() else gil_yield.enable
            with ThreadPoolExecutor(
                threads, thread_name_prefix="webnn-pipelines", initializer=begin
            ) as pool:
                try:
                    at_once = pool.map(self._made, lacking.values(), lacking)
                    meanwhile()
                    done = gil_yield.checkpoints(at_once)
                    made = list(progress.counted(done, len(lacking)))
                except BaseException:
                    pool.shutdown(cancel_futures=True)
                    raise
        found |= zip(lacking, made, strict=True)
        return [found[key] for _, key in wanted]

    def _turn(self, lacking: tuple[PipelineKey, str]) -> tuple[bool, int]:
        key, _ = lacking
        return key in self._begun and key not in self._waiting, -_length(key)

    def _made(self, name: str, key: PipelineKey) -> Any:
        taken = False
        try:
            with self._lock:
                found, begun = self._pipelines.get(key), self._begun.get(key)
                taken = found is None and (begun is None or key in self._waiting)
                if taken and self._waiting.pop(key, None) is None:
                    self._begun[key] = Completion()
            if taken:
                return self._make_taken(name, key)
        except BaseException:  # an interrupt may come before it is being made
            if taken:
                self._end(key)
            raise
        if found is not None:
            return found
        assert begun is not None
        begun.wait()
        with self._lock:
            found = self._pipelines.get(key)
        return self._make(name, key) if found is None else found

    def _make(self, name: str, key: PipelineKey) -> Any:
        device = self._device
        code = _ENABLE.sub(_without_subgroups, key.code)
        with device_errors(f"compiling the kernel {name}"):
            if key.ends and COUNTED not in code:
                module = native.module_of_ending_loops(device, code, name)
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
        """The layout of a pipeline with one bind group, of buffers."""
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

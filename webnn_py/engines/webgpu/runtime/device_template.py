"""What a compiled graph has on a device for all its sizes: pipelines, constants, bind groups."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import wgpu

from webnn_py.core.gil_yield import checkpoints
from webnn_py.core.shape_tracing import Numbers, calculated, calculation, is_traced
from webnn_py.engines.webgpu.program.storage import aligned
from webnn_py.engines.webgpu.runtime.constants import place_constants
from webnn_py.engines.webgpu.runtime.devices.binding import Binding, PlaceCache
from webnn_py.engines.webgpu.runtime.devices.buffer_init import write_made
from webnn_py.engines.webgpu.runtime.devices.device import Device
from webnn_py.engines.webgpu.runtime.devices.errors import device_errors
from webnn_py.engines.webgpu.runtime.devices.pipelines import PipelineKey
from webnn_py.engines.webgpu.runtime.wgpu_native import native
from webnn_py.ir import Value

if TYPE_CHECKING:
    from webnn_py.engines.webgpu.compiler.compiled import Compiled
    from webnn_py.engines.webgpu.compiler.kernel import Kernel, Part
    from webnn_py.engines.webgpu.compiler.template import Template

WORD = 4
"""Bytes."""
SIZES_TOGETHER = 32
"""Sets of sizes whose words share a buffer, behind the first one: many graphs have but that."""
MOST_TOGETHER = 1 << 22
"""Bytes of such a buffer, but for one set that takes more."""

Places = Mapping[Value, Binding]


@dataclass(frozen=True, slots=True)
class Words:
    """Where the words of a set of sizes lie.

    Attributes:
        buffer: Which others may share; None where no kernel reads any.
        offset: Bytes.
    """

    buffer: Any
    offset: int


@dataclass(frozen=True, slots=True)
class Step:
    """One dispatch.

    Attributes:
        kernel: What is run.
        pipeline: The kernel compiled.
        layout: Its bind group's layout.
        parts: What is bound, in order; the last one is written.
        words: Where the words lie that it reads, among those of all, and their bytes. Bound behind
            the parts, if it reads any.
        is_steady: Its bind group does for all sizes.
    """

    kernel: Kernel
    pipeline: Any
    layout: Any
    parts: tuple[Part, ...]
    words: tuple[int, int]
    is_steady: bool


class LoadedTemplate:
    """The dispatches of a graph, as far as they are the same for all its sizes.

    Args:
        gpu: The device.
        compiled: What runs, for any of its sizes.

    Attributes:
        steps: The dispatches, in order.
        constants: Where they lie.
        slots: The number of the buffer that each intermediate value lies in.

    Raises:
        OperationError: The device refused a kernel, or has no memory left.
    """

    def __init__(self, gpu: Device, compiled: Compiled) -> None:
        template = compiled.template
        self._gpu = gpu
        self.slots = template.slots
        self.constants: dict[Value, Binding] = {}

        def place() -> None:
            self.constants |= place_constants(gpu, template.constants, compiled.ends.constants)

        pipelines = {
            code: (pipeline, _layout_of(pipeline))
            for code, pipeline in pipelines_of(gpu, template, place).items()
        }
        self.steps: list[Step] = []
        self._size = 0  # of the words of a set of sizes
        sources: list[int] = []
        targets: list[int] = []
        for kernel, reads in zip(template.kernels, template.reads, strict=True):
            begin, size = self._size, -(-len(reads) // 4) * 4 * WORD
            sources += reads
            targets += range(begin // WORD, begin // WORD + len(reads))
            parts = (*kernel.reads, *kernel.writes)
            words, steady = (begin, size), all(map(_is_steady, parts))
            self.steps.append(Step(kernel, *pipelines[kernel.code], parts, words, steady))
            self._size += aligned(size)
        runs = ((*step.kernel.workgroups, step.kernel.times) for step in self.steps)
        self._runs = calculation([number for run in runs for number in run])
        self._sources, self._targets = np.array(sources, np.intp), np.array(targets, np.intp)
        self._words = Words(None, 0)  # of the sizes that came last
        self._lock = threading.Lock()
        self._groups: weakref.WeakValueDictionary[int, Groups] = weakref.WeakValueDictionary()

    def place_words(self, words: Sequence[int]) -> Words:
        """Upload all that there are for a set of sizes, as `Compiled.words`."""
        if not self._size:
            return self._words
        contents = np.zeros(self._size // WORD, np.uint32)
        contents[self._targets] = np.array(words, np.uint32)[self._sources]
        with device_errors(f"uploading {self._size} bytes of numbers"), self._gpu.life:
            with self._lock:
                is_first = self._words.buffer is None
                self._words = made = self._first_words() if is_first else self._more_words()
            raw = contents.view(np.uint8)
            if is_first:
                write_made(self._gpu, made.buffer, [(0, raw)])
            else:
                native.write_buffer(self._gpu.queue, made.buffer, made.offset, raw)
        return made

    def _first_words(self) -> Words:
        usage = wgpu.BufferUsage.UNIFORM
        return Words(self._gpu.buffer(self._size, usage, "numbers", mapped=True), 0)

    def _more_words(self) -> Words:
        buffer, offset = self._words.buffer, self._words.offset + self._size
        if offset >= buffer.size:
            usage = wgpu.BufferUsage.UNIFORM | wgpu.BufferUsage.COPY_DST
            sizes = max(1, min(SIZES_TOGETHER, MOST_TOGETHER // self._size))
            buffer, offset = self._gpu.buffer(sizes * self._size, usage, "numbers"), 0
        return Words(buffer, offset)

    def runs(self, numbers: Numbers) -> Iterator[tuple[int, int, int, int]]:
        """The workgroups of each step, and how many times in a row it runs, for some sizes."""
        each = iter(self._runs(numbers))
        return zip(each, each, each, each, strict=True)

    def groups(self, words: Words, pool: Sequence[Any]) -> Groups:
        """The bind groups over some buffers, the same ones as long as somebody has them.

        Args:
            words: Where a set of sizes has its own.
            pool: The buffers of intermediate values.
        """
        key = id(pool[0]) if pool else 0
        found = self._groups.get(key)
        if found is None or found.buffers != (words.buffer, *pool):
            found = self._groups[key] = Groups(self, words, pool)
        return found

    def bind(self, step: Step, places: Places, words: Words, numbers: Numbers) -> Any:
        """The bind group of a step.

        Args:
            step: Of this template.
            places: Where its values lie.
            words: Where those lie that it reads; at which place there is told with a dispatch.
            numbers: Those of the sizes that it is for, if it is not steady.
        """
        bound = [self._bound(part, places[part.value], numbers) for part in step.parts]
        if step.words[1]:
            bound.append(Binding(words.buffer, *step.words))
        with device_errors(f"binding {step.kernel.name}"):
            return self._gpu.bind_places(step.layout, bound)

    def _bound(self, part: Part, place: Binding, numbers: Numbers) -> Binding:
        if is_traced(part.size) and _is_steady(part):
            size = min(max(place.size, place.room), self._gpu.features.binding_bytes // 4 * 4)
            return Binding(place.buffer, place.offset, size)
        offset, size = calculated((part.offset, part.size), numbers)
        return Binding(place.buffer, place.offset + offset, size)


class Groups:
    """The bind groups of a template's steady steps over the same buffers, for all sizes.

    Args:
        loaded: The template.
        words: In the buffer that is bound.
        pool: The buffers of intermediate values.

    Attributes:
        buffers: The buffer of words, and those of intermediate values.
        own: Where constants lie, and intermediate values, which begin with their buffers.
        fixed: By the number of the step, where all its values are the graph's own.
    """

    def __init__(self, loaded: LoadedTemplate, words: Words, pool: Sequence[Any]) -> None:
        self._loaded, self._words = loaded, words
        self.buffers = (words.buffer, *pool)
        whole = [Binding(buffer, 0, buffer.size) for buffer in pool]
        between = {value: whole[slot] for value, slot in loaded.slots.items()}
        self.own = {**loaded.constants, **between}
        steady = {n: step for n, step in enumerate(loaded.steps) if step.is_steady}
        inner = {n for n, step in steady.items() if self.has(step)}
        self.fixed = {n: loaded.bind(steady[n], self.own, words, {}) for n in checkpoints(inner)}
        self._outer = {n: step for n, step in steady.items() if n not in inner}
        self._at_ends: PlaceCache[dict[int, Any]] = PlaceCache()

    def has(self, step: Step) -> bool:
        """Whether no value of a step is an input or output."""
        return all(part.value in self.own for part in step.parts)

    def at_ends(self, places: Places) -> dict[int, Any]:
        """Those of the other steps, by number.

        Args:
            places: Where the template's inputs and outputs lie.
        """
        return self._at_ends.get(places, self._bind_ends)

    def _bind_ends(self, places: Places) -> dict[int, Any]:
        everything, outer = {**self.own, **places}, checkpoints(self._outer.items())
        return {n: self._loaded.bind(step, everything, self._words, {}) for n, step in outer}


def pipelines_of(
    gpu: Device, template: Template, meanwhile: Callable[[], None] = lambda: None
) -> dict[str, Any]:
    """The pipelines of a template, by the code of kernels.

    Args:
        gpu: The device.
        template: What runs.
        meanwhile: What this thread does until they are there.

    Raises:
        OperationError: The device refused a kernel.
    """
    by_code = {kernel.code: kernel for kernel in template.kernels}
    wanted = ((kernel.name, PipelineKey.of_graph(kernel)) for kernel in by_code.values())
    return dict(zip(by_code, gpu.pipelines.get_all(wanted, meanwhile), strict=True))


def _is_steady(part: Part) -> bool:
    """Whether what is bound does for all sizes: what begins with its buffer may have all of it."""
    return not is_traced(part.offset) and (part.offset == 0 or not is_traced(part.size))


def _layout_of(pipeline: Any) -> Any:
    """Of the bind group of a pipeline."""
    with device_errors(f"binding {pipeline.label}"):
        return pipeline.get_bind_group_layout(0)

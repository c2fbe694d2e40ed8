"""LoadedTemplate: the parts of a compiled graph on a device that all its sizes share.

These are pipelines, constants and most bind groups. Kernels read sizes as words (uint32 numbers)
from a uniform buffer, and each set of sizes has its own words.
"""

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
from webnn_py.engines.webgpu.runtime.devices.buffer_init import write_and_unmap
from webnn_py.engines.webgpu.runtime.devices.device import Device
from webnn_py.engines.webgpu.runtime.devices.errors import device_errors
from webnn_py.engines.webgpu.runtime.devices.pipelines import PipelineKey
from webnn_py.ir import Value

if TYPE_CHECKING:
    from webnn_py.engines.webgpu.compiler.compiled import Compiled
    from webnn_py.engines.webgpu.compiler.kernel import Kernel, Part
    from webnn_py.engines.webgpu.compiler.template import Template

WORD_BYTES = 4
SIZE_SETS_PER_BUFFER = 32
"""Sets of sizes whose words share a buffer. The first set has its own, as many graphs have no
other."""
MAX_WORDS_BUFFER_BYTES = 1 << 22
"""Size limit of such a buffer, unless one set takes more."""

Places = Mapping[Value, Binding]


@dataclass(frozen=True, slots=True)
class Words:
    """The location of the words of a set of sizes.

    Attributes:
        buffer: The uniform buffer, which other sets may share; None if no kernel reads words.
        offset: Start in bytes.
    """

    buffer: Any
    offset: int


@dataclass(frozen=True, slots=True)
class AtSizes:
    """What the graphs of a template for the same sizes share.

    Attributes:
        words: The location of the words.
        buffer_bytes: Bytes of each buffer of intermediate values.
    """

    words: Words
    buffer_bytes: Sequence[int]


@dataclass(frozen=True, slots=True)
class Step:
    """One dispatch.

    Attributes:
        kernel: The kernel.
        pipeline: The compiled kernel.
        layout: The layout of its bind group.
        parts: The bound values, in order; the last one is written.
        words: Offset and size (bytes) of its words among those of all steps. They are bound behind
            the parts, if there are any.
        is_steady: Whether its bind group is the same for all sizes.
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
        compiled: The graph, compiled for any of its sizes.

    Attributes:
        steps: The dispatches, in order.
        constants: Their bindings.
        slots: The number of the buffer of each intermediate value.

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
        self._size = 0  # bytes of the words of one set of sizes
        sources: list[int] = []
        targets: list[int] = []
        for kernel, reads in zip(template.kernels, template.reads, strict=True):
            begin, size = self._size, -(-len(reads) // 4) * 4 * WORD_BYTES
            sources += reads
            targets += range(begin // WORD_BYTES, begin // WORD_BYTES + len(reads))
            parts = (*kernel.reads, *kernel.writes)
            words, steady = (begin, size), all(map(_is_steady, parts))
            self.steps.append(Step(kernel, *pipelines[kernel.code], parts, words, steady))
            self._size += aligned(size)
        runs = ((*step.kernel.workgroups, step.kernel.times) for step in self.steps)
        self._runs = calculation([number for run in runs for number in run])
        self._sources, self._targets = np.array(sources, np.intp), np.array(targets, np.intp)
        self._words = Words(None, 0)  # of the latest set of sizes
        self._lock = threading.Lock()
        self._groups: weakref.WeakValueDictionary[int, BindGroups] = weakref.WeakValueDictionary()

    def place_words(self, words: Sequence[int]) -> Words:
        """Upload the words of a set of sizes (`Compiled.words`)."""
        if not self._size:
            return self._words
        contents = np.zeros(self._size // WORD_BYTES, np.uint32)
        contents[self._targets] = np.array(words, np.uint32)[self._sources]
        with device_errors(f"uploading {self._size} bytes of numbers"), self._gpu.life:
            with self._lock:
                is_first = self._words.buffer is None
                self._words = placed = self._first_words() if is_first else self._more_words()
            raw = contents.view(np.uint8)
            if is_first:
                write_and_unmap(self._gpu, placed.buffer, [(0, raw)])
            else:
                self._gpu.webgpu.write_buffer(self._gpu.queue, placed.buffer, placed.offset, raw)
        return placed

    def _first_words(self) -> Words:
        usage = wgpu.BufferUsage.UNIFORM
        return Words(self._gpu.buffer(self._size, usage, "numbers", mapped=True), 0)

    def _more_words(self) -> Words:
        buffer, offset = self._words.buffer, self._words.offset + self._size
        if offset >= buffer.size:
            usage = wgpu.BufferUsage.UNIFORM | wgpu.BufferUsage.COPY_DST
            sizes = max(1, min(SIZE_SETS_PER_BUFFER, MAX_WORDS_BUFFER_BYTES // self._size))
            buffer, offset = self._gpu.buffer(sizes * self._size, usage, "numbers"), 0
        return Words(buffer, offset)

    def runs(self, numbers: Numbers) -> Iterator[tuple[int, int, int, int]]:
        """Yield the workgroups (x, y, z) and repetitions of each step for a set of sizes."""
        each = iter(self._runs(numbers))
        return zip(each, each, each, each, strict=True)

    def groups(self, words: Words, pool: Sequence[Any]) -> BindGroups:
        """Return the bind groups over a set of buffers. Cached as long as they are used.

        Args:
            words: The location of the words.
            pool: The buffers of intermediate values.
        """
        key = id(pool[0]) if pool else 0
        found = self._groups.get(key)
        if found is None or found.buffers != (words.buffer, *pool):
            found = self._groups[key] = BindGroups(self, words, pool)
        return found

    def bind(self, step: Step, places: Places, words: Words, numbers: Numbers) -> Any:
        """Make the bind group of a step.

        Args:
            step: A step of this template.
            places: The bindings of its values.
            words: The location of the words; dispatches pass the offset as a dynamic offset.
            numbers: The sizes, if the step is not steady.
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


class BindGroups:
    """The bind groups of a template's steady steps over one set of buffers, for all sizes.

    Args:
        loaded: The template.
        words: The location of the words.
        pool: The buffers of intermediate values.

    Attributes:
        buffers: The buffer of words, then those of intermediate values.
        own: The bindings of constants and of intermediate values.
        fixed: Bind groups without inputs and outputs, by step number.
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
        """Return whether all values of a step are constants or intermediate values."""
        return all(part.value in self.own for part in step.parts)

    def at_ends(self, places: Places) -> dict[int, Any]:
        """Return the bind groups of the other steady steps, by step number.

        Args:
            places: The bindings of the template's inputs and outputs.
        """
        return self._at_ends.get(places, self._bind_ends)

    def _bind_ends(self, places: Places) -> dict[int, Any]:
        everything, outer = {**self.own, **places}, checkpoints(self._outer.items())
        return {n: self._loaded.bind(step, everything, self._words, {}) for n, step in outer}


def pipelines_of(
    gpu: Device, template: Template, meanwhile: Callable[[], None] = lambda: None
) -> dict[str, Any]:
    """Return the pipelines of a template, by the code of kernels.

    Args:
        gpu: The device.
        template: The template.
        meanwhile: Work for the calling thread while other threads compile.

    Raises:
        OperationError: The device refused a kernel.
    """
    by_code = {kernel.code: kernel for kernel in template.kernels}
    wanted = ((kernel.name, PipelineKey.of_graph(kernel)) for kernel in by_code.values())
    return dict(zip(by_code, gpu.pipelines.get_all(wanted, meanwhile), strict=True))


def _is_steady(part: Part) -> bool:
    """Return whether the binding of a part is the same for all sizes.

    A part that begins with its buffer can be bound to the end of the buffer.
    """
    return not is_traced(part.offset) and (part.offset == 0 or not is_traced(part.size))


def _layout_of(pipeline: Any) -> Any:
    """Return the layout of a pipeline's bind group."""
    with device_errors(f"binding {pipeline.label}"):
        return pipeline.get_bind_group_layout(0)

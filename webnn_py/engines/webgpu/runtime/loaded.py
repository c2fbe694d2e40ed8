"""A compiled graph on a device: pipelines and buffers, recorded as often as one likes."""

from __future__ import annotations

import functools
import itertools
import threading
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import wgpu

from webnn_py.core.at_once import MOST_THREADS, at_once
from webnn_py.core.cooperation import checkpoint, checkpoints
from webnn_py.core.dtypes import DTYPES
from webnn_py.core.recently_used import Held
from webnn_py.core.tracing import calculated
from webnn_py.engines.webgpu.program.storage import aligned, buffer_bytes, host_dtype
from webnn_py.engines.webgpu.runtime.devices.binding import Binding, PlaceCache
from webnn_py.engines.webgpu.runtime.devices.device import COPIES, STORAGE, Device
from webnn_py.engines.webgpu.runtime.devices.errors import device_errors
from webnn_py.engines.webgpu.runtime.devices.filling import LargeConstants, write_made
from webnn_py.engines.webgpu.runtime.devices.run_buffers import RunBuffers
from webnn_py.engines.webgpu.runtime.devices.weights import Contents
from webnn_py.engines.webgpu.runtime.steps import Step, Steps
from webnn_py.engines.webgpu.runtime.wgpu_native.encoding import DispatchCommands
from webnn_py.engines.webgpu.runtime.wgpu_native.pieces import Encodable
from webnn_py.engines.webgpu.runtime.wgpu_native.public import Dispatch
from webnn_py.ir import Descriptor, Value

if TYPE_CHECKING:
    from webnn_py.engines.webgpu.compiler.compiled import Compiled

T = TypeVar("T")

SMALL_WEIGHT = 1 << 14
"""Bytes up to which the constants of a graph lie in one buffer: each takes a tenth of a
millisecond to make, whatever it holds."""
KERNEL = 2048
"""Bytes of the host's memory for a kernel and its bind group, about."""
LARGE_WEIGHT = 1 << 19
"""Bytes, on average, of weights that several threads upload: drivers have locks, which small ones
wait for longer than they take."""


class LoadedGraph:
    """Kernels' pipelines, and the graph's own buffers.

    Inputs and outputs are bound at recording. Everything else is made here, once.

    Args:
        gpu: The device.
        compiled: The graph for devices like it.
        like: The same for other sizes, of which it takes the constants where they are the same.
        buffers: Where runs compute, if others use them, too.

    Attributes:
        steps: What runs, for all sizes.
    """

    def __init__(
        self,
        gpu: Device,
        compiled: Compiled,
        like: LoadedGraph | None = None,
        buffers: RunBuffers | None = None,
    ) -> None:
        self.gpu = gpu
        self.compiled = compiled
        self.graph = compiled.ends
        template = compiled.template
        self._lock = threading.Lock()
        self._commands: PlaceCache[DispatchCommands] = PlaceCache()
        self._own: dict[Value, Binding] = {}
        self._buffers = buffers or RunBuffers(gpu)
        self._io: dict[Value, Binding] = {}
        self._ends: dict[Value, Hashable] = {  # with names that are the same for all sizes
            **{value: ("input", place) for place, value in enumerate(self.graph.inputs)},
            **{value: ("output", place) for place, (_, value) in enumerate(self.graph.outputs)},
        }
        outputs = (value for _, value in self.graph.outputs)
        self._in_template = dict(
            zip(
                (*self.graph.inputs, *outputs),
                (*template.inputs, *template.outputs),
                strict=True,
            )
        )
        self._apart: list[LoadedGraph] = []
        self._costs: Any = None
        self._check_sizes()
        if like is not None and like.compiled.template is template:
            self.steps: Steps = like.steps
            self._place_values(like)
        else:
            self.steps = Steps(gpu, template, functools.partial(self._place_values, like))
        self._words = self._place_words()
        self._fixed = [self._fixed_group(step) for step in checkpoints(self.steps.all)]

    def _check_sizes(self) -> None:
        """What the user will bind must fit into a buffer; better said now than at the first run."""
        for value in (*self.graph.inputs, *(value for _, value in self.graph.outputs)):
            self.gpu.check_size(buffer_bytes(value), f"a tensor {Descriptor.__str__(value)}")

    def _place_values(self, like: LoadedGraph | None) -> None:
        self._place_constants(like)
        self._place_intermediates()

    def _place_constants(self, like: LoadedGraph | None) -> None:
        constants = self.compiled.constants
        if like is not None and constants == like.compiled.constants:
            self._own |= like.places_of(constants)
            return
        small = [v for v in constants if buffer_bytes(v) <= SMALL_WEIGHT]
        values = [v for v in constants if buffer_bytes(v) > SMALL_WEIGHT]
        size = sum(map(buffer_bytes, values))
        threads = MOST_THREADS if size >= len(values) * LARGE_WEIGHT else 1
        groups = [[value] for value in values] + ([small] if small else [])
        with LargeConstants(self.gpu) as large:
            works = [functools.partial(self._weights, group, large) for group in groups]
            for places in at_once(works, size, threads):
                self._own |= places

    def places_of(self, values: Iterable[Value]) -> dict[Value, Binding]:
        """Where some of the graph's own values lie."""
        return {value: self._own[value] for value in values}

    def _weights(self, values: Sequence[Value], large: LargeConstants) -> dict[Value, Binding]:
        """Where constants lie in a buffer of theirs."""
        checkpoint()
        sizes = [buffer_bytes(value) for value in values]
        starts = list(itertools.accumulate(map(aligned, sizes[:-1]), initial=0))
        contents = [(self.graph.constants[value], value.data_type) for value in values]
        upload = functools.partial(self._upload, contents, starts, sizes, large)
        buffer = self.gpu.weights.get(contents, upload)
        return {
            value: Binding(buffer, start, size)
            for value, start, size in zip(values, starts, sizes, strict=True)
        }

    def _upload(
        self,
        contents: Sequence[Contents],
        starts: Sequence[int],
        sizes: Sequence[int],
        large: LargeConstants,
    ) -> Any:
        total = starts[-1] + sizes[-1]
        is_large = len(sizes) == 1 and large.takes(total)
        with device_errors(f"uploading constants of {total} bytes"), self.gpu.life:
            usage = STORAGE | COPIES
            buffer = self.gpu.buffer(total, usage, "constants", mapped=not is_large)
            arrays = (
                array.astype(DTYPES[host_dtype(kind)].numpy, copy=False) for array, kind in contents
            )
            parts = (padded_bytes(*one) for one in zip(arrays, sizes, strict=True))
            if is_large:
                large.write(buffer, *parts)
            else:
                write_made(self.gpu, buffer, zip(starts, parts, strict=True))
        return buffer

    def _place_intermediates(self) -> None:
        template, values = self.compiled.template, self.compiled.value_sizes()
        sizes = template.buffer_sizes(values)
        by_size = sorted(range(len(sizes)), key=sizes.__getitem__, reverse=True)
        pool = {
            slot: self._buffers.get(place, sizes[slot], f"intermediate {place}")
            for place, slot in checkpoints(enumerate(by_size))
        }
        for value, size in values.items():
            self._own[value] = Binding(pool[template.slots[value]], 0, size)

    def _place_words(self) -> Any:
        """The buffer of what kernels read from one; None if none does."""
        contents = self.steps.contents(self.compiled.words)
        if not contents.size:
            return None
        with device_errors(f"uploading {contents.nbytes} bytes of numbers"), self.gpu.life:
            buffer = self.gpu.buffer(
                contents.nbytes, wgpu.BufferUsage.UNIFORM, "numbers", mapped=True
            )
            write_made(self.gpu, buffer, [(0, contents)])
        return buffer

    def _fixed_group(self, step: Step) -> Any:
        """The bind group of a step whose values all lie in the graph's own buffers, else None."""
        if not all(part.value in self._own for part in step.parts):
            return None
        with device_errors(f"binding {step.kernel.name}"):
            return self._bind_group(step, self._own)

    def take_apart(self) -> LoadedGraph:
        """The same graph over intermediates of its own, which nobody else has until `give_back`.

        Pipelines and constants are the same, as the device keeps each once.
        """
        with self._lock:
            if self._apart:
                return self._apart.pop()
        return LoadedGraph(self.gpu, self.compiled, self)

    def give_back(self, twin: LoadedGraph) -> None:
        """End what `take_apart` began; who takes it next follows in the queue."""
        with self._lock:
            self._apart.append(twin)

    def costs(self, make: Callable[[LoadedGraph], T]) -> T:
        """What is known of the time that this graph takes, kept for all its runs in slices."""
        with self._lock:
            if self._costs is None:
                self._costs = make(self)
            found: T = self._costs
            return found

    def _bind_group(self, step: Step, places: Mapping[Value, Binding]) -> Any:
        numbers, bound = self.compiled.numbers, []
        for part in step.parts:
            place = places[part.value]
            offset, size = calculated(part.offset, numbers), calculated(part.size, numbers)
            bound.append(Binding(place.buffer, place.offset + offset, size))
        if step.words[1]:
            bound.append(Binding(self._words, *step.words))
        return self.gpu.bind_places(step.layout, bound)

    def _commands_for(self, places: Mapping[Value, Binding]) -> DispatchCommands:
        """What is recorded for these places of inputs and outputs."""
        return DispatchCommands(self.dispatches(places))

    def dispatches(self, places: Mapping[Value, Binding]) -> list[Dispatch]:
        """The dispatch of each kernel, for these places of inputs and outputs."""
        everything = self._own | {self._in_template[value]: at for value, at in places.items()}
        numbers = self.compiled.numbers
        return [
            (
                step.pipeline,
                fixed or self._bind_group(step, everything),
                *calculated(step.kernel.workgroups, numbers),
                calculated(step.kernel.times, numbers),
            )
            for step, fixed in checkpoints(zip(self.steps.all, self._fixed, strict=True))
        ]

    def encode(self, compute: Any, places: Mapping[Value, Binding], name: Hashable = None) -> None:
        """Record one run into an open compute pass.

        Args:
            compute: A GPUComputePassEncoder.
            places: Where each input and output lies. No output shares a buffer with an input.
            name: Under what `repeat` may find the same again.
        """
        self.share()
        self._commands.get(places, self._commands_for, name).encode(compute)

    def share(self) -> None:
        """Know that commands use the intermediates which are submitted at any time, by anyone."""
        self._buffers.share()

    @property
    def in_pieces(self) -> bool:
        """Whether nobody else uses the intermediates between two pieces of a run.

        They must be submitted under the device's `submit_lock`.
        """
        return not self._buffers.shared

    def commands(self, places: Mapping[Value, Binding]) -> DispatchCommands:
        """One run, whole or in pieces, the first of which the device runs while others follow."""
        return self._commands.get(places, self._commands_for)

    def repeat(self, name: Hashable) -> DispatchCommands | None:
        """What `encode` recorded under a name; not kept for ever, nor longer than its buffers."""
        return self._commands.recall(name)

    def record(self, encoder: Any, places: Mapping[Value, Binding]) -> None:
        """Record one run into a GPUCommandEncoder with no open pass; as `encode`."""
        self.share()
        with device_errors("recording a graph"):
            record_pass(encoder, self._commands.get(places, self._commands_for))

    def held(self) -> Held:
        """Bytes of its buffers, of those that `io_buffer` makes, and of constants on the host."""
        arrays = {id(array): array.nbytes for array in self.graph.constants.values()}
        buffers = {id(place.buffer): place.buffer.size for place in self._own.values()}
        ends = sum(map(buffer_bytes, self._ends))
        return arrays | buffers | {id(self._buffers): ends, id(self): len(self._fixed) * KERNEL}

    def io_buffer(self, value: Value) -> Binding:
        """The graph's own buffer for an input or output; runs that use it follow in the queue."""
        with self._lock:
            if value not in self._io:
                size = buffer_bytes(value)
                buffer = self._buffers.get(self._ends[value], size, "io")
                self._io[value] = Binding(buffer, 0, size)
            return self._io[value]


def record_pass(encoder: Any, commands: Encodable) -> None:
    """Record dispatches as a pass of a GPUCommandEncoder."""
    compute = encoder.begin_compute_pass()
    commands.encode(compute)
    compute.end()


def padded_bytes(data: np.ndarray[Any, Any], size: int) -> np.ndarray[Any, Any]:
    """The bytes of an array, with zeros up to `size`."""
    raw = np.ascontiguousarray(data).reshape(-1).view(np.uint8)
    if raw.size == size:
        return raw
    wide = np.zeros(size, np.uint8)
    wide[: raw.size] = raw
    return wide

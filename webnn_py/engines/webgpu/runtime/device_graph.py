"""A compiled graph on a device: pipelines and buffers, recorded as often as one likes."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from webnn_py.core.gil_yield import checkpoints
from webnn_py.core.lru_cache import Held
from webnn_py.engines.webgpu.program.storage import buffer_bytes
from webnn_py.engines.webgpu.runtime.device_template import LoadedTemplate, Words
from webnn_py.engines.webgpu.runtime.devices.binding import Binding, PlaceCache
from webnn_py.engines.webgpu.runtime.devices.device import Device
from webnn_py.engines.webgpu.runtime.devices.errors import device_errors
from webnn_py.engines.webgpu.runtime.devices.run_buffers import RunBuffers
from webnn_py.engines.webgpu.runtime.submit_chunks import Encodable
from webnn_py.engines.webgpu.runtime.wgpu_native.encoding import DispatchCommands
from webnn_py.engines.webgpu.runtime.wgpu_native.fallback import Dispatch
from webnn_py.ir import Descriptor, Value

if TYPE_CHECKING:
    from webnn_py.engines.webgpu.compiler.compiled import Compiled

T = TypeVar("T")

GROUP = 2048
"""Bytes of the host's memory for a kernel and its bind group, about."""
DISPATCH = 256
"""And for how it is dispatched for some sizes."""


class LoadedGraph:
    """A graph's own buffers for some sizes, and what runs over them.

    Inputs and outputs are bound at recording. Everything else is made here, once.

    Args:
        gpu: The device.
        compiled: The graph for devices like it.
        template: What it has there for all sizes.
        buffers: Where runs compute, if others use them, too.
        words: Where those of its sizes lie, if they were placed before.

    Attributes:
        template: As given.
        words: Where what kernels read of numbers lies.
    """

    def __init__(
        self,
        gpu: Device,
        compiled: Compiled,
        template: LoadedTemplate,
        buffers: RunBuffers | None = None,
        words: Words | None = None,
    ) -> None:
        self.gpu = gpu
        self.compiled = compiled
        self.template = template
        self.graph = compiled.ends
        self._lock = threading.Lock()
        self._commands: PlaceCache[DispatchCommands] = PlaceCache()
        self._buffers = RunBuffers(gpu) if buffers is None else buffers
        self._io: dict[Value, Binding] = {}
        self._ends: dict[Value, Hashable] = {  # with names that are the same for all sizes
            **{value: ("input", place) for place, value in enumerate(self.graph.inputs)},
            **{value: ("output", place) for place, (_, value) in enumerate(self.graph.outputs)},
        }
        outputs = (value for _, value in self.graph.outputs)
        self._in_template = dict(
            zip(
                (*self.graph.inputs, *outputs),
                (*compiled.template.inputs, *compiled.template.outputs),
                strict=True,
            )
        )
        self._apart: list[LoadedGraph] = []
        self._costs: Any = None
        self._check_sizes()
        self.words = template.place_words(compiled.words) if words is None else words
        self._groups = template.groups(self.words, self._pool())
        self._inner = self._bind_inner()

    def _check_sizes(self) -> None:
        """What the user will bind must fit into a buffer; better said now than at the first run."""
        for value in (*self.graph.inputs, *(value for _, value in self.graph.outputs)):
            self.gpu.check_size(buffer_bytes(value), f"a tensor {Descriptor.__str__(value)}")

    def _pool(self) -> list[Any]:
        """The buffers of intermediate values."""
        sizes = self.compiled.template.buffer_sizes(self.compiled.value_sizes())
        return [
            self._buffers.get(slot, size, f"intermediate {slot}")
            for slot, size in checkpoints(enumerate(sizes))
        ]

    def _bind_inner(self) -> dict[int, Any]:
        """The bind groups of steps whose values all lie in the graph's own buffers, by number."""
        groups, numbers = self._groups, self.compiled.numbers
        return groups.fixed | {
            number: self.template.bind(step, groups.own, self.words, numbers)
            for number, step in checkpoints(enumerate(self.template.steps))
            if not step.is_steady and groups.has(step)
        }

    def places_of(self, values: Iterable[Value]) -> dict[Value, Binding]:
        """Where some of the graph's own values lie."""
        return {value: self._groups.own[value] for value in values}

    def take_apart(self) -> LoadedGraph:
        """The same graph over intermediates of its own, which nobody else has until `give_back`.

        Pipelines and constants are the same, as the device keeps each once.
        """
        with self._lock:
            if self._apart:
                return self._apart.pop()
        return LoadedGraph(self.gpu, self.compiled, self.template, words=self.words)

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

    def _commands_for(self, places: Mapping[Value, Binding]) -> DispatchCommands:
        """What is recorded for these places of inputs and outputs."""
        return DispatchCommands(self.dispatches(places))

    def dispatches(self, places: Mapping[Value, Binding]) -> list[Dispatch]:
        """The dispatch of each kernel, for these places of inputs and outputs."""
        ends = {self._in_template[value]: place for value, place in places.items()}
        groups = self._groups.at_ends(ends) | self._inner
        everything = self._groups.own | ends
        numbers, offset = self.compiled.numbers, (self.words.offset,)
        made: list[Dispatch] = []
        steps = zip(self.template.steps, self.template.runs(numbers), strict=True)
        for number, (step, run) in checkpoints(enumerate(steps)):
            group = groups.get(number)
            if group is None:
                group = self.template.bind(step, everything, self.words, numbers)
            made.append((step.pipeline, group, offset if step.words[1] else (), *run))
        return made

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
        return not self._buffers.is_shared

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
        held: dict[Hashable, int] = {
            id(array): array.nbytes for array in self.graph.constants.values()
        }
        places = self._groups.own.values()
        for buffer in {place.buffer for place in places} | {self.words.buffer} - {None}:
            held[id(buffer)] = buffer.size
        steps = len(self.template.steps)
        held[id(self._buffers)] = sum(map(buffer_bytes, self._ends))
        held[id(self._groups)] = steps * GROUP
        held[id(self)] = steps * DISPATCH
        return held

    def io_buffer(self, value: Value) -> Binding:
        """The graph's own buffer for an input or output; runs that use it follow in the queue."""
        with self._lock:
            if value not in self._io:
                size = buffer_bytes(value)
                buffer = self._buffers.get(self._ends[value], size, "io")
                self._io[value] = Binding(buffer, 0, size, buffer.size)
            return self._io[value]


def record_pass(encoder: Any, commands: Encodable) -> None:
    """Record dispatches as a pass of a GPUCommandEncoder."""
    compute = encoder.begin_compute_pass()
    commands.encode(compute)
    compute.end()

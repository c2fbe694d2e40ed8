"""LoadedGraph: a compiled graph on a device for one set of sizes, and the buffers of its runs."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Hashable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from webnn_py.core.errors import OperationError
from webnn_py.core.gil_yield import checkpoints
from webnn_py.core.lru_cache import MemoryUse
from webnn_py.engines.webgpu.program.storage import buffer_bytes
from webnn_py.engines.webgpu.runtime.device_template import AtSizes, LoadedTemplate
from webnn_py.engines.webgpu.runtime.devices.binding import Binding, PlaceCache
from webnn_py.engines.webgpu.runtime.devices.command_tracking import unobserved
from webnn_py.engines.webgpu.runtime.devices.device import COPIES, STORAGE, Device
from webnn_py.engines.webgpu.runtime.submit_chunks import Encodable
from webnn_py.engines.webgpu.runtime.webgpu_api import Dispatch, DispatchCommands
from webnn_py.ir import Descriptor, Value

if TYPE_CHECKING:
    from webnn_py.engines.webgpu.compiler.compiled import Compiled

T = TypeVar("T")

BIND_GROUP_HOST_BYTES = 2048
"""Approximate host memory of a kernel and its bind group."""
DISPATCH_HOST_BYTES = 256
"""Approximate host memory of a kernel's dispatch for one set of sizes."""
SIZES_PER_DOUBLING = 2
"""A buffer that grows takes one of so many sizes in each doubling, so that it grows seldom."""


class RunBuffers:
    """Growable buffers by name. Runs for all open sizes share them, as the queue orders runs.

    Args:
        gpu: The device.
    """

    def __init__(self, gpu: Device) -> None:
        self._gpu = gpu
        self._buffers: dict[Hashable, Any] = {}
        self._lock = threading.Lock()
        self._shared = False

    def get(self, name: Hashable, size: int, label: str) -> Any:
        """Return the buffer of a name; make or replace it if it has fewer than `size` bytes."""
        with self._lock:
            found = self._buffers.get(name)
            if found is None or found.size < size:
                found = self._buffers[name] = self._make(size, label, grows=found is not None)
            return found

    def _make(self, size: int, label: str, grows: bool) -> Any:
        room = min(_rounded_up(size), self._gpu.max_buffer_bytes)
        if grows and room > size:
            with contextlib.suppress(OperationError):  # there may be memory for `size` alone
                return self._gpu.buffer(room, STORAGE | COPIES, label)
        return self._gpu.buffer(size, STORAGE | COPIES, label)

    def share(self) -> None:
        """Note that recorded commands use the buffers, which anyone may submit at any time."""
        if not self._shared:
            with self._gpu.submit_lock:  # wait for the end of a run submitted in chunks
                self._shared = True

    @property
    def is_shared(self) -> bool:
        """Return whether recorded commands use the buffers."""
        return self._shared


def _rounded_up(size: int) -> int:
    """Round up to one of `SIZES_PER_DOUBLING` sizes in each doubling."""
    step = max(4, (1 << size.bit_length() - 1) // SIZES_PER_DOUBLING)
    return -(-size // step) * step


class LoadedGraph:
    """A graph's buffers and bind groups on a device for one set of sizes.

    Inputs and outputs are bound when a run is recorded. Everything else is made once, here.

    Args:
        gpu: The device.
        compiled: The compiled graph.
        template: The parts that all sizes share.
        buffers: Buffers of intermediate values shared with other graphs; None for own ones.
        at_sizes: The parts that another graph of the same sizes has made already.

    Attributes:
        template: The parts that all sizes share.
        at_sizes: The parts that graphs of the same sizes share.
        words: Location of the kernels' size words.
    """

    def __init__(
        self,
        gpu: Device,
        compiled: Compiled,
        template: LoadedTemplate,
        buffers: RunBuffers | None = None,
        at_sizes: AtSizes | None = None,
    ) -> None:
        self.gpu = gpu
        self.compiled = compiled
        self.template = template
        self.graph = compiled.ends
        self._lock = threading.Lock()
        self._commands: PlaceCache[DispatchCommands] = PlaceCache()
        self._buffers = RunBuffers(gpu) if buffers is None else buffers
        self._io: dict[Value, Binding] = {}
        self._ends: dict[Value, Hashable] = {  # buffer names, the same for all sizes
            **{value: ("input", index) for index, value in enumerate(self.graph.inputs)},
            **{value: ("output", index) for index, (_, value) in enumerate(self.graph.outputs)},
        }
        outputs = (value for _, value in self.graph.outputs)
        self._in_template = dict(
            zip(
                (*self.graph.inputs, *outputs),
                (*compiled.template.inputs, *compiled.template.outputs),
                strict=True,
            )
        )
        self._twins: list[LoadedGraph] = []
        self._costs: Any = None
        self.at_sizes = self._at_sizes() if at_sizes is None else at_sizes
        self.words = self.at_sizes.words
        self._groups = template.groups(self.words, self._pool())
        self._inner = self._bind_inner()

    def _at_sizes(self) -> AtSizes:
        """Check early, before the first run, that all tensors fit into buffers; place the words."""
        for value in (*self.graph.inputs, *(value for _, value in self.graph.outputs)):
            self.gpu.check_size(buffer_bytes(value), f"a tensor {Descriptor.__str__(value)}")
        sizes = self.compiled.template.buffer_sizes(self.compiled.value_sizes())
        return AtSizes(self.template.place_words(self.compiled.words), sizes)

    def _pool(self) -> list[Any]:
        """Return the buffers of intermediate values."""
        return [
            self._buffers.get(slot, size, f"intermediate {slot}")
            for slot, size in checkpoints(enumerate(self.at_sizes.buffer_bytes))
        ]

    def _bind_inner(self) -> dict[int, Any]:
        """Bind the steps whose values all lie in the graph's own buffers; return them by number."""
        groups, numbers = self._groups, self.compiled.numbers
        return groups.fixed | {
            number: self.template.bind(step, groups.own, self.words, numbers)
            for number, step in checkpoints(enumerate(self.template.steps))
            if not step.is_steady and groups.has(step)
        }

    def borrow_twin(self) -> LoadedGraph:
        """Return a twin of this graph with intermediate buffers of its own, until `return_twin`.

        Pipelines and constants are shared.
        """
        with self._lock:
            if self._twins:
                return self._twins.pop()
        return LoadedGraph(self.gpu, self.compiled, self.template, at_sizes=self.at_sizes)

    def return_twin(self, twin: LoadedGraph) -> None:
        """Return a twin of `borrow_twin` for reuse; the device queue orders its next run."""
        with self._lock:
            self._twins.append(twin)

    def costs(self, make: Callable[[LoadedGraph], T]) -> T:
        """Return the measured costs of this graph's dispatches; call `make` the first time."""
        with self._lock:
            if self._costs is None:
                self._costs = make(self)
            found: T = self._costs
            return found

    def _commands_for(self, places: Mapping[Value, Binding]) -> DispatchCommands:
        """Make the commands of a run for these bindings of inputs and outputs."""
        return self.gpu.webgpu.DispatchCommands(self.dispatches(places))

    def dispatches(self, places: Mapping[Value, Binding]) -> list[Dispatch]:
        """Return the dispatch of each kernel for these bindings of inputs and outputs."""
        ends = {self._in_template[value]: place for value, place in places.items()}
        groups = self._groups.at_ends(ends) | self._inner
        everything = self._groups.own | ends
        numbers, offset = self.compiled.numbers, (self.words.offset,)
        dispatches: list[Dispatch] = []
        steps = zip(self.template.steps, self.template.runs(numbers), strict=True)
        for number, (step, run) in checkpoints(enumerate(steps)):
            group = groups.get(number)
            if group is None:
                group = self.template.bind(step, everything, self.words, numbers)
            dispatches.append((step.pipeline, group, offset if step.words[1] else (), *run))
        return dispatches

    def encode(self, compute: Any, places: Mapping[Value, Binding], name: Hashable = None) -> None:
        """Record one run into an open compute pass.

        Args:
            compute: A GPUComputePassEncoder.
            places: The binding of each input and output. No output shares a buffer with an input.
            name: A name under which `repeat` finds the same commands.
        """
        self.share()
        self.commands(places, name).encode(compute)

    def share(self) -> None:
        """Note that recorded commands use the intermediates, which anyone may submit any time."""
        self._buffers.share()

    @property
    def in_pieces(self) -> bool:
        """Return whether runs may be submitted in chunks, under the device's `submit_lock`.

        Other recorded commands could otherwise use the intermediates between two chunks.
        """
        return not self._buffers.is_shared

    def commands(self, places: Mapping[Value, Binding], name: Hashable = None) -> DispatchCommands:
        """Return the commands of one run for these bindings; `repeat` finds them by the name."""
        return self._commands.get(places, self._commands_for, name)

    def repeat(self, name: Hashable) -> DispatchCommands | None:
        """Return the commands that `encode` recorded under a name, if they are still cached."""
        return self._commands.recall(name)

    def memory_use(self) -> MemoryUse:
        """Return the memory in bytes, by identity: of buffers, constants, and bind groups."""
        held: dict[Hashable, int] = {
            id(array): array.nbytes for array in self.graph.constants.values()
        }
        places = self._groups.own.values()
        for buffer in {place.buffer for place in places} | {self.words.buffer} - {None}:
            held[id(buffer)] = buffer.size
        steps = len(self.template.steps)
        held[id(self._buffers)] = sum(map(buffer_bytes, self._ends))
        held[id(self._groups)] = steps * BIND_GROUP_HOST_BYTES
        held[id(self)] = steps * DISPATCH_HOST_BYTES
        return held

    def io_buffer(self, value: Value) -> Binding:
        """Return the graph's own buffer for an input or output. The queue orders its users."""
        with self._lock:
            if value not in self._io:
                size = buffer_bytes(value)
                buffer = self._buffers.get(self._ends[value], size, "io")
                self._io[value] = Binding(buffer, 0, size, buffer.size)
            return self._io[value]


def record_pass(encoder: Any, commands: Encodable) -> None:
    """Record commands as a compute pass of a GPUCommandEncoder."""
    compute = encoder.begin_compute_pass()
    commands.encode(compute)
    compute.end()


class PassEncoder:
    """A command encoder, and the compute pass that is open in it.

    Args:
        encoder: The encoder, without an open pass.
    """

    def __init__(self, encoder: Any) -> None:
        self._encoder = encoder
        self._pass: Any = None

    def encoder(self) -> Any:
        """Return the command encoder, with no pass open."""
        if self._pass is not None:
            compute, self._pass = self._pass, None
            compute.end()
        return self._encoder

    def compute_pass(self) -> Any:
        """Return the open compute pass, which consecutive runs share."""
        if self._pass is None:
            self._pass = unobserved(self.encoder()).begin_compute_pass()
        return self._pass

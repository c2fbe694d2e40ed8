"""The interfaces of an engine, its executables and its queue."""

from __future__ import annotations

import functools
import math
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, TypeVar

from webnn_py.core.completion import Cancellation, Completion
from webnn_py.core.errors import ContextLostError
from webnn_py.core.gil_yield import checkpoints
from webnn_py.core.lru_cache import MemoryUse
from webnn_py.engines.limits import EngineLimits
from webnn_py.engines.profile import Roof, RunTime, timed
from webnn_py.ir import Array, Descriptor, Graph, Node, Shape, Value
from webnn_py.memory.allocation import OutputSpecs, new_array
from webnn_py.memory.host_arrays import BorrowedArray
from webnn_py.memory.overlap import EVERYTHING, MemoryLocation, Region, region_of
from webnn_py.ops.registry import Operator, TypesByOperand
from webnn_py.ordering.operation import Executor, Operation, Run
from webnn_py.ordering.schedule import Schedule
from webnn_py.ordering.unordered import UnorderedRun
from webnn_py.passes import PIPELINE, Pass

T = TypeVar("T")
Compute = Callable[[Sequence[Array], Sequence[Array]], None]
"""Computes outputs from inputs, as `HostExecutable.run`."""


@dataclass(frozen=True, slots=True)
class Step:
    """A unit that an executable runs as a whole, such as a kernel.

    Attributes:
        name: Name in listings.
        nodes: The nodes that it computes. Several steps may compute the same cheap node.
        reads: The values that it reads from memory.
        writes: The values that it writes to memory.
    """

    name: str
    nodes: tuple[Node, ...]
    reads: tuple[Value, ...]
    writes: tuple[Value, ...]


@dataclass(frozen=True, slots=True)
class Steps:
    """All steps of an executable.

    Attributes:
        graph: The graph that it computes, in the operators that its engine has.
        steps: The steps in the order of execution; together they compute all nodes.
    """

    graph: Graph
    steps: tuple[Step, ...]


class CannotCompile(Exception):
    """An engine failed to compile a graph of supported nodes; the next engine compiles it."""


class AwaitedRun(ABC):
    """One awaited computation, from its checked arguments to its results.

    Runs on hosts and devices, runs that wait for a compilation and joined runs of a batch pass
    through the same states, each once and in this order:

        checked -> inputs read -> recorded -> submitted -> read back -> done

    run                who checks and reads its inputs      who calls `begin`, which does the rest
    HostRun            the caller, `HostExecutable.start`   the context's worker, in one call
    AwaitedDeviceRun   the caller, `read_inputs`            its driver; see there
    PostponedRun       the caller; what needs the           the worker, once the build thread has
                       executable, `begin`                  compiled it; begins an inner run
    of a batch         the thread that joins the inputs     that thread; see `BatchQueue`

    A run in the context's order is begun when all work before it that shares memory is submitted,
    any other when fewer runs are in flight (`when_there_is_room`). A cancelled run goes from any
    state to done. It writes its outputs whole or not at all.

    Attributes:
        done: Resolved in the last state.
        cancellation: Whether the await was cancelled.
        key: A key under which `Queue.repeat` finds its work later, if it is for a device.
    """

    key: Hashable = None

    def __init__(self) -> None:
        self.done: Completion[None] = Completion()
        self.cancellation = Cancellation()

    def read_inputs(self) -> None:
        """Read the arrays among the inputs that others may change from now on.

        Raises:
            ContextLostError: The device is lost.
        """
        return None

    @abstractmethod
    def begin(self) -> None:
        """Compute, or have the device do so; `done` follows."""

    @property
    def end(self) -> Awaitable[None]:
        """Return what to await, once, after it was begun: `done`, or what leads there sooner."""
        return self.done

    def prepare_next(self) -> None:
        """Prepare such runs that follow, on the context's worker when this one has begun."""
        return None

    @abstractmethod
    def memory(self) -> tuple[list[Region], list[Region]]:
        """Return the regions that it reads and writes and others may use, but for tensors."""

    @abstractmethod
    def results(self) -> list[Any]:
        """Return the written arrays and resources in the order of the outputs.

        Call it once, when the run is done: the run may keep no reference.
        """

    @abstractmethod
    def release(self) -> None:
        """Drop copies of inputs; the run is done or was cancelled."""

    def when_there_is_room(self, start: Run, is_next: bool = False) -> None:
        """Call `start` now, or when fewer runs are in flight; block nobody.

        Args:
            start: Has the context's worker call `begin`.
            is_next: Whether the worker is idle, so that this thread may do short steps for it.
        """
        start()


class HostRun(AwaitedRun):
    """One awaited computation on the host.

    Args:
        compute: Computes outputs from inputs.
        inputs: Arrays that nobody else changes.
        outputs: The arrays to be written.
    """

    def __init__(self, compute: Compute, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        super().__init__()
        self._compute = compute
        self._inputs = inputs
        self._outputs = list(outputs)

    def begin(self) -> None:
        """Compute."""
        inputs = self._inputs
        with self.cancellation:
            self.cancellation.check()
            self._compute(inputs, self._outputs)
        self.done.set_result(None)

    def memory(self) -> tuple[list[Region], list[Region]]:
        """Return the outputs; nobody else may change the inputs."""
        return [], [region_of(array) for array in self._outputs]

    def release(self) -> None:
        """Drop the input arrays; a running computation keeps them."""
        self._inputs = ()

    def results(self) -> list[Any]:
        """Return the written arrays."""
        return self._outputs


class Executable(ABC):
    """A graph compiled for an engine; running and recording do not change it.

    Inputs and outputs are positional, in the graph's order. Its memory is freed after the last run
    that uses it.
    """

    def describe(self) -> str:
        """Return a readable listing of the steps; "" if the engine has none of its own."""
        return ""

    def steps(self) -> Steps | None:
        """Return the steps as data, or None if the engine does not know them."""
        return None

    def code(self) -> str:
        """Return the generated code; "" if there is none."""
        return ""

    def memory_use(self) -> MemoryUse:
        """Return the memory that it uses: bytes by the identity of each block.

        Memory that several executables share, such as weights, has the same identity in each.
        """
        return {}

    def maker(self) -> Callable[[], Executable]:
        """Return a function that makes executables for equal graphs, without compiling again.

        By default they share this executable.
        """
        return lambda: self

    @abstractmethod
    def start(self, inputs: Sequence[Any], outputs: Sequence[Any]) -> AwaitedRun:
        """Check the arguments of an awaited run and return the run, which has not begun.

        Args:
            inputs: For each input an array that nobody else changes, the memory of a tensor, or a
                resource of the engine's device.
            outputs: The same for each output, or None to allocate a new array.

        Raises:
            DataError: An argument does not fit; nothing has run.
        """

    @abstractmethod
    def profile(self, inputs: Sequence[Any], outputs: Sequence[Any]) -> RunTime:
        """Run once on this thread and measure the time.

        Args:
            inputs: As for `start`.
            outputs: As for `start`; results for None are discarded.

        Raises:
            DataError: An argument does not fit; nothing has run.
            OperationError: The run failed.
        """


class HostExecutable(Executable):
    """A compiled graph that runs on the calling thread, in host memory.

    Attributes:
        any_memory: Whether `run` accepts unaligned arrays, and outputs that are strided or share
            memory with inputs. If False, callers copy such arrays.
        in_place: Index of the input whose memory an output may have, by the output's index. An
            output that has it holds the next state of that input, which nothing copies.
        took: Recent duration of an awaited run in seconds, without waits for the interpreter.
    """

    any_memory: bool = False
    in_place: Mapping[int, int] = MappingProxyType({})
    took: float = math.inf

    @abstractmethod
    def run(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        """Compute the outputs into `outputs`; several threads may call it at the same time.

        All arrays have the graph's data types and shapes, and are C-contiguous and aligned. No
        output shares memory with another output, or with an input except as `in_place` says.
        Inputs may share memory and be read-only.

        Args:
            inputs: Arrays in the order of the graph's inputs; do not change them.
            outputs: Arrays in the order of the graph's outputs, with undefined contents.

        Raises:
            OperationError: The run failed. Any other exception becomes an OperationError that names
                the engine.
        """

    def bind(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> Callable[[], None]:
        """Return a function for one thread that runs on these arrays each time; see `run`."""
        return functools.partial(self.run, inputs, outputs)

    def new_results(self, inputs: Sequence[Array], ends: OutputSpecs) -> Sequence[Array]:
        """Compute the outputs into new arrays of these shapes and data types; see `run`."""
        outputs = [new_array(shape, dtype) for shape, dtype in ends]
        self.run(inputs, outputs)
        return outputs

    def ran(self, seconds: float) -> None:
        """Note a run's duration: lower `took` at once, raise it slowly.

        A longer duration often includes waiting for the interpreter.
        """
        more = seconds - self.took
        self.took = seconds if more < 0 else self.took + 0.1 * more

    @property
    def alone(self) -> HostExecutable | None:
        """An executable of the same graph that uses only the calling thread, for parallel runs."""
        return None

    def make_alone(self) -> None:
        """Create `alone` if it pays, which may take long."""
        return None

    def start(self, inputs: Sequence[Any], outputs: Sequence[Any]) -> AwaitedRun:
        """Return a run that computes on the thread that begins it."""
        return HostRun(self.run, inputs, outputs)

    def profile(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> RunTime:
        """Run once and measure the time, without steps."""
        return RunTime((), timed(lambda: self.run(inputs, outputs)), "host")


class Loss:
    """A context manager that calls `on_lost` if its block raises a ContextLostError.

    It is a class because every awaited run enters it and a generator would be slower.

    Attributes:
        on_lost: Called with the reason when the device is lost.
    """

    __slots__ = ("on_lost",)

    def __init__(self) -> None:
        self.on_lost: Callable[[str], None] = lambda message: None

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, ContextLostError):
            self.on_lost(str(error))


class Queue(ABC):
    """The order of a context's work on tensors.

    `write`, `read` and `dispatch` create work. `submit` queues it and returns at once; work that
    cannot run yet waits in order.

    Args:
        executor: Runs the work. It must not refer to this queue, or the queue would stay alive.
        loss: The device-loss guard, if it is shared with others.
    """

    def __init__(self, executor: Executor, loss: Loss | None = None) -> None:
        self._schedule = Schedule(executor)
        self._loss = Loss() if loss is None else loss

    @abstractmethod
    def allocate(self, descriptor: Descriptor) -> Any:
        """Allocate zeroed memory for a tensor."""

    @abstractmethod
    def target(self, storage: Any) -> MemoryLocation:
        """Return the memory location of a tensor to write."""

    @abstractmethod
    def write(self, storage: Any, lent: BorrowedArray) -> Run:
        """Return work that copies host memory into a tensor."""

    @abstractmethod
    def read(
        self,
        storage: Any,
        target: Array,
        done: Completion[None],
        cancellation: Cancellation,
        waits: bool = False,
        slow: bool = False,
    ) -> Run:
        """Return work that reads a tensor into host memory and then resolves `done`.

        Args:
            storage: The tensor's memory.
            target: The array to read into.
            done: Resolved when the contents are there.
            cancellation: Cancels the read.
            waits: This thread blocks until the read is done.
            slow: The worker runs it, see `reads_long`.
        """

    def reads_long(self, storage: Any) -> bool:
        """Whether beginning to read a tensor would block this thread's event loop for long."""
        return False

    @abstractmethod
    def dispatch(
        self,
        executable: Executable,
        inputs: Sequence[Any],
        outputs: Sequence[Any],
        key: Hashable = None,
    ) -> Run:
        """Return work that runs a graph on tensors' memory; cache it for `repeat` under `key`."""

    def repeat(self, executable: Executable, key: Hashable) -> Run | None:
        """Return the cached work of `dispatch` for this key, or None."""
        return None

    def repeat_at_once(self, executable: Executable, key: Hashable) -> Run | None:
        """Return the cached work of a run if an event loop may record and submit it, or None."""
        return None

    def submit(self, operation: Operation) -> None:
        """Queue work behind earlier work that shares memory or a timeline with it.

        Raises:
            ContextLostError: The context is lost.
        """
        self._schedule.submit(operation)

    @property
    def is_free(self) -> bool:
        """Whether work submitted now probably runs within `submit`."""
        return self._schedule.is_free

    def wait_for_room(self, seconds: float | None) -> None:
        """Block while queued work holds too much host memory, for at most so many seconds."""
        self._schedule.wait_for_room(seconds)

    def withdraw(self, operation: Operation) -> None:
        """Remove work that has not begun."""
        self._schedule.withdraw(operation)

    @property
    def has_others(self) -> bool:
        """Whether new work may have to wait for unfinished work, ordered or not."""
        return bool(self._schedule.unordered) or self._schedule.keeps_order

    def begin_unordered(
        self, reads: Sequence[Region], writes: Sequence[Region], names: Sequence[str]
    ) -> UnorderedRun | None:
        """Begin a run outside the queue, until its `end`; return None if it must be queued.

        Args:
            reads: Memory that it reads and other work may write.
            writes: Memory that it writes.
            names: Names of its outputs.
        """
        if self._schedule.keeps_order:
            return None
        return self._schedule.unordered.begin(reads, writes, names)

    def flush(self) -> list[Operation]:
        """Begin all work that can run.

        Returns:
            The work that still waits, directly or indirectly, for a timeline.
        """
        return self._schedule.settle()

    def raise_failed(self) -> None:
        """Raise an OperationError if accepted work failed and no caller has seen the error."""
        return None

    def users(self, region: Region) -> list[Operation | UnorderedRun]:
        """Return the unfinished or unrecorded work that uses a region of memory."""
        return self._schedule.users(region)

    def close(self, error: BaseException) -> None:
        """Fail all work that has not begun with `error`."""
        self._schedule.close(error)

    def loss(self) -> Loss:
        """Return the guard that marks the context lost if its block finds the device lost."""
        return self._loss

    def on_lost(self, message: str) -> None:
        """Mark the context lost, with the reason."""
        self._loss.on_lost(message)


AtSizes = Callable[[Graph, Mapping[str, int]], Executable]
"""Function that compiles a graph bound to sizes; takes the sizes too, may raise CannotCompile."""


class Engine(ABC):
    """An engine, which compiles graphs and runs them.

    A node that the first engine of a context does not support goes to the next one. The last engine
    of a CPU context is the reference engine, which supports everything.

    Attributes:
        name: Name to choose and show it by; for CPU contexts it comes from the registry.
        passes: The passes that run before a graph is split and compiled, in order. Without
            `decompose`, unsupported composites go whole to the next engine.
        crossing_cost: Cost of handing tensors to the engine and back, as the number of elements
            that could be read and written in that time. Smaller parts of a graph go to the next
            engine if it supports them.
        stays_open: Whether `compile_open` may return a function.
        leaves_states: Whether the next engine is to run each `scatter_rows` into an input for a
            result, which it does in place.
        has_own_weights: Whether it copies most weights to a layout of its own, so that the graph's
            constants are seldom read after the build.
        widen_limit: Most bytes by which a constant may grow that a build widens to floats.
        accelerated: Whether it runs on a hardware GPU.
        has_tensor_cores: Whether its device has instructions that multiply matrices of float16.
        device: The device whose resources it accepts, if it has one.
    """

    name: str
    passes: tuple[Pass, ...] = PIPELINE
    crossing_cost: int = 0
    stays_open: bool = False
    leaves_states: bool = False
    has_own_weights: bool = False
    widen_limit: int = 0
    accelerated: bool = False
    has_tensor_cores: bool = False
    device: Any = None

    def limits(self) -> EngineLimits:
        """Return the bounds of every tensor; default: those of the specification.

        A context reports the limits and `supported_types` of its last engine, which runs what the
        others do not. Earlier engines refuse nodes in `supports`.
        """
        return EngineLimits()

    @property
    def rewrites_by(self) -> str:
        """Key of everything but the graph that the passes' results depend on; "" if unknown.

        Engines with a key get imported models cached on disk.
        """
        return ""

    def supported_types(self, op: Operator) -> TypesByOperand:
        """Return the supported data types of each operand and of "output"; default: all."""
        return {name: op.operand_types(name) for name in (*op.limits, "output")}

    def supports(self, node: Node) -> bool:
        """Whether the engine runs this node itself.

        An unsupported composite is decomposed (see `passes`); other nodes go to the next engine.
        """
        return True

    def supports_each(self, nodes: Sequence[Node]) -> Sequence[bool]:
        """Answer `supports` for several nodes; override it where that is faster."""
        return [self.supports(node) for node in checkpoints(nodes)]

    def keeps_whole(self, node: Node) -> bool:
        """Whether `decompose` leaves a composite as it is; default: if the engine supports it."""
        return self.supports(node)

    def takes(self, value: object) -> bool:
        """Whether a value is a resource of the engine's own device, such as a GPUBuffer."""
        return False

    def region(self, resource: Any) -> Region:
        """Return the memory region of a resource that `takes` accepts."""
        return EVERYTHING

    def shape_of(self, resource: Any, shape: Shape, what: str) -> Shape | None:
        """Return the only shape that a resource can have as a tensor, or None.

        Args:
            resource: A resource of the engine's own device.
            shape: The tensor's expected shape, with open dimensions.
            what: The tensor's name in messages.

        Raises:
            DataError: The resource does not fit the shape.
        """
        return None

    def destroy(self) -> None:
        """Release the engine's own resources; its context no longer exists."""
        return None

    def wake(self) -> None:
        """Run the hardware until it reaches full speed, because idle hardware lowers its clock."""
        return None

    def roof(self) -> Roof | None:
        """Return the measured peak speed of the hardware, or None if it is unknown."""
        return None

    @abstractmethod
    def queue(self, worker: Callable[[Run], None], width: int) -> Queue:
        """Create the queue of a new context.

        Args:
            worker: Runs a function on one of the context's threads.
            width: Number of these threads; 1 if the engine has a device.
        """

    def pick(
        self, recipe: Graph, build: Callable[[Engine], tuple[T, Executable]]
    ) -> tuple[T, Executable]:
        """Build a graph with this engine; an engine that represents several picks one of them.

        Args:
            recipe: The graph as recorded, without open dimensions.
            build: Function that optimizes and compiles the graph for an engine.
        """
        return build(self)

    def compile_open(self, graph: Graph) -> AtSizes | None:
        """Compile a graph with open dimensions for all sizes; None if the engine cannot.

        In that case each set of sizes is compiled separately.
        """
        return None

    @abstractmethod
    def compile(self, graph: Graph) -> Executable:
        """Compile a graph; several threads may compile different graphs at the same time.

        Args:
            graph: A whole graph or a convex part of one, all of whose nodes the engine supports.
                Do not change its constants.

        Raises:
            OperationError: The engine failed. Any other exception becomes an OperationError that
                names the engine.
            CannotCompile: The next engine must run the graph.
        """

"""What an engine is: what it runs, how it compiles, and how its executables run."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from webnn_py.core.completion import Cancellation, Completion
from webnn_py.core.lru_cache import MemoryUse
from webnn_py.engines.awaited import AwaitedRun, HostRun
from webnn_py.engines.device_loss import Loss
from webnn_py.engines.limits import EngineLimits
from webnn_py.engines.profile import Roof, RunTime, timed
from webnn_py.ir import Array, Descriptor, Graph, Node, Shape, Value
from webnn_py.memory.allocation import OutputSpecs, new_array
from webnn_py.memory.host_arrays import BorrowedArray
from webnn_py.memory.overlap import EVERYTHING, MemoryLocation, Region
from webnn_py.ops.registry import Operator, TypesByOperand
from webnn_py.ordering.operation import Executor, Operation, Run
from webnn_py.ordering.schedule import Schedule
from webnn_py.ordering.unordered import UnorderedRun
from webnn_py.passes import PIPELINE, Pass

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Step:
    """What an executable runs as one, such as a kernel.

    Attributes:
        name: What it is called in listings.
        nodes: The nodes that it computes. One that is cheap may be computed by several steps.
        reads: The values that it reads from memory.
        writes: The values that it writes there.
    """

    name: str
    nodes: tuple[Node, ...]
    reads: tuple[Value, ...]
    writes: tuple[Value, ...]


@dataclass(frozen=True, slots=True)
class Steps:
    """All that an executable runs.

    Attributes:
        graph: What it computes, in the operators that its engine has.
        steps: In the order in which they run; all nodes of the graph are computed by some.
    """

    graph: Graph
    steps: tuple[Step, ...]


class CannotCompile(Exception):
    """An engine fails over a graph all of whose nodes it supports: the next engine is given it."""


class Executable(ABC):
    """A graph compiled for an engine. Running and recording it change nothing of it.

    Inputs and outputs are positional, in the graph's order. Its memory goes with the last run that
    uses it.
    """

    def describe(self) -> str:
        """A readable listing of the steps that will run, where the engine has any of its own."""
        return ""

    def steps(self) -> Steps | None:
        """The same as data, where the engine tells."""
        return None

    def code(self) -> str:
        """The generated code, where there is any."""
        return ""

    def memory_use(self) -> MemoryUse:
        """The memory that it takes: bytes, by what tells the pieces apart (and is not kept).

        What several executables have, such as weights, is the same piece in each.
        """
        return {}

    @abstractmethod
    def start(self, inputs: Sequence[Any], outputs: Sequence[Any]) -> AwaitedRun:
        """Check one awaited run; it begins when it is told to.

        Args:
            inputs: For each an array that nobody else changes, the memory of a tensor, or what the
                engine's device takes.
            outputs: The same, or None where a new array is to be made.

        Raises:
            DataError: Something does not fit; nothing has run.
        """

    @abstractmethod
    def profile(self, inputs: Sequence[Any], outputs: Sequence[Any]) -> RunTime:
        """Run once on this thread, and measure.

        Args:
            inputs: As `start` takes them.
            outputs: The same; what is None is computed and thrown away.

        Raises:
            DataError: Something does not fit; nothing has run.
            OperationError: It failed.
        """


class HostExecutable(Executable):
    """A compiled graph that runs on the calling thread, on host memory.

    Attributes:
        any_memory: Whether `run` takes arrays that are not aligned, and outputs that are strided or
            share memory with inputs. Others are given none such.
        took: About how many seconds an awaited run took lately, not to have the interpreter again.
    """

    any_memory: bool = False
    took: float = math.inf

    @abstractmethod
    def run(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        """Compute the outputs into the arrays given; many threads may call it at once.

        All arrays are of just the graph's data types and shapes, C-contiguous and aligned. No
        output shares memory with an input or another output; inputs may do so, and be read-only.

        Args:
            inputs: In the order of the graph's inputs; not to be changed.
            outputs: In the order of the graph's outputs; what they hold before is of no meaning.

        Raises:
            OperationError: It failed. Any other exception becomes one that names the engine.
        """

    def new_results(self, inputs: Sequence[Array], ends: OutputSpecs) -> Sequence[Array]:
        """Compute the outputs into new arrays of these shapes and data types; else as `run`."""
        outputs = [new_array(shape, dtype) for shape, dtype in ends]
        self.run(inputs, outputs)
        return outputs

    def ran(self, seconds: float) -> None:
        """A run took so long: more than usual where it waited for the interpreter."""
        more = seconds - self.took
        self.took = seconds if more < 0 else self.took + 0.1 * more

    @property
    def alone(self) -> HostExecutable | None:
        """What computes the same on the calling thread alone, for several runs at once."""
        return None

    def make_alone(self) -> None:
        """Make `alone` if it pays, which may take long."""
        return None

    def start(self, inputs: Sequence[Any], outputs: Sequence[Any]) -> AwaitedRun:
        """One run on whatever thread begins it."""
        return HostRun(self.run, inputs, outputs)

    def profile(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> RunTime:
        """No steps, unless the engine tells of them; it is one, then."""
        return RunTime((), timed(lambda: self.run(inputs, outputs)), "host")


class Queue(ABC):
    """A context's own timeline: work on tensors, in order.

    `write`, `read` and `dispatch` make work, `submit` puts it into the order and returns at once;
    what cannot run yet is kept in order.

    Args:
        executor: Where and how work runs; it has no way back to this object, which goes with its
            last user.
        loss: What `loss` gives, if others have it, too.
    """

    def __init__(self, executor: Executor, loss: Loss | None = None) -> None:
        self._schedule = Schedule(executor)
        self._loss = Loss() if loss is None else loss

    @abstractmethod
    def allocate(self, descriptor: Descriptor) -> Any:
        """Zeroed memory of a tensor."""

    @abstractmethod
    def target(self, storage: Any) -> MemoryLocation:
        """The memory of a tensor that is written."""

    @abstractmethod
    def write(self, storage: Any, lent: BorrowedArray) -> Run:
        """Write host memory into a tensor."""

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
        """Read a tensor into host memory, unless that is cancelled, and resolve `done`.

        Args:
            storage: Where the tensor lies.
            target: What its contents are written into.
            done: Resolved then.
            cancellation: Of the read.
            waits: This thread does nothing else until it is done.
            slow: The worker runs it, see `reads_long`.
        """

    def reads_long(self, storage: Any) -> bool:
        """Whether to begin to read a tensor keeps this thread's event loop from running."""
        return False

    @abstractmethod
    def dispatch(
        self,
        executable: Executable,
        inputs: Sequence[Any],
        outputs: Sequence[Any],
        key: Hashable = None,
    ) -> Run:
        """Run a graph from tensors' memory to tensors'; `repeat` may have it again under `key`."""

    def repeat(self, executable: Executable, key: Hashable) -> Run | None:
        """What `dispatch` gave under the same key, if that is still known."""
        return None

    def submit(self, operation: Operation) -> None:
        """Put work into the order: after what shares memory with it, or a timeline.

        Raises:
            ContextLostError: The context is lost.
        """
        self._schedule.submit(operation)

    @property
    def is_free(self) -> bool:
        """Whether work that is submitted now is likely to run before that returns."""
        return self._schedule.is_free

    def wait_for_room(self, seconds: float | None = None) -> None:
        """Block while work that can run keeps too much host memory, for so many seconds at most."""
        self._schedule.wait_for_room(seconds)

    def withdraw(self, operation: Operation) -> None:
        """Take work out again, if it has not begun."""
        self._schedule.withdraw(operation)

    @property
    def has_others(self) -> bool:
        """Whether new work may have to wait for some that is not done, ordered or not."""
        return bool(self._schedule.unordered) or self._schedule.keeps_order

    def begin_unordered(
        self, reads: Sequence[Region], writes: Sequence[Region], names: Sequence[str]
    ) -> UnorderedRun | None:
        """A run without a place in the order begins, until its `end`; None if it needs a place.

        Args:
            reads: The memory that it reads and others may write.
            writes: The memory that it writes.
            names: Of its outputs.
        """
        if self._schedule.keeps_order:
            return None
        return self._schedule.unordered.begin(reads, writes, names)

    def flush(self) -> list[Operation]:
        """Let all work begin that can.

        Returns:
            What is left: it waits for a timeline, or for what does.
        """
        return self._schedule.settle()

    def raise_failed(self) -> None:
        """Raise an OperationError if work was accepted and failed, and nobody was told."""
        return None

    def users(self, region: Region) -> list[Operation | UnorderedRun]:
        """The work that is not done, or not recorded, and uses a region of memory."""
        return self._schedule.users(region)

    def close(self, error: BaseException) -> None:
        """Fail what has not begun."""
        self._schedule.close(error)

    def loss(self) -> Loss:
        """For `with`: a device that is found lost takes its context along."""
        return self._loss

    def on_lost(self, message: str) -> None:
        """Told why, when the device is found lost."""
        self._loss.tell(message)


AtSizes = Callable[[Graph, Mapping[str, int]], Executable]
"""An executable of the graph recorded for some sizes, and these by name; or CannotCompile."""


class Engine(ABC):
    """What compiles graphs and runs them.

    A node that the first engine of a context does not support goes to the next one, if there is
    one: behind every engine of a CPU context stands the reference, which runs everything.

    Attributes:
        name: By which it is chosen and shown; a CPU context's engine has it from the registry.
        passes: What is done to a graph before it is split and compiled, in order. Engines that have
            none for themselves get the package's; without `decompose` among them, what the engine
            does not support is left whole to the next engine.
        crossing_cost: How many elements one can read and write in the time that handing tensors
            over to the engine and back takes. It is not given less than that, where another engine
            runs it, too.
        stays_open: Whether `compile_open` may make anything.
        has_own_weights: Whether it lays out most weights anew; what it was given is seldom read.
        accelerated: Whether a hardware GPU does the work.
        device: The device whose resources it takes, if it has one.
    """

    name: str
    passes: tuple[Pass, ...] = PIPELINE
    crossing_cost: int = 0
    stays_open: bool = False
    has_own_weights: bool = False
    accelerated: bool = False
    device: Any = None

    def limits(self) -> EngineLimits:
        """Bounds of every tensor: those of the specification, unless told.

        Asked of the last engine of a context, which runs what the others do not; as is
        `supported_types`. An engine with another one behind it says no in `supports`.
        """
        return EngineLimits()

    @property
    def rewrites_by(self) -> str:
        """All that its passes' results follow from besides the graph; "" if nothing is known of it.

        What is made of models is kept on disk for engines that tell it.
        """
        return ""

    def supported_types(self, op: Operator) -> TypesByOperand:
        """The data types that the engine runs, for each operand and "output": all, unless told."""
        return {name: op.operand_types(name) for name in (*op.limits, "output")}

    def supports(self, node: Node) -> bool:
        """Whether the engine runs this node itself.

        If not, a composite is taken apart (see `passes`), and what is none is given to the next
        engine.
        """
        return True

    def takes(self, value: object) -> bool:
        """Whether a value is a resource of the engine's own device, such as a GPUBuffer."""
        return False

    def region(self, resource: Any) -> Region:
        """The memory that a resource which it takes is a part of."""
        return EVERYTHING

    def shape_of(self, resource: Any, shape: Shape, what: str) -> Shape | None:
        """The shape that a resource which it takes has as a tensor, if it can have but one.

        Args:
            resource: Of the engine's own device.
            shape: What the tensor's shape is to be, with open dimensions.
            what: What messages call it.

        Raises:
            DataError: It is not given rightly.
        """
        return None

    def destroy(self) -> None:
        """Give back what belongs to the engine itself; its context is gone."""
        return None

    def wake(self) -> None:
        """Have the hardware compute until it is as fast as it gets: what rests is slow for long."""
        return None

    def roof(self) -> Roof | None:
        """What the hardware does at most, measured once; None if the engine cannot tell."""
        return None

    @abstractmethod
    def queue(self, worker: Callable[[Run], None], width: int) -> Queue:
        """A new context's order of work.

        Args:
            worker: Runs a function on one of the context's threads.
            width: How many of these there are; 1 where the engine has a device.
        """

    def pick(
        self, recipe: Graph, build: Callable[[Engine], tuple[T, Executable]]
    ) -> tuple[T, Executable]:
        """A graph as an engine builds it: this one, unless it stands for several.

        Args:
            recipe: The graph as the user gave it, without open dimensions.
            build: Has an engine optimize and compile it.
        """
        return build(self)

    def compile_open(self, graph: Graph) -> AtSizes | None:
        """Make a graph with open dimensions ready for all sizes, as `compile`; None if it cannot.

        Each set of sizes is compiled for then, or the part of the graph that cannot stay open.
        """
        return None

    @abstractmethod
    def compile(self, graph: Graph) -> Executable:
        """Make a graph ready to run. Called from several threads at once, for several graphs.

        Args:
            graph: Of nodes that the engine supports: a whole graph, or a convex part of one. Its
                constants are not to be changed.

        Raises:
            OperationError: The engine failed. Any other exception becomes one that names it.
            CannotCompile: The engine behind it is to run the graph.
        """

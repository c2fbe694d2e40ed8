"""What a backend offers: which data types it runs, and graphs compiled to executables."""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from webnn_py.core.completion import Completion, Parts
from webnn_py.core.errors import ContextLostError, OperationError
from webnn_py.ir import Array, Descriptor, Graph, Node
from webnn_py.memory.overlap import Target
from webnn_py.ops.declare import Operator
from webnn_py.ordering.schedule import Executor, Operation, Run, Schedules

TypesByOperand = Mapping[str, tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class EngineLimits:
    """What bounds every operator of a backend.

    Attributes:
        max_rank: Highest rank of a tensor.
        max_tensor_bytes: Largest tensor in bytes.
    """

    max_rank: int
    max_tensor_bytes: int


class Executable(ABC):
    """A compiled graph. Its memory goes with the last run that uses it.

    Attributes:
        bound: Inputs that are constants by now, and where they lie.
    """

    bound: Mapping[str, Any] = MappingProxyType({})

    def pending_names(self) -> frozenset[str]:
        """Inputs that become constants with commands that are not submitted yet."""
        return frozenset()

    @abstractmethod
    def describe(self) -> str:
        """A readable listing of what will run."""

    def code(self) -> str:
        """The generated code, where there is any."""
        return ""


class HostExecutable(Executable):
    """A compiled graph that runs on the calling thread, on host memory."""

    @abstractmethod
    def run(self, inputs: Mapping[str, Array], outputs: Mapping[str, Array]) -> None:
        """Compute `outputs` in place; safe to call from many threads at once.

        Both are C-contiguous arrays of just the graph's data types and shapes.
        """


class AwaitedRun(ABC):
    """One awaited computation, its arguments checked.

    Attributes:
        done: Its end.
        parts: What a cancelled await drops.
        settle: Whether the part under way is to end before a cancelled await does: it writes what
            others see.
    """

    def __init__(self, settle: bool) -> None:
        self.done: Completion[None] = Completion()
        self.parts = Parts()
        self.settle = settle

    @contextlib.contextmanager
    def part(self) -> Iterator[None]:
        """A part that is done whole or not at all.

        Raises:
            OperationError: The run was dropped.
        """
        with self.parts.begin():
            self.check_wanted()
            yield

    def check_wanted(self) -> None:
        """Raise an OperationError if the run was dropped."""
        if self.parts.dropped:
            raise OperationError("the computation was cancelled before it began")

    @abstractmethod
    def begin(self) -> None:
        """Compute, or have the device do so; `done` follows."""

    @abstractmethod
    def results(self) -> dict[str, Any]:
        """The outputs by name, once it is done."""

    @abstractmethod
    def release(self) -> None:
        """Keep no copies of inputs any more; the run is done or was dropped."""

    def when_there_is_room(self, start: Run) -> None:
        """Call `start` now or when fewer runs are under way; blocks nobody."""
        start()


class Queue(ABC):
    """A context's own timeline: work on tensors, in order.

    `write`, `read` and `dispatch` make work, `submit` puts it into the order and returns at once;
    what cannot run yet is kept in order.

    Args:
        executor: Where and how work runs.

    Attributes:
        lost: Told why, when the device is found lost.
    """

    def __init__(self, executor: Executor) -> None:
        self.lost: Callable[[str], None] = lambda message: None
        self._schedules = Schedules(executor)

    @abstractmethod
    def allocate(self, descriptor: Descriptor) -> Any:
        """Zeroed memory of a tensor."""

    @abstractmethod
    def target(self, storage: Any) -> Target:
        """The memory of a tensor that is written."""

    @abstractmethod
    def write(self, storage: Any, array: Array) -> Run:
        """Write host memory, which nobody else may change, into a tensor."""

    @abstractmethod
    def read(self, storage: Any, target: Array, done: Completion[None], parts: Parts) -> Run:
        """Read a tensor into host memory, unless that is dropped, and resolve `done`."""

    @abstractmethod
    def dispatch(
        self,
        executable: Executable,
        inputs: Mapping[str, Any],
        outputs: Mapping[str, Any],
        key: Hashable = None,
    ) -> Run:
        """Run a graph from tensors to tensors; `repeat` may have it again under `key`."""

    def repeat(self, executable: Executable, key: Hashable) -> Run | None:
        """What `dispatch` gave under the same key, if that is still known."""
        return None

    def submit(self, operation: Operation, ordered: bool = True) -> Run:
        """Put work at the end of the order, or let it run as soon as its own waits are met.

        Returns:
            What takes it out again, if it has not begun.

        Raises:
            ContextLostError: The context is lost.
        """
        return self._schedules.submit(operation, ordered)

    def flush(self) -> list[Operation]:
        """Let all work in order begin that can.

        Returns:
            What is left: it waits for a timeline, or follows what does.
        """
        return self._schedules.settle()

    def raise_failed(self) -> None:
        """Raise an OperationError if work was accepted and failed, and nobody was told."""
        return None

    def uses(self, tensor: object) -> bool:
        """Whether work in order that is not done, or not recorded, uses a tensor."""
        return self._schedules.uses(tensor)

    def close(self, error: BaseException) -> None:
        """Fail what has not begun."""
        self._schedules.close(error)

    @contextlib.contextmanager
    def loss(self) -> Iterator[None]:
        """A device that is found lost takes its context along."""
        try:
            yield
        except ContextLostError as error:
            self.lost(str(error))
            raise


class Engine(ABC):
    """An engine."""

    name: str

    @abstractmethod
    def limits(self) -> EngineLimits:
        """Bounds of every tensor."""

    def supported_types(self, op: Operator) -> TypesByOperand:
        """The data types that the engine runs, for each operand and "output": all, unless told."""
        return {name: op.operand_types(name) for name in (*op.limits, "output")}

    def has_kernel(self, node: Node) -> bool:
        """Whether the engine runs this node itself; if not, a composite is decomposed."""
        return True

    def destroy(self) -> None:
        """Give back what belongs to the engine itself."""
        return None

    @abstractmethod
    def queue(self, worker: Callable[[Run], None]) -> Queue:
        """A new context's order of work; `worker` runs a function on the context's thread."""

    @abstractmethod
    def compile(self, graph: Graph) -> Executable:
        """Make a graph ready to run.

        Raises:
            OperationError: The engine failed.
        """

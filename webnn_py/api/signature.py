"""What an execution is given: names and descriptors, and every check of it, for all modes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import numpy as np

from webnn_py.api.descriptor import MLOperandDescriptor
from webnn_py.api.session import Session
from webnn_py.api.tensor import MLTensor, memory_of
from webnn_py.api.tensor_memory import TensorMemory
from webnn_py.core import convert, dtypes
from webnn_py.core.errors import (
    DataError,
    InvalidStateError,
    MLError,
    ValidationError,
    telling_of_memory,
)
from webnn_py.core.messages import named, shown, type_name
from webnn_py.engines.initialization import BoundInputs
from webnn_py.ir import Descriptor, Graph
from webnn_py.memory import host
from webnn_py.memory.overlap import check_apart


@dataclass(slots=True)
class Arguments:
    """What an execution was given, checked, in the order of the graph.

    Attributes:
        inputs: Each an array, the memory of a tensor, or what the engine's device takes.
        outputs: The same, or None where the engine is to make an array.
        given: The outputs as the user gave them; None for those that were not.
        names: Of the outputs.
        reads: The tensors among the inputs.
        writes: The tensors among the outputs.
    """

    inputs: Sequence[Any]
    outputs: Sequence[Any]
    given: Sequence[Any]
    names: Sequence[str]
    reads: Sequence[TensorMemory]
    writes: Sequence[TensorMemory]
    _count: int = field(init=False)

    def __post_init__(self) -> None:
        self._count = len(self.inputs)

    def hand_over(self) -> Sequence[Any]:
        """The inputs, which are not kept here any more: who has them lets them go when it can."""
        inputs, self.inputs = self.inputs, ()
        return inputs

    @property
    def on_tensors(self) -> bool:
        """Whether there are tensors, so that the run keeps the context's order."""
        return bool(self.reads or self.writes)

    @property
    def only_tensors(self) -> bool:
        """Whether nothing else is given, and nothing comes back in host memory."""
        return len(self.reads) == self._count and len(self.writes) == len(self.outputs)

    @property
    def writes_given(self) -> bool:
        """Whether anything is written that others see."""
        return any(value is not None for value in self.given)

    def results(self, written: Sequence[Any]) -> dict[str, Any]:
        """What a run returns: what was given where it can be, else what was written."""
        if not self.writes_given:
            return dict(zip(self.names, written, strict=True))
        return {
            name: array
            if given is None or (isinstance(array, np.ndarray) and not _is_result(given))
            else given
            for name, given, array in zip(self.names, self.given, written, strict=True)
        }


def _is_result(given: object) -> bool:
    return isinstance(given, (np.ndarray, MLTensor))


class Signature:
    """The inputs and outputs of a graph, by name."""

    def __init__(self, recipe: Graph) -> None:
        self.inputs: Mapping[str, Descriptor] = {v.name: v for v in recipe.inputs}
        self.outputs: Mapping[str, Descriptor] = dict(recipe.outputs)
        self._output_names = tuple(self.outputs)
        self._none = (None,) * len(self.outputs)
        self._made = [
            (name, descriptor, dtypes.DTYPES[descriptor.data_type].numpy)
            for name, descriptor in self.outputs.items()
        ]

    def public(self, kind: str) -> Mapping[str, MLOperandDescriptor]:
        """The "inputs" or "outputs" as users see them; read-only."""
        descriptors: Mapping[str, Descriptor] = getattr(self, kind)
        return MappingProxyType(
            {name: MLOperandDescriptor(d.data_type, d.shape) for name, d in descriptors.items()}
        )

    @telling_of_memory
    def on_host(
        self, session: Session, inputs: object, outputs: object, private: bool = False
    ) -> Arguments:
        """Arrays for every input and output; those of outputs that are not given are made.

        Args:
            session: A CPU context's.
            inputs: Arrays, buffers, or tensors, by name.
            outputs: What to write into, by name; may be None or lack some.
            private: Nobody else may change the inputs afterwards.

        Raises:
            DataError: A name, data type, size or context does not fit.
        """
        read, write = _mappings(inputs, {} if outputs is None else outputs)
        self._check_names(read, write, None, DataError)
        writes: list[TensorMemory] = []
        reads: list[TensorMemory] = []
        given: Sequence[Any] = [write.get(name) for name in self.outputs] if write else self._none
        targets = [
            np.empty(descriptor.shape, dtype)
            if value is None
            else self._target(session, value, descriptor, named("output", name), writes)
            for value, (name, descriptor, dtype) in zip(given, self._made, strict=True)
        ]
        if write:
            _check_apart(self._output_names, given, targets)
        arrays = [
            self._source(session, read[name], descriptor, named("input", name), reads, private)
            for name, descriptor in self.inputs.items()
        ]
        return Arguments(arrays, targets, given, self._output_names, reads, writes)

    @telling_of_memory
    def on_device(
        self,
        session: Session,
        inputs: object,
        outputs: object,
        bound: BoundInputs,
        places: Mapping[str, Any],
        recorded: bool = False,
    ) -> Arguments:
        """What a device's engine takes for every input and output.

        Args:
            session: A GPU context's.
            inputs: Arrays, buffers, tensors, or resources of the device, by name.
            outputs: What to write into, by name; may be None or lack some.
            bound: The graph's inputs that are constants.
            places: Where those lie for this run.
            recorded: It is recorded for later: every output is given, and lies on the device.

        Raises:
            DataError: A name, data type, size or device does not fit. What is special to the
                device's resources the engine checks.
            InvalidStateError: An input becomes a constant with commands that are not submitted.
        """
        read, write = _mappings(inputs, {} if outputs is None and not recorded else outputs)
        self._check_names(read, write, bound, DataError, places)
        if recorded:
            self._check_recorded(session, write)
        given = [write.get(name) for name in self.outputs]
        writes: list[TensorMemory] = []
        reads: list[TensorMemory] = []
        targets = [
            value
            if value is None or session.engine.takes(value)
            else self._target(session, value, descriptor, named("output", name), writes)
            for value, (name, descriptor) in zip(given, self.outputs.items(), strict=True)
        ]
        if write:
            _check_apart(self._output_names, given, targets)
        sources = [
            places[name]
            if name in places
            else self._source(session, read[name], d, named("input", name), reads, not recorded)
            for name, d in self.inputs.items()
        ]
        return Arguments(sources, targets, given, self._output_names, reads, writes)

    def on_tensors(
        self, session: Session, inputs: object, outputs: object, bound: BoundInputs
    ) -> Arguments:
        """The tensors' memory for every input and output of a dispatch.

        Raises:
            ValidationError: A name, data type, shape or context does not fit.
        """
        read = convert.mapping(inputs, "inputs")
        write = convert.mapping(outputs, "outputs")
        self._check_names(read, write, bound, ValidationError)
        self._check_complete(write, "a dispatch", ValidationError)
        reads, writes = (
            {
                name: _own_tensor(session, given[name], descriptor, f"{kind} {shown(name)}")
                for name, descriptor in descriptors.items()
                if name in given
            }
            for kind, given, descriptors in (
                ("input", read, self.inputs),
                ("output", write, self.outputs),
            )
        )
        targets = {name: session.queue.target(memory.storage) for name, memory in writes.items()}
        check_apart(targets, ValidationError)
        for name, memory in writes.items():
            also = [other for other, source in reads.items() if source is memory]
            if also:
                raise ValidationError(
                    f"output {shown(name)}: the MLTensor is input {shown(also[0])}, too; give the"
                    " output one of its own"
                )
            if memory.read_only:
                raise ValidationError(f"output {shown(name)}: the MLTensor's memory is read-only")
        sources = [
            reads[name].storage if name in reads else bound.places[name] for name in self.inputs
        ]
        return Arguments(
            sources,
            [memory.storage for memory in writes.values()],
            [*write.values()],
            self._output_names,
            [*reads.values()],
            [*writes.values()],
        )

    def constants(self, session: Session, given: object) -> dict[str, Any]:
        """What an initialization is given for some of the inputs, as a device's engine takes it.

        Raises:
            DataError: A name, data type, size or device does not fit.
        """
        constants = {} if given is None else convert.mapping(given, "constants", DataError)
        unknown = [name for name in constants if name not in self.inputs]
        if unknown:
            raise DataError(f"unknown input {shown(unknown[0])} in constants")
        return {
            name: self._source(session, constants[name], d, named("input", name), [], False)
            for name, d in self.inputs.items()
            if name in constants
        }

    def _check_names(
        self,
        inputs: Mapping[str, Any],
        outputs: Mapping[str, Any],
        bound: BoundInputs | None,
        error: type[MLError],
        places: Mapping[str, Any] | None = None,
    ) -> None:
        """Every input is given (but those bound before), and every name is known."""
        if places is None:
            places = {} if bound is None else bound.places
        complete = inputs.keys() == self.inputs.keys()
        if complete and outputs.keys() <= self.outputs.keys() and not places:
            return
        for kind, given, known in (
            ("input", inputs, self.inputs),
            ("output", outputs, self.outputs),
        ):
            unknown = [name for name in given if name not in known]
            if unknown:
                names = ", ".join(map(shown, list(known)[:32])) or "none"
                raise error(f"unknown {kind} {shown(unknown[0])}; this graph has {names}")
        again = [name for name in inputs if name in places]
        if again:
            raise error(f"input {shown(again[0])} was made a constant by initialize_graph")
        missing = [n for n in self.inputs if n not in inputs and n not in places]
        if missing:
            if bound is not None and missing[0] in bound.pending_names():
                raise InvalidStateError(
                    f"input {missing[0]!r} was made a constant by an initialize_graph that is"
                    " recorded and not submitted; submit that command buffer first, dispatch in"
                    " its own encoder, or give the input here"
                )
            descriptor = self.public("inputs")[missing[0]]
            raise error(f"input {shown(missing[0])} is missing; expected {descriptor}")

    def _check_complete(self, outputs: Mapping[str, Any], what: str, error: type[MLError]) -> None:
        missing = [name for name in self.outputs if name not in outputs]
        if missing:
            raise error(f"output {shown(missing[0])} is missing; {what} needs every output")

    def _check_recorded(self, session: Session, outputs: Mapping[str, Any]) -> None:
        self._check_complete(outputs, "a recording", DataError)
        for name, value in outputs.items():
            if not isinstance(value, MLTensor) and not session.engine.takes(value):
                raise DataError(
                    f"output {shown(name)}: got {type_name(value)}, expected a GPUBuffer, a"
                    " binding of one, an MLTensor, a GPUTexture or a GPUTextureView"
                )

    def _source(
        self,
        session: Session,
        value: Any,
        descriptor: Descriptor,
        what: str,
        reads: list[TensorMemory],
        private: bool,
    ) -> Any:
        """An input: the memory of a tensor, a resource of the device, or an array."""
        if type(value) is np.ndarray:  # mostly it is
            array = host.input_array(value, descriptor, what)
            return host.private(array, value) if private else array
        resource = host.split_dimensions(value, descriptor, what)
        if isinstance(resource, MLTensor):
            memory = _tensor(session, resource, descriptor, what)
            reads.append(memory)
            return memory.contents if memory.constant else memory.storage
        if session.engine.takes(resource):
            return resource
        array = host.input_array(resource, descriptor, what)
        return host.private(array, resource) if private else array

    def _target(
        self,
        session: Session,
        value: Any,
        descriptor: Descriptor,
        what: str,
        writes: list[TensorMemory],
    ) -> Any:
        """What an output is written into: the memory of a tensor, or a writable array."""
        if not isinstance(value, MLTensor):
            return host.output_array(value, descriptor, what)
        memory = _tensor(session, value, descriptor, what, written=True)
        writes.append(memory)
        return memory.storage


def _mappings(inputs: object, outputs: object) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """What is given by name, as dictionaries."""
    read = convert.mapping(inputs, "inputs", DataError)
    return read, convert.mapping(outputs, "outputs", DataError)


def _tensor(
    session: Session, tensor: MLTensor, descriptor: Descriptor, what: str, written: bool = False
) -> TensorMemory:
    """The memory of a tensor that an execution is given, if it can be used now.

    Raises:
        DataError: It is of another context (on a GPU: device), destroyed, constant where that
            cannot be, or does not fit.
        InvalidStateError: It is exported.
    """
    memory = memory_of(tensor, what, DataError)
    device = session.device
    if written and (memory.constant or memory.read_only):
        raise DataError(f"{what}: the MLTensor cannot be written to")
    if memory.session is not session and (device is None or memory.session.device is not device):
        owner = "another context" if device is None else "a context on another device"
        raise DataError(f"{what}: the MLTensor belongs to {owner}")
    memory.place(what, DataError)
    if memory.constant and device is not None:
        raise DataError(f"{what}: the MLTensor is constant; use MLGraphBuilder.constant")
    _check_fits(memory, descriptor, what, DataError)
    return memory


def _own_tensor(session: Session, tensor: Any, descriptor: Descriptor, what: str) -> TensorMemory:
    """The memory of a context's own tensor that can be read and written now."""
    memory = own_memory(session, tensor, what)
    _check_fits(memory, descriptor, what, ValidationError)
    return memory


def own_memory(session: Session, tensor: object, what: str) -> TensorMemory:
    """The memory of a context's own tensor, if it can be read or written now.

    Raises:
        ContextLostError: The context is lost.
        ValidationError: It is none, of another context, destroyed or constant.
        InvalidStateError: It is exported.
    """
    session.check_alive()
    memory = memory_of(tensor, what)
    if memory.session is not session:
        raise ValidationError(f"{what}: the MLTensor belongs to another context")
    memory.place(what)
    if memory.constant:
        raise ValidationError(f"{what}: the MLTensor is constant")
    return memory


def _check_fits(
    memory: TensorMemory, descriptor: Descriptor, what: str, error: type[MLError]
) -> None:
    wanted = Descriptor(descriptor.data_type, descriptor.shape)
    if memory.descriptor != wanted:
        raise error(f"{what}: the MLTensor is {memory.descriptor}, expected {wanted}")


def _check_apart(names: Sequence[str], given: Sequence[Any], targets: Sequence[Any]) -> None:
    """The arrays among what is given share no memory; the device's resources the engine checks."""
    arrays = {
        name: target
        for name, value, target in zip(names, given, targets, strict=True)
        if value is not None and isinstance(target, np.ndarray)
    }
    check_apart(arrays)

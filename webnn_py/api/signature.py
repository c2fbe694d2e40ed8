"""Signature: a graph's inputs and outputs, and the validation of their Arguments in all modes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import numpy as np

from webnn_py.api.descriptor import MLOperandDescriptor, public_descriptor
from webnn_py.api.input_shapes import given_shapes
from webnn_py.api.session import Session
from webnn_py.api.tensor import MLTensor
from webnn_py.api.tensor_checks import given_tensor, own_tensor
from webnn_py.api.tensor_memory import TensorMemory
from webnn_py.core import convert, dtypes
from webnn_py.core.dimensions import symbols_of
from webnn_py.core.errors import (
    DataError,
    InvalidStateError,
    MLError,
    ValidationError,
    convert_memory_errors,
)
from webnn_py.core.messages import named, shown, type_name
from webnn_py.core.open_dims import evaluated, solve
from webnn_py.engines.device import GivenInputs
from webnn_py.engines.initialization import BoundInputs, Constants
from webnn_py.ir import Descriptor, Graph, Shape
from webnn_py.memory import array_remedies, host_arrays
from webnn_py.memory.allocation import new_array
from webnn_py.memory.overlap import check_disjoint


@dataclass(slots=True)
class Arguments:
    """Validated inputs and outputs of one execution, in the order of the graph.

    Attributes:
        inputs: For each input an array, the memory of a tensor, or a resource of the device.
        outputs: For each output the same, or None if the engine allocates an array.
        given: For each output the user's object, or None if the user passed none.
        names: Names of the outputs.
        reads: The tensors among the inputs.
        writes: The tensors among the outputs.
        on_tensors: Whether there are tensors, so that the run keeps the context's order.
        writes_given: Whether the run writes to an object of the user's.
    """

    inputs: Sequence[Any]
    outputs: Sequence[Any]
    given: Sequence[Any]
    names: Sequence[str]
    reads: Sequence[TensorMemory]
    writes: Sequence[TensorMemory]
    on_tensors: bool = field(init=False)
    writes_given: bool = field(init=False, default=False)
    _count: int = field(init=False)

    def __post_init__(self) -> None:
        self.on_tensors = bool(self.reads or self.writes)
        self._count = len(self.inputs)
        for value in self.given:  # any() takes twice as long
            if value is not None:
                self.writes_given = True
                break

    def hand_over(self) -> Sequence[Any]:
        """Return the inputs and drop the references here, so that the caller frees them early."""
        inputs, self.inputs = self.inputs, ()
        return inputs

    @property
    def only_tensors(self) -> bool:
        """Whether all inputs and outputs are tensors, so that nothing returns to host memory."""
        return len(self.reads) == self._count and len(self.writes) == len(self.outputs)

    def results(self, written: Sequence[Any]) -> dict[str, Any]:
        """Return a run's outputs by name: the user's array or tensor, else the array written."""
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
    """Inputs and outputs of a graph, by name.

    Args:
        inputs: Data type and shape of each input, by name.
        outputs: Data type and shape of each output, by name.
        open_sizes: Names of their open dimensions.
        kinds: Words for an input and for an output in error messages.

    Attributes:
        title: Name of a dispatch in messages.
        read, made: Shape and NumPy data type of the input and output arrays, by name.
    """

    def __init__(
        self,
        inputs: Mapping[str, Descriptor],
        outputs: Mapping[str, Descriptor],
        open_sizes: Iterable[str] = (),
        kinds: tuple[str, str] = ("input", "output"),
    ) -> None:
        self.inputs = inputs
        self.outputs = outputs
        self._open_sizes = tuple(open_sizes)
        self._input, self._output = kinds
        self._output_names = tuple(self.outputs)
        self._none = (None,) * len(self.outputs)
        self.title = f"dispatch to {', '.join(map(shown, self.outputs))}"
        self.read, self.made = (
            {name: (d.shape, dtypes.DTYPES[d.data_type].numpy) for name, d in ends.items()}
            for ends in (inputs, outputs)
        )

    @classmethod
    def of(cls, recipe: Graph) -> Signature:
        """Return the signature of a graph."""
        inputs = {value.name: value for value in recipe.inputs}
        return cls(inputs, dict(recipe.outputs), recipe.open_sizes)

    def at(self, sizes: Mapping[str, int]) -> Signature:
        """Return the signature with open dimensions bound to `sizes`."""
        inputs, outputs = (
            {name: _fixed(descriptor, sizes) for name, descriptor in given.items()}
            for given in (self.inputs, self.outputs)
        )
        return Signature(inputs, outputs)

    def sizes_of(
        self,
        session: Session,
        inputs: object,
        bound: BoundInputs,
        constants: Constants,
        error: type[MLError] = DataError,
    ) -> dict[str, int]:
        """Return the open sizes that follow from the shapes of the inputs.

        Args:
            session: Session of the context that runs the graph.
            inputs: Inputs of the run, by name.
            bound: The graph's inputs that are constants.
            constants: The constants of this run.
            error: Type of the error to raise.

        Raises:
            DataError: (or `error`) A shape does not fit or contradicts another one, or a size does
                not follow.
            InvalidStateError: An input becomes a constant with commands that are not submitted.
        """
        read = convert.mapping(inputs, "inputs", error)
        try:
            shapes = given_shapes(session.engine, read, self.inputs)
            found = self._solved(read, shapes, constants.shapes)
        except DataError as caught:
            raise error(str(caught)) from None
        missing = [name for name in self._open_sizes if name not in found]
        if missing:
            self._check_names(read, {}, bound, error, constants.places)
            tells = [
                f"{shown(name)} {list(one.shape)}"
                for name, one in self.inputs.items()
                if not symbols_of(one.shape).keys().isdisjoint(missing)
            ]
            raise error(
                f"the size of {', '.join(missing)} does not follow from the inputs; give"
                f" {' or '.join(tells)} as an array of that shape, or as"
                ' {"resource": ..., "dimensions": [...]}'
            )
        return found

    def _solved(
        self,
        inputs: Mapping[str, Any],
        shapes: Mapping[str, Sequence[int]],
        constants: Mapping[str, Shape],
    ) -> dict[str, int]:
        """Return the sizes that follow from the shapes of inputs and constants."""

        def remedy(name: str) -> str:
            resource = host_arrays.resource_of(inputs.get(name))
            if not hasattr(resource, "__array_interface__") and not hasattr(resource, "permute"):
                return ""  # not an array in memory
            return array_remedies.for_shape(resource, given[name], self.inputs[name].shape)

        given = {**constants, **shapes}
        titles = {name: f"input {shown(name)} (by initialize_graph)" for name in constants}
        return solve({name: self.inputs[name].shape for name in given}, given, titles, remedy)

    def public(self, kind: str) -> Mapping[str, MLOperandDescriptor]:
        """Return the "inputs" or "outputs" as a read-only mapping to MLOperandDescriptors."""
        descriptors: Mapping[str, Descriptor] = getattr(self, kind)
        return MappingProxyType(
            {name: public_descriptor(given) for name, given in descriptors.items()}
        )

    @convert_memory_errors
    def with_outputs(self, given: Sequence[Any]) -> list[Any]:
        """Return the outputs, with a new array in place of each None."""
        ends = zip(given, self.made.values(), strict=True)
        return [new_array(*end) if value is None else value for value, end in ends]

    @convert_memory_errors
    def on_host(
        self, session: Session, inputs: object, outputs: object, private: bool = False
    ) -> Arguments:
        """Return arrays for every input and output, allocating the missing outputs.

        With `private` and no outputs, the allocation may be left to `with_outputs`.

        Args:
            session: Session of a CPU context.
            inputs: Arrays, buffers, or tensors, by name.
            outputs: Destinations by name; may be None or incomplete.
            private: Copy inputs that others could change later.

        Raises:
            DataError: A name, data type, size or context does not fit.
        """
        if outputs is None and private:
            copies = host_arrays.plain_array_copies(inputs, self.read)
            if copies is not None:
                return Arguments(copies, self._none, self._none, self._output_names, (), ())
        read, write = _mappings(inputs, {} if outputs is None else outputs)
        self._check_names(read, write, None, DataError)
        reads, writes = list[TensorMemory](), list[TensorMemory]()
        given: Sequence[Any] = [write.get(name) for name in self.outputs] if write else self._none
        targets = [
            new_array(shape, dtype)
            if value is None
            else self._target(session, value, self.outputs[name], named(self._output, name), writes)
            for value, (name, (shape, dtype)) in zip(given, self.made.items(), strict=True)
        ]
        if write:
            self._check_apart(given, targets)
        arrays = [
            self._source(session, read[name], descriptor, named(self._input, name), reads, private)
            for name, descriptor in self.inputs.items()
        ]
        return Arguments(arrays, targets, given, self._output_names, reads, writes)

    def on_device(
        self,
        session: Session,
        inputs: object,
        outputs: object,
        bound: BoundInputs,
        places: Mapping[str, Any],
        recorded: bool = False,
        private: bool = False,
    ) -> Arguments:
        """Return an array, tensor memory or device resource for every input and output.

        Args:
            session: Session of a GPU context.
            inputs: Arrays, buffers, tensors, or resources of the device, by name.
            outputs: Destinations by name; may be None or incomplete.
            bound: The graph's inputs that are constants.
            places: Storage of these constants in this run, by name.
            recorded: The run is recorded for later, so all destinations must lie on the device.
            private: Copy inputs that others could change later.

        Raises:
            DataError: A name, data type, size or device does not fit. The engine checks the
                properties of device resources later.
            InvalidStateError: An input becomes a constant with commands that are not submitted.
        """
        if outputs is None and not (private or recorded or places):
            plain = host_arrays.plain_arrays(inputs, self.read)
            if plain:
                return Arguments(plain, self._none, self._none, self._output_names, (), ())
        return self._any_on_device(session, inputs, outputs, bound, places, recorded, private)

    @convert_memory_errors
    def _any_on_device(
        self,
        session: Session,
        inputs: object,
        outputs: object,
        bound: BoundInputs,
        places: Mapping[str, Any],
        recorded: bool,
        private: bool,
    ) -> Arguments:
        """Do as `on_device` for arguments of any kinds."""
        read, write = _mappings(inputs, {} if outputs is None and not recorded else outputs)
        self._check_names(read, write, bound, DataError, places)
        if recorded:
            self._check_recorded(session, write)
        given = [write.get(name) for name in self.outputs]
        reads, writes = list[TensorMemory](), list[TensorMemory]()
        targets = [
            value
            if value is None or session.engine.takes(value)
            else self._target(session, value, descriptor, named(self._output, name), writes)
            for value, (name, descriptor) in zip(given, self.outputs.items(), strict=True)
        ]
        if write:
            self._check_apart(given, targets)
        sources = [
            places[name]
            if name in places
            else self._source(session, read[name], d, named(self._input, name), reads, private)
            for name, d in self.inputs.items()
        ]
        return Arguments(sources, targets, given, self._output_names, reads, writes)

    def on_tensors(
        self, session: Session, inputs: object, outputs: object, bound: BoundInputs
    ) -> Arguments:
        """Return the tensors' memory for every input and output of a dispatch.

        Raises:
            ValidationError: A name, data type, shape or context does not fit.
        """
        read = convert.mapping(inputs, "inputs")
        write = convert.mapping(outputs, "outputs")
        self._check_names(read, write, bound, ValidationError)
        missing = [name for name in self.outputs if name not in write]
        if missing:
            raise ValidationError(
                f"output {shown(missing[0])} is missing; a dispatch needs every output"
            )
        reads, writes = (
            {
                name: own_tensor(session, given[name], descriptor, f"{kind} {shown(name)}")
                for name, descriptor in descriptors.items()
                if name in given
            }
            for kind, given, descriptors in (
                ("input", read, self.inputs),
                ("output", write, self.outputs),
            )
        )
        targets = {name: session.queue.target(memory.current) for name, memory in writes.items()}
        check_disjoint(targets, ValidationError)
        for name, memory in writes.items():
            if memory.read_only:
                raise ValidationError(f"output {shown(name)}: the MLTensor's memory is read-only")
        sources = [
            reads[name].current if name in reads else bound.constants.places[name]
            for name in self.inputs
        ]
        return Arguments(
            sources,
            [memory.current for memory in writes.values()],
            [*write.values()],
            self._output_names,
            [*reads.values()],
            [*writes.values()],
        )

    def constants(
        self, session: Session, given: object
    ) -> tuple[GivenInputs, Sequence[TensorMemory]]:
        """Check the constants of an initialization, for some of the inputs.

        Returns:
            Descriptor and resource of each constant by name, and the tensors among them.

        Raises:
            DataError: A name, data type, size or device does not fit, or an open size does not
                follow from the constants.
        """
        constants = {} if given is None else convert.mapping(given, "constants", DataError)
        unknown = [name for name in constants if name not in self.inputs]
        if unknown:
            raise DataError(f"unknown input {shown(unknown[0])} in constants")
        sizes = self._solved(constants, given_shapes(session.engine, constants, self.inputs), {})
        made: dict[str, tuple[Descriptor, Any]] = {}
        reads: list[TensorMemory] = []
        for name, descriptor in self.inputs.items():
            if name not in constants:
                continue
            what = named(self._input, name)
            missing = [size for size in symbols_of(descriptor.shape) if size not in sizes]
            if missing:
                raise DataError(
                    f"{what}: the size of {', '.join(missing)} does not follow from the constants;"
                    ' give it as {"resource": ..., "dimensions": [...]}'
                )
            fixed = _fixed(descriptor, sizes)
            made[name] = fixed, self._source(session, constants[name], fixed, what, reads, False)
        return made, reads

    def _check_names(
        self,
        inputs: Mapping[str, Any],
        outputs: Mapping[str, Any],
        bound: BoundInputs | None,
        error: type[MLError],
        places: Mapping[str, Any] | None = None,
    ) -> None:
        """Check that every unbound input is present, and that every name is known."""
        if places is None:
            places = {} if bound is None else bound.constants.places
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

    def _check_recorded(self, session: Session, outputs: Mapping[str, Any]) -> None:
        if self.outputs and not outputs:
            raise DataError(f"outputs: got none, expected at least {shown(self._output_names[0])}")
        for name, value in outputs.items():
            if not isinstance(value, MLTensor) and not session.engine.takes(value):
                raise DataError(
                    f"output {shown(name)}: got {type_name(value)}, expected a GPUBuffer, a"
                    " binding of one, an MLTensor, a GPUTexture, a view or a part of one"
                )

    def _check_apart(self, given: Sequence[Any], targets: Sequence[Any]) -> None:
        """Check that output arrays share no memory; the engine checks device resources."""
        arrays = {
            name: target
            for name, value, target in zip(self._output_names, given, targets, strict=True)
            if value is not None and isinstance(target, np.ndarray)
        }
        check_disjoint(arrays, kind=self._output)

    def _source(
        self,
        session: Session,
        value: Any,
        descriptor: Descriptor,
        what: str,
        reads: list[TensorMemory],
        private: bool,
    ) -> Any:
        """Return an input as tensor memory, device resource, or array."""
        if type(value) is np.ndarray:  # fast path: most inputs are arrays
            array = host_arrays.input_array(value, descriptor, what)
            return host_arrays.snapshot(array, value) if private else array
        resource = host_arrays.split_dimensions(value, descriptor, what)
        if isinstance(resource, MLTensor):
            memory = given_tensor(session, resource, descriptor, what)
            reads.append(memory)
            return memory.contents if memory.constant else memory.current
        if session.engine.takes(resource):
            return resource
        array = host_arrays.input_array(resource, descriptor, what)
        return host_arrays.snapshot(array, resource) if private else array

    def _target(
        self,
        session: Session,
        value: Any,
        descriptor: Descriptor,
        what: str,
        writes: list[TensorMemory],
    ) -> Any:
        """Return the destination of an output: tensor memory, or a writable array."""
        if not isinstance(value, MLTensor):
            return host_arrays.output_array(value, descriptor, what)
        memory = given_tensor(session, value, descriptor, what, written=True)
        writes.append(memory)
        return memory.current


def _fixed(descriptor: Descriptor, sizes: Mapping[str, int]) -> Descriptor:
    return Descriptor(descriptor.data_type, evaluated(descriptor.shape, sizes))


def _mappings(inputs: object, outputs: object) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """Return inputs and outputs as mappings; raise a DataError if they are none."""
    read = convert.mapping(inputs, "inputs", DataError)
    return read, convert.mapping(outputs, "outputs", DataError)

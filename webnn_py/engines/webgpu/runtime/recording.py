"""Recording: the commands of an MLCommandEncoder, in an own or the user's encoder."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import wgpu

from webnn_py.core.errors import DataError, InvalidStateError, OperationError
from webnn_py.core.messages import type_name
from webnn_py.engines.base import Queue
from webnn_py.engines.device import Commands, GivenInputs
from webnn_py.engines.initialization import BoundInputs, Constants
from webnn_py.engines.webgpu.runtime import bind_resources
from webnn_py.engines.webgpu.runtime.device_graph import LoadedGraph
from webnn_py.engines.webgpu.runtime.devices.binding import Binding
from webnn_py.engines.webgpu.runtime.devices.command_tracking import observe_encoder
from webnn_py.engines.webgpu.runtime.devices.device import Device
from webnn_py.engines.webgpu.runtime.devices.errors import device_errors
from webnn_py.engines.webgpu.runtime.fallback import check_library, is_foreign
from webnn_py.engines.webgpu.runtime.program import LoadedProgram
from webnn_py.engines.webgpu.runtime.program_arguments import place_arguments
from webnn_py.engines.webgpu.runtime.slicing import SlicedGraphRun
from webnn_py.engines.webgpu.runtime.webgpu_api import is_a
from webnn_py.ir import Value


class Recording(Commands):
    """Commands recorded into an own or the user's command encoder.

    Args:
        gpu: The device.
        queue: Queue of the recording context.
        encoder: The user's GPUCommandEncoder; None for a new one.

    Raises:
        DataError: `encoder` is not a GPUCommandEncoder of the device.
    """

    def __init__(self, gpu: Device, queue: Queue, encoder: Any) -> None:
        self._gpu = gpu
        self._queue = queue
        self._owned = encoder is None
        self._finished = False
        if encoder is None:
            with self._errors("creating a command encoder"):
                encoder = gpu.handle.create_command_encoder(label="MLCommandEncoder")
        elif not is_a(encoder, "GPUCommandEncoder"):
            raise DataError(f"encoder: got {type_name(encoder)}, expected a GPUCommandEncoder")
        else:
            check_library(encoder, gpu.handle, "encoder")
            if is_foreign(encoder, gpu.handle):
                raise DataError("encoder: the GPUCommandEncoder belongs to another GPUDevice")
        self._encoder = encoder
        self._uses = observe_encoder(encoder)

    @contextlib.contextmanager
    def _errors(self, what: str) -> Iterator[None]:
        """Convert wgpu's errors, including those from the user's use of the encoder."""
        try:
            with self._queue.loss(), device_errors(what):
                yield
        except OperationError as error:
            if "Encoding must not have ended" in str(error):
                raise InvalidStateError("the GPUCommandEncoder is finished") from error
            if "Encoder is locked" in str(error):
                raise InvalidStateError(
                    "a pass of the GPUCommandEncoder is open; end it before a graph is recorded"
                    " (wgpu has made this encoder invalid)"
                ) from error
            raise

    def check_open(self) -> None:
        """Raise an InvalidStateError if the recording is finished."""
        if self._finished:
            raise InvalidStateError("this MLCommandEncoder is finished; make a new one")

    def constants(self, bound: BoundInputs) -> Constants:
        """Return the inputs of a graph that are constants in this recording."""
        here = self._uses.graphs.get(bound)
        return here.constants if here is not None and here.constants.places else bound.constants

    def initialize(self, bound: BoundInputs, inputs: GivenInputs) -> None:
        """Record copies of inputs that become constants into new buffers."""
        if bound.initialized or bound in self._uses.graphs:
            raise InvalidStateError("this MLGraph is initialized already; it can be done once")
        own = bind_resources.fresh_buffers(self._gpu)
        run = bind_resources.Dispatch()
        with self._errors("recording the constants of a graph"):
            for name, (descriptor, resource) in inputs.items():
                value = Value(descriptor.data_type, descriptor.shape, name)
                bind_resources.copy_input(self._gpu, run, value, resource, own)
            self._begin(run)
        places = {value.name: place for value, place in run.places.items()}
        self._carry(bound, Constants(places, {value.name: value.shape for value in run.places}))

    def carry(self, bound: BoundInputs) -> None:
        """Have the commands initialize a graph that is not initialized yet."""
        self._carry(bound, Constants())

    def _carry(self, bound: BoundInputs, constants: Constants) -> None:
        if not bound.initialized:
            self._uses.carry(bound.initialization(constants))

    def run_graph(self, loaded: LoadedGraph, inputs: Sequence[Any], outputs: Sequence[Any]) -> None:
        """Record one run of a graph."""
        with self._errors("recording a graph"):
            own = bind_resources.fresh_buffers(self._gpu)
            self._run(bind_resources.place(loaded, inputs, outputs, own), loaded.record)

    def run_program(
        self, program: LoadedProgram, inputs: Mapping[str, Any], outputs: Mapping[str, Any]
    ) -> None:
        """Record one run of a program."""
        with self._errors("recording a program"):
            own = bind_resources.fresh_buffers(self._gpu)
            self._run(place_arguments(program, inputs, outputs, own), program.record)

    def _run(
        self,
        run: bind_resources.Dispatch,
        record_run: Callable[[Any, Mapping[Value, Binding]], None],
    ) -> None:
        self._begin(run)
        record_run(self._encoder, run.places)
        for record in run.after:
            record(self._encoder)

    def slice(self, run: SlicedGraphRun, seconds: float) -> bool:
        """Record the next slice of a run and return whether it is the last one."""
        with self._errors("recording a slice of a graph"):
            run.placed.check_usable()
            if run.begun:
                self._open(run.placed)
            else:
                self._begin(run.placed)
            done = run.encode(self._encoder, self._uses, seconds)
            for record in run.placed.after if done else ():
                record(self._encoder)
        if done:
            run.finish(self._uses)
        return done

    def _open(self, run: bind_resources.Dispatch) -> None:
        """Track the resources of a run, and check that the encoder accepts commands."""
        self._queue.flush()  # pending writes to tensors must run first
        if not self._owned:
            # Only a pass raises the error of an open one; a copy invalidates the encoder silently.
            self._encoder.begin_compute_pass().end()
        for place in run.places.values():  # includes the buffers of tensors
            self._uses.note(place.buffer)
        for resource, _ in run.given:
            self._uses.note(resource)

    def _begin(self, run: bind_resources.Dispatch) -> None:
        """Record the uploads and copies before the kernels; raise an error if it cannot record."""
        self._open(run)
        # Host inputs travel with the recording, so that it can be submitted at any time.
        device = self._gpu.handle
        for target, data in run.uploads:
            source = device.create_buffer_with_data(data=data, usage=wgpu.BufferUsage.COPY_SRC)
            self._encoder.copy_buffer_to_buffer(source, 0, target, 0, data.nbytes)
        for record in run.before:
            record(self._encoder)

    def finish(self, label: str) -> Any:
        """Finish the encoder and return the command buffer."""
        self.check_open()
        if not self._owned:
            raise InvalidStateError("the encoder is yours: call its own finish()")
        self._finished = True
        with self._errors("finishing a recording"):
            return self._encoder.finish(label=label)

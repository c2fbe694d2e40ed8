"""What MLCommandEncoder records, and into which encoder."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import wgpu

from webnn_py.core.errors import DataError, InvalidStateError, OperationError
from webnn_py.core.messages import shown
from webnn_py.engines.webgpu.runtime import resources
from webnn_py.engines.webgpu.runtime.binding import Binding
from webnn_py.engines.webgpu.runtime.commands import observe_encoder
from webnn_py.engines.webgpu.runtime.device import device_errors
from webnn_py.engines.webgpu.runtime.executable import WebGPUExecutable

if TYPE_CHECKING:
    from webnn_py.api.context import MLContext
    from webnn_py.api.graph import MLGraph


class Recording:
    """A command encoder, owned or the user's."""

    def __init__(self, context: MLContext, encoder: Any) -> None:
        self._context = context
        self._owned = encoder is None
        self._finished = False
        if encoder is None:
            with self._errors("creating a command encoder"):
                encoder = context.device.create_command_encoder(label="MLCommandEncoder")
        elif not isinstance(encoder, wgpu.GPUCommandEncoder):
            raise DataError(f"encoder: got {type(encoder).__name__}, expected a GPUCommandEncoder")
        elif encoder._device is not context.device:
            raise DataError("encoder: the GPUCommandEncoder belongs to another GPUDevice")
        self._encoder = encoder
        self._uses = observe_encoder(encoder)

    @contextlib.contextmanager
    def _errors(self, what: str) -> Iterator[None]:
        """Errors in our own words, also for what the user did to the encoder."""
        try:
            with self._context.queue.loss(), device_errors(what):
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
        """Raise an InvalidStateError once finished."""
        if self._finished:
            raise InvalidStateError("this MLCommandEncoder is finished; make a new one")

    def initialize(
        self, executable: WebGPUExecutable, graph: MLGraph, constants: Mapping[str, Any]
    ) -> None:
        """Copy the inputs that are constants from now on into buffers of the graph's.

        They are constants for what is recorded into the same encoder; for everyone else once the
        commands are submitted.
        """
        if executable.initialized or executable in self._uses.graphs:
            raise InvalidStateError("this MLGraph is initialized already; it can be done once")
        unknown = [name for name in constants if name not in graph.input_descriptors]
        if unknown:
            raise DataError(f"unknown input {shown(unknown[0])} in constants")
        own = resources.fresh_buffers(executable)
        run = resources.Dispatch()
        with self._errors("recording the constants of a graph"):
            for value in executable.graph.inputs:
                if value.name in constants:
                    resources.copy_input(executable, run, value, constants[value.name], own)
            self._begin(run)
        self._carry(executable, {value.name: place for value, place in run.places.items()})

    def _carry(self, executable: WebGPUExecutable, bound: Mapping[str, Binding]) -> None:
        """The commands initialize a graph, if it is not initialized already."""
        if not executable.initialized:
            self._uses.graphs.setdefault(executable, executable.initialization(bound))

    def _bound(self, executable: WebGPUExecutable) -> Mapping[str, Binding]:
        """The inputs that are constants for what is recorded here."""
        here = self._uses.graphs.get(executable)
        return here.bound if here is not None and here.bound else executable.bound

    def dispatch(
        self,
        executable: WebGPUExecutable,
        graph: MLGraph,
        inputs: Mapping[str, Any],
        outputs: Mapping[str, Any],
    ) -> None:
        """Record one run."""
        bound = self._bound(executable)
        graph.check_names(inputs, outputs, frozenset(bound))
        missing = [name for name in graph.output_descriptors if name not in outputs]
        if missing:
            raise DataError(
                f"output {shown(missing[0])} is missing; a recording needs every output"
            )
        for name, resource in outputs.items():
            if not resources.is_device_resource(resource):
                raise DataError(
                    f"output {shown(name)}: got {type(resource).__name__}, expected a GPUBuffer, a"
                    " binding of one, an MLTensor, a GPUTexture or a GPUTextureView"
                )
        own = resources.fresh_buffers(executable)
        with self._errors("recording a graph"):
            run = resources.place(executable, inputs, outputs, bound, own)
            self._begin(run)
            executable.record(self._encoder, run.places)
            for record in run.after:
                record(self._encoder)
        self._carry(executable, {})

    def _begin(self, run: resources.Dispatch) -> None:
        """Record what comes before a graph's own kernels, or find out that this cannot be."""
        self._context.queue.flush()  # the encoder may be submitted before what tensors hold
        if not self._owned:
            # Only passes tell that another one is open; copies mark the encoder silently.
            self._encoder.begin_compute_pass().end()
        for place in run.places.values():  # tensors' buffers, too
            self._uses.note(place.buffer)
        for resource, _ in run.given:
            self._uses.note(resource)
        # Host inputs travel with the recording, so that it can be submitted at any time.
        device = self._context.device
        for target, data in run.uploads:
            source = device.create_buffer_with_data(data=data, usage=wgpu.BufferUsage.COPY_SRC)
            self._encoder.copy_buffer_to_buffer(source, 0, target, 0, data.nbytes)
        for record in run.before:
            record(self._encoder)

    def finish(self, label: str) -> Any:
        """The command buffer."""
        self.check_open()
        if not self._owned:
            raise InvalidStateError("the encoder is yours: call its own finish()")
        self._finished = True
        with self._errors("finishing a recording"):
            return self._encoder.finish(label=label)

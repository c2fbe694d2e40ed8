"""What MLCommandEncoder records, and into which encoder."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import wgpu

from webnn_py.backends.webgpu import resources
from webnn_py.backends.webgpu.device import Device, device_errors
from webnn_py.backends.webgpu.executable import WebGPUExecutable
from webnn_py.errors import DataError, InvalidStateError, OperationError

if TYPE_CHECKING:
    from webnn_py.context import MLContext
    from webnn_py.graph import MLGraph


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
        """Copy the inputs that are constants from now on into the graph's own buffers."""
        unknown = [name for name in constants if name not in graph.input_descriptors]
        if unknown:
            raise DataError(f"unknown input {unknown[0]!r} in constants")
        own = resources.fresh_buffers(executable)
        run = resources.Dispatch()
        with self._errors("recording the constants of a graph"):
            for value in executable.graph.inputs:
                if value.name in constants:
                    resources.copy_input(executable, run, value, constants[value.name], own)
            self._begin()
            self._upload(executable.gpu, run)
            for record in run.before:
                record(self._encoder)
        executable.bound = {value.name: place for value, place in run.places.items()}
        executable.initialized = True

    def dispatch(
        self,
        executable: WebGPUExecutable,
        graph: MLGraph,
        inputs: Mapping[str, Any],
        outputs: Mapping[str, Any],
    ) -> None:
        """Record one run."""
        graph.check_names(inputs, outputs, frozenset(executable.bound))
        missing = [name for name in graph.output_descriptors if name not in outputs]
        if missing:
            raise DataError(f"output {missing[0]!r} is missing; a recording needs every output")
        for name, resource in outputs.items():
            if not resources.is_device_resource(resource):
                raise DataError(
                    f"output {name!r}: got {type(resource).__name__}, expected a GPUBuffer, a"
                    " binding of one, an MLTensor, a GPUTexture or a GPUTextureView"
                )
        own = resources.fresh_buffers(executable)
        with self._errors("recording a graph"):
            run = resources.place(executable, graph, inputs, outputs, own)
            self._begin()
            self._upload(executable.gpu, run)
            for record in run.before:
                record(self._encoder)
            executable.record(self._encoder, run.places)
            for record in run.after:
                record(self._encoder)
        executable.initialized = True

    def _begin(self) -> None:
        """Submit what tensors hold, and find out whether the encoder can be recorded into."""
        self._context.flush()
        if not self._owned:
            # Only passes tell that another one is open; copies spoil the encoder silently.
            self._encoder.begin_compute_pass().end()

    def _upload(self, gpu: Device, run: resources.Dispatch) -> None:
        """Host inputs travel with the recording, so that it can be submitted at any time."""
        for target, contents in run.uploads:
            data = contents()
            source = gpu.handle.create_buffer_with_data(data=data, usage=wgpu.BufferUsage.COPY_SRC)
            self._encoder.copy_buffer_to_buffer(source, 0, target, 0, data.nbytes)

    def finish(self, label: str) -> Any:
        """The command buffer."""
        self.check_open()
        if not self._owned:
            raise InvalidStateError("the encoder is yours: call its own finish()")
        self._finished = True
        with self._errors("finishing a recording"):
            return self._encoder.finish(label=label)

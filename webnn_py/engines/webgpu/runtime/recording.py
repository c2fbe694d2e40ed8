"""Recording: the commands of an MLCommandEncoder, in an own or the user's encoder."""

from __future__ import annotations

import re
from collections.abc import Hashable, Mapping, Sequence
from typing import Any

from webnn_py.core.errors import DataError, InvalidStateError, OperationError
from webnn_py.core.messages import type_name
from webnn_py.engines.device import CommandQueue, Commands, GivenInputs
from webnn_py.engines.initialization import BoundInputs, Constants
from webnn_py.engines.webgpu.runtime import bind_resources
from webnn_py.engines.webgpu.runtime.device_graph import LoadedGraph, PassEncoder, record_pass
from webnn_py.engines.webgpu.runtime.devices.command_tracking import observe_encoder, unobserved
from webnn_py.engines.webgpu.runtime.devices.device import Device
from webnn_py.engines.webgpu.runtime.devices.errors import device_errors
from webnn_py.engines.webgpu.runtime.fallback import device_of
from webnn_py.engines.webgpu.runtime.program import LoadedProgram
from webnn_py.engines.webgpu.runtime.program_arguments import place_arguments
from webnn_py.engines.webgpu.runtime.slicing import SlicedGraphRun
from webnn_py.engines.webgpu.runtime.submit_chunks import Encodable
from webnn_py.engines.webgpu.runtime.webgpu_api import names_of
from webnn_py.ir import Value

OPEN_PASS = "a pass of the GPUCommandEncoder is open; end it before a graph is recorded"


class RecordingErrors:
    """A context manager that converts wgpu's errors, those of the encoder's user included.

    Args:
        queue: Queue of the context, which a loss of the device ends.
        what: The operation, for messages.
    """

    __slots__ = ("_queue", "_what")

    def __init__(self, queue: CommandQueue, what: str) -> None:
        self._queue, self._what = queue, what

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is None:
            return
        try:
            with self._queue.loss(), device_errors(self._what):
                raise error
        except OperationError as found:
            if re.search("Encoding must not have ended|already finished", str(found)):
                raise InvalidStateError("the GPUCommandEncoder is finished") from found
            if "Encoder is locked" in str(found):
                raise InvalidStateError(
                    f"{OPEN_PASS} (wgpu has made this encoder invalid)"
                ) from found
            raise


class Recording(Commands):
    """Commands recorded into an own or the user's command encoder.

    Args:
        gpu: The device.
        queue: Queue of the recording context.
        encoder: The user's GPUCommandEncoder; None for a new one.

    Raises:
        DataError: `encoder` is not a GPUCommandEncoder of the device.
    """

    def __init__(self, gpu: Device, queue: CommandQueue, encoder: Any) -> None:
        self._gpu = gpu
        self._queue = queue
        self._owned = encoder is None
        self._finished = False
        if encoder is None:
            with RecordingErrors(self._queue, "creating a command encoder"):
                encoder = gpu.handle.create_command_encoder(label="MLCommandEncoder")
        elif "GPUCommandEncoder" not in names_of(type(encoder)):
            raise DataError(f"encoder: got {type_name(encoder)}, expected a GPUCommandEncoder")
        elif device_of(encoder) is not gpu.handle:
            bind_resources.check_device(gpu, encoder, "encoder")
        self._encoder = encoder
        self._uses = observe_encoder(encoder)

    def check_open(self) -> None:
        """Raise an InvalidStateError if the recording is finished."""
        if self._finished:
            raise InvalidStateError("this MLCommandEncoder is finished; make a new one")

    def constants(self, bound: BoundInputs) -> Constants:
        """Return the inputs of a graph that are constants here; raise as `check_open`."""
        self.check_open()
        here = self._uses.graphs.get(bound)
        return here.constants if here is not None and here.constants.places else bound.constants

    def initialize(self, bound: BoundInputs, inputs: GivenInputs) -> None:
        """Record copies of inputs that become constants into new buffers."""
        if bound.initialized or bound in self._uses.graphs:
            raise InvalidStateError("this MLGraph is initialized already; it can be done once")
        own = bind_resources.fresh_buffers(self._gpu)
        run = bind_resources.BoundRun()
        with RecordingErrors(self._queue, "recording the constants of a graph"):
            for name, (descriptor, resource) in inputs.items():
                value = Value(descriptor.data_type, descriptor.shape, name)
                bind_resources.copy_input(self._gpu, run, value, resource, own)
            self._open(run)
            run.begin(PassEncoder(self._encoder))
        places = {value.name: place for value, place in run.places.items()}
        self._carry(bound, Constants(places, {value.name: value.shape for value in run.places}))

    def carry(self, bound: BoundInputs) -> None:
        """Have the commands initialize a graph that is not initialized yet."""
        self._carry(bound, Constants())

    def _carry(self, bound: BoundInputs, constants: Constants) -> None:
        if not bound.initialized:
            self._uses.carry(bound.initialization(constants))

    def run_graph(
        self,
        loaded: LoadedGraph,
        inputs: Sequence[Any],
        outputs: Sequence[Any],
        name: Hashable,
    ) -> None:
        """Record one run of a graph, which `repeat` can record again if its arguments allow that.

        Args:
            loaded: The graph.
            inputs: As of `bind_resources.place`.
            outputs: Likewise.
            name: A name under which the graph's `repeat` finds the commands.
        """
        with RecordingErrors(self._queue, "recording a graph"):
            own = bind_resources.fresh_buffers(self._gpu)
            run = bind_resources.place(loaded, inputs, outputs, own)
            self._record(run, loaded, name if run.binds_directly else None)

    def run_program(
        self, program: LoadedProgram, inputs: Mapping[str, Any], outputs: Mapping[str, Any]
    ) -> None:
        """Record one run of a program."""
        with RecordingErrors(self._queue, "recording a program"):
            own = bind_resources.fresh_buffers(self._gpu)
            self._record(place_arguments(program, inputs, outputs, own), program)

    def _record(
        self, run: bind_resources.BoundRun, kernels: bind_resources.Kernels, name: Hashable = None
    ) -> None:
        self._open(run)
        target = PassEncoder(self._encoder)
        run.record(kernels, target, name)
        target.encoder()  # ends the pass

    def repeat(
        self, bound: BoundInputs, loaded: LoadedGraph, commands: Encodable, buffers: Sequence[Any]
    ) -> bool:
        """Record commands again that `run_graph` recorded, with the same buffers of the user.

        Returns:
            Whether they were recorded: not if inputs are constants, or become so here.
        """
        has_constants = bound.constants.places or bound in self._uses.graphs
        if self._finished or has_constants or not bound.initialized:
            return False
        with RecordingErrors(self._queue, "recording a graph"):
            self._check_passes()
            self._queue.flush()  # pending writes to tensors must run first
            for buffer in buffers:
                self._uses.note(buffer)
            encoder = unobserved(self._encoder)
            loaded.share()
            record_pass(encoder, commands)
        return True

    def slice(self, run: SlicedGraphRun, seconds: float) -> bool:
        """Record the next slice of a run and return whether it is the last one."""
        with RecordingErrors(self._queue, "recording a slice of a graph"):
            run.placed.check_usable()
            self._open(run.placed)
            target = PassEncoder(self._encoder)
            if not run.begun:
                run.placed.begin(target)
            done = run.encode(self._encoder, self._uses, seconds)
            if done:
                run.placed.end(target)
        if done:
            run.finish(self._uses)
        return done

    def _open(self, run: bind_resources.BoundRun) -> None:
        """Track the resources of a run, and check that the encoder accepts commands."""
        self._queue.flush()  # pending writes to tensors must run first
        self._check_passes()
        run.record_uploads(self._gpu)
        if run.before and not self._owned:
            # Only a pass raises the error of an open one; a copy invalidates the encoder silently.
            unobserved(self._encoder).begin_compute_pass().end()
        for resource in run.resources():
            self._uses.note(resource)

    def _check_passes(self) -> None:
        """Raise an InvalidStateError if a pass is open, which Dawn tells only when it finishes."""
        if self._uses.has_open_pass:
            raise InvalidStateError(OPEN_PASS)

    def finish(self, label: str) -> Any:
        """Finish the encoder and return the command buffer."""
        self.check_open()
        if not self._owned:
            raise InvalidStateError("the encoder is yours: call its own finish()")
        self._finished = True
        with RecordingErrors(self._queue, "finishing a recording"):
            return self._encoder.finish(label=label)

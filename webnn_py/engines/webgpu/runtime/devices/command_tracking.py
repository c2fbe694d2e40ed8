"""What the user's commands use, noted while they are recorded.

wgpu-native ends the process over a submission that is not valid: of command buffers that were
submitted before, or that use a buffer or texture that is destroyed or mapped. wgpu-py keeps no
trace of what a command buffer uses, nor of whether it was submitted. So a device with a context
notes it: its class, its queue's and those of the encoders that it makes become subclasses of
wgpu-py's own, which do the same and look at their arguments. Other devices are left alone.

Where that cannot be (`OBSERVING`), nothing is noted or refused.
"""

from __future__ import annotations

import functools
import threading
import types
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import wgpu

from webnn_py.core.errors import DataError, ValidationError
from webnn_py.engines.initialization import BoundInputs, Initialization
from webnn_py.engines.webgpu.runtime.devices.device_lifetime import life_of, share_life
from webnn_py.engines.webgpu.runtime.devices.resource_checks import check_usable
from webnn_py.engines.webgpu.runtime.wgpu_native import native
from webnn_py.engines.webgpu.runtime.wgpu_native.capabilities import OBSERVING
from webnn_py.ordering.operation import Run

RECORDERS = (
    wgpu.GPUCommandEncoder,
    wgpu.GPUComputePassEncoder,
    wgpu.GPURenderPassEncoder,
    wgpu.GPURenderBundleEncoder,
)
RECORDED = (wgpu.GPUCommandBuffer, wgpu.GPURenderBundle, wgpu.GPUBindGroup)
MAKERS = ("create_command_encoder", "create_render_bundle_encoder", "create_bind_group")
_CLASSES: dict[tuple[Any, Any], Any] = {}
_LOCK = threading.Lock()
_USES = "_webnn_uses"


class Uses:
    """What commands use, from their recording to their submission.

    Args:
        noted: It is noted from their first one.

    Attributes:
        graphs: The graphs that they initialize.
        taken: A context has them, and will submit them.
        submitted: They were submitted.
    """

    __slots__ = ("_noted", "_parts", "_resources", "_then", "graphs", "submitted", "taken")

    def __init__(self, noted: bool = False) -> None:
        self._noted = noted
        self._resources: dict[Any, None] = {}
        self._parts: dict[Uses, None] = {}
        self._then: list[Run] = []
        self.graphs: dict[BoundInputs, Initialization] = {}
        self.taken = False
        self.submitted = False

    def note(self, value: Any) -> None:
        """Note the GPU resources in an argument of a call."""
        if isinstance(value, (wgpu.GPUBuffer, wgpu.GPUTexture)):
            self._resources[value] = None
        elif isinstance(value, wgpu.GPUTextureView):
            self._resources[value.texture] = None
        elif isinstance(value, RECORDED):
            self._parts[uses_of(value)] = None
        elif isinstance(value, Mapping):
            for member in value.values():
                self.note(member)
        elif isinstance(value, (list, tuple)):
            for member in value:
                self.note(member)

    def carry(self, initialization: Initialization) -> None:
        """Have the commands initialize a graph, if they do not yet."""
        self.graphs.setdefault(initialization.graph, initialization)
        if not OBSERVING.is_available:  # nobody will tell that they are submitted
            initialization.take_effect()

    def once_submitted(self, then: Run) -> None:
        """Have something done when the commands are submitted, which they may never be."""
        if OBSERVING.is_available:
            self._then.append(then)
        else:  # nobody will tell
            then()

    @property
    def complete(self) -> bool:
        """Whether everything was noted that they use: from the start, and of every part."""
        return self._noted and all(part.complete for part in self._parts)

    def resources(self) -> Iterator[Any]:
        """Every buffer and texture."""
        yield from self._resources
        for part in self._parts:
            yield from part.resources()

    def check(self, what: str) -> None:
        """Raise a ValidationError if a submission would not be valid."""
        if self.submitted:
            raise ValidationError(f"{what}: the GPUCommandBuffer was submitted before")
        for resource in self.resources():
            try:
                check_usable(resource, f"{what} uses {resource.label or 'a resource'!r}")
            except DataError as error:
                raise ValidationError(str(error)) from None

    def was_submitted(self) -> None:
        """The commands were submitted; nothing of them is kept."""
        self.submitted = True
        graphs, self.graphs = self.graphs, {}
        self._resources, self._parts = {}, {}
        for initialization in graphs.values():
            initialization.take_effect()
        then, self._then = self._then, []
        for each in then:
            each()


def uses_of(recorded: Any) -> Uses:
    """What an encoder or what it made uses, as far as that was noted."""
    found = getattr(recorded, _USES, None)
    if found is None:
        found = Uses()
        setattr(recorded, _USES, found)
    result: Uses = found
    return result


def check_submission(commands: Sequence[Any]) -> None:
    """Raise a ValidationError for what would end the process in wgpu-native, as far as is noted."""
    for index, command_buffer in enumerate(commands):
        what = f"submit: command buffer {index}"
        uses_of(command_buffer).check(what)
        if command_buffer in commands[:index]:
            raise ValidationError(f"{what}: the GPUCommandBuffer is given twice")


def observe(device: Any) -> None:
    """Have a device note what its command buffers use; harmless twice."""
    if not OBSERVING.is_available:
        return
    with _LOCK:
        if not _is_observed(device):
            share_life(device, device.queue)
            native.specialize(device.queue, _class_like(device.queue, _queue_methods))
            native.specialize(device, _class_like(device, _device_methods))
            vars(device).pop("_device", None)


def let_go(device: Any) -> None:
    """Have a device of ours go with its last user, though its queue is still there."""
    if _is_observed(device):
        vars(device.queue)["_device"] = weakref.proxy(device)


def observe_encoder(encoder: Any) -> Uses:
    """Have an encoder note what its commands use from now on.

    Returns:
        Where it notes it.
    """
    if OBSERVING.is_available and not _is_observed(encoder):
        native.specialize(encoder, _class_like(encoder, _recorder_methods))
    return uses_of(encoder)


def unobserved(device: Any) -> Any:
    """A device as wgpu-py has it; what it makes notes nothing."""
    return super(type(device), device) if _is_observed(device) else device


def _is_observed(thing: Any) -> bool:
    return hasattr(type(thing), _USES)


def _class_like(made: Any, methods: Callable[[Any], dict[str, Any]]) -> Any:
    """The subclass of an object's class that has these methods instead."""
    base: Any = type(made)
    found = _CLASSES.get((base, methods))
    if found is None:
        members = {_USES: None, "__module__": base.__module__, **methods(base)}
        found = _CLASSES.setdefault((base, methods), type(base.__name__, (base,), members))
    return found


def _device_methods(base: Any) -> dict[str, Any]:
    def destroy(self: Any) -> None:
        life_of(self).end(functools.partial(base.destroy, self))

    def create_buffer_with_data(self: Any, **given: Any) -> Any:
        with life_of(self):  # it is mapped meanwhile
            return base.create_buffer_with_data(self, **given)

    own: list[Any] = [destroy, create_buffer_with_data]
    return {
        "_device": property(lambda device: device),  # kept by it, a device would never go by itself
        **{name: _noting(getattr(base, name), own=True) for name in MAKERS},
        **{made.__name__: functools.wraps(getattr(base, made.__name__))(made) for made in own},
        **native.releasing_unless(base, lambda device: life_of(device).was_lost),
    }


def _queue_methods(base: Any) -> dict[str, Any]:
    def submit(self: Any, command_buffers: Any) -> None:
        commands = list(command_buffers)
        life = life_of(self)
        with life:
            check_submission(commands)
            life.begin_submission()
            base.submit(self, commands)
        for command_buffer in commands:
            uses_of(command_buffer).was_submitted()

    return {"submit": functools.wraps(base.submit)(submit)}


def _recorder_methods(base: Any) -> dict[str, Any]:
    """The methods of an encoder that take or make GPU objects."""
    found: dict[str, Any] = {}
    for kind in base.__mro__:
        for name, member in vars(kind).items():
            if not name.startswith("__") and _concerns_gpu_objects(member):
                found.setdefault(name, _noting(getattr(base, name)))
    return found


def _concerns_gpu_objects(method: Any) -> bool:
    """Whether a method's parameters or result may be GPU objects, as its annotations say."""
    if not isinstance(method, types.FunctionType):
        return False
    code = method.__code__
    names = code.co_varnames[1 : code.co_argcount + code.co_kwonlyargcount]
    kinds = [method.__annotations__.get(name, "GPU") for name in names]
    kinds.append(method.__annotations__.get("return", ""))
    return any("GPU" in str(kind) or "structs." in str(kind) for kind in kinds)


def _noting(method: Callable[..., Any], own: bool = False) -> Callable[..., Any]:
    """The same method, its resources noted: by the object, or by what it makes (`own`)."""

    @functools.wraps(method)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        made = method(self, *args, **kwargs)
        uses = Uses(noted=True) if own else uses_of(self)
        for value in (*args, *kwargs.values()):
            uses.note(value)
        if isinstance(made, (*RECORDERS, *RECORDED)):
            setattr(made, _USES, uses)
            if isinstance(made, RECORDERS):
                observe_encoder(made)
            elif isinstance(made, wgpu.GPUCommandBuffer):
                native.free_when_dropped(made)
        return made

    return call

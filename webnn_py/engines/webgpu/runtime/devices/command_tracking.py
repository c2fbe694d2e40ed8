"""Command tracking: the resources that the user's command buffers use, and whether they are valid.

wgpu-native ends the process at an invalid submission: of a command buffer that was submitted
before, or that uses a destroyed or mapped buffer or texture. wgpu-py tracks neither. So the classes
of a device with a context, of its queue and of the encoders it makes are replaced by subclasses.
These do the same and note the resources in their arguments. Other devices are left alone.

Without the capability `OBSERVING`, nothing is tracked or refused.
"""

from __future__ import annotations

import functools
import threading
import types
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from webnn_py.core.errors import ContextLostError, DataError, ValidationError
from webnn_py.engines.initialization import BoundInputs, Initialization
from webnn_py.engines.webgpu.runtime.devices.device_lifetime import life_of, share_life
from webnn_py.engines.webgpu.runtime.webgpu_api import (
    implementation_of,
    implementation_of_class,
    is_loss,
    names_of,
)
from webnn_py.ordering.operation import Run

PASSES = frozenset(("GPUComputePassEncoder", "GPURenderPassEncoder"))
RECORDERS = PASSES | {"GPUCommandEncoder", "GPURenderBundleEncoder"}
RECORDED = frozenset(("GPUCommandBuffer", "GPURenderBundle", "GPUBindGroup"))
MAKERS = ("create_command_encoder", "create_render_bundle_encoder", "create_bind_group")
_CLASSES: dict[tuple[Any, Any], Any] = {}
_LOCK = threading.Lock()
_USES = "_webnn_uses"


class Uses:
    """The resources and initializations of recorded commands, until their submission.

    Args:
        noted: Whether the recording is tracked from its first command.
        observed: Whether its submission will be noticed.

    Attributes:
        graphs: The initializations that the commands perform, by graph.
        has_open_pass: Whether a pass has begun and not ended, as far as it is tracked.
        taken: Whether a context has accepted the commands and will submit them.
        submitted: Whether the commands were submitted.
    """

    __slots__ = (
        "_callbacks",
        "_noted",
        "_observed",
        "_parts",
        "_resources",
        "graphs",
        "has_open_pass",
        "submitted",
        "taken",
    )

    def __init__(self, noted: bool = False, observed: bool = True) -> None:
        self._noted = noted
        self._observed = observed
        self._resources: dict[Any, None] = {}
        self._parts: dict[Uses, None] = {}
        self._callbacks: list[Run] = []
        self.graphs: dict[BoundInputs, Initialization] = {}
        self.has_open_pass = False
        self.taken = False
        self.submitted = False

    def note(self, value: Any) -> None:
        """Add the GPU resources in an argument of a call."""
        names = names_of(type(value))
        if "GPUBuffer" in names or "GPUTexture" in names:
            self._resources[value] = None
        elif "GPUTextureView" in names:
            self._resources[value.texture] = None
        elif names & RECORDED:
            self._parts[uses_of(value)] = None
        elif isinstance(value, Mapping):
            for member in value.values():
                self.note(member)
        elif isinstance(value, (list, tuple)):
            for member in value:
                self.note(member)

    def carry(self, initialization: Initialization) -> None:
        """Add the initialization of a graph, if the commands have none for it."""
        self.graphs.setdefault(initialization.graph, initialization)
        if not self._observed:  # the submission will go unnoticed
            initialization.take_effect()

    def call_when_submitted(self, callback: Run) -> None:
        """Call `callback` at the submission, which may never come; at once without tracking."""
        if self._observed:
            self._callbacks.append(callback)
        else:
            callback()

    @property
    def complete(self) -> bool:
        """Return whether all resources are known, those of all parts included."""
        return self._noted and all(part.complete for part in self._parts)

    def resources(self) -> Iterator[Any]:
        """Yield every buffer and texture."""
        yield from self._resources
        for part in self._parts:
            yield from part.resources()

    def check(self, what: str) -> None:
        """Raise a ValidationError if a submission would be invalid."""
        if self.submitted:
            raise ValidationError(f"{what}: the GPUCommandBuffer was submitted before")
        for resource in self.resources():
            try:
                check_usable(resource, f"{what} uses {resource.label or 'a resource'!r}")
            except DataError as error:
                raise ValidationError(str(error)) from None

    def was_submitted(self) -> None:
        """Note the submission: apply initializations, call back, and drop all references."""
        self.submitted = True
        graphs, self.graphs = self.graphs, {}
        self._resources, self._parts = {}, {}
        for initialization in graphs.values():
            initialization.take_effect()
        callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            callback()


def check_usable(resource: Any, what: str) -> None:
    """Check that a submission may use a buffer or texture; else wgpu-native ends the process.

    Raises:
        DataError: The resource is mapped, released or destroyed.
        ContextLostError: Its device is lost.
    """
    kind = type(resource)
    if "GPUBuffer" in names_of(kind) and resource.map_state != "unmapped":
        raise DataError(f"{what}: the GPUBuffer is mapped")
    webgpu = implementation_of_class(kind)
    if webgpu.is_released(resource):
        raise DataError(f"{what}: the {type(resource).__name__} is released")
    try:
        webgpu.touch(resource)
    except webgpu.LIBRARY.GPUError as error:
        error.with_traceback(None)  # wgpu-py's frames would form a cycle with it
        message = str(error)  # in wgpu-native mostly that the buffer is not mapped
        if "destroyed" in message:
            raise DataError(f"{what}: the {type(resource).__name__} is destroyed") from None
        if "lost" in message and is_loss(error):
            raise ContextLostError(f"{what}: the GPUDevice is lost") from None


def are_usable(resources: Iterable[Any]) -> bool:
    """Return whether a submission may use these buffers and textures; see `check_usable`."""
    try:
        for resource in resources:
            check_usable(resource, "")
    except (DataError, ContextLostError):
        return False
    return True


def uses_of(recorded: Any) -> Uses:
    """Return the Uses of an encoder, pass, bundle, command buffer or bind group."""
    found = getattr(recorded, _USES, None)
    if found is None:
        webgpu = implementation_of_class(type(recorded))
        found = Uses(observed=webgpu.OBSERVING.is_available)
        setattr(recorded, _USES, found)
    result: Uses = found
    return result


def check_submission(commands: Sequence[Any]) -> None:
    """Raise a ValidationError if the submission of these command buffers would be invalid."""
    for index, command_buffer in enumerate(commands):
        what = f"submit: command buffer {index}"
        uses_of(command_buffer).check(what)
        if command_buffer in commands[:index]:
            raise ValidationError(f"{what}: the GPUCommandBuffer is given twice")


def observe(device: Any) -> None:
    """Track the commands of a device from now on. Idempotent."""
    webgpu = implementation_of(device)
    if not webgpu.OBSERVING.is_available:
        return
    with _LOCK:
        if not _is_observed(device):
            share_life(device, device.queue)
            webgpu.specialize(device.queue, _subclass_of(device.queue, _queue_methods))
            webgpu.specialize(device, _subclass_of(device, _device_methods))
            vars(device).pop("_device", None)


def break_queue_cycle(device: Any) -> None:
    """Make the queue refer weakly to its device, so that the device is freed with its last user."""
    if _is_observed(device):
        vars(device.queue)["_device"] = weakref.proxy(device)


def observe_encoder(encoder: Any) -> Uses:
    """Track the commands of an encoder from now on, and return its Uses."""
    webgpu = implementation_of_class(type(encoder))
    if webgpu.OBSERVING.is_available and not _is_observed(encoder):
        webgpu.specialize(encoder, _subclass_of(encoder, _recorder_methods))
    return uses_of(encoder)


def unobserved(thing: Any) -> Any:
    """Return a view of a device or an encoder whose calls are not tracked."""
    return super(type(thing), thing) if _is_observed(thing) else thing


def _is_observed(thing: Any) -> bool:
    return hasattr(type(thing), _USES)


def _subclass_of(thing: Any, methods: Callable[[Any], dict[str, Any]]) -> Any:
    """Return the subclass of an object's class that overrides these methods. Cached."""
    base: Any = type(thing)
    found = _CLASSES.get((base, methods))
    if found is None:
        members = {_USES: None, "__module__": base.__module__, **methods(base)}
        found = _CLASSES.setdefault((base, methods), type(base.__name__, (base,), members))
    return found


def _device_methods(base: Any) -> dict[str, Any]:
    def destroy(self: Any) -> None:
        life_of(self).end(functools.partial(base.destroy, self))

    def create_buffer_with_data(self: Any, **arguments: Any) -> Any:
        with life_of(self):  # the buffer is mapped meanwhile
            return base.create_buffer_with_data(self, **arguments)

    own: list[Any] = [destroy, create_buffer_with_data]
    webgpu = implementation_of_class(base)
    return {
        "_device": property(lambda device: device),  # an attribute would form a cycle
        **{name: _noting(getattr(base, name), own=True) for name in MAKERS},
        **{
            method.__name__: functools.wraps(getattr(base, method.__name__))(method)
            for method in own
        },
        **webgpu.releasing_unless(base, lambda device: life_of(device).was_lost),
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
    """Return tracking versions of an encoder's methods that take or return GPU objects."""
    found: dict[str, Any] = {}
    for kind in base.__mro__:
        for name, member in vars(kind).items():
            if not name.startswith("__") and _concerns_gpu_objects(member):
                found.setdefault(name, _noting(getattr(base, name)))
    if names_of(base) & PASSES:
        found["end"] = _ending(base.end)
    return found


def _concerns_gpu_objects(method: Any) -> bool:
    """Return whether a method may take or return GPU objects, by its annotations."""
    if not isinstance(method, types.FunctionType):
        return False
    code = method.__code__
    names = code.co_varnames[1 : code.co_argcount + code.co_kwonlyargcount]
    kinds = [method.__annotations__.get(name, "GPU") for name in names]
    kinds.append(method.__annotations__.get("return", ""))
    return any("GPU" in str(kind) or "structs." in str(kind) for kind in kinds)


def _ending(method: Callable[[Any], None]) -> Callable[[Any], None]:
    """Wrap the method that ends a pass, to note that."""

    @functools.wraps(method)
    def end(self: Any) -> None:
        uses_of(self).has_open_pass = False
        method(self)

    return end


def _noting(method: Callable[..., Any], own: bool = False) -> Callable[..., Any]:
    """Wrap a method to add the resources in its arguments to a Uses.

    Args:
        method: The method.
        own: Use a new Uses of the returned object instead of the one of `self`.
    """

    @functools.wraps(method)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        result = method(self, *args, **kwargs)
        uses = Uses(noted=True) if own else uses_of(self)
        for value in (*args, *kwargs.values()):
            uses.note(value)
        names = names_of(type(result))
        if names & RECORDERS:
            setattr(result, _USES, uses)
            uses.has_open_pass |= not names.isdisjoint(PASSES)
            observe_encoder(result)
        elif names & RECORDED:
            setattr(result, _USES, uses)
            if "GPUCommandBuffer" in names:
                implementation_of_class(type(result)).free_when_dropped(result)
        return result

    return call

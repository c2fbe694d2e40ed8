"""The lifetime of a GPUDevice: defers `destroy` while the device is in use, and detects its loss.

wgpu-native ends the process if another thread destroys a device just before a submission or while
mapped memory is used. So `destroy` of a device with a context notifies the contexts at once, and
destroys the device when its last use ends.

wgpu-native also ends the process at a submission to a device that the driver has lost, and when
such a device is released. So each submission is preceded by a check.
"""

from __future__ import annotations

import functools
import threading
import weakref
from collections.abc import Callable, Hashable
from typing import Any, Protocol

import wgpu

from webnn_py.core.completion import Cancellation, Completion
from webnn_py.core.errors import ContextLostError
from webnn_py.engines.webgpu.runtime.webgpu_api import implementation_of_class
from webnn_py.ordering.operation import Run

DESTROYED = "the GPUDevice is lost: its destroy() was called"
GONE = "the GPUDevice is lost, as by its destroy()"
LOST = "the GPUDevice is lost: its driver lost it"
_LIFE = "_webnn_life"
Fail = Callable[[BaseException], None]


class DeviceLossListener(Protocol):
    """An object that is notified when its device is lost, such as a context's queue."""

    def on_lost(self, message: str, /) -> None:
        """Handle the loss of the device."""


class Life:
    """The lifetime of one device, shared by all its contexts.

    A `with` block is a use of the device: `destroy` waits for its end. It raises a ContextLostError
    if the device was destroyed.

    Attributes:
        witness: A small buffer of the device, for checks whether the device is lost.
        was_lost_at_start: Whether the device was lost before its lifetime was tracked.
        submissions: Number of submissions so far, by anyone.
    """

    def __init__(self) -> None:
        self.witness: Any = None
        self.was_lost_at_start = False
        self.submissions = self._ended = 0
        self._was_lost = self._destroyed = False
        self._lock = threading.RLock()  # a finalizer may run while it is held
        self._users = 0
        self._is_over = False
        self._destroy: Run | None = None
        self._deferred: list[Run] = []
        self._listeners: weakref.WeakSet[DeviceLossListener] = weakref.WeakSet()

    def __enter__(self) -> None:
        with self._lock:
            if self._is_over:
                raise ContextLostError(DESTROYED)
            self._users += 1

    def __exit__(self, *raised: object) -> None:
        with self._lock:
            self._users -= 1
            if self._deferred and not self._users:
                self._run_deferred()
            last = self._is_over and not self._users
        if last:
            self._end()

    @property
    def was_lost(self) -> bool:
        """Return whether the driver lost the device before it was destroyed."""
        if self.witness is not None and not (self._destroyed or self._was_lost):
            self._was_lost = implementation_of_class(type(self.witness)).is_lost(self.witness)
        return self._was_lost

    def check(self) -> None:
        """Raise a ContextLostError if the device was destroyed or lost."""
        with self:
            if self.was_lost_at_start:
                raise ContextLostError(GONE)
            self._check_driver()

    def begin_submission(self) -> None:
        """Count a submission that follows.

        Raises:
            ContextLostError: The driver has lost the device; the listeners are notified.
        """
        self._check_driver()
        with self._lock:
            self.submissions += 1

    def end_submission(self, number: int) -> None:
        """Note that submission `number`, and all before it, have ended."""
        self._ended = max(self._ended, number)

    @property
    def is_idle(self) -> bool:
        """Return whether all submissions are known to have ended."""
        return self._ended == self.submissions

    def add_listener(self, listener: DeviceLossListener) -> None:
        """Notify `listener`, which is referenced weakly, when the device is lost."""
        self._listeners.add(listener)

    def end(self, destroy: Run) -> None:
        """Refuse new uses of the device, notify the listeners, and destroy it after its last use.

        Args:
            destroy: Destroys the device.
        """
        with self._lock:
            self._is_over, self._destroy = True, destroy
            self._users += 1  # destroy after all listeners are notified
        self._notify(DESTROYED)
        self.__exit__()

    def run_when_unused(self, run: Run) -> None:
        """Call `run` while the device is not in use: now or after its current uses.

        It is never called if the device is destroyed or lost before.
        """
        with self._lock:
            self._deferred.append(run)
            if not self._users:
                self._run_deferred()

    def _run_deferred(self) -> None:
        runs, self._deferred = self._deferred, []
        for run in () if self._is_over or self.was_lost else runs:
            run()

    def _check_driver(self) -> None:
        if self.was_lost:
            self._notify(LOST)
            raise ContextLostError(LOST)

    def _notify(self, message: str) -> None:
        for listener in tuple(self._listeners):
            listener.on_lost(message)

    def _end(self) -> None:
        destroy, self._destroy = self._destroy, None
        if destroy is not None:
            self._destroyed = not self.was_lost
            destroy()


class PendingWork:
    """Registry of device work that must fail when the context is lost."""

    def __init__(self) -> None:
        self._fails: dict[Hashable, Fail] = {}
        self._error: BaseException | None = None

    def add(self, work: Hashable, fail: Fail) -> None:
        """Register work; `fail` is called if the context is lost before `remove`."""
        self._fails[work] = fail
        if self._error is not None:  # another thread lost the context just now
            self.fail_all(self._error)

    def add_result(self, done: Completion[None], cancellation: Cancellation) -> None:
        """Register a result, which fails at a loss, but not while it is being written."""

        def fail(error: BaseException) -> None:
            cancellation.cancel().on_done(lambda: done.set_exception(error))

        self._fails[done] = fail
        if self._error is not None:
            self.fail_all(self._error)
        done.on_done(functools.partial(self._fails.pop, done, None))

    def remove(self, work: Hashable) -> None:
        """Unregister work that has ended."""
        self._fails.pop(work, None)

    def fail_all(self, error: BaseException) -> None:
        """Fail all registered work, and any added later."""
        self._error = error
        for work in tuple(self._fails):
            fail = self._fails.pop(work, None)
            if fail is not None:
                fail(error)


def life_of(thing: Any) -> Life:
    """Return the Life of a GPUDevice, or of a GPUQueue after `share_life`."""
    attributes = vars(thing)
    found: Life = attributes.get(_LIFE) or attributes.setdefault(_LIFE, Life())
    return found


def share_life(device: Any, queue: Any) -> None:
    """Give a GPUQueue the Life of its device, and make the device's witness buffer."""
    life = life_of(device)
    setattr(queue, _LIFE, life)
    try:
        witness = device.create_buffer(size=4, usage=wgpu.BufferUsage.COPY_DST)
        vars(witness)["_device"] = weakref.proxy(device)  # a reference would form a cycle
        life.witness = witness
    except implementation_of_class(type(device)).LIBRARY.GPUError:
        life.was_lost_at_start = True

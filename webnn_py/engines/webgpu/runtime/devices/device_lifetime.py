"""The life of a GPUDevice, which `destroy` does not end in the midst of what relies on it.

wgpu-native ends the process where commands are submitted to a device that another thread has just
destroyed, or memory of it is used that was mapped. So `destroy` of a device with a context tells
its contexts at once, and destroys the device when nobody relies on it any more.

It also ends the process where commands are submitted to a device that its driver has lost, and
where such a device is released. So that is found out before.
"""

from __future__ import annotations

import threading
import weakref
from typing import Any, Protocol

import wgpu

from webnn_py.core.errors import ContextLostError
from webnn_py.engines.webgpu.runtime.wgpu_native import native
from webnn_py.ordering.operation import Run

DESTROYED = "the GPUDevice is lost: its destroy() was called"
GONE = "the GPUDevice is lost, as by its destroy()"
LOST = "the GPUDevice is lost: its driver lost it"
_LIFE = "_webnn_life"


class Mortal(Protocol):
    """What goes with a device: the order of work of a context."""

    def lost(self, message: str, /) -> None:
        """Its device is lost."""


class Life:
    """One device's life; `with` relies on it, and raises a ContextLostError if it is over.

    Attributes:
        witness: A buffer of the device, by which it is found out whether that is lost.
        gone: It was lost before anyone looked.
        submissions: How many were made, by anyone.
    """

    def __init__(self) -> None:
        self.witness: Any = None
        self.gone = False
        self.submissions = self._ended = 0
        self._was_lost = self._destroyed = False
        self._lock = threading.RLock()  # a finalizer may run within
        self._relying = 0
        self._over = False
        self._destroy: Run | None = None
        self._apart: list[Run] = []
        self._told: weakref.WeakSet[Mortal] = weakref.WeakSet()

    def __enter__(self) -> None:
        with self._lock:
            if self._over:
                raise ContextLostError(DESTROYED)
            self._relying += 1

    def __exit__(self, *raised: object) -> None:
        with self._lock:
            self._relying -= 1
            if self._apart and not self._relying:
                self._run_apart()
            last = self._over and not self._relying
        if last:
            self._end()

    @property
    def was_lost(self) -> bool:
        """Whether the driver has lost the device, before it was destroyed."""
        if self.witness is not None and not (self._destroyed or self._was_lost):
            self._was_lost = native.is_lost(self.witness)
        return self._was_lost

    def check(self) -> None:
        """Raise a ContextLostError if it is over, or the driver has lost the device."""
        with self:
            if self.gone:
                raise ContextLostError(GONE)
            self._check_driver()

    def begin_submission(self) -> None:
        """Raise a ContextLostError if the driver has lost the device, and tell its contexts."""
        self._check_driver()
        with self._lock:
            self.submissions += 1

    def end_submission(self, number: int) -> None:
        """So many are known to have run."""
        self._ended = max(self._ended, number)

    @property
    def idle(self) -> bool:
        """Whether all that was submitted is known to have run."""
        return self._ended == self.submissions

    def tell(self, mortal: Mortal) -> None:
        """Have it told at the end, as long as it is there."""
        self._told.add(mortal)

    def end(self, destroy: Run) -> None:
        """Let nobody rely on the device any more; destroy it, now or when nobody does."""
        with self._lock:
            self._over, self._destroy = True, destroy
            self._relying += 1  # all are told before they find out
        self._tell(DESTROYED)
        self.__exit__()

    def apart(self, run: Run) -> None:
        """Do what must not happen in the midst of a submission: now or when nobody relies on it.

        Not at all where it is over, or the driver has lost the device.
        """
        with self._lock:
            self._apart.append(run)
            if not self._relying:
                self._run_apart()

    def _run_apart(self) -> None:
        runs, self._apart = self._apart, []
        for run in () if self._over or self.was_lost else runs:
            run()

    def _check_driver(self) -> None:
        if self.was_lost:
            self._tell(LOST)
            raise ContextLostError(LOST)

    def _tell(self, message: str) -> None:
        for mortal in tuple(self._told):
            mortal.lost(message)

    def _end(self) -> None:
        destroy, self._destroy = self._destroy, None
        if destroy is not None:
            self._destroyed = not self.was_lost
            destroy()


def life_of(thing: Any) -> Life:
    """That of a GPUDevice, or of its queue, which it was shared with."""
    found: Life = vars(thing).setdefault(_LIFE, Life())
    return found


def share_life(device: Any, queue: Any) -> None:
    """Have a GPUQueue tell the life of its device, which a small buffer bears witness to."""
    life = life_of(device)
    setattr(queue, _LIFE, life)
    try:
        witness = device.create_buffer(size=4, usage=wgpu.BufferUsage.COPY_DST)
        vars(witness)["_device"] = weakref.proxy(device)  # which goes with its last user
        life.witness = witness
    except wgpu.GPUError:
        life.gone = True

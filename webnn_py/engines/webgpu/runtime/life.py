"""The life of a GPUDevice, which `destroy` does not end in the midst of what relies on it.

wgpu-native ends the process where commands are submitted to a device that another thread has just
destroyed, or memory of it is used that was mapped. So `destroy` of a device with a context tells
its contexts at once, and destroys the device when nobody relies on it any more.
"""

from __future__ import annotations

import threading
import weakref
from typing import Any, Protocol

from webnn_py.core.errors import ContextLostError
from webnn_py.ordering.operation import Run

DESTROYED = "the GPUDevice is lost: its destroy() was called"
_LIFE = "_webnn_life"


class Mortal(Protocol):
    """What goes with a device: the order of work of a context."""

    def lost(self, message: str, /) -> None:
        """Its device is lost."""


class Life:
    """One device's life; `with` relies on it, and raises a ContextLostError if it is over."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._relying = 0
        self._over = False
        self._destroy: Run | None = None
        self._told: weakref.WeakSet[Mortal] = weakref.WeakSet()

    def __enter__(self) -> None:
        with self._lock:
            if self._over:
                raise ContextLostError(DESTROYED)
            self._relying += 1

    def __exit__(self, *raised: object) -> None:
        with self._lock:
            self._relying -= 1
            last = self._over and not self._relying
        if last:
            self._end()

    def tell(self, mortal: Mortal) -> None:
        """Have it told at the end, as long as it is there."""
        self._told.add(mortal)

    def end(self, destroy: Run) -> None:
        """Let nobody rely on the device any more; destroy it, now or when nobody does."""
        with self._lock:
            self._over, self._destroy = True, destroy
            self._relying += 1  # all are told before they find out
        for mortal in tuple(self._told):
            mortal.lost(DESTROYED)
        self.__exit__()

    def _end(self) -> None:
        destroy, self._destroy = self._destroy, None
        if destroy is not None:
            destroy()


def life_of(thing: Any) -> Life:
    """That of a GPUDevice, or of its queue, which it was shared with."""
    found: Life = vars(thing).setdefault(_LIFE, Life())
    return found


def share_life(device: Any, queue: Any) -> None:
    """Have a GPUQueue tell the life of its device."""
    setattr(queue, _LIFE, life_of(device))

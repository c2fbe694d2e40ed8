"""Buffers bound to kernels, and bind groups kept for the next run over the same buffers."""

from __future__ import annotations

import functools
import itertools
import threading
import weakref
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from webnn_py.ir import Value
from webnn_py.memory.overlap import Span

T = TypeVar("T")
PlacesKey = tuple[tuple[int, int, int], ...]
KEPT = 64


@dataclass(frozen=True, slots=True)
class Binding:
    """Part of a buffer that holds a tensor.

    Attributes:
        buffer: The wgpu.GPUBuffer.
        offset: Where the tensor begins, in bytes.
        size: Bytes of the tensor.
        room: Bytes that kernels may be shown from there, if more: nobody else has the rest.
    """

    buffer: Any
    offset: int
    size: int
    room: int = 0

    @property
    def entry(self) -> dict[str, Any]:
        """The resource of a bind group's entry."""
        return {"buffer": self.buffer, "offset": self.offset, "size": self.size}

    @property
    def span(self) -> Span:
        """The memory."""
        return Span(self.buffer, self.offset, self.offset + self.size)


def copy_binding(encoder: Any, source: Binding, target: Binding) -> None:
    """Record the copy of one tensor's bytes to another."""
    encoder.copy_buffer_to_buffer(
        source.buffer, source.offset, target.buffer, target.offset, source.size
    )


class PlaceCache(Generic[T]):
    """Remembers what was made for a set of places, as long as their buffers live.

    A bind group keeps its buffers' memory. So an entry goes when one of its buffers does, and the
    oldest entries go when there are many.
    """

    def __init__(self) -> None:
        self._entries: dict[PlacesKey, T] = {}
        self._keys: dict[Hashable, PlacesKey] = {}
        self._serials: dict[weakref.ref[Any], int] = {}  # of buffers
        self._numbers = itertools.count()
        self._lock = threading.RLock()  # a finalizer may run within

    def get(
        self,
        places: Mapping[Value, Binding],
        make: Callable[[Mapping[Value, Binding]], T],
        name: Hashable = None,
    ) -> T:
        """What `make` gives for these places. They always name the same values in one order.

        Args:
            places: Where each value lies.
            make: Called if nothing is kept for these places.
            name: Under what `recall` finds the same.
        """
        key = tuple(
            [
                (self._serial(place.buffer), place.offset, place.room or place.size)
                for place in places.values()
            ]
        )
        found = self._entries.get(key)
        if found is None:
            found = make(places)
            with self._lock:
                while len(self._entries) >= KEPT:
                    self._entries.pop(next(iter(self._entries)), None)
                self._entries[key] = found
        if name is not None:
            if len(self._keys) >= KEPT:
                self._keys.clear()
            self._keys[name] = key
        return found

    def recall(self, name: Hashable) -> T | None:
        """What `get` gave for the places of this name, if it is still kept."""
        key = self._keys.get(name)
        return None if key is None else self._entries.get(key)

    def _serial(self, buffer: Any) -> int:
        serial = self._serials.get(weakref.ref(buffer))
        if serial is None:
            # Kept here, and not with the buffer, which may outlive many of these.
            reference = weakref.ref(buffer, functools.partial(_forget, weakref.ref(self)))
            with self._lock:
                serial = self._serials.setdefault(reference, next(self._numbers))
        return serial

    def forget(self, reference: weakref.ref[Any]) -> None:
        """Drop what was made over a buffer that is gone."""
        with self._lock:
            serial = self._serials.pop(reference)
            for key in list(self._entries):
                if any(part[0] == serial for part in key):
                    self._entries.pop(key, None)


def _forget(cache: weakref.ref[PlaceCache[Any]], reference: weakref.ref[Any]) -> None:
    alive = cache()
    if alive is not None:
        alive.forget(reference)

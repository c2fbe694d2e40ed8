"""Buffer ranges that hold tensors, and two caches: by bound buffers and by constants."""

from __future__ import annotations

import functools
import itertools
import threading
import weakref
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from webnn_py.ir import Array, Value
from webnn_py.memory.overlap import Span

T = TypeVar("T")
PlacesKey = tuple[tuple[int, int, int], ...]
MAX_CACHE_ENTRIES = 64
Contents = tuple[Array, str]
"""The contents of a constant, and its data type, which determines its layout in a buffer."""
WeightsKey = tuple[tuple[int, str], ...]


@dataclass(frozen=True, slots=True)
class Binding:
    """A range of a buffer that holds a tensor.

    Attributes:
        buffer: The wgpu.GPUBuffer.
        offset: Start of the tensor in bytes.
        size: Size of the tensor in bytes.
        room: Bytes from `offset` that may be bound, if more than `size`: nothing else uses them.
    """

    buffer: Any
    offset: int
    size: int
    room: int = 0

    @property
    def entry(self) -> dict[str, Any]:
        """Return the `resource` of a bind group entry."""
        return {"buffer": self.buffer, "offset": self.offset, "size": self.size}

    @property
    def span(self) -> Span:
        """Return the memory range."""
        return Span(self.buffer, self.offset, self.offset + self.size)


def copy_binding(encoder: Any, source: Binding, target: Binding) -> None:
    """Record a copy of the bytes of `source` to `target`."""
    encoder.copy_buffer_to_buffer(
        source.buffer, source.offset, target.buffer, target.offset, source.size
    )


class PlaceCache(Generic[T]):
    """A FIFO cache of objects made for a set of bindings, such as bind groups.

    A bind group keeps its buffers' memory. So an entry is removed with one of its buffers, and the
    oldest entry when the cache is full.
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
        """Return the cached result of `make` for these bindings, or call it.

        Args:
            places: The binding of each value. All calls name the same values in the same order.
            make: Called with `places` if there is no entry.
            name: A name under which `recall` finds the entry.
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
                while len(self._entries) >= MAX_CACHE_ENTRIES:
                    self._entries.pop(next(iter(self._entries)), None)
                self._entries[key] = found
        if name is not None:
            if len(self._keys) >= MAX_CACHE_ENTRIES:
                self._keys.clear()
            self._keys[name] = key
        return found

    def recall(self, name: Hashable) -> T | None:
        """Return the entry that `get` returned for this name, if it is still cached."""
        key = self._keys.get(name)
        return None if key is None else self._entries.get(key)

    def _serial(self, buffer: Any) -> int:
        serial = self._serials.get(weakref.ref(buffer))
        if serial is None:
            # Stored in the cache, as the buffer may outlive many caches.
            reference = weakref.ref(buffer, functools.partial(_forget, weakref.ref(self)))
            with self._lock:
                serial = self._serials.setdefault(reference, next(self._numbers))
        return serial

    def forget(self, reference: weakref.ref[Any]) -> None:
        """Remove the entries of a buffer that was garbage-collected."""
        with self._lock:
            serial = self._serials.pop(reference)
            for key in list(self._entries):
                if any(part[0] == serial for part in key):
                    self._entries.pop(key, None)


def _forget(cache: weakref.ref[PlaceCache[Any]], reference: weakref.ref[Any]) -> None:
    alive = cache()
    if alive is not None:
        alive.forget(reference)


class Weights:
    """A weak cache of constant buffers, so that graphs on a device share their constants.

    Arrays are identified by identity and never change. A buffer lives as long as it is used; its
    arrays may be freed before.
    """

    def __init__(self) -> None:
        self._buffers: weakref.WeakValueDictionary[WeightsKey, Any] = weakref.WeakValueDictionary()
        self._arrays: weakref.WeakKeyDictionary[Any, Sequence[weakref.ref[Array]]] = (
            weakref.WeakKeyDictionary()  # by buffer
        )
        self._uploads: weakref.WeakValueDictionary[WeightsKey, threading.Lock] = (
            weakref.WeakValueDictionary()
        )
        self._lock = threading.Lock()

    def get(self, constants: Sequence[Contents], upload: Callable[[], Any]) -> Any:
        """Return the buffer of one or several arrays; upload it once (single flight).

        Args:
            constants: The contents of the buffer, in order.
            upload: Makes the buffer if there is none. Other callers with the same constants wait.
        """
        key = tuple((id(array), data_type) for array, data_type in constants)
        with self._lock:
            uploading = self._uploads.setdefault(key, threading.Lock())
        with uploading:
            buffer = self._buffers.get(key)
            # A freed array may have had the same id.
            if buffer is None or not self._holds(buffer, constants):
                buffer = upload()
                with self._lock:
                    self._arrays[buffer] = [weakref.ref(array) for array, _ in constants]
                    self._buffers[key] = buffer
            return buffer

    def _holds(self, buffer: Any, constants: Sequence[Contents]) -> bool:
        """Return whether a buffer was made from exactly these arrays."""
        pairs = zip(self._arrays[buffer], constants, strict=True)
        return all(reference() is array for reference, (array, _) in pairs)

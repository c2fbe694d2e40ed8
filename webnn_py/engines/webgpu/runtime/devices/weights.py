"""The constants of all graphs on a device, each held once."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Any

from webnn_py.ir import Array

Contents = tuple[Array, str]
"""The contents of a constant, and its data type, which decides how they lie in a buffer."""
Key = tuple[tuple[int, str], ...]


class Weights:
    """GPU buffers by the arrays whose contents they hold.

    Arrays are told apart by identity, and do not change. A buffer lives as long as somebody uses
    it, and its arrays may go before.
    """

    def __init__(self) -> None:
        self._buffers: weakref.WeakValueDictionary[Key, Any] = weakref.WeakValueDictionary()
        self._arrays: weakref.WeakKeyDictionary[Any, Sequence[weakref.ref[Array]]] = (
            weakref.WeakKeyDictionary()  # by buffer
        )
        self._uploads: weakref.WeakValueDictionary[Key, threading.Lock] = (
            weakref.WeakValueDictionary()
        )
        self._lock = threading.Lock()

    def get(self, constants: Sequence[Contents], upload: Callable[[], Any]) -> Any:
        """The buffer of one array, or of several that lie in one.

        Args:
            constants: What it holds, in this order.
            upload: Makes the buffer, if there is none. Who wants the same waits meanwhile.
        """
        key = tuple((id(array), data_type) for array, data_type in constants)
        with self._lock:
            uploading = self._uploads.setdefault(key, threading.Lock())
        with uploading:
            buffer = self._buffers.get(key)
            # An array of before may have had the same id.
            if buffer is None or not self._holds(buffer, constants):
                buffer = upload()
                with self._lock:
                    self._arrays[buffer] = [weakref.ref(array) for array, _ in constants]
                    self._buffers[key] = buffer
            return buffer

    def _holds(self, buffer: Any, constants: Sequence[Contents]) -> bool:
        """Whether a buffer was made of these very arrays."""
        pairs = zip(self._arrays[buffer], constants, strict=True)
        return all(made() is array for made, (array, _) in pairs)

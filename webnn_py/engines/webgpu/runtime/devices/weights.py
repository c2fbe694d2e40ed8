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
        self._arrays: weakref.WeakValueDictionary[tuple[int, str], Array] = (
            weakref.WeakValueDictionary()
        )
        self._buffers: weakref.WeakValueDictionary[Key, Any] = weakref.WeakValueDictionary()
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
            alike = all(
                self._arrays.get(one) is array
                for one, (array, _) in zip(key, constants, strict=True)
            )
            if buffer is None or not alike:
                buffer = upload()
                with self._lock:
                    self._buffers[key] = buffer
                    for one, (array, _) in zip(key, constants, strict=True):
                        self._arrays[one] = array
            return buffer

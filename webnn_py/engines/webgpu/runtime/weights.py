"""The constants of all graphs on a device, each held once."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from typing import Any

from webnn_py.ir import Array


class Weights:
    """GPU buffers by the array whose contents they hold.

    Arrays are told apart by identity, and do not change. A buffer lives as long as somebody uses
    it, and its array may go before.
    """

    def __init__(self) -> None:
        self._arrays: weakref.WeakValueDictionary[tuple[int, str], Array] = (
            weakref.WeakValueDictionary()
        )
        self._buffers: weakref.WeakValueDictionary[tuple[int, str], Any] = (
            weakref.WeakValueDictionary()
        )
        self._uploads: weakref.WeakValueDictionary[tuple[int, str], threading.Lock] = (
            weakref.WeakValueDictionary()
        )
        self._lock = threading.Lock()

    def get(self, array: Array, data_type: str, upload: Callable[[], Any]) -> Any:
        """The buffer of an array.

        Args:
            array: The contents of a constant.
            data_type: Of the constant, which decides how it lies in the buffer.
            upload: Makes the buffer, if there is none. Who wants the same waits meanwhile.
        """
        key = (id(array), data_type)
        with self._lock:
            uploading = self._uploads.setdefault(key, threading.Lock())
        with uploading:
            buffer = self._buffers.get(key)
            # An array of before may have had the same id.
            if buffer is None or self._arrays.get(key) is not array:
                buffer = upload()
                with self._lock:
                    self._buffers[key] = buffer
                    self._arrays[key] = array
            return buffer

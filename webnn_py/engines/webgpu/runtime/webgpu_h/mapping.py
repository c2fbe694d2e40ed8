"""The part of a buffer's mapping that is the same for every implementation."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable

from webnn_py.engines.webgpu.runtime.poll_backoff import yield_core


class PolledMapping(ABC):
    """A mapping of a buffer that is polled."""

    __slots__ = ()

    @abstractmethod
    def look(self) -> bool:
        """Poll, and return whether the mapping has ended."""

    def look_for(self, seconds: float, meanwhile: Callable[[], None] | None = None) -> bool:
        """Poll without pauses for at most `seconds`.

        Args:
            seconds: The time limit.
            meanwhile: Called once after the first poll, if the mapping has not ended.

        Returns:
            Whether the mapping has ended.
        """
        end = time.monotonic() + seconds
        while not self.look():
            if time.monotonic() > end:
                return False
            if meanwhile is not None:
                meanwhile()
                meanwhile = None
            else:
                yield_core()
        return True

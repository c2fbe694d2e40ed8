"""C functions of wgpu that raise a GPUError, at a sixth of what wgpu-py's own take."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import wgpu


class _Slot:
    """Where wgpu-py leaves the error of a function that is called meanwhile."""

    type = ""
    message: str | None = None


class Calls:
    """The functions, by their names.

    Args:
        lib: Has the functions.
        slots: Gives this thread's stack of where errors are left.
        tell: Leaves an error there, by its kind and message.
        kinds: Of errors, by their names.
    """

    def __init__(
        self,
        lib: Any,
        slots: Callable[[], Any],
        tell: Callable[[str, str], None],
        kinds: Mapping[str, type[BaseException]],
    ) -> None:
        self._lib = lib
        self._slots = slots
        self._tell = tell
        self._kinds = kinds

    def fault(self) -> str | None:
        """Why errors are not told where these functions look for them; None if they are."""
        slot, kind, message = _Slot(), "Validation", "a trial"
        stack = self._slots()
        stack.append(slot)
        self._tell(kind, message)
        told = stack.pop() is slot and (slot.type, slot.message) == (kind, message)
        known = self._kinds.get(kind) is wgpu.GPUValidationError
        return None if told and known else "errors of C functions are told in another way"

    def __getattr__(self, name: str) -> Callable[..., Any]:
        function, slots = getattr(self._lib, name), self._slots

        def call(*given: Any) -> Any:
            # Asked for each time: the collector may call from within wgpu-py's making of a thread's
            # stack, and have another one then than the thread has behind that.
            stack = slots()
            slot = _Slot()
            stack.append(slot)
            try:
                result = function(*given)
            finally:
                stack.pop()
            if slot.message is not None:
                raise self._kinds.get(slot.type, wgpu.GPUError)(slot.message)
            return result

        setattr(self, name, call)
        return call

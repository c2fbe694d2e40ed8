"""Calls that no signal handler interrupts, as an exception such as Ctrl-C may leave state torn."""

from __future__ import annotations

import contextlib
import importlib
import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

# The module's own functions make no enumerations, which take twenty times as long.
_signal: Any = importlib.import_module("_signal")
SIGNALS = tuple(sorted(signal.valid_signals()))


def uninterrupted(work: Callable[[], None]) -> None:
    """Call a function; its frame marks a call that a finalizer must not wait for."""
    work()


def call_uninterrupted(work: Callable[[], None]) -> None:
    """Call a function, and then the handlers of signals that came meanwhile.

    Python runs handlers on the main thread, between any two instructions.
    """
    if threading.current_thread() is not threading.main_thread():
        uninterrupted(work)
        return
    came: list[tuple[int, FrameType | None]] = []
    handlers: dict[int, Any] = {}

    def note(number: int, frame: FrameType | None) -> None:
        came.append((number, frame))

    def call_handlers() -> None:
        for number, frame in came:
            handlers[number](number, frame)

    with contextlib.ExitStack() as stack:  # which restores all, also if a handler raises meanwhile
        stack.callback(call_handlers)
        for number in SIGNALS:
            if callable(handler := _signal.getsignal(number)):
                handlers[number] = handler
                stack.callback(_signal.signal, number, handler)
                _signal.signal(number, note)
        uninterrupted(work)

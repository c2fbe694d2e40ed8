"""C functions of Dawn that raise their errors on the thread that called them.

wgpudawn collects the errors of all threads in one list, and any call may raise them. So its
handler is replaced by one that knows the call which is running on this thread, and its functions
by ones that raise that call's error.

Dawn is safe for threads only on devices with the feature `implicit-device-synchronization`. Once
another device is used, calls take turns.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from wgpudawn.backends.dawn import _api, _ffi, _helpers

from webnn_py.engines.webgpu.runtime.webgpu_h.forked import skip_releases

lib, ffi = _ffi.lib, _ffi.ffi
instance = _helpers.get_wgpu_instance


_running = threading.local()
"""Holds the errors of the calls that run on each thread, the innermost call last."""
_turns = threading.RLock()
_take_turns = False


def take_turns() -> None:
    """Have calls take turns from now on, for a device without its own synchronization."""
    global _take_turns
    _take_turns = True
    for kind in vars(_api).values():
        release = f"wgpu{getattr(kind, '__name__', '')[3:]}Release"
        if "_release_function" in getattr(kind, "__dict__", {}) and hasattr(lib, release):
            kind._release_function = getattr(safe, release)


def takes_turns() -> bool:
    """Return whether calls take turns, so that none may wait for the device."""
    return _take_turns


class CFunctions:
    """Dawn's C functions as attributes, each of which raises a GPUError for its own errors."""

    def __getattr__(self, name: str) -> Callable[..., Any]:
        function = getattr(lib, name)

        def call(*arguments: Any) -> Any:
            errors: list[tuple[str, str]] = []
            running = vars(_running).setdefault("calls", [])
            running.append(errors)
            try:
                if _take_turns:
                    with _turns:
                        result = function(*arguments)
                else:
                    result = function(*arguments)
            except TypeError:
                if None not in arguments:
                    raise
                raise RuntimeError(f"{name}() was called with a released object") from None
            finally:
                running.pop()
            if errors:
                kind, message = errors[0]
                raise _helpers.ERROR_TYPES.get(kind, _api.GPUError)(message)
            return result

        setattr(self, name, call)
        return call


safe = CFunctions()
_log_later = _api.error_handler.handle_error


def _handle_error(kind: str, message: str) -> None:
    running = vars(_running).get("calls")
    if running:
        running[-1].append((kind, message))
    else:
        _log_later(kind, message)


def install() -> None:
    """Replace the error handler and the functions that wgpudawn's own classes call."""
    _api.error_handler.handle_error = _handle_error
    for name in vars(_api.libf):
        if name.startswith("wgpu"):
            setattr(_api.libf, name, getattr(safe, name))


def is_loaded() -> bool:
    """Return whether the instance, and with it the drivers, are loaded."""
    return _helpers._the_instance is not None


def abandon() -> bool:
    """Release no GPU object any more; return whether the drivers were loaded."""
    if is_loaded():
        skip_releases(_api)
    return is_loaded()

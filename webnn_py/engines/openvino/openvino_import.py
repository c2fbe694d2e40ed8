"""Imports OpenVINO without its telemetry, and refuses it in forked child processes."""

from __future__ import annotations

import os
import sys

from webnn_py.core import fork_guard
from webnn_py.core.errors import InvalidStateError
from webnn_py.core.requirements import check_version

TELEMETRY = "openvino_telemetry"

if TELEMETRY in sys.modules:
    import openvino
else:
    sys.modules[TELEMETRY] = None  # type: ignore[assignment]  # or importing OpenVINO sends a message
    try:
        import openvino
    finally:
        del sys.modules[TELEMETRY]

check_version(openvino)
fork_guard.keep_alive_in_child(openvino)
_owner = os.getpid()


def new_core() -> openvino.Core:
    """Create the object that reads and compiles models.

    Raises:
        InvalidStateError: This is a forked child process whose parent had imported OpenVINO.
    """
    if os.getpid() != _owner:
        raise InvalidStateError(f"OpenVINO, which has threads, {fork_guard.FORKED}")
    return openvino.Core()


__all__ = ["new_core", "openvino"]

"""The command line's parser, and what becomes of errors."""

from __future__ import annotations

import argparse
import importlib
import io
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Sequence
from typing import Any

from webnn_py._version import __version__
from webnn_py.core.errors import MLError
from webnn_py.core.messages import printable_lines

COMMANDS = {
    "info": "engines, adapters, and what they can do",
    "run": "run a model, time it",
    "inspect": "a model's operators, sizes and kernels, as tables or a page with its picture",
    "check": "which of a model's nodes are not supported, on which device",
    "tune": 'measure which CPU engine runs a model fastest, for engine="fastest"',
    "convert": "write a model as another file",
}
"""What each does; `webnn_py.cli.NAME` has its options (`add_options`) and does it (`run`)."""

FAILED = 2
"""The exit status after an error; argparse's own, too."""

INTERRUPTED = 130
"""The exit status after Ctrl-C, as shells have it."""

GRACE = 0.5
"""Seconds from Ctrl-C to the end of the process, unless the command has ended sooner."""

SHOW_CURSOR = "\x1b[?25h"
"""What has a terminal do so."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; returns the exit status.

    Args:
        arguments: Those of a call from Python. If not given, those of this process, which ends with
            the status INTERRUPTED soon after Ctrl-C, whatever its threads are at.
    """
    if arguments is not None:
        return _status(arguments)
    _prepare_output()
    interruption = _Interruption()
    status = _status(sys.argv[1:], interruption)
    interruption.raises = False
    if status == INTERRUPTED:
        interruption.end()
    return status


def _status(arguments: Sequence[str], interruption: _Interruption | None = None) -> int:
    """Run a command; whatever it raises once it was interrupted is due to that."""
    try:
        status = _run(arguments)
        sys.stdout.flush()
        return status
    except KeyboardInterrupt:
        return _failed("interrupted", INTERRUPTED)
    except Exception as error:
        if interruption is not None and interruption.came:
            return _failed("interrupted", INTERRUPTED)
        message = _message(error)
        if message is None:
            raise
        return _failed(message) if message else FAILED


def _message(error: Exception) -> str | None:
    """What is said of an error: nothing where nobody reads it, None of one that is not expected."""
    if isinstance(error, MLError):
        return _one_line(str(error))
    if isinstance(error, BrokenPipeError):  # whoever reads has enough, such as `head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return ""
    if isinstance(error, ModuleNotFoundError):
        return f'this needs the package {error.name}: pip install "webnn-py[all]"'
    if isinstance(error, OSError):
        known = error.filename and error.strerror
        return f"{error.filename}: {error.strerror}" if known else str(error)
    if isinstance(error, MemoryError):
        return f"out of memory: {error}"
    return None


class _Interruption:
    """Ends the process a moment after Ctrl-C, by which time what was being written is taken back.

    Threads that compile would hold Python's end up for long, a library that is called on the main
    thread keeps it from seeing the signal, and libraries turn a KeyboardInterrupt into errors of
    their own or drop it.

    Attributes:
        came: Ctrl-C was pressed.
        raises: It raises a KeyboardInterrupt, too, which nobody expects when Python ends.
    """

    def __init__(self) -> None:
        self.came = False
        self.raises = True
        self._ending = threading.Lock()
        is_main = threading.current_thread() is threading.main_thread()
        if not is_main or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
            return
        reader, self._writer = socket.socketpair()
        self._writer.setblocking(False)
        threading.Thread(target=self._watch, args=(reader,), daemon=True).start()
        signal.set_wakeup_fd(self._writer.fileno(), warn_on_full_buffer=False)
        signal.signal(signal.SIGINT, self._interrupt)

    def _interrupt(self, *_: object) -> None:
        self.came = True
        if self.raises:
            raise KeyboardInterrupt

    def _watch(self, reader: socket.socket) -> None:
        """Wait for the signal where no call of a library on the main thread is in the way."""
        while signal.SIGINT not in reader.recv(64):
            pass
        self.came = True
        time.sleep(GRACE)
        if sys.stderr.isatty():
            sys.stderr.write(SHOW_CURSOR)  # a bar that is drawn has it hidden
        _failed("interrupted")
        self.end()

    def end(self) -> None:
        """End the process, whatever else it is at; the first one who calls this does so."""
        self._ending.acquire()
        sys.stderr.flush()
        os._exit(INTERRUPTED)


def _prepare_output() -> None:
    """Have what is printed fit into any encoding, and go nowhere where the caller closed it."""
    if not (sys.stdout and sys.stderr):
        nowhere = os.fdopen(os.open(os.devnull, os.O_WRONLY), "w", encoding="utf-8")
        sys.stdout, sys.stderr = sys.stdout or nowhere, sys.stderr or nowhere
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")


def _run(given: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="webnn-py", description="Run and inspect models with webnn_py."
    )
    parser.add_argument("--version", action="version", version=f"webnn_py {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, does in COMMANDS.items():
        command = commands.add_parser(name, help=does, description=f"{does[0].upper()}{does[1:]}.")
        command.add_argument("--json", action="store_true", help="print JSON")
        if given[:1] == [name]:  # what the others import is not worth the time
            _module(name).add_options(command)
    options = parser.parse_args(given)
    status: int = _module(options.command).run(options)
    return status


def _module(command: str) -> Any:
    return importlib.import_module(f"webnn_py.cli.{command}")


def _one_line(text: str) -> str:
    first, *more = (line.strip() for line in text.splitlines())
    if not more:
        return first
    others = f" (and {len(more) - 1} more: `webnn-py check` lists all)" if len(more) > 1 else ""
    return f"{first} {more[0]}{others}"


def _failed(message: str, status: int = FAILED) -> int:
    print(f"webnn-py: {printable_lines(message)}", file=sys.stderr)
    return status

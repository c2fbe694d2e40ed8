"""Entry point of the command line: parses options, runs a command, reports errors and Ctrl-C."""

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
from typing import Any, NoReturn

from webnn_py._version import __version__
from webnn_py.core.errors import MLError
from webnn_py.core.messages import printable_lines

COMMANDS = {
    "info": "list engines and GPUs",
    "run": "run a model, show its outputs, time it",
    "inspect": "show a model's operators, sizes and kernels, as tables or a page with its picture",
    "check": "list a model's nodes that are not supported, on each device",
    "tune": 'measure which CPU engine is fastest, for engine="fastest", or which tiles on a GPU',
    "convert": "write a model as another file",
}
"""Commands with descriptions. Module `webnn_py.cli.NAME` has `add_options` and `run`."""

FAILED = 2
"""Exit status after an error, as of argparse."""

INTERRUPTED = 130
"""Exit status after Ctrl-C, as of shells."""

EXIT_GRACE_SECONDS = 0.5
"""Time from Ctrl-C to the forced end of the process."""

SHOW_CURSOR = "\x1b[?25h"
"""Escape sequence that makes a terminal show its cursor."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; return the exit status.

    Args:
        arguments: The command's arguments. Without them, those of this process are used; the
            process then ends soon after Ctrl-C with the status INTERRUPTED, even if threads are
            busy.
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
    """Run a command and report its errors; errors after an interruption count as the latter."""
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
    """Return the message for an error: "" if nobody can read it, None for an unexpected error."""
    if isinstance(error, MLError):
        return _one_line(str(error))
    if isinstance(error, BrokenPipeError):  # the reader has closed the pipe, such as `head`
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
    """A handler of Ctrl-C that ends the process after a moment, in which clean-up can run.

    A KeyboardInterrupt alone does not suffice. Threads that compile delay the interpreter's exit.
    A library call on the main thread delays the signal. Some libraries convert or drop the
    KeyboardInterrupt.

    Attributes:
        came: Whether Ctrl-C was pressed.
        raises: Whether Ctrl-C raises a KeyboardInterrupt; False once the interpreter exits.
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
        """Wait for the signal on a thread of its own, which no library call can block."""
        while signal.SIGINT not in reader.recv(64):
            pass
        self.came = True
        time.sleep(EXIT_GRACE_SECONDS)
        if sys.stderr.isatty():
            sys.stderr.write(SHOW_CURSOR)  # a progress bar hides it
        _failed("interrupted")
        self.end()

    def end(self) -> None:
        """End the process at once; later callers block."""
        self._ending.acquire()
        sys.stderr.flush()
        os._exit(INTERRUPTED)


def _prepare_output() -> None:
    """Escape characters that stdout cannot encode, and replace closed streams by a null device."""
    if not (sys.stdout and sys.stderr):
        nowhere = os.fdopen(os.open(os.devnull, os.O_WRONLY), "w", encoding="utf-8")
        sys.stdout, sys.stderr = sys.stdout or nowhere, sys.stderr or nowhere
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")


class _Parser(argparse.ArgumentParser):
    """A parser whose errors are one line, as all errors of commands are."""

    def error(self, message: str) -> NoReturn:
        """Print the message without the usage, and end."""
        self.exit(FAILED, f"{self.prog}: {printable_lines(message)}; see {self.prog} --help\n")


def _run(arguments: Sequence[str]) -> int:
    parser = _Parser(prog="webnn-py", description="Run and inspect models with webnn_py.")
    parser.add_argument("--version", action="version", version=f"webnn_py {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, does in COMMANDS.items():
        command = commands.add_parser(name, help=does, description=f"{does[0].upper()}{does[1:]}.")
        command.add_argument("--json", action="store_true", help="print JSON")
        if arguments[:1] == [name]:  # importing the other commands would take time
            _module(name).add_options(command)
    if not arguments:
        parser.print_help(sys.stderr)
        return FAILED
    options = parser.parse_args(arguments)
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

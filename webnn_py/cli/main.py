"""The command line's parser, and what becomes of errors."""

from __future__ import annotations

import argparse
import importlib
import io
import os
import sys
from collections.abc import Sequence
from typing import Any

from webnn_py._version import __version__
from webnn_py.core.errors import MLError

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


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; returns the exit status."""
    if arguments is None:
        _prepare_output()
    try:
        status = _run(sys.argv[1:] if arguments is None else list(arguments))
        sys.stdout.flush()
        return status
    except MLError as error:
        return _failed(_one_line(str(error)))
    except BrokenPipeError:  # whoever reads has enough, such as `head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
    except ModuleNotFoundError as error:
        return _failed(f'this needs the package {error.name}: pip install "webnn-py[all]"')
    except OSError as error:
        known = error.filename and error.strerror
        return _failed(f"{error.filename}: {error.strerror}" if known else str(error))
    except MemoryError as error:
        return _failed(f"out of memory: {error}")
    except KeyboardInterrupt:
        return _failed("interrupted")


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


def _failed(message: str) -> int:
    print(f"webnn-py: {message}", file=sys.stderr)
    return FAILED

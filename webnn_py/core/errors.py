"""The errors of the public interface; every one is an `MLError`."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any, ParamSpec, TypeVar

from webnn_py.core.messages import printable_lines

P = ParamSpec("P")
T = TypeVar("T")


class MLError(Exception):
    """Base of every error that webnn_py raises on purpose.

    Names from files and callers stand in its message: what is not printable is escaped, but for
    the ends of lines, so that no terminal or log obeys it.

    Source: no part of WebNN.
    """

    def __str__(self) -> str:
        return printable_lines(super().__str__())


class ValidationError(MLError, ValueError):
    """An argument breaks a rule of the specification (a TypeError in WebNN's IDL).

    Source: Web IDL, "TypeError".
    """


class DataError(MLError, ValueError):
    """A resource given to an execution does not fit its operand: name, data type or size.

    Source: Web IDL, "DataError"; WebNN 2022, the steps of `compute`.
    """


class FileError(DataError, OSError):
    """A file cannot be opened, read or written; also Python's own kind, such as FileNotFoundError.

    Attributes:
        errno: The system's number.
        strerror: What the system says.
        filename: The file, as it was given.

    Source: no part of WebNN (spec/deviations.md, D9).
    """

    def __str__(self) -> str:
        return printable_lines(str(self.args[0])) if self.args else ""

    def __reduce__(self) -> tuple[type[FileError], tuple[Any, ...]]:
        return FileError, self.args


class InvalidStateError(MLError, RuntimeError):
    """The object cannot do this now: already built, destroyed, or on the wrong thread.

    Source: Web IDL, "InvalidStateError".
    """


class OperationError(MLError, RuntimeError):
    """The work was valid but the engine or the device failed to do it.

    Attributes:
        root: What failed first, where this is a consequence of it.

    Source: Web IDL, "OperationError".
    """

    root: BaseException | None = None


class NotSupportedError(MLError, NotImplementedError):
    """This engine, device or format does not offer what was asked for.

    Source: Web IDL, "NotSupportedError".
    """


class ContextLostError(MLError, RuntimeError):
    """The context was destroyed or its device was lost.

    Source: WebNN 2026, "MLContext.lost".
    """


class WaitTimeoutError(MLError, TimeoutError):
    """What was waited for did not come in time; it may still come.

    Source: no part of WebNN (spec/deviations.md, D24).
    """


class DLPackError(MLError, BufferError):
    """An exchange by DLPack cannot be made as it was asked for.

    Source: no part of WebNN; the DLPack protocol of the Python array API.
    """


def file_error(error: OSError, path: object, message: str) -> FileError:
    """Return the FileError for an error of the system's, of Python's own kind, too.

    Args:
        error: The system's.
        path: The file, as it was given.
        message: What could not be done; what the system says follows.
    """
    if isinstance(error, FileError):
        return error
    kind = type(error)
    both: Any = FileError if kind is OSError else type("FileError", (FileError, kind), {})
    made: FileError = both(f"{message}: {error.strerror or error}")
    made.errno, made.strerror, made.filename = error.errno, error.strerror, path
    return made


@contextlib.contextmanager
def prefix_errors(what: str) -> Iterator[None]:
    """Have errors begin with what failed."""
    try:
        yield
    except MLError as error:
        raise type(error)(f"{what}: {error}") from error.__cause__


def convert_memory_errors(function: Callable[P, T]) -> Callable[P, T]:
    """Have a function raise an OperationError where Python has no memory left."""

    @functools.wraps(function)
    def told(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return function(*args, **kwargs)
        except MemoryError as error:
            raise OperationError(f"out of memory: {error}") from error

    return told


def root_cause(error: BaseException) -> BaseException:
    """What failed first, to be kept: a copy, so that it holds no frames and what they hold."""
    root = getattr(error, "root", None)
    if isinstance(root, BaseException):
        return root
    try:
        return type(error)(*error.args)
    except Exception:  # it takes other arguments than it keeps
        return OperationError(f"{type(error).__name__}: {error}")


def caused_by(what: str, root: BaseException) -> OperationError:
    """What fails because of a failure before; see `root_cause`."""
    notes = "".join(f", {note}" for note in getattr(root, "__notes__", ())[:1])
    made = OperationError(f"{what} failed: {root}{notes}")
    made.root = root
    made.__cause__ = root
    return made

"""Exceptions of the public interface; each is an `MLError`."""

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

    Messages contain names from files and callers. Characters that are not printable are escaped,
    except line ends, so that no terminal or log interprets them.

    Examples:
        ```python
        from webnn_py import MLError, MLGraphBuilder, ml

        b = MLGraphBuilder(ml.create_context_sync(device_type="cpu"))
        x = b.input("x", "float32", [2, 3])
        try:
            b.matmul(x, x, label="head")
        except MLError as error:
            print(type(error).__name__)  # ValidationError
            print(error)  # matmul [head]: columns of a [2, 3] and rows of b [2, 3] differ
        ```

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
    """A file cannot be opened, read or written.

    It is also an instance of Python's own class for the failure, such as FileNotFoundError.

    Attributes:
        errno: The system's error number.
        strerror: The system's message.
        filename: The path as the caller passed it.

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
    """Valid work failed in the engine or on the device.

    Attributes:
        root: The first failure, where this one is a consequence of it.

    Source: Web IDL, "OperationError".
    """

    root: BaseException | None = None


class NotSupportedError(MLError, NotImplementedError):
    """The engine, device or format does not offer the requested feature.

    Source: Web IDL, "NotSupportedError".
    """


class ContextLostError(MLError, RuntimeError):
    """The context was destroyed or its device was lost.

    Source: WebNN 2026, "MLContext.lost".
    """


class WaitTimeoutError(MLError, TimeoutError):
    """A wait ended at its time limit; the awaited value may still be reached.

    Source: no part of WebNN (spec/deviations.md, D24).
    """


class DLPackError(MLError, BufferError):
    """A DLPack exchange cannot be made as requested.

    Source: no part of WebNN; the DLPack protocol of the Python array API.
    """


def file_error(error: OSError, path: object, message: str) -> FileError:
    """Return a FileError for a system error; it is also of Python's own class for it.

    Args:
        error: The system error.
        path: The path as the caller passed it.
        message: The failed action; the system's message follows.
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
    """Prefix the message of each MLError with `what`."""
    try:
        yield
    except MLError as error:
        raise type(error)(f"{what}: {error}") from error.__cause__


def convert_memory_errors(function: Callable[P, T]) -> Callable[P, T]:
    """Have a function raise OperationError instead of MemoryError."""

    @functools.wraps(function)
    def converted(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return function(*args, **kwargs)
        except MemoryError as error:
            raise OperationError(f"out of memory: {error}") from error

    return converted


def root_cause(error: BaseException) -> BaseException:
    """Return the first failure, as a copy that refers to no frames, for storage."""
    root = getattr(error, "root", None)
    if isinstance(root, BaseException):
        return root
    try:
        return type(error)(*error.args)
    except Exception:  # its constructor takes other arguments than `args`
        return OperationError(f"{type(error).__name__}: {error}")


def caused_by(what: str, root: BaseException) -> OperationError:
    """Return the error of work that fails because of an earlier failure; see `root_cause`."""
    notes = "".join(f", {note}" for note in getattr(root, "__notes__", ())[:1])
    made = OperationError(f"{what} failed: {root}{notes}")
    made.root = root
    made.__cause__ = root
    return made

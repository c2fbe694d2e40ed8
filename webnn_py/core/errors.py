"""The errors of the public interface; every one is an `MLError`."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class MLError(Exception):
    """Base of every error that webnn_py raises on purpose.

    Source: no part of WebNN.
    """


class ValidationError(MLError, ValueError):
    """An argument breaks a rule of the specification (a TypeError in WebNN's IDL).

    Source: Web IDL, "TypeError".
    """


class DataError(MLError, ValueError):
    """A resource given to an execution does not fit its operand: name, data type or size.

    Source: Web IDL, "DataError"; WebNN 2022, the steps of `compute`.
    """


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


@contextlib.contextmanager
def naming(what: str) -> Iterator[None]:
    """Have errors begin with what failed."""
    try:
        yield
    except MLError as error:
        raise type(error)(f"{what}: {error}") from error.__cause__


def telling_of_memory(function: Callable[P, T]) -> Callable[P, T]:
    """Have a function raise an OperationError where Python has no memory left."""

    @functools.wraps(function)
    def told(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return function(*args, **kwargs)
        except MemoryError as error:
            raise OperationError(f"out of memory: {error}") from error

    return told


def root_of(error: BaseException) -> BaseException:
    """What failed first, to be kept: a copy, so that it holds no frames and what they hold."""
    root = getattr(error, "root", None)
    if isinstance(root, BaseException):
        return root
    try:
        return type(error)(*error.args)
    except Exception:  # it takes other arguments than it keeps
        return OperationError(f"{type(error).__name__}: {error}")


def consequence(what: str, root: BaseException) -> OperationError:
    """What fails because of a failure before; see `root_of`."""
    notes = "".join(f", {note}" for note in getattr(root, "__notes__", ())[:1])
    made = OperationError(f"{what} failed: {root}{notes}")
    made.root = root
    made.__cause__ = root
    return made

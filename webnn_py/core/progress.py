"""Progress reports of a build, from the compiler to the caller's function on the same thread."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from typing import ParamSpec, TypeVar

from webnn_py.core.errors import ValidationError
from webnn_py.core.messages import shown

T = TypeVar("T")
P = ParamSpec("P")

BuildProgress = Callable[[int, int], None]
"""Called with the number of finished parts of a build and their total: pipelines on a GPU."""


class _State(threading.local):
    callback: BuildProgress | None = None


_state = _State()


def with_progress(
    tell: BuildProgress | None, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs
) -> T:
    """Do work on this thread and report the progress of builds in it to a function.

    Raises:
        Exception: The error of the function, even if the work wraps it in another.
    """
    if tell is not None and not callable(tell):
        raise ValidationError(f"option 'progress': got {shown(tell)}, expected a function, or None")
    raised: list[Exception] = []

    def telling(done: int, total: int) -> None:
        assert tell is not None
        try:
            tell(done, total)
        except Exception as error:
            raised.append(error)
            raise

    before, _state.callback = _state.callback, None if tell is None else telling
    try:
        return work(*args, **kwargs)
    except Exception:
        if raised:
            raise raised[0] from None
        raise
    finally:
        _state.callback = before


def report_each(done: Iterable[T], total: int) -> Iterator[T]:
    """Yield the items and report each one as a finished part of the build."""
    tell = _state.callback
    if tell is None or not total:
        yield from done
        return
    tell(0, total)
    for number, item in enumerate(done, 1):
        tell(number, total)
        yield item

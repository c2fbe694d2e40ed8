"""What stands behind `ml.default_context`, where graphs live that come from another process."""

from __future__ import annotations

import threading

from webnn_py.api.session import Session
from webnn_py.core import fork_guard
from webnn_py.engines.registry import make_engine


class _Default:
    """The session that was set, and that which was made where none was.

    Attributes:
        lock: Held while it is made.
    """

    given: Session | None = None
    made: Session | None = None
    lock = threading.Lock()


def default_session() -> Session:
    """The session that was set, or one of the CPU; made anew where that is lost or the parent's."""
    if _Default.given is not None:
        return _Default.given
    with _Default.lock:
        if _Default.made is None or _Default.made.lost.done:
            _Default.made = Session(make_engine("auto", {}), "cpu")
        return _Default.made


def set_default_session(session: Session | None) -> None:
    """Have another session be it; None for that of the CPU."""
    _Default.given = session


def _unlock() -> None:
    _Default.lock = threading.Lock()


fork_guard.after_fork_in_child(_unlock)

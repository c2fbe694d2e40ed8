"""The session of `ml.default_context`, which receives unpickled graphs."""

from __future__ import annotations

import threading

from webnn_py.api.session import Session
from webnn_py.core import fork_guard
from webnn_py.engines.registry import make_engine


class _Default:
    """The session set by the user, and the CPU session created without one.

    Attributes:
        lock: Guards the creation of the CPU session.
    """

    given: Session | None = None
    made: Session | None = None
    lock = threading.Lock()


def default_session() -> Session:
    """Return the session set by the user, or a CPU session, replaced after a loss or fork."""
    if _Default.given is not None:
        return _Default.given
    with _Default.lock:
        if _Default.made is None or _Default.made.lost.done:
            _Default.made = Session(make_engine("auto", {}), "cpu")
        return _Default.made


def set_default_session(session: Session | None) -> None:
    """Set the default session; None returns to the CPU session."""
    _Default.given = session


def _unlock() -> None:
    _Default.lock = threading.Lock()


fork_guard.after_fork_in_child(_unlock)

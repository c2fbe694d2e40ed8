"""TokenStream: tokens on their way from a decoder's thread to one client."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

from webnn_py.core.completion import Completion

MIN_TOKENS_AHEAD = 4
"""Tokens that are computed before their client asks for the first one."""
MAX_TOKENS_AHEAD = {"cpu": MIN_TOKENS_AHEAD, "gpu": 32}
"""The same for a client that has taken many. A GPU computes several at once."""


class TokenStream:
    """Queue of one client's tokens; a full one holds back the client's row, and no other.

    Args:
        resume: Called when a full queue has room again.
        most: Tokens that are computed before their client asks for them.
    """

    def __init__(self, resume: Callable[[], None], most: int) -> None:
        self._resume = resume
        self._most = most
        self._taken_count = 0
        self._tokens: deque[int] = deque()
        self._lock = threading.Lock()
        self._arrival: Completion[None] | None = None
        self._ended = False
        self._error: BaseException | None = None

    @property
    def room(self) -> int:
        """Return the number of tokens that may be computed now."""
        return min(self._most, MIN_TOKENS_AHEAD + self._taken_count) - len(self._tokens)

    def put(self, token: int) -> None:
        """Hand a token to the client."""
        with self._lock:
            self._tokens.append(token)
            arrival, self._arrival = self._arrival, None
        if arrival is not None:
            arrival.set_result(None)

    def end(self, error: BaseException | None = None) -> None:
        """End the stream after the tokens in the queue; a second call changes nothing."""
        with self._lock:
            if not self._ended:
                self._ended, self._error = True, error
            arrival, self._arrival = self._arrival, None
        if arrival is not None:
            arrival.set_result(None)

    def take_sync(self) -> int | None:
        """Return the next token, blocking this thread; None at the end."""
        while (arrival := self._next_arrival()) is not None:
            arrival.wait()
        return self._taken()

    async def take(self) -> int | None:
        """Return the next token without blocking the event loop; None at the end."""
        while (arrival := self._next_arrival()) is not None:
            await arrival
        return self._taken()

    def _next_arrival(self) -> Completion[None] | None:
        """Return the completion of the next token or end; None if it is there."""
        with self._lock:
            if self._tokens or self._ended:
                return None
            if self._arrival is None:
                self._arrival = Completion()
            return self._arrival

    def _taken(self) -> int | None:
        with self._lock:
            was_full = self.room <= 0
            token = self._tokens.popleft() if self._tokens else None
            self._taken_count += token is not None
        if was_full:
            self._resume()
        if token is None and self._error is not None:
            raise self._error
        return token

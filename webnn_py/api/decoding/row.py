"""Row: a text in a decoder's caches, with the tokens that are still to be read and who waits."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol

from webnn_py.api.decoding.sampling import Sampler
from webnn_py.ir import Array


class TokenTaker(Protocol):
    """The generation of a row whose tokens a device may choose."""

    @property
    def ids(self) -> Sequence[int]:
        """Return the text so far."""

    @property
    def sampler(self) -> Sampler:
        """Return how tokens are chosen."""

    @property
    def tokens_left(self) -> int:
        """Return the number of tokens that it takes at most."""

    @property
    def room(self) -> int:
        """Return the number of tokens that may be computed now."""

    def take(self, token: int) -> bool:
        """Take the next token; return whether another one is wanted."""


class Row:
    """A text in the caches.

    Attributes:
        slot: Row of the caches; None until there is a free one.
        length: Number of tokens in the caches.
        pending: Tokens still to be read.
        on_logits: Called with the logits after the last pending token; None if nobody waits.
        on_error: Called with the error if that fails.
        taker: Takes tokens that a device has chosen instead of the logits, if that will do.
        is_ready: Whether the row may be read now.
        is_held: Whether a sequence holds the row for an unknown time.
    """

    def __init__(self, is_held: bool = False, is_ready: Callable[[], bool] = lambda: True) -> None:
        self.slot: int | None = None
        self.length = 0
        self.pending: deque[int] = deque()
        self.on_logits: Callable[[Array], None] | None = None
        self.on_error: Callable[[BaseException], None] = _ignore
        self.taker: TokenTaker | None = None
        self.is_ready = is_ready
        self.is_held = is_held

    def read(
        self,
        ids: Sequence[int],
        on_logits: Callable[[Array], None],
        on_error: Callable[[BaseException], None],
        taker: TokenTaker | None = None,
    ) -> None:
        """Have tokens read; on the scheduler's thread.

        Args:
            ids: The tokens.
            on_logits: As the attribute.
            on_error: As the attribute.
            taker: As the attribute.
        """
        self.pending.extend(ids)
        self.on_logits, self.on_error, self.taker = on_logits, on_error, taker

    @property
    def is_drawn(self) -> bool:
        """Whether the next token is not just the most likely one."""
        return self.taker is None or not self.taker.sampler.is_greedy

    def fail(self, error: BaseException) -> None:
        """Drop the pending tokens and report an error."""
        report = self.on_error
        self.drop()
        report(error)

    def drop(self) -> None:
        """Drop the pending tokens and the callbacks, which may refer back to the row."""
        self.pending.clear()
        self.on_logits, self.on_error, self.taker = None, _ignore, None


def _ignore(error: BaseException) -> None:
    """Ignore the error: nobody waits."""

"""MLSequence: a text of a decoder that the caller extends, cuts off and forks."""

from __future__ import annotations

import functools
import threading
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from webnn_py.api.decoding.row import Row
from webnn_py.api.decoding.scheduler import Scheduler
from webnn_py.api.decoding.timeline_turn import TimelineTurn
from webnn_py.core import convert
from webnn_py.core.completion import Completion, check_interrupts_nothing, check_may_block
from webnn_py.core.errors import InvalidStateError, ValidationError
from webnn_py.core.messages import Suggesting, shown
from webnn_py.core.pickling import Unpicklable
from webnn_py.ir import Array
from webnn_py.ordering.timeline import TimelinePoint, points


class TokenLimits:
    """Checks of token ids.

    Args:
        vocabulary: Number of tokens.
        keys: Number of tokens that fit into a row.
    """

    def __init__(self, vocabulary: int, keys: int) -> None:
        self.vocabulary = vocabulary
        self.keys = keys

    def ids(self, given: Any, before: int = 0) -> list[int]:
        """Return checked token ids.

        Args:
            given: The user's ids, [count] or [1, count].
            before: Number of tokens before them.

        Raises:
            ValidationError: They are no integers, none, too many, or not in the vocabulary.
        """
        try:
            array = np.asarray(given if hasattr(given, "__array__") else list(given))
        except Exception:  # the object's own methods may raise any type
            raise ValidationError(f"ids: got {shown(given)}, expected token ids") from None
        if array.ndim == 2 and len(array) == 1:
            array = array[0]
        if array.ndim != 1 or not array.size or array.dtype.kind not in "iu":
            raise ValidationError(
                f"ids: got {array.dtype}{list(array.shape)}, expected at least one integer"
            )
        if array.min() < 0 or array.max() >= self.vocabulary:
            wrong = array[(array < 0) | (array >= self.vocabulary)][0]
            raise ValidationError(f"ids: got {wrong}, expected 0 to {self.vocabulary - 1}")
        if before + array.size > self.keys:
            raise ValidationError(
                f"ids: {array.size} tokens after {before}; the caches have room for {self.keys};"
                " load the decoder with a greater length"
            )
        return [int(one) for one in array]


class MLSequence(Unpicklable, Suggesting):
    """A text in a decoder's caches, made by `MLDecoder.sequence`.

    It holds one slot of the decoder from its first `feed` on, until `close` or the end of its
    `with` block. Any thread may use it, one call at a time.

    Examples:
        ```python
        import asyncio

        import numpy as np

        from webnn_py import MLDecoder, MLGraphBuilder, ml

        ctx = ml.create_context_sync(device_type="cpu")
        b = MLGraphBuilder(ctx)
        token, before = b.input("token", "int32", ["n", 1]), b.input("before", "int32", ["n"])
        cache = b.input("cache", "float32", ["n", 1, 64, 8])
        key = b.gather(b.constant(np.eye(9, 8, dtype=np.float32)), token)
        after = b.scatter_rows(cache, b.reshape(key, [token.shape[0], 1, 1, 8]), before)
        following = b.constant(np.eye(8, 9, 1, np.float32))  # the token behind n is n + 1
        logits = b.matmul(b.reshape(key, [token.shape[0], 8]), following)
        graph = b.build_sync({"logits": logits, "after": after})
        decoder = MLDecoder.from_graph(
            graph,
            inputs={"ids": "token", "lengths": "before", "caches": ["cache"]},
            outputs={"logits": "logits", "caches": ["after"]},
            slots=2,
        )
        text = decoder.sequence()
        print(text.feed_sync([3, 5]).argmax())  # 6
        other = text.fork()  # shares nothing from here on
        text.truncate(1)
        print(asyncio.run(text.feed_async([6])).shape)  # (9,)
        print(text.tokens, other.tokens)  # (3, 6) (3, 5)
        text.close()
        other.close()
        ```

    Source: webnn_py, spec/execution.md, "Decoders".
    """

    def __init__(self, scheduler: Scheduler, limits: TokenLimits) -> None:
        self._scheduler = scheduler
        self._limits = limits
        self._row = Row(is_held=True)
        self._tokens: list[int] = []
        self._lock = threading.Lock()
        self._busy = self._closed = False

    @property
    def tokens(self) -> tuple[int, ...]:
        """Return the ids of the text so far."""
        return tuple(self._tokens)

    def __len__(self) -> int:
        return len(self._tokens)

    def feed_sync(self, ids: Any, sync: Iterable[TimelinePoint] = ()) -> np.ndarray[Any, Any]:
        """Append tokens, and return the logits of the token that follows.

        Args:
            ids: Token ids: integers, at least one.
            sync: Timeline points that the reading waits for, and signals when it is done.

        Returns:
            The logits, float32 [vocabulary].

        Raises:
            ValidationError: An id is not in the vocabulary, or the caches have too little room.
            InvalidStateError: This thread is running an event loop, the sequence is closed or in
                use by another call, or sequences hold all slots.
            OperationError: The engine or the device failed; the text is as it was before.
            ContextLostError: The context is lost.

        Source: webnn_py, spec/execution.md, "Decoders".
        """
        check_may_block("feed_sync", "feed_async")
        check_interrupts_nothing("feed_sync")
        done, read, turn = self._begin(ids, sync, waits=True)
        try:
            if not turn.waits:
                self._scheduler.run_here(self._row)
            logits = done.wait()
        except BaseException:
            self._drop(turn)
            raise
        return self._end(read, logits)

    async def feed_async(
        self, ids: Any, sync: Iterable[TimelinePoint] = ()
    ) -> np.ndarray[Any, Any]:
        """Append tokens as `feed_sync` does, without blocking the event loop.

        A cancelled await leaves the text as it was before.

        Args:
            ids: Token ids: integers, at least one.
            sync: Timeline points that the reading waits for, and signals when it is done.

        Returns:
            The logits, float32 [vocabulary].

        Raises:
            MLError: As `feed_sync`.

        Source: webnn_py, spec/execution.md, "Decoders".
        """
        done, read, turn = self._begin(ids, sync)
        try:
            logits = await done
        except BaseException:
            self._drop(turn)
            raise
        return self._end(read, logits)

    def truncate(self, length: int) -> None:
        """Drop the tokens from a position on.

        Args:
            length: Number of tokens to keep.

        Raises:
            ValidationError: The text has fewer tokens.
            InvalidStateError: The sequence is closed, or in use by another call.

        Source: webnn_py, spec/execution.md, "Decoders".
        """
        kept = convert.unsigned(length, "truncate: length")
        with self._lock:
            self._check_usable()
            if kept > len(self._tokens):
                raise ValidationError(
                    f"truncate: length {kept}, expected at most {len(self._tokens)}"
                )
            del self._tokens[kept:]
            self._scheduler.post(functools.partial(self._scheduler.truncate, self._row, kept))

    def fork(self) -> MLSequence:
        """Return another sequence with the same text, which goes its own way from here.

        Raises:
            InvalidStateError: The sequence is closed or in use by another call, or no slot is free.
            ContextLostError: The context is lost.

        Source: webnn_py, spec/execution.md, "Decoders".
        """
        with self._lock:
            self._check_usable()
            other = MLSequence(self._scheduler, self._limits)
            self._scheduler.reserve(other._row)
            other._tokens = [*self._tokens]
            self._scheduler.send(functools.partial(self._scheduler.fork, self._row, other._row))
            return other

    def close(self) -> None:
        """Free the slot. Harmless twice.

        Source: webnn_py, spec/execution.md, "Decoders".
        """
        if not self._closed:
            self._closed = True
            self._scheduler.send(functools.partial(self._scheduler.remove, self._row))

    def __enter__(self) -> MLSequence:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    def __del__(self) -> None:
        if hasattr(self, "_closed"):  # else `__init__` was refused its arguments
            self.close()

    def _check_usable(self) -> None:
        self._scheduler.check_open()
        if self._closed:
            raise InvalidStateError("this MLSequence is closed")
        if self._busy:
            raise InvalidStateError(
                "this MLSequence is being fed by another call; wait for that first, or fork before"
            )

    def _begin(
        self, ids: Any, sync: Iterable[TimelinePoint], waits: bool = False
    ) -> tuple[Completion[Any], Sequence[int], TimelineTurn]:
        """Send the tokens; return the completion of their logits, the tokens, and their turn.

        Args:
            ids: The user's ids.
            sync: The user's timeline points.
            waits: This thread goes on to `Scheduler.run_here`, if the turn waits for nothing.
        """
        scheduler, row = self._scheduler, self._row
        turn = TimelineTurn(scheduler.session, points(sync), "a feed of an MLSequence")
        with self._lock:
            self._check_usable()
            read = self._limits.ids(ids, len(self._tokens))
            self._busy = True
        done: Completion[Any] = Completion()

        def succeed(logits: Array) -> None:
            turn.end()
            done.set_result(logits.copy())

        def fail(error: BaseException) -> None:
            turn.end(error)
            done.set_exception(error)

        def begin() -> None:
            row.read(read, succeed, fail)
            scheduler.admit(row)

        send = scheduler.post if waits and not turn.waits else scheduler.send
        scheduler.wait_for(turn, lambda: send(begin), fail)
        return done, read, turn

    def _end(self, read: Sequence[int], logits: Array) -> Array:
        with self._lock:
            self._tokens += read
            self._busy = False
        return logits

    def _drop(self, turn: TimelineTurn) -> None:
        """Drop a feed that failed or was cancelled."""
        scheduler = self._scheduler
        turn.cancel()
        with self._lock:
            self._busy = False
            scheduler.send(functools.partial(scheduler.truncate, self._row, len(self._tokens)))

"""MLDecoder: a language model that many clients generate text with at once."""

from __future__ import annotations

import functools
import os
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from webnn_py.api.awaited import run_blocking
from webnn_py.api.compiled import compiled_of
from webnn_py.api.decoding.layout import DecoderLayout, layout_of
from webnn_py.api.decoding.row import Row
from webnn_py.api.decoding.sampling import Adjust, Sampler, SamplingOptions, calls_with_ids
from webnn_py.api.decoding.scheduler import Scheduler
from webnn_py.api.decoding.sequence import MLSequence, TokenLimits
from webnn_py.api.decoding.timeline_turn import TimelineTurn
from webnn_py.api.decoding.token_stream import TokenStream
from webnn_py.api.graph import MLGraph
from webnn_py.core import convert
from webnn_py.core.completion import check_interrupts_nothing, check_may_block
from webnn_py.core.errors import ValidationError
from webnn_py.core.messages import Suggesting, shown
from webnn_py.core.pickling import Unpicklable
from webnn_py.ir import Array
from webnn_py.ordering.timeline import TimelinePoint, points


class MLDecoder(Unpicklable, Suggesting):
    """A language model with its caches, which clients of any thread or event loop share.

    `webnn_py.onnx.load_decoder` makes one from an ONNX model, `MLDecoder.from_graph` from a graph.
    Each client has a row of the caches; one run reads the next token of all of them. Ids go in and
    come out, texts are the matter of a tokenizer.

    Examples:
        ```python
        import asyncio

        import numpy as np

        from webnn_py import MLDecoder, MLGraphBuilder, ml

        ctx = ml.create_context_sync(device_type="gpu")
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
        print(decoder.length, decoder.slots, decoder.vocabulary)  # 64 2 9
        print(decoder.graph is graph)  # True
        print(list(decoder.generate_sync([3], max_tokens=3)))  # [4, 5, 6]


        async def client():
            return [token async for token in decoder.generate([3], max_tokens=3, stop={8})]


        async def main():
            return await asyncio.gather(client(), client())


        print(asyncio.run(main()))  # [[4, 5, 6], [4, 5, 6]]
        with decoder.sequence() as text:
            logits = text.feed_sync([3])
        decoder.compile_to("chat.mlprogram")
        decoder.destroy()
        ```

    Source: webnn_py, spec/execution.md, "Decoders".
    """

    def __init__(self, layout: DecoderLayout, length: int | None = None, slots: int = 8) -> None:
        session = compiled_of(layout.graph).session
        room = layout.keys if length is None else length
        if room is None:
            raise ValidationError("option 'length' is missing: the length of the caches is open")
        if room < 1 or room > (layout.keys or room):
            most = "" if layout.keys is None else f" to {layout.keys}, which the caches have"
            raise ValidationError(f"option 'length': got {room}, expected at least 1{most}")
        self._layout = layout
        self._session = session
        self._length = room
        self._limits = TokenLimits(layout.vocabulary, self._length)
        self._slots = slots if layout.batch is None else layout.batch
        self._scheduler = Scheduler(session, layout, self._slots, room)

    @classmethod
    def from_graph(
        cls,
        graph: MLGraph,
        *,
        inputs: Mapping[str, Any],
        outputs: Mapping[str, Any],
        length: int | None = None,
        slots: int = 8,
    ) -> MLDecoder:
        """Make a decoder from a graph that reads tokens and keeps its keys and values in caches.

        The graph writes the new keys behind those of each row and leaves the others as they are.

        Args:
            graph: A graph with an open batch, or one of a fixed size, which is the number of slots;
                and with one new token, or an open number if the batch is open or 1. Caches are
                [batch, heads, length, size]; if their length is open, they grow with the texts.
            inputs: Names of the graph's inputs by role: "ids" [batch, new], "caches" (a list), and
                where the graph has them "mask" [batch, length] (1 for keys up to the last new one)
                or [batch, length + new] (the new keys behind the whole cache), "positions" [batch,
                new], "lengths" [batch] (keys before the step) and "last" [1] (new - 1).
            outputs: Names of the graph's outputs: "logits" [batch, new, vocabulary] or [batch,
                vocabulary], and "caches" (a list in the order of the inputs).
            length: Number of tokens that each row has room for; by default that of the caches.
            slots: Number of rows, if the batch is open.

        Raises:
            ValidationError: A role or name is unknown or missing, or a shape or data type is
                unsuitable.
            InvalidStateError: The graph is destroyed.
            OperationError: There is no memory for the caches.
            ContextLostError: The context is lost.

        Source: webnn_py, spec/execution.md, "Decoders".
        """
        count = convert.unsigned(slots, "option 'slots'")
        if count < 1:
            raise ValidationError(f"option 'slots': got {count}, expected at least 1")
        room = None if length is None else convert.unsigned(length, "option 'length'")
        return cls(layout_of(graph, inputs, outputs), room, count)

    @property
    def length(self) -> int:
        """Return the number of tokens that a row has room for."""
        return self._length

    @property
    def slots(self) -> int:
        """Return the number of rows, which is that of texts in the caches at once."""
        return self._slots

    @property
    def vocabulary(self) -> int:
        """Return the number of tokens that the logits rate."""
        return self._layout.vocabulary

    @property
    def graph(self) -> MLGraph:
        """Return the graph that reads tokens."""
        return self._layout.graph

    def generate_sync(
        self,
        ids: Any,
        *,
        max_tokens: int | None = None,
        stop: int | Iterable[int] = (),
        temperature: float = 0.0,
        top_k: int = 0,
        top_p: float = 1.0,
        repetition_penalty: float = 1.0,
        seed: int | None = None,
        logits: Any = None,
        sync: Iterable[TimelinePoint] = (),
    ) -> Iterator[int]:
        """Generate the tokens that follow a prompt, each as soon as it is known.

        The first token is computed when you ask for it, and a few ahead of you. Leaving the loop
        ends the generation. While all slots are in use, it waits for one.

        Args:
            ids: Token ids of the prompt: integers, at least one.
            max_tokens: Number of tokens at most; by default as many as the caches have room for.
            stop: Tokens that end the text; they are not yielded.
            temperature: Divisor of the logits; 0 takes the most likely token each time.
            top_k: Draw from so many most likely tokens; 0 for all.
            top_p: Draw from the most likely tokens that have this probability together.
            repetition_penalty: Divisor of the positive logits of tokens that occurred, the prompt's
                included, and factor of the negative ones.
            seed: Seed of the draws; the same seed gives the same tokens. By default one from the
                system.
            logits: A function that returns the logits to use, given the logits (float32
                [vocabulary]), and the ids so far if it needs two arguments; or a graph with one
                input and one output of [1, vocabulary] or [vocabulary], which a GPU runs without
                reading the logits back.
            sync: Timeline points that the generation waits for before it reads the prompt, and
                signals when it ends, by leaving the loop, too. It begins with the first token that
                you ask for.

        Yields:
            Token ids.

        Raises:
            ValidationError: An option is out of range, an id is not in the vocabulary, or the
                prompt is longer than the caches.
            InvalidStateError: This thread is running an event loop, the decoder is destroyed, or
                sequences hold all slots.
            OperationError: The engine or the device failed.
            ContextLostError: The context is lost.

        Source: webnn_py, spec/execution.md, "Decoders".
        """
        sampler = self._sampler(temperature, top_k, top_p, repetition_penalty, seed, logits)
        client = self._client(ids, max_tokens, stop, sampler, sync)
        check_may_block("generate_sync", "generate")
        return client.tokens_sync()

    def generate(
        self,
        ids: Any,
        *,
        max_tokens: int | None = None,
        stop: int | Iterable[int] = (),
        temperature: float = 0.0,
        top_k: int = 0,
        top_p: float = 1.0,
        repetition_penalty: float = 1.0,
        seed: int | None = None,
        logits: Any = None,
        sync: Iterable[TimelinePoint] = (),
    ) -> AsyncIterator[int]:
        """Generate tokens as `generate_sync` does, for `async for`, under asyncio or trio.

        The event loop is never blocked. Cancelling the loop ends the generation; so does `aclose`
        of what this returns, which a `break` leaves to the event loop.

        Args:
            ids: Token ids of the prompt: integers, at least one.
            max_tokens: As of `generate_sync`, like all options.
            stop: Tokens that end the text; they are not yielded.
            temperature: Divisor of the logits; 0 takes the most likely token each time.
            top_k: Draw from so many most likely tokens; 0 for all.
            top_p: Draw from the most likely tokens that have this probability together.
            repetition_penalty: Divisor of the positive logits of tokens that occurred.
            seed: Seed of the draws; the same seed gives the same tokens.
            logits: A function or a graph that changes the logits; called on the decoder's thread.
            sync: Timeline points that the generation waits for and signals.

        Yields:
            Token ids.

        Raises:
            MLError: As `generate_sync`.

        Source: webnn_py, spec/execution.md, "Decoders".
        """
        sampler = self._sampler(temperature, top_k, top_p, repetition_penalty, seed, logits)
        return self._client(ids, max_tokens, stop, sampler, sync).tokens()

    def sequence(self) -> MLSequence:
        """Return an empty text to feed with tokens, to cut off and to fork.

        Raises:
            InvalidStateError: The decoder is destroyed.
            ContextLostError: The context is lost.

        Source: webnn_py, spec/execution.md, "Decoders".
        """
        self._scheduler.check_open()
        return MLSequence(self._scheduler, self._limits)

    def compile_to(self, path: str | os.PathLike[str], *, steps: int = 16) -> None:
        """Save greedy generation as a program, which runs in C++ and in browsers, too.

        A run reads `steps` tokens, first those of the prompt. Its arguments are "ids" int32
        [length] (the prompt, then anything), "count" int32 [1] (its number of tokens), "position"
        int32 [1] (0 at the beginning; each run moves it on) and "tokens" int32 [length] (at each
        position the token that follows). The caches are the program's own.

        Args:
            path: Path of the file, conventionally with the suffix `.mlprogram`.
            steps: Number of tokens that a run reads, at least 1.

        Raises:
            ValidationError: `steps` is out of range, the graph has several rows, or `path` ends in
                .onnx.
            InvalidStateError: The graph is destroyed.
            NotSupportedError: A kernel would need more than WebGPU's default limits.
            FileError: The file cannot be written.

        Source: webnn_py, spec/execution.md, "Decoders".
        """
        from webnn_py.api.decoding.program import write_decoder

        count = convert.unsigned(steps, "option 'steps'")
        if not 1 <= count <= self._length:
            raise ValidationError(f"option 'steps': got {count}, expected 1 to {self._length}")
        write_decoder(self._session, self._layout, path, self._length, count)

    def destroy(self) -> None:
        """Release the caches, and end all texts with an InvalidStateError. Harmless twice.

        Source: webnn_py, spec/execution.md, "Decoders".
        """
        self._scheduler.close()

    def __repr__(self) -> str:
        return (
            f"<MLDecoder of {self.vocabulary} tokens, {self.slots} slots of {self.length} tokens on"
            f" {self._session.device_type}>"
        )

    def _sampler(
        self,
        temperature: Any,
        top_k: Any,
        top_p: Any,
        repetition_penalty: Any,
        seed: Any,
        logits: Any,
    ) -> Sampler:
        return Sampler(
            SamplingOptions(
                convert.double(temperature, "option 'temperature'"),
                convert.unsigned(top_k, "option 'top_k'"),
                convert.double(top_p, "option 'top_p'"),
                convert.double(repetition_penalty, "option 'repetition_penalty'"),
                None if seed is None else convert.unsigned(seed, "option 'seed'"),
                self._adjustment(logits),
                logits if isinstance(logits, MLGraph) else None,
            )
        )

    def _adjustment(self, given: Any) -> Adjust | None:
        """Return the function that changes the logits, as `logits` says."""
        if given is None:
            return None
        if not isinstance(given, MLGraph):
            if not callable(given):
                raise ValidationError(
                    f"option 'logits': got {shown(given)}, expected a function or an MLGraph"
                )
            return calls_with_ids(given)
        compiled_of(given).check_usable(self._session, ValidationError)
        (name, *more), (made, *others) = given.inputs, given.outputs
        shapes = [(self.vocabulary,), (1, self.vocabulary)]
        ends = (given.inputs[name], given.outputs[made])
        fits = all(end.shape in shapes and end.data_type == "float32" for end in ends)
        if more or others or not fits:
            raise ValidationError(
                f"option 'logits': got {given!r}, expected a graph with one input and one output,"
                f" float32[1,{self.vocabulary}]"
            )

        def adjust(logits: Array, ids: Sequence[int]) -> Array:
            inputs = {name: np.ascontiguousarray(logits).reshape(ends[0].shape)}
            adjusted: Array = run_blocking(self._session, given, inputs, {})[made]
            return adjusted

        return adjust

    def _client(
        self,
        ids: Any,
        max_tokens: Any,
        stop: Any,
        sampler: Sampler,
        sync: Iterable[TimelinePoint],
    ) -> _Client:
        self._scheduler.check_open()
        prompt = self._limits.ids(ids)
        room = self._length - len(prompt) + 1  # the last token need not be read
        most = room
        if max_tokens is not None:
            most = min(room, convert.unsigned(max_tokens, "option 'max_tokens'"))
        ends = convert_stop(stop)
        turn = TimelineTurn(self._session, points(sync), "a generation of an MLDecoder")
        request = _Request(prompt, most, frozenset(ends), sampler, turn)
        return _Client(self._scheduler, request)


def convert_stop(stop: Any) -> list[int]:
    """Return the tokens that end a text, of an integer or several.

    Raises:
        ValidationError: They are no integers.
    """
    try:
        tokens: list[Any] = [stop] if isinstance(stop, (int, np.integer)) else list(stop)
    except Exception:  # the object's own methods may raise any type
        tokens = [None]
    if any(isinstance(one, bool) or not isinstance(one, (int, np.integer)) for one in tokens):
        raise ValidationError(f"option 'stop': got {shown(stop)}, expected token ids")
    return [int(token) for token in tokens]


@dataclass(frozen=True, slots=True)
class _Request:
    """What a client asks a decoder for.

    Attributes:
        prompt: Token ids.
        most: Number of tokens to generate at most.
        stop: Tokens that end the text.
        sampler: Chooses the tokens.
        turn: The timeline points that the generation waits for and signals.
    """

    prompt: Sequence[int]
    most: int
    stop: frozenset[int]
    sampler: Sampler
    turn: TimelineTurn


class _Client:
    """One generation, on the client's thread or event loop.

    Args:
        scheduler: The decoder's scheduler.
        request: What to generate.
    """

    def __init__(self, scheduler: Scheduler, request: _Request) -> None:
        self._scheduler = scheduler
        self._request = request

    def tokens_sync(self) -> Iterator[int]:
        """Yield the tokens, blocking this thread."""
        check_may_block("generate_sync", "generate")
        check_interrupts_nothing("generate_sync")
        stream, row = self._join()
        try:
            while (token := stream.take_sync()) is not None:
                yield token
        finally:
            self._leave(row)

    async def tokens(self) -> AsyncIterator[int]:
        """Yield the tokens without blocking the event loop."""
        stream, row = self._join()
        try:
            while (token := await stream.take()) is not None:
                yield token
        finally:
            self._leave(row)

    def _join(self) -> tuple[TokenStream, Row]:
        scheduler = self._scheduler
        scheduler.check_open()
        stream = TokenStream(scheduler.wake, scheduler.tokens_ahead)
        row = Row(is_ready=lambda: stream.room > 0)
        generation = _Generation(scheduler, self._request, stream, row)

        def fail(error: BaseException) -> None:
            scheduler.send(functools.partial(generation.end, error))

        scheduler.wait_for(self._request.turn, lambda: scheduler.send(generation.begin), fail)
        return stream, row

    def _leave(self, row: Row) -> None:
        scheduler, turn = self._scheduler, self._request.turn
        turn.leave()

        def leave() -> None:
            scheduler.remove(row)
            turn.end()

        scheduler.send(leave)


class _Generation:
    """State of a generation on the scheduler's thread.

    Args:
        scheduler: The scheduler.
        request: What to generate.
        stream: Receives the tokens.
        row: The row of the caches.

    Attributes:
        ids: The text so far.
        tokens_left: Number of tokens to generate at most.
    """

    def __init__(
        self, scheduler: Scheduler, request: _Request, stream: TokenStream, row: Row
    ) -> None:
        self._scheduler = scheduler
        self._request = request
        self._stream = stream
        self._row = row
        self.ids = [*request.prompt]
        self.tokens_left = request.most

    @property
    def sampler(self) -> Sampler:
        """Return what chooses the tokens."""
        return self._request.sampler

    @property
    def room(self) -> int:
        """Return the number of tokens that may be computed now."""
        return self._stream.room

    def begin(self) -> None:
        """Have the prompt read, if any token is wanted."""
        self._read(self._request.prompt)
        if self.tokens_left:
            self._scheduler.admit(self._row)
        else:
            self.end()

    def _read(self, ids: Sequence[int]) -> None:
        """Have tokens read, and the next one chosen from their logits."""
        taker = None if self.sampler.calls_function else self
        self._row.read(ids, self._choose, self.end, taker)

    def _choose(self, logits: Array) -> None:
        token = self.sampler.choose(logits, self.ids)
        if self.take(token):
            self._read([token])

    def take(self, token: int) -> bool:
        """Take the next token; return whether another one is wanted."""
        if token not in self._request.stop:
            self.ids.append(token)
            self.tokens_left -= 1
            self._stream.put(token)
            if self.tokens_left:
                return True
        self.end()
        return False

    def end(self, error: BaseException | None = None) -> None:
        """End the generation, with an error if it failed."""
        self._scheduler.remove(self._row)
        self._request.turn.end(error)
        self._stream.end(error)

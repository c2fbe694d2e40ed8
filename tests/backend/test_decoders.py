"""MLDecoder over a graph made by hand: clients, sampling, sequences and refusals."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import signal
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from tests.conftest import KINDS, context_of
from tests.decoders import (
    INPUTS,
    KEYS,
    OUTPUTS,
    WORDS,
    decoder_by_hand,
    graph_by_hand,
    logits_after,
    tokens_after,
)
from tests.loops import Run
from tests.threads import in_threads
from webnn_py import (
    ContextLostError,
    InvalidStateError,
    MLContext,
    MLDecoder,
    MLGraphBuilder,
    ValidationError,
    ml,
)
from webnn_py.api.decoding.bound_steps import BoundSteps

PROMPT = [3, 1, 4]


@pytest.fixture
def decoder() -> Iterator[MLDecoder]:
    """A decoder of three slots."""
    with ml.create_context_sync(engine="reference") as context:
        yield decoder_by_hand(context)


@pytest.fixture(scope="module", params=list(KINDS))
def each(request: pytest.FixtureRequest) -> Iterator[MLContext]:
    """A context of each engine."""
    with context_of(request, KINDS[request.param]) as context:
        yield context


# Graphs made by hand


@pytest.mark.parametrize("batch", ["rows", 3, 1])
def test_open_and_fixed_batches(each: MLContext, batch: Any) -> None:
    decoder = decoder_by_hand(each, batch=batch)
    assert decoder.slots == (1 if batch == 1 else 3)
    prompts = [[number, 2 * number, 5] for number in range(5)]

    async def tokens(prompt: list[int]) -> list[int]:
        return [token async for token in decoder.generate(prompt, max_tokens=6)]

    async def main() -> list[list[int]]:
        return await asyncio.gather(*map(tokens, prompts))

    assert asyncio.run(main()) == [tokens_after(prompt, 6) for prompt in prompts]


@pytest.mark.parametrize(
    ("inputs", "outputs", "message"),
    [
        ({"ids": None}, {}, "'ids' is missing"),
        ({"caches": None}, {}, "'caches' is missing"),
        ({"ids": "tokens"}, {}, "has no input 'tokens'.*did you mean token"),
        ({"mask": None}, {}, "input 'seen' has no role"),
        ({"posision": "place"}, {}, "unknown role 'posision'.*did you mean positions"),
        ({"positions": "token"}, {}, "'token' has two roles"),
        ({}, {"logits": None}, "'logits' is missing"),
        ({}, {"logits": "state after"}, "'state after' has two roles"),
        ({}, {"caches": []}, "got 1 inputs and 0 outputs"),
        ({}, {"logits": "state after", "caches": ["scores"]}, "caches: input 'state' is"),
    ],
)
def test_roles_that_do_not_fit(cpu: MLContext, inputs: Any, outputs: Any, message: str) -> None:
    given, made = {**INPUTS, **inputs}, {**OUTPUTS, **outputs}
    with pytest.raises(ValidationError, match=message):
        MLDecoder.from_graph(
            graph_by_hand(cpu),
            inputs={role: name for role, name in given.items() if name is not None},
            outputs={role: name for role, name in made.items() if name is not None},
        )


def test_more_than_one_token_for_several_fixed_rows_is_refused(cpu: MLContext) -> None:
    b = MLGraphBuilder(cpu)
    ids, state = b.input("ids", "int32", [2, "new"]), b.input("state", "float32", [2, 1, 4, 4])
    logits = b.gather(b.constant(np.zeros((4, 5), np.float32)), ids)
    graph = b.build_sync({"logits": logits, "after": b.identity(state)})
    with pytest.raises(ValidationError, match=r"ids: input 'ids' is \[2, new\]"):
        MLDecoder.from_graph(
            graph,
            inputs={"ids": "ids", "caches": ["state"]},
            outputs={"logits": "logits", "caches": ["after"]},
        )


def test_the_length_is_that_of_the_caches_or_less(cpu: MLContext) -> None:
    def made(length: int) -> MLDecoder:
        graph = graph_by_hand(cpu)
        return MLDecoder.from_graph(graph, inputs=INPUTS, outputs=OUTPUTS, length=length)

    assert made(5).length == 5
    assert list(made(5).generate_sync(PROMPT)) == tokens_after(PROMPT, 3)
    for length in (0, KEYS + 1):
        with pytest.raises(ValidationError, match=f"expected at least 1 to {KEYS}"):
            made(length)


# Options of a generation


def test_stop_and_max_tokens(decoder: MLDecoder) -> None:
    whole = tokens_after(PROMPT, 8)
    assert list(decoder.generate_sync(PROMPT, max_tokens=8)) == whole
    assert list(decoder.generate_sync(PROMPT, max_tokens=0)) == []
    end = next(token for token in whole if token != whole[0])
    assert list(decoder.generate_sync(PROMPT, stop={end})) == whole[: whole.index(end)]
    assert list(decoder.generate_sync(PROMPT, stop=end)) == whole[: whole.index(end)]


@pytest.mark.parametrize("ids", [np.array(PROMPT), np.array([PROMPT]), tuple(PROMPT), iter(PROMPT)])
def test_ids_are_integers_of_any_kind(decoder: MLDecoder, ids: Any) -> None:
    assert list(decoder.generate_sync(ids, max_tokens=4)) == tokens_after(PROMPT, 4)


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        ([], "at least one integer"),
        ([1.5], "at least one integer"),
        (3, "expected token ids"),
        ([WORDS], f"got {WORDS}, expected 0 to {WORDS - 1}"),
        ([-1], "got -1, expected 0 to"),
        ([1] * (KEYS + 1), f"{KEYS + 1} tokens after 0; the caches have room for {KEYS}"),
    ],
)
def test_ids_that_are_none(decoder: MLDecoder, ids: Any, message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        decoder.generate_sync(ids)
    with pytest.raises(ValidationError, match=message):
        decoder.generate(ids)
    with pytest.raises(ValidationError, match=message):
        decoder.sequence().feed_sync(ids)


@pytest.mark.parametrize(
    "options",
    [
        {"temperature": -1.0},
        {"temperature": float("nan")},
        {"top_k": -1},
        {"top_p": 0.0},
        {"top_p": 1.5},
        {"repetition_penalty": 0.0},
        {"seed": -1},
        {"max_tokens": -1},
        {"stop": ["a"]},
        {"stop": True},
        {"stop": [True]},
        {"logits": 3},
    ],
)
def test_options_out_of_range(decoder: MLDecoder, options: dict[str, Any]) -> None:
    with pytest.raises(ValidationError, match=next(iter(options))):
        decoder.generate_sync(PROMPT, **options)


def test_a_seed_repeats_the_draws(decoder: MLDecoder) -> None:
    def drawn(seed: int) -> list[int]:
        return list(
            decoder.generate_sync(PROMPT, max_tokens=12, temperature=3.0, top_k=20, seed=seed)
        )

    assert drawn(1) == drawn(1)
    assert len({tuple(drawn(seed)) for seed in range(8)}) > 4


def test_a_seed_repeats_the_draws_beside_other_clients(decoder: MLDecoder) -> None:
    options: dict[str, Any] = {"temperature": 3.0, "seed": 7, "max_tokens": 10}
    alone = list(decoder.generate_sync(PROMPT, **options))
    found: list[list[int]] = []

    async def main() -> None:
        async def client() -> None:
            found.append([token async for token in decoder.generate(PROMPT, **options)])

        await asyncio.gather(*[client() for _ in range(6)])

    asyncio.run(main())
    assert found == [alone] * 6


def test_a_function_changes_the_logits(decoder: MLDecoder) -> None:
    def no_even(logits: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        logits[::2] = -np.inf
        return logits

    texts: list[list[int]] = []

    def noted(logits: np.ndarray[Any, Any], ids: Any) -> np.ndarray[Any, Any]:
        texts.append([*ids])
        return logits

    odd = list(decoder.generate_sync(PROMPT, max_tokens=6, logits=no_even))
    assert len(odd) == 6
    assert all(token % 2 for token in odd)
    tokens = list(decoder.generate_sync(PROMPT, max_tokens=4, logits=noted))
    assert tokens == tokens_after(PROMPT, 4)
    assert texts == [[*PROMPT, *tokens[:count]] for count in range(4)]


def test_a_graph_changes_the_logits(each: MLContext) -> None:
    decoder = decoder_by_hand(each)
    b = MLGraphBuilder(each)
    lowest = b.build_sync({"y": b.neg(b.input("x", "float32", [1, WORDS]))})
    token = next(decoder.generate_sync(PROMPT, logits=lowest))
    assert token == int(logits_after(PROMPT).argmin())


def test_a_function_that_raises_ends_its_own_text(decoder: MLDecoder) -> None:
    def broken(logits: Any) -> Any:
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        list(decoder.generate_sync(PROMPT, logits=broken))
    with pytest.raises(ValidationError, match="the function returned float32"):
        list(decoder.generate_sync(PROMPT, logits=lambda logits: logits[:3]))
    assert list(decoder.generate_sync(PROMPT, max_tokens=3)) == tokens_after(PROMPT, 3)


# Clients


def test_clients_of_many_threads(decoder: MLDecoder) -> None:
    def client(number: int) -> None:
        for turn in range(5):
            ids = [number, turn, 2]
            assert list(decoder.generate_sync(ids, max_tokens=6)) == tokens_after(ids, 6)

    in_threads(*[lambda number=number: client(number) for number in range(8)])


def test_a_loop_that_is_left_frees_its_slot(decoder: MLDecoder) -> None:
    for _ in range(3 * decoder.slots):
        for _ in decoder.generate_sync(PROMPT):
            break
    gc.collect()
    assert list(decoder.generate_sync(PROMPT, max_tokens=3)) == tokens_after(PROMPT, 3)


def test_a_slow_client_holds_back_no_other(decoder: MLDecoder) -> None:
    slow = decoder.generate_sync(PROMPT)
    found = [next(slow)]
    assert list(decoder.generate_sync([5], max_tokens=9)) == tokens_after([5], 9)
    found += slow
    assert found == tokens_after(PROMPT, KEYS - len(PROMPT) + 1)


def test_generate_sync_blocks_no_event_loop(decoder: MLDecoder, run: Run) -> None:
    async def main() -> None:
        with pytest.raises(InvalidStateError, match="use generate"):
            decoder.generate_sync(PROMPT)
        with pytest.raises(InvalidStateError, match="use feed_async"):
            decoder.sequence().feed_sync(PROMPT)

    run(main)


def test_a_lost_context_ends_all(run: Run) -> None:
    with ml.create_context_sync(engine="reference") as context:
        decoder = decoder_by_hand(context)
        running = decoder.generate_sync(PROMPT)
        next(running)
        text = decoder.sequence()
        text.feed_sync(PROMPT)
    with pytest.raises(ContextLostError):
        list(running)
    with pytest.raises(ContextLostError):
        text.feed_sync([1])
    with pytest.raises(ContextLostError):
        decoder.generate_sync(PROMPT)


def test_a_destroyed_graph_is_refused(each: MLContext) -> None:
    graph = graph_by_hand(each)
    graph.destroy()
    with pytest.raises(InvalidStateError, match="destroyed"):
        MLDecoder.from_graph(graph, inputs=INPUTS, outputs=OUTPUTS)


def test_a_destroyed_decoder_ends_all(each: MLContext) -> None:
    decoder = decoder_by_hand(each)
    running, text = decoder.generate_sync(PROMPT), decoder.sequence()
    next(running)
    text.feed_sync(PROMPT)
    decoder.destroy()
    decoder.destroy()
    with pytest.raises(InvalidStateError, match="destroyed"):
        list(running)
    for call in (lambda: text.feed_sync([1]), decoder.sequence, lambda: decoder.generate(PROMPT)):
        with pytest.raises(InvalidStateError, match="destroyed"):
            call()


def test_a_decoder_leaves_no_thread_behind() -> None:
    with ml.create_context_sync(engine="reference") as context:
        decoder = decoder_by_hand(context)
        list(decoder.generate_sync(PROMPT, max_tokens=2))
        threads = [one for one in threading.enumerate() if one.name.startswith("webnn-decoder")]
        del decoder
        gc.collect()
        for thread in threads:
            thread.join(60)
        assert threads
        assert not any(thread.is_alive() for thread in threads)


# Sequences


def test_a_sequence_gives_the_logits_of_its_text(decoder: MLDecoder, run: Run) -> None:
    text = decoder.sequence()
    assert text.tokens == ()

    async def main() -> None:
        np.testing.assert_allclose(
            await text.feed_async(PROMPT), logits_after(PROMPT), rtol=1e-4, atol=1e-4
        )
        np.testing.assert_allclose(
            await text.feed_async([8]), logits_after([*PROMPT, 8]), rtol=1e-4, atol=1e-4
        )

    run(main)
    assert text.tokens == (*PROMPT, 8)
    assert len(text) == 4


def test_a_full_sequence_can_be_cut_off_and_goes_on(decoder: MLDecoder) -> None:
    text = decoder.sequence()
    ids = [place % WORDS for place in range(KEYS)]
    np.testing.assert_allclose(text.feed_sync(ids), logits_after(ids), rtol=1e-4, atol=1e-4)
    with pytest.raises(ValidationError, match=f"1 tokens after {KEYS}"):
        text.feed_sync([1])
    list(decoder.generate_sync(PROMPT, max_tokens=5))  # beside the full row
    text.truncate(KEYS - 1)
    changed = [*ids[:-1], 9]
    np.testing.assert_allclose(text.feed_sync([9]), logits_after(changed), rtol=1e-4, atol=1e-4)
    with pytest.raises(ValidationError, match=f"expected at most {KEYS}"):
        text.truncate(KEYS + 1)


def test_forks_go_their_own_ways(decoder: MLDecoder) -> None:
    text = decoder.sequence()
    text.feed_sync(PROMPT)
    one, other = text.fork(), text.fork()
    text.truncate(1)
    for forked, token in ((one, 5), (other, 6)):
        found = forked.feed_sync([token])
        np.testing.assert_allclose(found, logits_after([*PROMPT, token]), rtol=1e-4, atol=1e-4)
    found = text.feed_sync([7])
    np.testing.assert_allclose(found, logits_after([PROMPT[0], 7]), rtol=1e-4, atol=1e-4)
    with pytest.raises(InvalidStateError, match="all 3 slots of this MLDecoder are in use"):
        text.fork()
    other.close()
    text.feed_sync([1])  # the thread has freed the slot before
    assert text.fork().tokens == text.tokens


def test_sequences_that_hold_all_slots_are_an_error_of_those_that_wait(decoder: MLDecoder) -> None:
    texts = [decoder.sequence() for _ in range(decoder.slots)]
    for text in texts:
        text.feed_sync(PROMPT)
    with pytest.raises(InvalidStateError, match="all 3 slots"):
        list(decoder.generate_sync(PROMPT))
    with pytest.raises(InvalidStateError, match="all 3 slots"):
        decoder.sequence().feed_sync(PROMPT)
    del texts, text
    gc.collect()
    assert list(decoder.generate_sync(PROMPT, max_tokens=3)) == tokens_after(PROMPT, 3)


def test_a_cancelled_feed_leaves_the_text_as_it_was(decoder: MLDecoder) -> None:
    text = decoder.sequence()
    text.feed_sync(PROMPT)

    async def main() -> None:
        feeding = asyncio.ensure_future(text.feed_async([5, 6, 7, 8]))
        await asyncio.sleep(0)
        with pytest.raises(InvalidStateError, match="is being fed by another call"):
            await text.feed_async([1])
        feeding.cancel()
        with pytest.raises(asyncio.CancelledError):
            await feeding
        assert text.tokens == tuple(PROMPT)
        found = await text.feed_async([9])
        np.testing.assert_allclose(found, logits_after([*PROMPT, 9]), rtol=1e-4, atol=1e-4)

    asyncio.run(main())


@pytest.fixture
def heeds_ctrl_c() -> Iterator[None]:
    """Has this process interrupted by Ctrl-C, also if it was started in the background."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("heeds_ctrl_c")
@pytest.mark.parametrize("interrupts", [True, False])
def test_ctrl_c_in_a_step_leaves_the_text_as_it_was(
    decoder: MLDecoder, monkeypatch: pytest.MonkeyPatch, interrupts: bool
) -> None:
    text, other = decoder.sequence(), decoder.sequence()
    text.feed_sync(PROMPT)
    other.feed_sync(PROMPT)
    threads = []

    def logits(self: BoundSteps, *arguments: Any) -> Any:
        threads.append(threading.get_ident())
        if interrupts:
            signal.raise_signal(signal.SIGINT)
        return steps(self, *arguments)

    steps = BoundSteps.logits
    monkeypatch.setattr(BoundSteps, "logits", logits)
    with pytest.raises(KeyboardInterrupt) if interrupts else contextlib.nullcontext():
        text.feed_sync([5])
    assert threads == [threading.get_ident()]  # no other text has tokens to read
    monkeypatch.undo()
    assert text.tokens == ((*PROMPT,) if interrupts else (*PROMPT, 5))
    for sequence, token in ((text, 8), (other, 6)):
        sequence.truncate(len(PROMPT))
        found = sequence.feed_sync([token])
        np.testing.assert_allclose(found, logits_after([*PROMPT, token]), rtol=1e-4, atol=1e-4)


def test_a_feed_beside_clients_of_an_event_loop(decoder: MLDecoder) -> None:
    async def client() -> list[int]:
        return [token async for token in decoder.generate(PROMPT, max_tokens=13)]

    def feed() -> list[int]:
        with decoder.sequence() as text:
            tokens = [int(text.feed_sync(PROMPT).argmax())]
            while len(tokens) < 13:
                tokens.append(int(text.feed_sync(tokens[-1:]).argmax()))
            return tokens

    async def main() -> list[list[int]]:
        return await asyncio.gather(client(), asyncio.to_thread(feed), client())

    assert asyncio.run(main()) == [tokens_after(PROMPT, 13)] * 3


def test_a_closed_sequence(decoder: MLDecoder) -> None:
    with decoder.sequence() as text:
        text.feed_sync(PROMPT)
    text.close()
    with pytest.raises(InvalidStateError, match="this MLSequence is closed"):
        text.feed_sync(PROMPT)

"""A decoder on a GPU runs several steps a submission, and gives the same tokens."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest

from tests.decoders import HEAD, OUTPUTS, WORDS, decoder_by_hand, tokens_after
from tests.internals import engine_of
from tests.onnx.decoder_models import made
from webnn_py import MLContext, MLDecoder, MLGraph, MLGraphBuilder, OperationError
from webnn_py.api.decoding import device_steps
from webnn_py.api.decoding.device_steps import MAX_STEPS, AheadSteps
from webnn_py.onnx import load_decoder

KEYS = 96
PROMPTS = [[3, 1, 4], [5], [9, 2, 6, 5, 3], [11, 7], [1, 2, 3]]


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of steps of each submission."""
    counts: list[int] = []
    submit = AheadSteps.submit

    def counted(ahead: AheadSteps, count: int, noise: Any = None) -> int:
        counts.append(count)
        return submit(ahead, count, noise)

    monkeypatch.setattr(AheadSteps, "submit", counted)
    return counts


@pytest.fixture
def drawing(gpu: MLContext, monkeypatch: pytest.MonkeyPatch) -> MLContext:
    """A context whose device draws tokens, as hardware does."""
    monkeypatch.setattr(engine_of(gpu), "accelerated", True)
    return gpu


@pytest.mark.parametrize("batch", ["rows", 3, 1])
def test_the_same_tokens(gpu: MLContext, batch: Any, steps: list[int]) -> None:
    decoder = decoder_by_hand(gpu, batch=batch, keys=KEYS)
    for prompt in PROMPTS:
        found = list(decoder.generate_sync(prompt, max_tokens=60))
        assert found == tokens_after(prompt, 60)
    assert max(steps) == MAX_STEPS


def test_until_the_caches_are_full(gpu: MLContext) -> None:
    decoder = decoder_by_hand(gpu, keys=KEYS)
    found = list(decoder.generate_sync([3, 1, 4]))
    assert found == tokens_after([3, 1, 4], KEYS - 3 + 1)


def test_stops_cut_the_surplus(gpu: MLContext, steps: list[int]) -> None:
    decoder = decoder_by_hand(gpu, keys=KEYS)
    whole = tokens_after(PROMPTS[0], 80)
    for end in {*whole}:
        wanted = whole[: whole.index(end)]
        assert list(decoder.generate_sync(PROMPTS[0], stop=end, max_tokens=80)) == wanted
    assert steps


def test_many_clients_that_come_late_and_leave(gpu: MLContext, steps: list[int]) -> None:
    decoder = decoder_by_hand(gpu, keys=KEYS, slots=4)

    async def client(number: int) -> None:
        prompt = [number % 7, number % 5, number % 3 + 1]
        count = 10 + 7 * (number % 5)
        found: list[int] = []
        await asyncio.sleep(number % 4 * 0.02)
        async for token in decoder.generate(prompt, max_tokens=count):
            found.append(token)
            if number % 3 == 0 and len(found) == 9:
                break
        wanted = tokens_after(prompt, count)
        assert found == (wanted[:9] if number % 3 == 0 else wanted)

    async def main() -> None:
        await asyncio.gather(*map(client, range(16)))

    asyncio.run(main())
    assert steps


def test_clients_that_join_running_ones(gpu: MLContext, steps: list[int]) -> None:
    """Their prompts are read between submissions, several tokens a run."""
    model, oracle = made("given")
    decoder = load_decoder(model, gpu, length=64, slots=8)

    async def client(number: int, after: asyncio.Event, then: asyncio.Event) -> None:
        await after.wait()
        prompt = [number, *PROMPTS[2]]
        found: list[int] = []
        async for token in decoder.generate(prompt, max_tokens=50):
            found.append(token)
            if len(found) == 20:
                then.set()
        assert found == oracle.tokens(prompt, 50)

    async def main() -> None:
        events = [asyncio.Event() for _ in range(7)]
        events[0].set()
        await asyncio.gather(*(client(n, events[n], events[n + 1]) for n in range(4)))

    asyncio.run(main())
    assert max(steps) == MAX_STEPS


OPTIONS: list[dict[str, Any]] = [
    {"temperature": 0.9},
    {"temperature": 1.5, "top_k": 5},
    {"temperature": 0.7, "top_p": 0.8},
    {"temperature": 1.2, "top_k": 9, "top_p": 0.9, "repetition_penalty": 1.3},
    {"repetition_penalty": 1.5},
]


@pytest.mark.parametrize("options", OPTIONS)
def test_drawn_tokens(drawing: MLContext, cpu: MLContext, options: Any, steps: list[int]) -> None:
    """A seed gives the tokens that it gives on a CPU, whose draws are those of NumPy."""
    found = []
    for context in (drawing, cpu):
        decoder = decoder_by_hand(context, keys=KEYS)
        for seed, prompt in enumerate(PROMPTS):
            found.append(list(decoder.generate_sync(prompt, max_tokens=50, seed=seed, **options)))
    assert found[: len(PROMPTS)] == found[len(PROMPTS) :]
    assert max(steps) == MAX_STEPS
    assert len({*found[0]}) > 3


def test_drawn_tokens_are_those_alone(drawing: MLContext) -> None:
    """Whoever comes meanwhile, with options or a function of its own, or without any."""
    model, _ = made("given")
    decoder = load_decoder(model, drawing, length=64, slots=4)
    choices = [*OPTIONS, {}, {"logits": lambda logits: logits[::-1]}] * 2
    prompts = [[number, *PROMPTS[number % 5]] for number in range(len(choices))]
    alone = [
        list(decoder.generate_sync(prompt, max_tokens=20, seed=number, **options))
        for number, (prompt, options) in enumerate(zip(prompts, choices, strict=True))
    ]

    async def tokens(number: int) -> list[int]:
        await asyncio.sleep(number * 0.03)
        given = {"max_tokens": 20, "seed": number, **choices[number]}
        return [token async for token in decoder.generate(prompts[number], **given)]

    async def main() -> list[list[int]]:
        return await asyncio.gather(*map(tokens, range(len(choices))))

    assert asyncio.run(main()) == alone


def test_a_sequence_between_generations(gpu: MLContext) -> None:
    """Its keys are in the rows that steps ahead pass over."""
    decoder = decoder_by_hand(gpu, keys=KEYS)
    with decoder.sequence() as text:
        text.feed_sync(PROMPTS[2])
        running = decoder.generate_sync(PROMPTS[0], max_tokens=40)
        found = [next(running) for _ in range(9)]
        other = text.fork()
        logits = text.feed_sync([8])
        assert np.array_equal(other.feed_sync([8]), logits)
        assert found + list(running) == tokens_after(PROMPTS[0], 40)
        other.truncate(3)
        list(decoder.generate_sync(PROMPTS[1], max_tokens=20))
        np.testing.assert_allclose(other.feed_sync([*PROMPTS[2][3:], 8]), logits, 1e-5, 1e-5)
        other.close()


@pytest.mark.parametrize("kind", ["fused", "given"])
def test_models(gpu: MLContext, kind: str, steps: list[int]) -> None:
    model, oracle = made(kind)
    decoder = load_decoder(model, gpu, length=64)
    found = list(decoder.generate_sync([3, 1, 4], max_tokens=28))
    assert found == oracle.tokens([3, 1, 4], 28)
    assert steps


def rows_in_place(context: MLContext, data_type: str) -> MLGraph:
    """A decoder that scatters its keys into the cache, with lengths of a data type."""
    b = MLGraphBuilder(context)
    token = b.input("token", "int64", ["rows", 1])
    before = b.input("before", data_type, ["rows"])
    state = b.input("state", "float32", ["rows", 1, KEYS, 4])
    table = np.random.default_rng(3).normal(size=(23, 4)).astype(np.float32)
    rows = token.shape[0]
    after = b.scatter_rows(
        state, b.reshape(b.gather(b.constant(table), token), [rows, 1, 1, 4]), before
    )
    places = b.constant(np.arange(1, KEYS + 1, dtype=np.float32).reshape(1, 1, KEYS, 1))
    total = b.reduce_sum(b.mul(after, b.sin(places)), axes=[1, 2])
    return b.build_sync({"scores": b.matmul(b.sin(total), b.constant(HEAD)), "state after": after})


@pytest.mark.parametrize("data_type", ["int32", "int64"])
def test_caches_in_place(gpu: MLContext, cpu: MLContext, data_type: str) -> None:
    found = []
    for context in (gpu, cpu):
        decoder = MLDecoder.from_graph(
            rows_in_place(context, data_type),
            inputs={"ids": "token", "lengths": "before", "caches": ["state"]},
            outputs=OUTPUTS,
            slots=2,
        )
        found.append([list(decoder.generate_sync(prompt, max_tokens=50)) for prompt in PROMPTS])
    assert found[0] == found[1]


def test_a_failure_ends_those_that_run_ahead(
    gpu: MLContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    decoder = decoder_by_hand(gpu, keys=KEYS)

    def fail(ahead: AheadSteps, half: int, count: int) -> Any:
        raise OperationError("the device failed")

    running = decoder.generate_sync(PROMPTS[0], max_tokens=50)
    next(running)
    monkeypatch.setattr(AheadSteps, "tokens", fail)
    with pytest.raises(OperationError, match="the device failed"):
        list(running)
    monkeypatch.undo()
    assert list(decoder.generate_sync(PROMPTS[0], max_tokens=20)) == tokens_after(PROMPTS[0], 20)


def test_more_sizes_than_are_kept(gpu: MLContext, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_steps, "MAX_SIZES", 2)
    model, oracle = made("given")
    decoder = load_decoder(model, gpu, length=64, slots=3)
    with decoder.sequence() as one, decoder.sequence() as other:
        for text in (one, other):
            text.feed_sync([3, 1, 4, 1, 5])
        found = list(decoder.generate_sync([3, 1, 4], max_tokens=9))
        logits = [text.feed_sync([9, 2, 6]) for text in (one, other)]
    assert found == oracle.tokens([3, 1, 4], 9)
    np.testing.assert_array_equal(*logits)


@pytest.mark.parametrize("shape", [[1, WORDS], [WORDS]])
@pytest.mark.parametrize("batch", ["rows", 3, 1])
def test_graphs_change_the_logits_on_the_device(
    gpu: MLContext, batch: Any, shape: list[int], steps: list[int]
) -> None:
    decoder = decoder_by_hand(gpu, batch=batch, keys=KEYS)
    graphs = [_without(gpu, [n for n in range(WORDS) if n % 3 == odd], shape) for odd in (0, 1)]

    async def client(number: int) -> list[int]:
        graph = [*graphs, None][number]
        return [t async for t in decoder.generate(PROMPTS[0], max_tokens=24, logits=graph)]

    async def main() -> list[list[int]]:
        return await asyncio.gather(*map(client, range(3)))

    alone = [
        list(decoder.generate_sync(PROMPTS[0], max_tokens=24, logits=_banning(remainder)))
        for remainder in (0, 1)
    ]
    assert sum(steps) == 0  # functions run on the host
    for _ in range(2):
        assert asyncio.run(main()) == [*alone, tokens_after(PROMPTS[0], 24)]
    assert max(steps) == MAX_STEPS


def test_draws_from_logits_that_a_graph_changed(drawing: MLContext, steps: list[int]) -> None:
    decoder = decoder_by_hand(drawing, keys=KEYS)
    graph = _without(drawing, [0, 1, 2, 3], [WORDS])
    options = {"max_tokens": 40, "temperature": 5.0, "seed": 3}
    found = list(decoder.generate_sync(PROMPTS[0], logits=graph, **options))
    assert len({*found}) > 3
    assert not {*found} & {0, 1, 2, 3}
    assert {*decoder.generate_sync(PROMPTS[0], **options)} & {0, 1, 2, 3}
    assert max(steps) == MAX_STEPS


def _without(ctx: MLContext, tokens: list[int], shape: list[int]) -> MLGraph:
    """Return a graph that forbids tokens."""
    b = MLGraphBuilder(ctx)
    bias = np.zeros(shape, np.float32)
    bias[..., tokens] = -np.inf
    return b.build_sync({"y": b.add(b.input("x", "float32", shape), b.constant(bias))})


def _banning(remainder: int) -> Any:
    """Return a function that forbids the same tokens."""

    def change(logits: Any) -> Any:
        logits[remainder::3] = -np.inf
        return logits

    return change

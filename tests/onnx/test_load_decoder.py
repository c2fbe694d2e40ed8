"""Decoders from ONNX models: ONNX Runtime's tokens on every engine, for many clients at once."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Iterator
from typing import Any

import numpy as np
import onnx
import pytest

from tests.conftest import KINDS, context_of
from tests.loops import Run, cancel_after, pause, together
from tests.onnx.decoder_models import WORDS, Oracle, made, plain_decoder
from webnn_py import MLContext, MLDecoder, ValidationError, ml
from webnn_py.onnx import load_decoder

COUNT, SLOTS, LENGTH = 12, 4, 30
PROMPTS = [[3, 1, 4, 1, 5], [9, 2, 6], [7], [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]]


@pytest.fixture(scope="module", params=list(KINDS))
def each(request: pytest.FixtureRequest) -> Iterator[MLContext]:
    """A context of each engine."""
    with context_of(request, KINDS[request.param]) as context:
        yield context


@pytest.fixture(scope="module", params=["fused", "given"])
def on_each(request: pytest.FixtureRequest, each: MLContext) -> tuple[MLDecoder, Oracle]:
    """A decoder of each kind on each engine, and its oracle."""
    model, oracle = made(request.param)
    return load_decoder(model, each, length=LENGTH, slots=SLOTS), oracle


@pytest.fixture(scope="module")
def fast() -> Iterator[tuple[MLDecoder, Oracle]]:
    """A decoder on the reference engine, and its oracle."""
    model, oracle = made("given")
    with ml.create_context_sync(engine="reference") as context:
        yield load_decoder(model, context, length=120, slots=SLOTS), oracle


@functools.cache
def wanted(oracle: Oracle) -> list[list[int]]:
    """ONNX Runtime's tokens behind each prompt."""
    return [oracle.tokens(prompt, COUNT) for prompt in PROMPTS]


def test_tokens_are_those_of_onnx_runtime(on_each: tuple[MLDecoder, Oracle]) -> None:
    decoder, oracle = on_each
    assert len({token for tokens in wanted(oracle) for token in tokens}) > 5
    found = [list(decoder.generate_sync(prompt, max_tokens=COUNT)) for prompt in PROMPTS]
    assert found == wanted(oracle)


def test_tokens_of_many_clients_are_those_of_one(
    on_each: tuple[MLDecoder, Oracle], run: Run
) -> None:
    """Three times as many as there are slots; each begins at its own time."""
    decoder, oracle = on_each
    found: dict[int, list[int]] = {}

    async def client(number: int) -> None:
        for _ in range(number):
            await pause()
        prompt = PROMPTS[number % len(PROMPTS)]
        found[number] = [token async for token in decoder.generate(prompt, max_tokens=COUNT)]

    async def main() -> None:
        await together(functools.partial(client, number) for number in range(3 * SLOTS))

    run(main)
    assert found == {number: wanted(oracle)[number % len(PROMPTS)] for number in range(3 * SLOTS)}


def test_cancelled_clients_leave_their_slots(on_each: tuple[MLDecoder, Oracle], run: Run) -> None:
    decoder, oracle = on_each
    found: list[list[int]] = []

    async def client() -> None:
        found.append([token async for token in decoder.generate(PROMPTS[0], max_tokens=COUNT)])

    async def main() -> None:
        for _ in range(2 * SLOTS):
            begun: list[int] = []

            async def cut_off(begun: list[int] = begun) -> None:
                async for token in decoder.generate(PROMPTS[1]):
                    begun.append(token)

            async def has_begun(begun: list[int] = begun) -> None:
                while not begun:
                    await pause(0.001)

            await cancel_after(cut_off, has_begun)
        await together([client] * SLOTS)

    run(main)
    assert found == [wanted(oracle)[0]] * SLOTS


def test_sequences_on_each_engine(on_each: tuple[MLDecoder, Oracle]) -> None:
    decoder, oracle = on_each
    prompt = PROMPTS[3]
    with decoder.sequence() as text:
        logits = text.feed_sync(prompt)
        np.testing.assert_allclose(logits, oracle.logits(prompt), rtol=1e-3, atol=1e-3)
        with text.fork() as other:
            text.truncate(4)
            text.feed_sync([40, 41])
            logits = other.feed_sync([43])
            np.testing.assert_allclose(logits, oracle.logits([*prompt, 43]), rtol=1e-3, atol=1e-3)
        logits = text.feed_sync([42])
        assert text.tokens == (*prompt[:4], 40, 41, 42)
        np.testing.assert_allclose(logits, oracle.logits(text.tokens), rtol=1e-3, atol=1e-3)


def test_caches_grow_with_the_longest_text(each: MLContext) -> None:
    """From 64 keys on; what other rows hold stays, and short texts make them small again."""
    model, oracle = made("given")
    decoder = load_decoder(model, each, length=90, slots=2)
    long = [(7 * place) % WORDS for place in range(58)]
    with decoder.sequence() as text:
        text.feed_sync(PROMPTS[0])
        assert list(decoder.generate_sync(long, max_tokens=14)) == oracle.tokens(long, 14)
        logits = text.feed_sync([40])
        np.testing.assert_allclose(logits, oracle.logits([*PROMPTS[0], 40]), rtol=1e-3, atol=1e-3)
    assert list(decoder.generate_sync(PROMPTS[1], max_tokens=COUNT)) == wanted(oracle)[1]


def test_positions_may_come_from_the_mask(cpu: MLContext) -> None:
    model, oracle = made("mask")
    decoder = load_decoder(model, cpu, length=LENGTH, slots=2)
    found = [list(decoder.generate_sync(prompt, max_tokens=COUNT)) for prompt in PROMPTS]
    assert found == wanted(oracle)


def test_positions_from_the_length_of_the_caches_are_refused(cpu: MLContext) -> None:
    with pytest.raises(ValidationError, match="export it with 'position_ids'"):
        load_decoder(plain_decoder("length"), cpu, length=LENGTH)


def test_long_prompts_are_read_in_pieces(fast: tuple[MLDecoder, Oracle]) -> None:
    decoder, oracle = fast
    prompt = [(7 * place) % WORDS for place in range(64 + 33)]
    assert list(decoder.generate_sync(prompt, max_tokens=5)) == oracle.tokens(prompt, 5)


def test_a_text_ends_where_its_row_is_full(fast: tuple[MLDecoder, Oracle]) -> None:
    decoder, oracle = fast
    prompt = [(7 * place) % WORDS for place in range(117)]
    tokens = list(decoder.generate_sync(prompt))  # the last token is not read any more
    assert tokens == oracle.tokens(prompt, 4)
    assert list(decoder.generate_sync([*prompt, 1, 2, 3])) == oracle.tokens([*prompt, 1, 2, 3], 1)
    with pytest.raises(ValidationError, match="121 tokens after 0; the caches have room for 120"):
        decoder.generate_sync([1] * 121)


def test_a_model_on_disk(tmp_path: Any, cpu: MLContext) -> None:
    model, oracle = made("given")
    onnx.save(model, tmp_path / "model.onnx")
    decoder = load_decoder(tmp_path / "model.onnx", cpu, LENGTH, 1)
    assert list(decoder.generate_sync(PROMPTS[0], max_tokens=COUNT)) == wanted(oracle)[0]


def without(*names: str) -> onnx.ModelProto:
    model = plain_decoder()
    for values in (model.graph.input, model.graph.output):
        for value in [value for value in values if value.name in names]:
            values.remove(value)
    return model


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["present.0.key"], "it lacks an output 'present.0.key'"),
        (["logits"], "an output 'logits'"),
        (["present.0.key", "present.1.value"], "'present.0.key' .* 'present.1.value'"),
        (["input_ids"], "an input 'input_ids'"),
    ],
)
def test_what_a_model_lacks_is_listed(cpu: MLContext, names: list[str], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        load_decoder(without(*names), cpu)


def test_a_batch_that_the_model_fixes_is_listed(cpu: MLContext) -> None:
    model = plain_decoder()
    for value in model.graph.input:
        value.type.tensor_type.shape.dim[0].dim_value = 1
    with pytest.raises(ValidationError, match=r"lacks an open batch .* 'input_ids' \[1, 'seq"):
        load_decoder(model, cpu)


def test_an_encoder_is_no_decoder(cpu: MLContext) -> None:
    x = onnx.helper.make_tensor_value_info("pixels", onnx.TensorProto.FLOAT, [1, 4])
    node = onnx.helper.make_node("Relu", ["pixels"], ["y"])
    graph = onnx.helper.make_graph([node], "g", [x], [onnx.ValueInfoProto(name="y")])
    with pytest.raises(ValidationError, match=r"'input_ids'.*meaning of the input 'pixels'"):
        load_decoder(onnx.helper.make_model(graph), cpu)


@pytest.mark.parametrize("options", [{"length": 0}, {"slots": 0}])
def test_numbers_are_at_least_one(cpu: MLContext, options: dict[str, int]) -> None:
    with pytest.raises(ValidationError, match="expected at least 1"):
        load_decoder(plain_decoder(), cpu, **options)


def test_the_event_loop_goes_on(fast: tuple[MLDecoder, Oracle]) -> None:
    """Between two tokens it runs other tasks, which asyncio's debug mode would complain about."""
    decoder, _ = fast
    turns: list[int] = []

    async def main() -> None:
        async def count() -> None:
            while True:
                turns.append(len(turns))
                await asyncio.sleep(0)

        counting = asyncio.ensure_future(count())
        seen = [len(turns) async for _ in decoder.generate(PROMPTS[0], max_tokens=COUNT)]
        counting.cancel()
        assert seen[0] > 0

    asyncio.run(main())

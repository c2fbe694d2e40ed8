"""A decoder's memory stays flat over many tokens of many clients, some of whom leave."""

from __future__ import annotations

import asyncio
import itertools
from pathlib import Path

import pytest

from tests.onnx.decoder_models import made
from webnn_py import MLDecoder, ml
from webnn_py.onnx import load_decoder

TOKENS, CLIENTS, LENGTH = 10_000, 64, 32
MAX_GROWTH_MB = 8
ENGINES = ["onnxruntime"]


def resident_mb() -> float:
    pages = Path("/proc/self/statm").read_text().split()[1]
    return int(pages) * 4096 / (1 << 20)


async def generate(decoder: MLDecoder, total: int) -> int:
    """Have clients generate texts of all lengths, each fourth one left early, up to a total."""
    numbers, done = itertools.count(), 0

    async def client() -> None:
        nonlocal done
        while done < total:
            number = next(numbers)
            stream = decoder.generate([1 + number % 7, 3], max_tokens=1 + number % (LENGTH - 2))
            async for _ in stream:
                done += 1
                if number % 4 == 0:
                    break
            await stream.aclose()  # type: ignore[attr-defined]

    await asyncio.gather(*(client() for _ in range(CLIENTS)))
    return done


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="only Linux tells the memory")
@pytest.mark.parametrize("engine", ENGINES)
def test_memory_is_flat_over_ten_thousand_tokens(engine: str) -> None:
    pytest.importorskip(engine)
    model, _ = made("fused")
    with ml.create_context_sync(engine=engine) as context:
        decoder = load_decoder(model, context, length=LENGTH, slots=8)
        asyncio.run(generate(decoder, TOKENS // 5))  # which fills all caches
        before = resident_mb()
        assert asyncio.run(generate(decoder, TOKENS)) >= TOKENS
        assert resident_mb() - before < MAX_GROWTH_MB

"""Checks that a language model's tokens are ONNX Runtime's, alone and among other clients.

    python -m benchmarks language_tokens [--engines onnxruntime openvino] [--prompts 200]
        [--tokens 64] [--clients 64] [--long 10000] [--oracle FILE]

The model is SmolLM2-135M-Instruct in float32. ONNX Runtime's tokens are greedy, one text at a time.
Then each engine generates for all prompts at once over `slots` rows; some clients leave early and
some come late. `--long` generates that many tokens in one text after another and prints the memory
of the process.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.language_models import folder_of
from benchmarks.language_peers import OnnxRuntime
from webnn_py import MLDecoder, ml
from webnn_py.onnx import load_decoder

SUBJECTS = (
    *("France", "rivers", "the moon", "bees", "iron", "Mozart", "bread", "chess", "the sea"),
    *("winter", "glass", "horses", "the number seven", "sleep", "trains", "rain", "coffee"),
    *("the alphabet", "mountains", "a friend"),
)
FRAMES = (
    "What is {}?",
    "Write one sentence about {}.",
    "Name three facts about {}:",
    "Once upon a time, {}",
    "The most important thing about {} is",
    "Explain {} to a child.",
    "def {}(x):",
    "Why do people like {}?",
    "A short poem on {}:\n",
    "In the year 1900, {} was",
)
LENGTH, SLOTS = 512, 8


def tokens_of(session: OnnxRuntime, ids: Sequence[int], count: int) -> list[int]:
    """Return ONNX Runtime's own greedy tokens, one text at a time."""
    made, length = [session.read(ids, 0)], len(ids)
    while len(made) < count:
        made.append(session.read(made[-1:], length))
        length += 1
    return made


def prompts(tokenizer: Any, count: int) -> list[list[int]]:
    """Return the ids of different texts."""
    texts = (f.format(s) for f, s in itertools.product(FRAMES, SUBJECTS))
    return [tokenizer.encode(text).ids for text in itertools.islice(texts, count)]


async def at_once(
    decoder: MLDecoder, given: Sequence[Sequence[int]], count: int, clients: int
) -> list[list[int]]:
    """Generate for all prompts with so many clients; every fifth one has a client that leaves."""
    gate = asyncio.Semaphore(clients)

    async def client(ids: Sequence[int], number: int) -> list[int]:
        async with gate:
            if number % 5 == 0:
                leaving = decoder.generate(ids, max_tokens=count)
                async for _ in leaving:
                    break
                await leaving.aclose()  # type: ignore[attr-defined]
            return [token async for token in decoder.generate(ids, max_tokens=count)]

    return await asyncio.gather(*(client(ids, i) for i, ids in enumerate(given)))


def resident_mb() -> int:
    """Return the memory of this process in MB."""
    pages = Path("/proc/self/statm").read_text().split()[1]
    return int(pages) * 4096 >> 20


def long_run(decoder: MLDecoder, ids: Sequence[int], total: int) -> list[int]:
    """Generate so many tokens in texts of all lengths; return the memory at eleven points."""
    seen, done = [], 0
    while done < total:
        for _ in decoder.generate_sync(ids, max_tokens=min(LENGTH - len(ids), total - done)):
            if done % (total // 10) == 0:
                seen.append(resident_mb())
            done += 1
    return [*seen, resident_mb()]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--engines", nargs="+", default=["onnxruntime", "openvino"])
    parser.add_argument("--prompts", type=int, default=200)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--long", type=int, default=0, help="tokens to generate one by one")
    parser.add_argument("--oracle", type=Path, help="file with ONNX Runtime's tokens, or for them")
    options = parser.parse_args()
    path, tokenizer = folder_of("smollm2")
    given = prompts(tokenizer, options.prompts)
    if options.oracle and options.oracle.exists():
        wanted = json.loads(options.oracle.read_text())[: len(given)]
    else:
        session = OnnxRuntime(path, options.threads, LENGTH)
        wanted = [tokens_of(session, ids, options.tokens) for ids in given]
        del session
        if options.oracle:
            options.oracle.write_text(json.dumps(wanted))
    for engine in options.engines:
        one = {"threads": options.threads} if options.threads and engine != "reference" else None
        with ml.create_context_sync(
            device_type="gpu" if engine in ("webgpu", "dawn") else "cpu",
            engine=engine,
            engine_options=one,
        ) as context:
            decoder = load_decoder(path, context, length=LENGTH, slots=SLOTS)
            begun = time.perf_counter()
            made = asyncio.run(at_once(decoder, given, options.tokens, options.clients))
            seconds = time.perf_counter() - begun
            alike = sum(a[: options.tokens] == b for a, b in zip(wanted, made, strict=True))
            print(
                f"{engine}: {alike} of {len(given)} texts of {options.tokens} tokens are ONNX"
                f" Runtime's; {options.clients} clients at once took {seconds:.0f} s",
                flush=True,
            )
            if options.long:
                print(f"{engine}: MB: {long_run(decoder, given[0], options.long)}", flush=True)


if __name__ == "__main__":
    main()

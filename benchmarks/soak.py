"""512 concurrent awaits for a minute: nothing is mixed up, nothing leaks, nothing slows down.

    python -m benchmarks soak --seconds 60 --device cpu --joined --json soak.json

Each request carries its number through the graph, next to a picture whose answer is known. Before
and after, the same graph runs back to back, for comparison.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from pathlib import Path

import numpy as np
import psutil

from benchmarks.async_peers import SIDE, describe, pictures
from benchmarks.report import Figures, machine, show, write_json
from webnn_py import MLAwaitedExecution, MLContext, MLGraph, MLGraphBuilder, ml

DIFFERENT = 64
MOST_JOINED = 64
WARM_UP = 0.2


def build(context: MLContext, batch: int | str) -> MLGraph:
    """The network of `async_peers`, and a number that is passed through."""
    builder = MLGraphBuilder(context)
    x = builder.input("x", "float32", [batch, 3, SIDE, SIDE])
    number = builder.input("number", "int32", [batch])
    return builder.build_sync({"y": describe(builder, x), "number": builder.identity(number)})


class Soak:
    """Requests by number: number n is about picture n % DIFFERENT."""

    def __init__(self, graph: MLGraph, execution: MLAwaitedExecution) -> None:
        self._graph = graph
        self._execution = execution
        self._pictures = pictures(DIFFERENT)
        self._expected: list[np.ndarray] = []
        self._next = 0
        self.done = 0
        self.mixed_up = 0
        self.latencies: list[float] = []

    async def prepare(self) -> None:
        """Compute the answers, one after the other."""
        for number in range(DIFFERENT):
            self._expected.append((await self._compute(number))["y"])

    async def _compute(self, number: int) -> dict[str, np.ndarray]:
        inputs = {"x": self._pictures[number % DIFFERENT], "number": np.array([number], np.int32)}
        return await self._execution.compute(self._graph, inputs)

    async def one(self) -> None:
        """The next request."""
        number, self._next = self._next, self._next + 1
        start = time.perf_counter()
        results = await self._compute(number)
        self.latencies.append(time.perf_counter() - start)
        # Sums are rounded otherwise in runs of other sizes.
        same = np.allclose(results["y"], self._expected[number % DIFFERENT], rtol=1e-5, atol=1e-6)
        self.mixed_up += not (same and results["number"][0] == number)
        self.done += 1

    async def run(self, concurrent: int, seconds: float) -> float:
        """So many at once for so long; requests a second."""
        end = time.perf_counter() + seconds

        async def client() -> None:
            while time.perf_counter() < end:
                await self.one()

        start, before = time.perf_counter(), self.done
        await asyncio.gather(*(client() for _ in range(concurrent)))
        return (self.done - before) / (time.perf_counter() - start)


async def measure(device: str, concurrent: int, seconds: float, joined: bool) -> Figures:
    """Counts, throughput, latency and memory."""
    context = await ml.create_context_async(device_type=device)  # type: ignore[arg-type]
    batch = "batch" if joined else None
    execution = MLAwaitedExecution(context, batch=batch, max_batch=MOST_JOINED)
    soak, memory = Soak(build(context, batch or 1), execution), psutil.Process().memory_info
    await soak.prepare()
    before = await soak.run(1, seconds / 10)
    await soak.run(concurrent, seconds * WARM_UP)
    soak.latencies.clear()
    warm, start = memory().rss, soak.done
    rate = await soak.run(concurrent, seconds)
    end, done = memory().rss, soak.done - start
    p50, p99 = np.percentile(soak.latencies, [50, 99]) * 1e3
    after = await soak.run(1, seconds / 10)
    return {
        "device": context.device_type,
        "engine": context.engine,
        "joined": str(joined),
        "at once": concurrent,
        "seconds": seconds,
        "requests": done,
        "mixed up": soak.mixed_up,
        "requests/s": rate,
        "back to back/s": (before + after) / 2,
        "ratio": rate / ((before + after) / 2),
        "p50 ms": float(p50),
        "p99 ms": float(p99),
        "MiB warm": warm / 2**20,
        "MiB at the end": end / 2**20,
        "growth %": (end / warm - 1) * 100,
    }


def main(arguments: list[str] | None = None) -> Figures:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--device", choices=["cpu", "gpu"], default="cpu")
    parser.add_argument("--concurrent", type=int, default=512)
    parser.add_argument("--joined", action="store_true", help="join computes along the batch")
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--json", type=Path, help="write the figures there")
    options = parser.parse_args(arguments)
    figures = asyncio.run(
        measure(options.device, options.concurrent, options.seconds, options.joined)
    )
    show("soak", ["", "figure"], list(figures.items()))
    write_json(options.json, {"machine": machine(), "soak": figures})
    if figures["mixed up"]:
        sys.exit(f"{figures['mixed up']} requests got the answer to another one")
    return figures


if __name__ == "__main__":
    main()

"""How long the event loop stalls, and how many awaits a second: webnn_py against ONNX Runtime.

    python -m benchmarks async --json async.json

- The loop's longest stall while one inference of at least 200 ms is awaited, with building and the
  first run, and in later runs. Batch and depth are chosen for each so that a run takes that long.
- Throughput and latency of 1, 8, 64 and 512 concurrent awaits of the same network on one picture
  each, as many in all as take a fifth of a second, twice as many as at once at least; interleaved,
  with ratios to the best way of ONNX Runtime in the same round; and, where they are joined into
  runs of up to 64 pictures, to the same context without.
"""

from __future__ import annotations

import argparse
import asyncio
import functools
import gc
import statistics
import time
from collections.abc import Awaitable, Callable, Collection
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np

from benchmarks.async_peers import (
    FILTERS,
    JOINED,
    Array,
    Peer,
    Size,
    ThreadedOnnxRuntime,
    peers,
    pictures,
)
from benchmarks.report import Figures, interleaved, machine, ratio, show, write_json
from webnn_py import NotSupportedError, ml

T = TypeVar("T")
LONG = 0.2
MAX_BATCH = 256
MAX_DEPTH = 1000
NOTHING = dict.fromkeys(Size._fields)
TICK = 0.001
CONCURRENT = (1, 8, 64, 512)
ROUND = 0.2
"""Seconds that one round takes, about: shorter ones differ by a half and more."""
REST = 0.05
"""Seconds before a round, in which threads of the one before come to rest: ONNX Runtime's spin."""
WARM = 2
"""Rounds before those that count."""
DIFFERENT = 64
"""Pictures, each asked for again and again."""


async def stall(work: Awaitable[T]) -> tuple[T, float, float]:
    """What `work` gives, the seconds it took, and the longest that the loop did not come round."""
    longest = 0.0

    async def tick() -> None:
        nonlocal longest
        while True:
            start = time.perf_counter()
            await asyncio.sleep(TICK)
            longest = max(longest, time.perf_counter() - start - TICK)

    ticking = asyncio.create_task(tick())
    await asyncio.sleep(5 * TICK)
    longest, start = 0.0, time.perf_counter()
    result = await work
    seconds = time.perf_counter() - start
    await asyncio.sleep(0)  # the tick that was late counts
    await asyncio.sleep(2 * TICK)
    ticking.cancel()
    return result, seconds, longest


async def long_size(peer: Peer) -> Size:
    """A batch, then a depth, with which one run takes `LONG` seconds or more."""
    size = Size()
    while True:
        (picture,), graph = pictures(1, size.batch), await peer.build(peer.describe(size))
        await peer.run(graph, picture)
        start = time.perf_counter()
        await peer.run(graph, picture)
        took = time.perf_counter() - start
        if took >= 1.3 * LONG or size.depth >= MAX_DEPTH:
            return size
        more = min(8, max(1.25, 1.5 * LONG / took))
        if size.batch < MAX_BATCH:
            size = Size(min(MAX_BATCH, int(size.batch * more) + 1))
        else:
            size = Size(MAX_BATCH, min(MAX_DEPTH, int((size.depth + len(FILTERS)) * more)))


async def stalls(peer: Peer, size: Size) -> dict[str, float]:
    """Milliseconds of the longest stall with building and first run, and in a later run."""
    (picture,), description = pictures(1, size.batch), peer.describe(size)

    async def build_and_run() -> Any:
        graph = await peer.build(description)
        await peer.run(graph, picture)
        return graph

    graph, _, first = await stall(build_and_run())
    _, seconds, later = await stall(peer.run(graph, picture))
    return {"first": first * 1e3, "later": later * 1e3, "run": seconds * 1e3}


class Load(NamedTuple):
    """What one round of concurrent awaits gave: requests a second, seconds of each."""

    rate: float
    latencies: list[float]


async def load(peer: Peer, graph: Any, inputs: Collection[Array], concurrent: int) -> Load:
    """Have all inputs computed, so many at once; the next one begins when one is done."""
    waiting, latencies = iter(inputs), []

    async def client() -> None:
        for picture in waiting:
            start = time.perf_counter()
            await peer.run(graph, picture)
            latencies.append(time.perf_counter() - start)

    start = time.perf_counter()
    await asyncio.gather(*(client() for _ in range(concurrent)))
    return Load(len(inputs) / (time.perf_counter() - start), latencies)


def check(found: list[Peer], depth: int = 0) -> None:
    """All of them compute the same."""
    (picture,) = pictures(1)

    async def answer(peer: Peer) -> Array:
        return await peer.run(await peer.build(peer.describe(Size(depth=depth))), picture)

    expected = asyncio.run(answer(ThreadedOnnxRuntime()))
    for peer in found:
        np.testing.assert_allclose(
            asyncio.run(answer(peer)), expected, rtol=1e-3, atol=1e-5, err_msg=peer.name
        )


def measure_stalls(found: list[Peer], rounds: int) -> list[Figures]:
    """Medians of milliseconds by peer; the first row is what the machine itself does."""
    sizes = {peer.name: asyncio.run(long_size(peer)) for peer in found}
    gc.collect()
    gc.freeze()  # as a service would: collections pass over what stays anyway

    def idle() -> dict[str, float]:
        return {"later": asyncio.run(stall(asyncio.sleep(LONG)))[2] * 1e3}

    def one(peer: Peer) -> dict[str, float]:
        time.sleep(REST)
        return asyncio.run(stalls(peer, sizes[peer.name]))

    cases: dict[str, Callable[[], dict[str, float]]] = {"a timer, nothing else": idle}
    cases |= {peer.name: functools.partial(one, peer) for peer in found}
    return [
        {"awaited": name, **(sizes[name]._asdict() if name in sizes else NOTHING)}
        | {f"{key} ms": _median(seen, key) for key in ("run", "first", "later")}
        | {"worst ms": max(max(each.get("first", 0), each["later"]) for each in seen)}
        for name, seen in interleaved(cases, rounds).items()
    ]


def _median(rounds: list[dict[str, float]], key: str) -> float | None:
    values = [each[key] for each in rounds if key in each]
    return statistics.median(values) if values else None


def measure_loads(found: list[Peer], concurrent: int, requests: int, rounds: int) -> list[Figures]:
    """Requests a second, latencies, and ratios to the best ONNX Runtime of the same round."""
    inputs = pictures(DIFFERENT)
    least = max(2 * concurrent, requests)
    graphs = {peer.name: asyncio.run(peer.build(peer.describe(Size()))) for peer in found}

    def asked(peer: Peer, count: int) -> Load:
        time.sleep(REST)
        given = [inputs[number % DIFFERENT] for number in range(count)]
        return asyncio.run(load(peer, graphs[peer.name], given, concurrent))

    # What comes first is slower, as much is compiled and learnt.
    rates = {peer.name: max(asked(peer, least).rate for _ in range(WARM)) for peer in found}
    gc.collect()
    gc.freeze()

    def one(peer: Peer) -> Load:
        return asked(peer, max(least, int(ROUND * rates[peer.name])))

    seen = interleaved({peer.name: functools.partial(one, peer) for peer in found}, rounds)
    rivals = [results for name, results in seen.items() if name.startswith("onnxruntime")]
    best = [max(loads, key=lambda load: load.rate) for loads in zip(*rivals, strict=True)]
    rows = []
    for name, loads in seen.items():
        apart = seen.get(name.removesuffix(JOINED)) if name.endswith(JOINED) else None
        p50, p99 = np.percentile([s * 1e3 for each in loads for s in each.latencies], [50, 99])
        rows.append(
            {
                "awaited": name,
                "at once": concurrent,
                "requests/s": statistics.median(each.rate for each in loads),
                "p50 ms": float(p50),
                "p99 ms": float(p99),
                "/ onnxruntime": ratio([x.rate for x in loads], [x.rate for x in best])
                if best
                else None,
                "/ alone": ratio([x.rate for x in loads], [x.rate for x in apart])
                if apart
                else None,
            }
        )
    return rows


def report(figures: Figures) -> None:
    """Print the tables."""
    stalled, loads = figures["stalls"], figures["loads"]
    for title, rows in (
        ("longest stall of the event loop: with building and first run, later", stalled),
        ("one picture a request", loads),
    ):
        if rows:
            show(title, list(rows[0]), [list(row.values()) for row in rows])
    for note in figures["notes"]:
        print(note)


def main(arguments: list[str] | None = None) -> Figures:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--requests", type=int, default=0, help="at least, in each round")
    parser.add_argument("--concurrent", type=int, nargs="*", default=CONCURRENT, metavar="N")
    parser.add_argument("--only", nargs="+", metavar="TEXT", help="rows whose names contain one")
    parser.add_argument("--no-stalls", action="store_true", help="measure loads alone")
    parser.add_argument("--json", type=Path, help="write the figures there")
    options = parser.parse_args(arguments)
    contexts = [
        ml.create_context_sync(device_type="cpu", engine=engine)
        for engine in ("reference", "onnxruntime")
    ]
    adapter = None
    try:
        contexts.append(ml.create_context_sync(device_type="gpu"))
        adapter = contexts[-1].device.adapter.info["device"]
    except NotSupportedError as error:
        print(f"no GPU context: {error}")
    found, notes = peers(contexts)
    if options.only:
        found = [peer for peer in found if any(text in peer.name for text in options.only)]
    check(found)
    alone = [peer for peer in found if not peer.joins]
    figures: Figures = {
        "machine": machine(adapter),
        "stalls": [] if options.no_stalls else measure_stalls(alone, options.rounds),
        "loads": [
            row
            for concurrent in options.concurrent
            for row in measure_loads(found, concurrent, options.requests, options.rounds)
        ],
        "notes": notes,
    }
    report(figures)
    write_json(options.json, figures)
    return figures

"""The benchmarks of dispatches and awaits still run, and compare like with like."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path

import numpy as np
import pytest

from benchmarks import async_latency, async_peers, batching
from benchmarks.report import interleaved, ratio
from webnn_py import MLContext


def test_batching_writes_what_it_can_read(
    gpu: MLContext, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "batching.json"
    options = ["--sizes", "1024", "--rounds", "1", "--seconds", "0.01"]
    figures = batching.main([*options, "--json", str(path)])
    (row,) = figures["sizes"]
    assert row["n"] == 1024
    assert min(row[way] for way in (batching.HAND, batching.ONE_EACH, batching.BATCHED)) > 0
    measured = capsys.readouterr().out
    assert json.loads(path.read_text()) == figures
    assert batching.main(["--from-json", str(path)]) == figures
    assert capsys.readouterr().out == measured


@pytest.mark.parametrize("depth", [0, 3])
def test_all_peers_run_the_same_network(cpu: MLContext, depth: int) -> None:
    found, _ = async_peers.peers([cpu])
    assert len(found) >= 3
    async_latency.check(found, depth)


@pytest.mark.parametrize("number", [0, 1, 4])  # ours, joined, and a rival that joins
def test_every_request_is_answered(cpu: MLContext, number: int) -> None:
    peer = async_peers.peers([cpu])[0][number]

    async def main() -> async_latency.Load:
        graph = await peer.build(peer.describe(async_peers.Size()))
        return await async_latency.load(peer, graph, async_peers.pictures(5), concurrent=3)

    loaded = asyncio.run(main())
    assert len(loaded.latencies) == 5
    assert loaded.rate > 0


def test_a_blocked_loop_is_a_stall() -> None:
    async def block() -> str:
        time.sleep(0.05)
        return "done"

    result, seconds, longest = asyncio.run(async_latency.stall(block()))
    assert result == "done"
    assert seconds >= 0.05
    assert longest >= 0.04


def test_rounds_take_turns() -> None:
    calls: list[str] = []

    def case(name: str) -> int:
        calls.append(name)
        return len(calls)

    results = interleaved({name: lambda name=name: case(name) for name in "ab"}, 2)  # type: ignore[misc]
    assert "".join(calls) == "abba"
    assert results == {"a": [1, 4], "b": [2, 3]}
    assert ratio([2, 9, 4], [1, 1, 1]) == 4
    assert np.isclose(ratio([1, 2], [2, 2]), 0.75)

"""Await many inferences at once, and measure how long they ever keep the event loop waiting."""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from rich.progress import Progress

sys.path.insert(0, str(Path(__file__).parents[1]))

from webnn_py import MLAwaitedExecution, MLGraphBuilder, MLOperand, ml

Array = NDArray[np.float32]
Device = Literal["cpu", "gpu"]


class Figures(NamedTuple):
    """What came in, what went out (ten probabilities a request), and how long it took."""

    pictures: Array
    answers: Array
    seconds: float
    longest_stall: float


def network(builder: MLGraphBuilder, batch: int | str = "batch") -> MLOperand:
    """A small convolutional network with random weights, the same ones each time.

    It takes so many pictures at once; as many as one likes where that is a name.
    """
    shapes = [(16, 3, 3, 3), (32, 16, 3, 3), (64, 32, 3, 3), (64, 10)]
    normal = np.random.default_rng(0).normal
    weights = [normal(0, np.prod(s[1:]) ** -0.5, s).astype(np.float32) for s in shapes]
    *filters, matrix = map(builder.constant, weights)
    x = builder.input("picture", "float32", [batch, 3, 64, 64])
    for each in filters:
        x = builder.relu(builder.conv2d(x, each, padding=[1, 1, 1, 1], strides=[2, 2]))
    x = builder.reshape(builder.average_pool2d(x), [x.shape[0], matrix.shape[0]])
    return builder.softmax(builder.matmul(x, matrix), 1)


async def tick(stalls: list[float]) -> None:
    """Sleep a little again and again; what it takes beyond that is the loop's stall."""
    while True:
        start = time.perf_counter()
        await asyncio.sleep(0.001)
        stalls.append(time.perf_counter() - start - 0.001)


async def show_progress(done: list[Array], total: int) -> None:
    await asyncio.sleep(2)  # nobody needs a bar for less
    with Progress() as bar:
        task = bar.add_task("requests", total=total)
        while True:
            bar.update(task, completed=len(done))
            await asyncio.sleep(0.1)


async def serve(device: Device, pictures: Array) -> Figures:
    """Build the network and answer all requests at once, with a ticker beside.

    The context is made before the loop has anything else to do: to import an engine's library,
    once in a process, takes the interpreter for some 20 ms, whatever thread does so.
    """
    stalls: list[float] = []
    done: list[Array] = []
    with await ml.create_context_async(device_type=device) as context:
        ticker = asyncio.create_task(tick(stalls))
        progress = asyncio.create_task(show_progress(done, len(pictures)))
        builder = MLGraphBuilder(context)
        graph = await builder.build_async({"answer": network(builder)})
        await graph.prepare_async({"batch": 32})
        execution = MLAwaitedExecution(context, batch="batch")  # what waits is computed at once

        async def request(picture: Array) -> Array:
            results = await execution.compute(graph, {"picture": picture[np.newaxis]})
            done.append(results["answer"])
            return results["answer"]

        start = time.perf_counter()
        answers = await asyncio.gather(*map(request, pictures))
        seconds = time.perf_counter() - start
    ticker.cancel()
    progress.cancel()
    return Figures(pictures, np.concatenate(answers), seconds, max(stalls))


def main(device: Device = "cpu", requests: int = 64) -> Figures:
    pictures = np.random.default_rng(1).random((requests, 3, 64, 64), np.float32)
    figures = asyncio.run(serve(device, pictures))
    print(f"{requests} requests at once on the {device}: {requests / figures.seconds:.0f} a second")
    print(f"the event loop's longest stall: {figures.longest_stall * 1e3:.1f} ms, build included")
    return figures


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", choices=["cpu", "gpu"], default="cpu")
    parser.add_argument("--requests", type=int, default=64)
    main(**vars(parser.parse_args()))

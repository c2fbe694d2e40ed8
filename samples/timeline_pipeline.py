"""Order work across contexts and threads with timelines: C after A and B, and a bounded pipeline.

Discs are drawn on CPU contexts and blended on the GPU where there is an adapter. They lie in host
memory that the contexts share; the timelines alone keep readers and writers apart. Arrays are read
when `compute` is called, so who gives one as an input awaits the timeline before.

Usage: python samples/timeline_pipeline.py [--passes 60]
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).parents[1]))

from samples.drawing import SIZE, Drawer, blending
from webnn_py import MLAwaitedExecution, MLContext, NotSupportedError, Timeline, ml

Array = NDArray[np.float32]
AHEAD = 10


class Figures(NamedTuple):
    """What C made of A and B, the canvas after the last pass, how many drawings ever waited."""

    joined: Array
    canvas: Array
    furthest: int


async def join(a: MLContext, b: MLContext, c: MLContext) -> Array:
    """A and B each draw on their own context, C blends both; C waits first."""
    drawings = np.zeros((2, SIZE, SIZE), np.float32)
    a_done, b_done = Timeline(), Timeline()

    async def blend() -> Array:
        await asyncio.gather(a_done.wait_async(1), b_done.wait_async(1))
        inputs = {"canvas": drawings[0], "drawing": drawings[1]}
        return (await MLAwaitedExecution(c).compute(blending(c), inputs))["blended"]

    c_run = asyncio.create_task(blend())
    await asyncio.sleep(0)
    Drawer(a).draw(0, drawings[0], [a_done(signal=1)])
    Drawer(b).draw(9, drawings[1], [b_done(signal=1)])
    return await c_run


def pipeline(drawing: MLContext, blend: MLContext, passes: int) -> tuple[Array, int]:
    """One thread has all passes drawn, another one has them blended; AHEAD drawings have room."""
    drawings = np.zeros((AHEAD, SIZE, SIZE), np.float32)
    drawn, blended = Timeline(), Timeline()

    def draw_all() -> None:
        drawer = Drawer(drawing)
        for n in range(1, passes + 1):
            sync = [drawn(wait=n - 1, signal=n), blended(wait=n - AHEAD)]
            drawer.draw(n, drawings[n % AHEAD], sync)

    async def blend_all() -> Array:
        graph, execution = blending(blend), MLAwaitedExecution(blend)
        canvas = np.zeros((SIZE, SIZE), np.float32)
        for n in range(1, passes + 1):
            await drawn.wait_async(n)
            inputs = {"canvas": canvas, "drawing": drawings[n % AHEAD]}
            sync = [blended(wait=n - 1, signal=n)]
            canvas = (await execution.compute(graph, inputs, sync=sync))["blended"]
        return canvas

    with ThreadPoolExecutor(2) as threads:
        threads.submit(draw_all).result(60)  # ends although most passes wait for the other thread
        drawn.wait_sync(min(AHEAD, passes), timeout=60)
        furthest = drawn.value
        canvas = threads.submit(lambda: asyncio.run(blend_all()))
        while not canvas.done():
            furthest = max(furthest, drawn.value - blended.value)
            time.sleep(0.001)
        return canvas.result(), furthest


def main(passes: int = 60) -> Figures:
    a, b = (ml.create_context_sync(device_type="cpu") for _ in range(2))
    try:
        c = ml.create_context_sync(device_type="gpu")
    except NotSupportedError:
        c = ml.create_context_sync(device_type="cpu")
    joined = asyncio.run(join(a, b, c))
    canvas, furthest = pipeline(a, c, passes)
    print(f"C on {c!r} blended A and B, each from a CPU context")
    print(f"{passes} passes drawn on one thread, blended on another, never over {furthest} ahead")
    return Figures(joined, canvas, furthest)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--passes", type=int, default=60)
    main(**vars(parser.parse_args()))

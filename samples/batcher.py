"""Compute at once what is asked at about the same time; `asyncio_service.py` serves it."""

from __future__ import annotations

import asyncio
import contextlib

import numpy as np

from samples.digits import Images
from samples.models import digits, load_weights
from webnn_py import MLAwaitedExecution, MLContext, MLGraphBuilder

SIZES = (1, 4, 16, 64)  # shapes are fixed, so a batch is filled up to the next of these
MOMENT = 0.003  # seconds that the first of a batch waits for others


class Batcher:
    """Answers with the digits network, one awaited computation for each batch of images.

    Attributes:
        batches: How many images each computation was for.
    """

    def __init__(self, context: MLContext) -> None:
        self.batches: list[int] = []
        self._context = context
        self._waiting: asyncio.Queue[tuple[Images, asyncio.Future[Images]]] = asyncio.Queue()

    async def answer(self, image: Images) -> Images:
        """The probabilities of the ten digits for one image [1, 8, 8]."""
        reply: asyncio.Future[Images] = asyncio.get_running_loop().create_future()
        self._waiting.put_nowait((image, reply))
        return await reply

    async def run(self) -> None:
        """Answer until cancelled. What arrives while a batch is computed is the next one."""
        execution = MLAwaitedExecution(self._context)
        graphs = {}
        for size in SIZES:
            builder = MLGraphBuilder(self._context)
            output = digits(builder, load_weights("digits"), size)
            graphs[size] = await builder.build_async({"probabilities": output})
        while True:
            batch = await self._collect()
            size = next(size for size in SIZES if size >= len(batch))
            images = np.zeros((size, 1, 8, 8), np.float32)
            images[: len(batch)] = [image for image, _ in batch]
            results = await execution.compute(graphs[size], {"image": images})
            for (_, reply), answer in zip(batch, results["probabilities"], strict=False):
                if not reply.done():  # who asked may be gone
                    reply.set_result(answer)
            self.batches.append(len(batch))

    async def _collect(self) -> list[tuple[Images, asyncio.Future[Images]]]:
        batch = [await self._waiting.get()]
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(MOMENT):
                while len(batch) < SIZES[-1]:
                    batch.append(await self._waiting.get())
        return batch

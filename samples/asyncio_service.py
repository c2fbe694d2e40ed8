"""Serve the digits network over HTTP; what is asked at about the same time is computed at once.

POST /digits takes {"image": [64 numbers, ink from 0 to 1]}. The sample asks itself first, many
images at once, and checks the answers; with --port it goes on serving.

    pip install ".[samples,service]"
    python samples/asyncio_service.py [--port 8000]
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import NamedTuple

import httpx
import numpy as np
import uvicorn
from numpy.typing import NDArray
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

sys.path.insert(0, str(Path(__file__).parents[1]))

from samples.digits import Images, held_out, synchronous
from samples.models import digits, load_weights
from webnn_py import MLAwaitedExecution, MLContext, MLGraphBuilder, ml

Answer = Callable[[Images], Awaitable[Images]]
"""Gives the probabilities of the ten digits for one image [1, 1, 8, 8], as [1, 10]."""


class Figures(NamedTuple):
    """Probabilities by request, seconds by request."""

    answers: Images
    seconds: NDArray[np.float64]


async def classifier(context: MLContext) -> Answer:
    """The digits network, whose awaited computes are joined along the batch."""
    builder = MLGraphBuilder(context)
    output = digits(builder, load_weights("digits"), batch="batch")
    graph = await builder.build_async({"probabilities": output})
    await graph.prepare_async({"batch": 64})
    execution = MLAwaitedExecution(context, batch="batch", max_batch=64)

    async def answer(image: Images) -> Images:
        results = await execution.compute(graph, {"image": image})
        return results["probabilities"]

    return answer


def application(answer: Answer) -> Starlette:
    async def classify(request: Request) -> JSONResponse:
        try:
            image = np.array((await request.json())["image"], np.float32).reshape(1, 1, 8, 8)
        except (KeyError, TypeError, ValueError) as error:
            return JSONResponse({"error": repr(error)}, 400)
        (probabilities,) = await answer(image)
        return JSONResponse({"probabilities": probabilities.tolist()})

    return Starlette(routes=[Route("/digits", classify, methods=["POST"])])


async def ask(client: httpx.AsyncClient, image: Images) -> tuple[Images, float]:
    start = time.perf_counter()
    reply = await client.post("/digits", json={"image": image.ravel().tolist()})
    probabilities = reply.raise_for_status().json()["probabilities"]
    return np.array(probabilities, np.float32), time.perf_counter() - start


async def serve(images: Images, port: int) -> Figures:
    app = application(await classifier(await ml.create_context_async(device_type="cpu")))
    server = uvicorn.Server(uvicorn.Config(app, port=port, log_level="warning"))
    async with asyncio.TaskGroup() as tasks:
        serving = tasks.create_task(server.serve())
        while not server.started:
            await asyncio.sleep(0.01)
        url = "http://{}:{}".format(*server.servers[0].sockets[0].getsockname())
        async with httpx.AsyncClient(base_url=url, timeout=60, trust_env=False) as client:
            replies = await asyncio.gather(*(ask(client, image) for image in images))
        answers, seconds = map(np.array, zip(*replies, strict=True))
        print(f"{len(images)} requests at {url}")
        p50, p99 = np.percentile(seconds * 1e3, [50, 99])
        print(f"half of the answers came within {p50:.0f} ms, 99 % within {p99:.0f} ms")
        expected = await asyncio.to_thread(synchronous, images)
        np.testing.assert_allclose(answers, expected, atol=1e-6)
        print("every answer equals that of MLExecution")
        server.should_exit = not port
        await serving
    return Figures(answers, seconds)


def main(requests: int = 200, port: int = 0) -> Figures:
    return asyncio.run(serve(held_out()[0][:requests], port))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--requests", type=int, default=200)
    parser.add_argument("--port", type=int, default=0, help="go on serving there")
    main(**vars(parser.parse_args()))

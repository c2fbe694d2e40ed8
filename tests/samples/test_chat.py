"""The chats write the tokens that ONNX Runtime takes, out of a GGUF file of a small Llama."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.onnx.decoder_models import Oracle
from tests.samples.llama_file import write_llama
from webnn_py import MLContext
from webnn_py.onnx import load_decoder

chat: Any = pytest.importorskip("samples.chat", reason="it needs the packages gguf and tokenizers")
service: Any = pytest.importorskip("samples.chat_service", reason="it needs starlette and httpx")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return write_llama(tmp_path / "llama.gguf")


def test_an_answer(
    file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(chat, "LENGTH", 160)
    monkeypatch.setattr(sys, "argv", ["chat.py", "Hi?", "--model", str(file)])
    chat.main()
    tokenizer, model, end = chat.read(file, 160)
    text = chat.TURN.format("system", chat.SYSTEM) + chat.TURN.format("user", "Hi?") + chat.ANSWER
    ids = tokenizer.encode(text).ids
    assert len(ids) == len(text) - 3 * 11 - 2 * 9  # a token a byte, and one for each mark
    wanted = Oracle(model).tokens(ids, 160 - len(ids) + 1)
    wanted = wanted[: wanted.index(end)] if end in wanted else wanted
    assert capsys.readouterr().out.rstrip("\n") == tokenizer.decode(wanted).rstrip("\ufffd\n")


def test_the_end_of_the_input_ends_the_chat(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = iter(["Hi?"])

    def typed(prompt: str) -> str:
        for line in lines:
            return line
        raise EOFError

    monkeypatch.setattr("builtins.input", typed)
    assert list(chat.asked()) == ["Hi?"]


def test_a_service_gives_each_client_what_one_alone_gets(
    file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--clients", "12", "--max-tokens", "5", "--slots", "3", "--model", str(file)]
    monkeypatch.setattr(sys, "argv", ["chat_service.py", *options])
    for name, text in ("TURN", "{1}"), ("ANSWER", ""):  # random weights answer the last words
        monkeypatch.setattr(service, name, text)
    answers = service.main()
    assert len(answers) == 12
    assert len(set(answers)) > 1
    assert "the event loop's longest stall was" in capsys.readouterr().out


@pytest.fixture
def served(file: Path, cpu: MLContext) -> Iterator[Any]:
    """A chat with room for one text."""
    tokenizer, model, end = chat.read(file, 256)
    decoder = load_decoder(model, cpu, length=256, slots=1)
    yield service.Chat(decoder, tokenizer, end)
    decoder.destroy()


async def test_a_client_that_leaves_makes_room(served: Any) -> None:
    app = service.application(served)
    transport = service.httpx.ASGITransport(app)
    async with service.httpx.AsyncClient(transport=transport, base_url="http://chat") as client:
        pieces = served.answer("Who stays?")
        await anext(pieces)
        assert served.figures().clients == 1
        waiting = asyncio.create_task(service.asked(client, "Who waits?", 3))
        await asyncio.sleep(0.1)
        assert not waiting.done()
        await pieces.aclose()
        async with asyncio.timeout(60):
            assert await waiting
    found = served.figures()
    assert found.clients == 0
    assert found.tokens_per_second > 0


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("no JSON", "Expecting value"),
        ("[]", "list indices"),
        ("{}", "question"),
        (json.dumps({"questions": ["?"], "max_tokens": -1}), "max_tokens"),
        (json.dumps({"questions": ["?" * 300]}), "tokens"),
    ],
)
async def test_a_bad_request_is_told_what_is_wrong(served: Any, body: str, message: str) -> None:
    transport = service.httpx.ASGITransport(service.application(served))
    async with service.httpx.AsyncClient(transport=transport, base_url="http://chat") as client:
        reply = await client.post("/chat", content=body)
    assert reply.status_code == 400
    assert message in reply.json()["error"]
    assert served.figures().clients == 0

"""The chat in the browser answers as Python's decoder does, and its tokenizer as tokenizers'."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from samples.browser import PAGES, served
from tests.runtime.chromium import Page, chromium, find_chromium
from tests.samples.llama_file import write_llama
from webnn_py import MLContext
from webnn_py.onnx import load_decoder

chat_page: Any = pytest.importorskip(
    "samples.chat_page", reason="it needs the packages gguf and tokenizers"
)
chat: Any = pytest.importorskip("samples.chat")
tokenizers: Any = pytest.importorskip("tokenizers")

COMMAND = find_chromium()
LENGTH = 256
TEXTS = [
    "",
    "What is the capital of France?",
    "I'll say: we've 1234 words, or 5\u00bd\u00b2, don't we?",
    "  two  spaces,\ttabs \n\n and lines \n",
    "na\u00efve caf\u00e9, \u4f60\u597d, \U0001f600\u200d\U0001f525, \u0627\u0644",
    "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n",
    "<|im_end|>",
    "\u0000\u007f\u0080\u00ad",
]

pytestmark = pytest.mark.skipif(
    COMMAND is None, reason="there is no Chromium; scripts/test.sh installs it where it may"
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the browser finds at /files."""
    return tmp_path_factory.mktemp("chat")


@pytest.fixture(scope="module")
def address(folder: Path) -> Iterator[str]:
    with served({"js": PAGES, "samples": chat_page.HERE, "files": folder}) as found:
        yield found


@pytest.fixture(scope="module")
def page(address: str) -> Iterator[Page]:
    assert COMMAND is not None
    with chromium(COMMAND) as found:
        yield found


def test_answers_are_those_of_a_decoder(
    page: Page, address: str, folder: Path, cpu: MLContext
) -> None:
    file = write_llama(folder / "llama.gguf")
    chat_page.save(file, folder, LENGTH)
    page.open(f"{address}/samples/chat.html")
    page.wait_for("() => !document.querySelector('button').disabled")
    tokenizer, model, end = chat.read(file, LENGTH)
    decoder = load_decoder(model, cpu, length=LENGTH, slots=1)
    turn = chat.TURN
    ids = tokenizer.encode(turn.format("system", chat.SYSTEM)).ids
    ids += tokenizer.encode(turn.format("user", "Hi?") + chat.ANSWER).ids
    wanted = list(decoder.generate_sync(ids, stop={end}, max_tokens=LENGTH - len(ids)))
    page.run("""() => {
        document.querySelector("form").question.value = "Hi?";
        document.querySelector("form").requestSubmit();
    }""")
    page.wait_for("() => !document.querySelector('button').disabled")
    answer = page.run("() => document.querySelector('article p:last-child').textContent")
    assert answer == tokenizer.decode(wanted)
    decoder.destroy()


@pytest.mark.parametrize("merges", [0, 300])
def test_a_tokenizer(page: Page, address: str, folder: Path, merges: int) -> None:
    """Of a vocabulary that is trained on the words of this package's readme."""
    trained = tokenizers.Tokenizer(tokenizers.models.BPE())
    parts = tokenizers.pre_tokenizers
    trained.pre_tokenizer = parts.Sequence(
        [parts.Digits(individual_digits=True), parts.ByteLevel(add_prefix_space=False)]
    )
    trained.decoder = tokenizers.decoders.ByteLevel()
    marks = ["<|im_start|>", "<|im_end|>"]
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=258 + merges,
        initial_alphabet=sorted(parts.ByteLevel.alphabet()),
        special_tokens=marks,
        show_progress=False,
    )
    readme = (chat_page.HERE.parent / "README.md").read_text()
    trained.train_from_iterator(readme.splitlines(), trainer)
    trained.save(str(folder / f"{merges}.json"))
    page.open(f"{address}/samples/chat.html")
    texts = [*TEXTS, *readme.split("\n\n")]
    found = page.run(
        """async (name, texts) => {
            const { Tokenizer } = await import("/samples/bpe.mjs");
            const tokenizer = new Tokenizer(await (await fetch(name)).json());
            return texts.map((text) => {
                const [ids, decode] = [tokenizer.encode(text), tokenizer.decoder()];
                return [ids, ids.map(decode).join("")];
            });
        }""",
        f"/files/{merges}.json",
        texts,
    )
    wanted = [trained.encode(text).ids for text in texts]
    assert [ids for ids, _ in found] == wanted
    assert [text for _, text in found] == [trained.decode(ids) for ids in wanted]

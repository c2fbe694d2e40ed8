"""Programs that every runtime is to run, and what Python makes of them."""

from __future__ import annotations

import json
import sys
import zipfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from samples.models import digits, load_weights, super_resolution
from tests.backend.program_cases import X, mixed
from tests.decoders import KEYS, decoder_by_hand
from tests.graphs import build, normal
from tests.property.mutations import Mutations
from webnn_py import DataError, MLContext, MLGraphBuilder, MLOperand, NotSupportedError, ml
from webnn_py.engines.webgpu.program.file import reading_program
from webnn_py.storage.archive import write_archive

Arrays = dict[str, np.ndarray[Any, Any]]
Case = tuple[Callable[[MLContext, Path], None], Arrays]
"""What writes the file, and what its arguments are given."""


def _graph(make: Callable[[MLGraphBuilder], MLOperand]) -> Callable[[MLContext, Path], None]:
    def write(context: MLContext, path: Path) -> None:
        build(context, lambda b: {"y": make(b)}).compile_to(path)

    return write


def _bytes(b: MLGraphBuilder) -> MLOperand:
    """Tensors that do not fill their last word, of 64 bits, and of 16."""
    x = b.input("x", "int8", [7])
    k = b.cast(b.input("k", "int64", [7]), "float16")
    return b.cast(b.add(b.mul(k, k), b.cast(x, "float16")), "uint8")


CASES: dict[str, Case] = {
    "digits": (
        _graph(lambda b: digits(b, load_weights("digits"), 4)),
        {"image": abs(normal(4, 1, 8, 8)).clip(0, 1)},
    ),
    "super-resolution": (
        _graph(lambda b: super_resolution(b, load_weights("super_resolution"), 8, 12)),
        {"low": abs(normal(1, 3, 8, 12)).clip(0, 1)},
    ),
    "steps": (lambda context, path: mixed(context, own=True).save(path), {"x": X}),
    "in place": (
        lambda context, path: mixed(context).save(path),
        {"x": X, "total": np.full((4, 3), 7, np.float32)},
    ),
    "decoder": (
        lambda context, path: decoder_by_hand(context).compile_to(path, steps=5),
        {
            "ids": np.array([3, 1, 4, *[0] * (KEYS - 3)], np.int32),
            "count": np.array([3], np.int32),
            "position": np.zeros(1, np.int32),
            "tokens": np.zeros(KEYS, np.int32),
        },
    ),
    "bytes": (
        _graph(_bytes),
        {"x": np.arange(-3, 4, dtype=np.int8), "k": np.arange(7, dtype=np.int64)},
    ),
}


def run_by_python(context: MLContext, path: Path, inputs: Arrays, runs: int) -> Arrays:
    """What some runs that follow each other leave in the arguments that are written."""
    program = context.load_program_sync(path)
    given = {name: array.copy() for name, array in inputs.items()}
    results: Arrays = {}
    for _ in range(runs):
        results = program.run_sync(given)
    return results


def changed(path: Path, change: Callable[[Any], None]) -> Path:
    """A program whose document was changed."""
    with zipfile.ZipFile(path) as archive:
        document = json.loads(archive.read("program.json"))
        weights = archive.read("weights.safetensors")
    change(document)
    target = path.with_suffix(".changed")
    with open(target, "wb") as stream:
        write_archive(
            stream,
            {"program.json": [json.dumps(document).encode()], "weights.safetensors": [weights]},
        )
    return target


def verdict(path: Path) -> str:
    """Return "read", or the error of a file that Python refuses."""
    try:
        with reading_program(path):
            return "read"
    except (DataError, NotSupportedError) as error:
        return type(error).__name__


def _grow(variant: Any, size: int) -> None:
    """Let the first buffer, which weights are in, have so many bytes, all of which are bound."""
    variant["buffers"][0]["size"] = size
    places = (place for step in variant["steps"] for place in step["places"])
    first = next(place for place in places if place.get("buffer") == 0)
    first.update(size=size - first["offset"])


FAULTS: dict[str, Callable[[Any], Any]] = {
    "a later version": lambda d: d.update(version=2),
    "a member too many": lambda d: d.update(more=1),
    "a fraction": lambda d: d["variants"][0]["steps"][0].update(times=1.0),
    "an index": lambda d: d["variants"][0]["steps"][0].update(kernel=99),
    "a place": lambda d: d["variants"][0]["steps"][0]["places"][0].update(size=1 << 20),
    "a feature": lambda d: [v["features"].append("shader-f64") for v in d["variants"]],
    "a limit": lambda d: [v["limits"].update(maxBufferSize=1 << 40) for v in d["variants"]],
    "hardware": lambda d: [v.update(adapter="hardware") for v in d["variants"]],
    "workgroups": lambda d: [
        step.update(workgroups=[1, 1 << 20, 1]) for v in d["variants"] for step in v["steps"]
    ],
    "a large buffer": lambda d: [_grow(v, 1 << 39) for v in d["variants"]],
    "code": lambda d: d["shaders"].__setitem__(slice(None), ["nonsense"] * len(d["shaders"])),
}
"""What a document is changed to by `changed`, and no runtime takes."""


def broken(originals: Sequence[bytes], count: int) -> Iterator[bytes]:
    """So many files with something wrong in them, the first ones the same for all counts."""
    for seed in range(count):
        rng = np.random.default_rng(seed)
        mutations = Mutations(originals[seed % len(originals)], rng, "program.json")
        yield mutations.draw()[1]


def main(programs: Path, results: Path) -> None:
    """Run all cases that are saved in a folder, once and three times, and save what they give."""
    with ml.create_context_sync(device_type="gpu") as context:
        for name, (_, inputs) in CASES.items():
            for runs in (1, 3):
                expected = run_by_python(context, programs / f"{name}.mlprogram", inputs, runs)
                np.savez(results / f"{name} {runs}.npz", **expected)


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))

"""Programs' files with something wrong are a DataError each, or load and say what they are.

WEBNN_RANDOM_CASES is the number of files (150 if not set).
"""

from __future__ import annotations

import os
import re
import tracemalloc
import warnings
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from samples.models import digits, load_weights
from tests.backend.program_cases import mixed
from tests.graphs import build
from tests.property.mutations import Mutations
from webnn_py import (
    DataError,
    MLContext,
    MLGraphBuilder,
    MLOperand,
    NotSupportedError,
    OperationError,
)

CASES = int(os.environ.get("WEBNN_RANDOM_CASES", "150"))
FIXED = 2**20
"""Bytes that reading may take besides; what is kept for all programs is among them."""
PER_BYTE_OF_JSON = 32
"""What Python's objects may take for each byte of a document."""
REFUSED = {
    "DataError": re.compile(
        r"\.mlprogram: (byte \d+|program\.json|weights\.safetensors|got|entry)"
    ),
    "NotSupportedError": re.compile("a later release of webnn_py wrote"),
}
"""How a file may be refused, and what is said then."""
NONE = re.compile(r"$^")


def check(gpu: MLContext, path: Path, data: bytes) -> str:
    """What comes of a file."""
    path.write_bytes(data)
    tracemalloc.reset_peak()
    before, _ = tracemalloc.get_traced_memory()
    outcome, said = "read", ""
    try:
        program = gpu.load_program_sync(path)
    except (DataError, NotSupportedError, OperationError) as error:
        outcome, said = type(error).__name__, str(error)
    _, peak = tracemalloc.get_traced_memory()
    if outcome == "read":
        program.save(path)
        again = gpu.load_program_sync(path)
        assert str(again.arguments) == str(program.arguments)
    elif not REFUSED.get(outcome, NONE).search(said):  # read, and refused by the device
        assert outcome != "DataError", said
        outcome = f"{outcome} of the device"
    json = data.find(b"weights.safetensors")
    most = FIXED + 3 * len(data) + PER_BYTE_OF_JSON * (json if json > 0 else len(data))
    assert peak - before < most, f"{peak - before} bytes for a file of {len(data)}"
    return outcome


def files(gpu: MLContext, folder: Path) -> list[bytes]:
    """Good ones."""
    weights = load_weights("digits")

    def bits(b: MLGraphBuilder) -> dict[str, MLOperand]:
        k = b.cast(b.input("k", "int64", [7]), "float32")
        return {"y": b.cast(b.softmax(b.reshape(b.mul(k, k), [1, 7]), 1), "uint8")}

    paths = [folder / f"{number}.mlprogram" for number in range(4)]
    mixed(gpu, own=True).save(paths[0])
    mixed(gpu).save(paths[1])
    build(gpu, lambda b: {"y": digits(b, weights)}).compile_to(paths[2])
    build(gpu, bits).compile_to(paths[3])
    return [path.read_bytes() for path in paths]


def test_mutated_programs(gpu: MLContext, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    good = files(gpu, tmp_path)
    outcomes: Counter[tuple[str, str]] = Counter()
    tracemalloc.start()
    try:
        for seed in range(CASES):
            mutations = Mutations(
                good[seed % len(good)], np.random.default_rng(seed), "program.json"
            )
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", UserWarning)  # zipfile's, of names that stand twice
                way, data = mutations.draw()
            try:
                outcomes[way, check(gpu, tmp_path / "x.mlprogram", data)] += 1
            except BaseException as error:
                error.add_note(f"seed {seed}: {way}")
                raise
    finally:
        tracemalloc.stop()
    caplog.clear()  # what naga says of shaders that are wrong
    print(*sorted(outcomes.items()), sep="\n")
    ways = {way for way, _ in outcomes}
    assert len(ways) == 9
    for way in ways:
        assert outcomes[way, "DataError"] > outcomes.total() // 100, way

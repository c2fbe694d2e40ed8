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
from tests.internals import engine_of
from tests.property.graphs import seeded_case
from tests.property.mutations import Mutations
from webnn_py import DataError, MLContext, MLError, NotSupportedError, OperationError
from webnn_py.api.programs.file import write_graph
from webnn_py.engines.webgpu.program.document import document_of
from webnn_py.engines.webgpu.program.file import PROGRAM, reading_program, write_program

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


def check(gpu: MLContext, path: Path, data: bytes) -> str:
    """What comes of a file."""
    path.write_bytes(data)
    tracemalloc.reset_peak()
    before, _ = tracemalloc.get_traced_memory()
    plan, said = None, ""
    try:
        with reading_program(path) as plan:
            outcome = "read"
    except (DataError, NotSupportedError) as error:
        plan, outcome, said = None, type(error).__name__, str(error)
    _, peak = tracemalloc.get_traced_memory()
    if plan is None:
        assert REFUSED[outcome].search(said), said
    else:
        write_program(plan, path)
        with reading_program(path) as again:
            assert document_of(again) == document_of(plan)
        try:
            engine_of(gpu).load_program(plan)
        except (NotSupportedError, OperationError) as error:
            outcome = f"{type(error).__name__} of the device"
    json = data.find(b"weights.safetensors")
    most = FIXED + 3 * len(data) + PER_BYTE_OF_JSON * (json if json > 0 else len(data))
    assert peak - before < most, f"{peak - before} bytes for a file of {len(data)}"
    return outcome


def files(gpu: MLContext, folder: Path) -> list[bytes]:
    """Good ones."""
    paths = [folder / f"{number}.mlprogram" for number in range(8)]
    mixed(gpu, own=True).save(paths[0])
    weights = load_weights("digits")
    build(gpu, lambda b: {"y": digits(b, weights)}).compile_to(paths[1])
    for number, path in enumerate(paths[2:]):
        try:
            write_graph(seeded_case(number).graph, path)
        except MLError:  # names that are an input's and an output's
            paths.remove(path)
    return [path.read_bytes() for path in paths]


def test_mutated_programs(gpu: MLContext, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    good = files(gpu, tmp_path)
    assert len(good) > 4
    outcomes: Counter[tuple[str, str]] = Counter()
    tracemalloc.start()
    try:
        for seed in range(CASES):
            mutations = Mutations(good[seed % len(good)], np.random.default_rng(seed), PROGRAM)
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

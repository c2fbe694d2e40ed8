"""Programs' files with something wrong are a DataError each, or load and say what they are.

WEBNN_RANDOM_CASES is the number of files (150 if not set).
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from samples.models import digits, load_weights
from tests.backend.program_cases import mixed
from tests.graphs import build
from tests.property.mutations import check_mutations, loaded
from webnn_py import MLContext, MLError, MLGraphBuilder, MLOperand

REFUSED = {
    "DataError": re.compile(
        r"\.mlprogram: (byte \d+|program\.json|weights\.safetensors|got|entry)"
    ),
    "NotSupportedError": re.compile("a later release of webnn_py wrote"),
}
"""How a file may be refused, and what is said then."""
NONE = re.compile(r"$^")


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
    path = tmp_path / "x.mlprogram"

    def check(way: str, data: bytes, good: bytes) -> str:
        path.write_bytes(data)
        program = loaded(lambda: gpu.load_program_sync(path), data)
        if isinstance(program, MLError):
            outcome, said = type(program).__name__, str(program)
            if REFUSED.get(outcome, NONE).search(said):
                return outcome
            assert outcome != "DataError", said
            return f"{outcome} of the device"
        program.save(path)
        assert str(gpu.load_program_sync(path).arguments) == str(program.arguments)
        return "read"

    check_mutations(files(gpu, tmp_path), "program.json", check)
    caplog.clear()  # what naga says of shaders that are wrong

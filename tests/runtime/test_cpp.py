"""The C++ runtime gives what Python gives, and refuses what is broken, under the sanitizers.

WEBNN_RANDOM_CASES is the number of broken files (100 if not set).
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.datasets import load_digits

from samples import digits
from samples.mpm88 import first_positions, simulation
from tests.backend.program_cases import X, mixed
from tests.pages import Reader, blocks, read_blocks
from tests.runtime.cpp import CPP, STRICT, compile_cpp, wgpu_resources
from tests.runtime.programs import CASES, FAULTS, broken, changed, run_by_python
from webnn_py import MLContext, MLExecution, ml

PAGE = "docs/how-to/cpp.md"
FILES = int(os.environ.get("WEBNN_RANDOM_CASES", "100"))

pytestmark = pytest.mark.skipif(
    shutil.which("g++") is None, reason="there is no g++; scripts/test.sh installs it where it may"
)


def run(
    runner: Path, program: Path, runs: object, **files: Path
) -> subprocess.CompletedProcess[str]:
    words = [f"{name}={path}" for name, path in files.items()]
    return subprocess.run(
        [str(runner), str(program), str(runs), *words], capture_output=True, text=True
    )


def test_the_example_of_digits(gpu: MLContext, tmp_path: Path) -> None:
    path = tmp_path / "digits.mlprogram"
    digits.build(gpu, 1).compile_to(path)
    example = compile_cpp("examples/digits.cpp", tmp_path / "digits")
    known = load_digits()
    image = tmp_path / "image.txt"
    for number in (7, 8):
        image.write_text(" ".join(map(str, known.images[number].reshape(-1))))
        done = subprocess.run([example, path, image], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        assert done.stdout.splitlines()[-1].startswith(f"{known.target[number]}, with")
    done = subprocess.run([example, path], capture_output=True, text=True)
    assert done.stdout.splitlines()[-1].startswith("3, with")
    done = subprocess.run([example, image], capture_output=True, text=True)
    assert done.returncode == 1
    assert "expected the end of a zip archive" in done.stderr


def test_the_page_from_top_to_bottom(
    gpu: MLContext, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its program, its `main.cpp` and its commands, in an empty folder."""
    monkeypatch.chdir(tmp_path)
    printed: list[str] = []
    with Reader(PAGE, tmp_path, printed.append) as reader:
        reader.follow(read_blocks(PAGE))
    (answer,) = (text for text in printed if re.fullmatch(r"([\d.]+ ){10}", text))
    numbers = [float(word) for word in answer.split()]
    image = np.zeros((1, 1, 8, 8), np.float32)
    image[0, 0, 1:7, 4] = 1
    reference = ml.create_context_sync(engine="reference")
    expected = MLExecution(reference).compute(digits.build(reference, 1), {"image": image})
    np.testing.assert_allclose([numbers], expected["probabilities"], atol=0.006)
    _, between = blocks(PAGE, "cpp")
    (tmp_path / "between.cpp").write_text(f'#include "webnn_program.hpp"\n{between}')
    arguments = [*STRICT, "-c", "between.cpp", f"-I{CPP}", f"-I{wgpu_resources()}"]
    done = subprocess.run(["g++", *arguments], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_the_example_of_particles(gpu: MLContext, tmp_path: Path) -> None:
    program = simulation(gpu, 20)
    path, places, picture = (tmp_path / name for name in ("p.mlprogram", "p.bin", "p.ppm"))
    program.save(path)
    positions = first_positions()
    positions.tofile(places)
    example = compile_cpp("examples/particles.cpp", tmp_path / "particles")
    done = subprocess.run([example, path, places, "2", picture], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("2 frames, ")
    for _ in range(2):
        program.run_sync({"position": positions})
    moved = np.fromfile(places, np.float32).reshape(positions.shape)
    np.testing.assert_allclose(moved, positions, atol=1e-3)  # sums of atomics have no order
    head, pixels = picture.read_bytes().split(b"\n255\n", 1)
    assert head == b"P6\n512 512"
    water = np.frombuffer(pixels, np.uint8).reshape(512, 512, 3)[..., 2] > 200
    assert 0.1 < water.mean() < 0.6


@pytest.mark.parametrize("runs", [1, 3, "encode"])
@pytest.mark.parametrize("name", CASES)
def test_the_same_bytes_as_python(
    runner: Path, gpu: MLContext, tmp_path: Path, name: str, runs: Any
) -> None:
    write, inputs = CASES[name]
    path = tmp_path / "case.mlprogram"
    write(gpu, path)
    expected = run_by_python(gpu, path, inputs, 1 if runs == "encode" else runs)
    files = {key: tmp_path / f"{number}.bin" for number, key in enumerate(inputs | expected)}
    for key, file in files.items():
        array = inputs.get(key, expected.get(key))
        file.write_bytes((inputs[key] if key in inputs else np.zeros_like(array)).tobytes())
    done = run(runner, path, runs, **files)
    assert done.returncode == 0, done.stderr
    assert not done.stderr
    for key, array in expected.items():
        assert files[key].read_bytes() == array.tobytes(), key


@pytest.fixture
def saved(gpu: MLContext, tmp_path: Path) -> Path:
    mixed(gpu).save(tmp_path / "mixed.mlprogram")
    return tmp_path / "mixed.mlprogram"


REFUSED = {
    "a later version": "NotSupportedError: the file has a later version",
    "a member too many": "DataError: .*program.json: a member is not expected",
    "a fraction": r"DataError: .*variants\[0\].steps\[0\].times: expected an integer in 1\.\.",
    "an index": r"DataError: .*variants\[0\].steps\[0\].kernel: expected an integer in 0\.\.",
    "a place": "DataError: .*its bytes exceed the argument or buffer",
    "a feature": (
        "NotSupportedError: this device cannot run the program: variant 0 needs .*the feature"
    ),
    "a limit": r"NotSupportedError: .*maxBufferSize of 1099511627776 \(it has \d+\)",
    "hardware": "NotSupportedError: .*needs a hardware adapter",
    "workgroups": r"NotSupportedError: .*maxComputeWorkgroupsPerDimension of 1048576 \(it has",
    "a large buffer": r"NotSupportedError: .*maxBufferSize of 549755813888 \(it has \d+\)",
    "code": "OperationError: compiling the kernel",
}
"""What is said of each of FAULTS."""


@pytest.mark.parametrize("what", REFUSED)
def test_what_is_refused(runner: Path, saved: Path, tmp_path: Path, what: str) -> None:
    x = tmp_path / "x.bin"
    x.write_bytes(X.tobytes())
    done = run(runner, changed(saved, FAULTS[what]), 1, x=x)
    assert done.returncode == 2, (done.returncode, done.stderr)
    lines = done.stderr.splitlines()
    assert lines
    assert re.match(REFUSED[what], lines[0]), done.stderr


def test_a_buffer_that_is_destroyed(runner: Path, saved: Path, tmp_path: Path) -> None:
    x = tmp_path / "x.bin"
    x.write_bytes(X.tobytes())
    done = run(runner, saved, "destroyed", x=x)
    assert done.returncode == 2, (done.returncode, done.stderr)
    assert done.stderr.startswith("OperationError: running a program: ")
    assert "destroyed" in done.stderr


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "argument 'x' is missing"),
        ({"x": 4}, "argument 'x': 4 bytes, expected 128"),
        ({"x": 128, "z": 4}, "argument 'z': the program has no argument of this name"),
    ],
)
def test_arguments_that_do_not_fit(
    runner: Path, saved: Path, tmp_path: Path, given: dict[str, int], message: str
) -> None:
    files = {name: tmp_path / f"{name}.bin" for name in given}
    for name, size in given.items():
        files[name].write_bytes(bytes(size))
    done = run(runner, saved, 1, **files)
    assert (done.returncode, done.stderr) == (2, f"Error: {message}\n")


def test_broken_files_end_in_an_error(reader: Path, gpu: MLContext, tmp_path: Path) -> None:
    """The whole reader runs under AddressSanitizer and UndefinedBehaviorSanitizer."""
    folder = tmp_path / "broken"
    folder.mkdir()
    originals = []
    for name, (write, _) in CASES.items():
        path = tmp_path / f"{name}.mlprogram"
        write(gpu, path)
        originals.append(path.read_bytes())
    for number, data in enumerate(broken(originals, FILES)):
        (folder / str(number)).write_bytes(data)
    done = subprocess.run([str(reader), str(folder)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    read, refused = map(int, done.stdout.split())
    assert read + refused == FILES
    assert refused > 0.9 * FILES

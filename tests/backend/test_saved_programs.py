"""Programs in files: loading gives what was saved, without the compiler."""

from __future__ import annotations

import json
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest

from samples.models import digits, load_weights, super_resolution
from tests.adapters import need_halves
from tests.backend.program_cases import X, expected_total, mixed
from tests.graphs import Build, awaited, build, expected, normal
from tests.runtime.programs import changed
from webnn_py import (
    DataError,
    InvalidStateError,
    MLContext,
    MLGraphBuilder,
    MLOperand,
    MLProgram,
    NotSupportedError,
)

SPEC = Path(__file__).parents[2] / "spec"
SCHEMA = json.loads((SPEC / "program.schema.json").read_text("utf-8"))

MODELS: dict[str, tuple[Build, str, tuple[int, ...]]] = {
    "digits": (lambda b: {"y": digits(b, load_weights("digits"), 4)}, "image", (4, 1, 8, 8)),
    "super-resolution": (
        lambda b: {"y": super_resolution(b, load_weights("super_resolution"), 8, 12)},
        "low",
        (1, 3, 8, 12),
    ),
}


def document(path: Path) -> Any:
    with zipfile.ZipFile(path) as archive:
        assert archive.namelist() == ["program.json", "weights.safetensors"]
        return json.loads(archive.read("program.json"))


def test_a_loaded_program_gives_the_same_bytes(each_device: MLContext, tmp_path: Path) -> None:
    path = tmp_path / "mixed.mlprogram"
    program = mixed(each_device, own=True)
    wanted = [program.run_sync({"x": X})["total"].tobytes() for _ in range(2)]
    program.save(path)
    loaded = each_device.load_program_sync(path)
    assert str(loaded) == str(program)
    assert loaded.arguments == program.arguments
    assert [loaded.run_sync({"x": X})["total"].tobytes() for _ in range(2)] == wanted
    jsonschema.validate(document(path), SCHEMA)
    again = tmp_path / "again.mlprogram"
    loaded.save(again)
    assert again.read_bytes() == path.read_bytes()


@pytest.mark.parametrize("name", MODELS)
def test_models_alone(each_device: MLContext, cpu: MLContext, name: str, tmp_path: Path) -> None:
    what, given, shape = MODELS[name]
    inputs = {given: abs(normal(*shape)).clip(0, 1)}
    wanted = awaited(build(cpu, what), inputs)["y"]
    for context in (each_device, cpu):
        path = tmp_path / f"{context.device_type}.mlprogram"
        build(context, what).compile_to(path)
        jsonschema.validate(document(path), SCHEMA)
    files = [path.read_bytes() for path in sorted(tmp_path.iterdir())]
    assert files[0] == files[1]
    loaded = each_device.load_program_sync(path)
    result = loaded.run_sync(inputs)["y"]
    np.testing.assert_allclose(result, wanted, rtol=1e-4, atol=1e-5)
    assert loaded.run_sync(inputs)["y"].tobytes() == result.tobytes()


def test_filters_are_there_once_as_hardware_wants_them(gpu: MLContext, tmp_path: Path) -> None:
    filters = [normal(16, 16, 3, 3, seed=seed) for seed in range(4)]

    def network(b: MLGraphBuilder) -> dict[str, MLOperand]:
        x = b.input("x", "float32", [1, 16, 12, 12])
        y = x
        for weights in filters:
            y = b.relu(b.conv2d(y, b.constant(weights), padding=[1, 1, 1, 1]))
        return {"y": y}

    path = tmp_path / "network.mlprogram"
    build(gpu, network).compile_to(path)
    with zipfile.ZipFile(path) as archive:
        held = archive.read("weights.safetensors")
    for weights in filters:
        assert held.count(np.ascontiguousarray(weights.transpose(2, 3, 1, 0)).tobytes()) == 1
    assert len(held) < 1.1 * sum(weights.nbytes for weights in filters)


def test_what_a_file_holds_depends_on_no_device(
    gpu: MLContext, plain: MLContext, tmp_path: Path
) -> None:
    for number, context in enumerate((gpu, plain)):
        mixed(context, own=True).save(tmp_path / str(number))
    assert (tmp_path / "0").read_bytes() == (tmp_path / "1").read_bytes()


def test_steps_cannot_be_added_to_a_loaded_program(gpu: MLContext, tmp_path: Path) -> None:
    mixed(gpu).save(tmp_path / "mixed.mlprogram")
    loaded = gpu.load_program_sync(tmp_path / "mixed.mlprogram")
    with pytest.raises(InvalidStateError, match="was loaded; make a new one to record steps"):
        loaded.sequence()


HALF = "\ud800"
HALVED: dict[str, Callable[[Any], Any]] = {
    r"shaders\[0\]": lambda d: d["shaders"].__setitem__(0, f"{d['shaders'][0]}// {HALF}"),
    r"kernels\[0\].entry_point": lambda d: d["kernels"][0].update(entry_point=HALF),
    r"kernels\[0\].constants.\\ud800": lambda d: d["kernels"][0]["constants"].update({HALF: 1}),
}


@pytest.mark.parametrize("where", HALVED)
def test_half_a_character_is_no_text_for_a_device(
    gpu: MLContext, tmp_path: Path, where: str
) -> None:
    path = tmp_path / "mixed.mlprogram"
    mixed(gpu).save(path)
    with pytest.raises(
        DataError, match=f"program.json: {where}.*: it contains half a surrogate pair"
    ):
        gpu.load_program_sync(changed(path, HALVED[where]))


def test_cpu_contexts_load_no_programs(cpu: MLContext, tmp_path: Path) -> None:
    with pytest.raises(InvalidStateError, match="needs a GPU context"):
        cpu.load_program_sync(tmp_path / "nothing.mlprogram")


LOADS = """
import sys
import numpy as np
from webnn_py import ml
from webnn_py.engines.webgpu.runtime.devices.adapters import request_device

context = ml.create_context_sync(request_device())  # while it opens a device, it imports more
program = context.load_program_sync(sys.argv[1])
print(program.run_sync({"x": np.load(sys.argv[2])})["total"].tobytes().hex())
found = [name for name in sys.modules if name.startswith("webnn_py.engines.webgpu.compiler")]
assert not found, found
"""


def test_loading_needs_no_compiler(gpu: MLContext, tmp_path: Path) -> None:
    path, x = tmp_path / "mixed.mlprogram", tmp_path / "x.npy"
    program = mixed(gpu)
    program.save(path)
    np.save(x, X)
    run = subprocess.run(
        [sys.executable, "-c", LOADS, str(path), str(x)], capture_output=True, text=True
    )
    assert run.returncode == 0, run.stderr
    total = np.frombuffer(bytes.fromhex(run.stdout), np.float32).reshape(4, 3)
    assert total.tobytes() == program.run_sync({"x": X})["total"].tobytes()
    np.testing.assert_allclose(total, expected_total(X), rtol=1e-5, atol=1e-5)


HALVES = """
enable f16;
@group(0) @binding(0) var<storage, read_write> x: array<f16>;
@compute @workgroup_size(4)
fn main(@builtin(global_invocation_id) id: vec3<u32>) { x[id.x] *= 2.0h; }
"""


def test_a_device_is_told_what_it_lacks(gpu: MLContext, plain: MLContext, tmp_path: Path) -> None:
    need_halves(gpu.device)
    program = MLProgram(gpu)
    x = program.argument("x", "float16", [4])
    step = program.sequence()
    step.compute(HALVES, [x])
    program.append(step)
    path = tmp_path / "halves.mlprogram"
    program.save(path)
    with pytest.raises(
        NotSupportedError,
        match=r"cannot run the program: variant 0 needs the feature shader-f16$",
    ):
        plain.load_program_sync(path)


def test_variants_with_and_without_features(
    plain: MLContext, cpu: MLContext, tmp_path: Path
) -> None:
    def graph(b: MLGraphBuilder) -> dict[str, MLOperand]:
        return {
            "y": b.sqrt(b.input("x", "float16", [8])),
            "n": b.mul(k := b.input("k", "int64", [3]), k),
        }

    path = tmp_path / "types.mlprogram"
    build(cpu, graph).compile_to(path)
    hardware = [v for v in document(path)["variants"] if v["adapter"] != "software"]
    assert [variant["features"] for variant in hardware] == [
        ["shader-f16", "shader-int64"],
        ["shader-f16"],
        ["shader-int64"],
        [],
    ]
    inputs = {"x": np.arange(8, dtype=np.float16), "k": np.array([3, -(2**31), 2**40 + 1])}
    wanted = expected(graph, inputs)
    for name, result in plain.load_program_sync(path).run_sync(inputs).items():
        np.testing.assert_array_equal(result, wanted[name])

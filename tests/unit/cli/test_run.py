"""`webnn-py run`: inputs, modes, what is printed, and errors in one line."""

from __future__ import annotations

import itertools
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import PIL.Image
import pytest
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator

import webnn_py.onnx
from tests.onnx.models import model
from tests.unit.cli.commands import refused, told
from webnn_py import MLContext, MLGraphBuilder
from webnn_py.cli.main import main

X = np.random.default_rng(0).random((1, 3, 8, 8), np.float32)


@pytest.mark.parametrize(
    ("device", "mode"),
    [("cpu", "execution"), ("cpu", "awaited"), ("gpu", "awaited"), ("gpu", "encoder")],
)
def test_all_modes_give_what_onnx_gives(
    device: str,
    mode: str,
    network: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    request: pytest.FixtureRequest,
) -> None:
    request.getfixturevalue(device)  # skips where there is no adapter
    source, target = tmp_path / "x.npy", tmp_path / "y.npy"
    np.save(source, X)
    report = told(
        capsys, "run", network, "--device", device, "--mode", mode, "--input", f"x={source}",
        "--output", f"y={target}",
    )  # fmt: skip
    assert report["mode"] == mode
    (expected,) = ReferenceEvaluator(network).run(None, {"x": X})
    np.testing.assert_allclose(np.load(target), expected, rtol=1e-4, atol=1e-5)
    assert report["outputs"]["y"]["shape"] == [1, 5]
    assert report["outputs"]["y"]["max"] == pytest.approx(float(expected.max()), rel=1e-4)


def test_random_inputs_are_the_same_each_time(
    network: str, capsys: pytest.CaptureFixture[str]
) -> None:
    first = told(capsys, "run", network)
    assert told(capsys, "run", network, "--input", "x=random") == first
    assert "seconds" not in first


def test_tensors_of_onnx_are_inputs(
    doubling: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tensor = numpy_helper.from_array(np.array([[1, 2], [3, np.inf]], np.float32))
    (tmp_path / "x.pb").write_bytes(tensor.SerializeToString())
    outputs = told(capsys, "run", doubling, "--input", f"x={tmp_path / 'x.pb'}")["outputs"]
    assert outputs["y"]["first"] == [2, 4, 6, "inf"]
    assert outputs["y"]["shape"] == [2, 2]  # the open dimension is that of the file


@pytest.mark.parametrize("shape", [[1, 3, 4, 5], ["n", 3, 4, 5], ["n", 3, "h", "w"]])
@pytest.mark.parametrize("name", ["", "x="])
@pytest.mark.parametrize("ending", ["onnx", "mlgraph"])
def test_an_array_in_another_layout_is_told_how_it_is_transposed(
    cpu: MLContext,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    shape: list[int | str],
    name: str,
    ending: str,
) -> None:
    builder = MLGraphBuilder(cpu)
    graph = builder.build_sync({"y": builder.identity(builder.input("x", "float32", shape))})
    path, file, out = (str(tmp_path / each) for each in (f"m.{ending}", "x.npy", "y.npy"))
    if ending == "onnx":
        onnx.save(webnn_py.onnx.to_onnx(graph), path)
    else:
        graph.save(path)
    image = np.arange(60, dtype=np.float32).reshape(1, 4, 5, 3)
    np.save(file, image)
    message = refused(capsys, "run", path, "--input", f"{name}{file}")
    found = re.search(r"\.transpose\([0-9, ]+\)$", message)
    assert found, message
    assert "reshape" not in message
    np.save(file, eval(f"image{found[0]}", {"image": image}))
    assert main(["run", path, "--input", f"{name}{file}", "--output", out]) == 0
    np.testing.assert_array_equal(np.load(out), image.transpose(0, 3, 1, 2))


def test_an_image_for_another_layout_is_told_which_one(
    cpu: MLContext, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    builder = MLGraphBuilder(cpu)
    graph = builder.build_sync({"y": builder.relu(builder.input("x", "float32", [1, 3, 4, 5]))})
    graph.save(tmp_path / "m.mlgraph")
    PIL.Image.new("RGB", (5, 4)).save(tmp_path / "x.png")
    call = ["run", str(tmp_path / "m.mlgraph"), "--input", str(tmp_path / "x.png")]
    message = refused(capsys, *call, "--layout", "nhwc").strip()
    assert message.endswith("has 1 or 3 channels, not 5; they would be with --layout nchw")
    assert main([*call, "--layout", "nchw"]) == 0


def test_open_dimensions_are_given_sizes(doubling: str, capsys: pytest.CaptureFixture[str]) -> None:
    for given in ("batch=3", "x=3,2"):
        assert told(capsys, "run", doubling, "--shape", given)["outputs"]["y"]["shape"] == [3, 2]
    assert "--shape" in refused(capsys, "run", doubling)


def test_times_and_sizes_are_told(network: str, capsys: pytest.CaptureFixture[str]) -> None:
    report = told(capsys, "run", network, "--benchmark", "3", "--profile")
    seconds = report["seconds"]
    assert seconds["runs"] == 3
    assert 0 < seconds["fastest run"] <= seconds["median run"] <= seconds["slowest run"]
    assert report["profile"]["nodes"] == 5
    assert report["profile"]["kernels"] == 0
    assert report["profile"]["clock"] == "host"
    assert main(["run", network, "--profile"]) == 0
    out = capsys.readouterr().out
    assert "median run" in out
    assert "memory of constants" in out


def test_kernels_are_counted(network: str, gpu: object, capsys: pytest.CaptureFixture[str]) -> None:
    profile = told(capsys, "run", network, "--device", "gpu", "--profile")["profile"]
    assert 0 < profile["kernels"] <= profile["nodes"]
    assert len(profile["steps"]) == profile["kernels"]
    assert profile["steps"][0]["operator"] == "conv2d, relu [stem, act]"
    assert profile["steps"][0]["milliseconds"] >= 0
    assert profile["peak_flops"] > 0
    assert profile["peak_bytes"] > 0


def test_classes_have_names(
    network: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    labels = tmp_path / "labels.txt"
    labels.write_text("ant\nbee\ncat\ndog\nelk\n")
    np.save(tmp_path / "x.npy", X)
    given = [f"--input=x={tmp_path / 'x.npy'}", f"--labels={labels}"]
    report = told(capsys, "run", network, *given)
    best = report["classes"]["y"]
    scores = [each["score"] for each in best]
    assert scores == sorted(scores, reverse=True)
    assert {each["label"] for each in best} == {"ant", "bee", "cat", "dog", "elk"}
    assert scores[0] == report["outputs"]["y"]["max"]
    (tmp_path / "labels.json").write_text('["ant", "bee", "cat", "dog", "elk"]')
    given[1] = f"--labels={tmp_path / 'labels.json'}"
    assert told(capsys, "run", network, *given) == report
    labels.write_text("ant\nbee\n")
    assert "no output has 2 scores" in refused(capsys, "run", network, f"--labels={labels}")


ERRORS = {
    ("run", "nowhere.onnx"): "nowhere.onnx cannot be read",
    ("run", "NETWORK", "--input", "z=random"): "there is no input 'z', but x",
    ("run", "NETWORK", "--input", "x=nowhere.npy"): "nowhere.npy",
    ("run", "NETWORK", "--input", "x=NETWORK"): "holds no image",
    ("run", "NETWORK", "--input", "random", "--input", "x=random"): "x stands twice",
    ("run", "NETWORK", "--input", "x=FOLDER"): "FOLDER: expected a file, got a directory",
    ("run", "NETWORK", "--std", "0"): "--std",
    ("run", "NETWORK", "--output", "z=out.npy"): "there is no 'z', but y",
    ("run", "NETWORK", "--labels", "nowhere.txt"): "nowhere.txt",
    ("run", "NETWORK", "--mode", "encoder"): "needs a GPU context",
    ("run", "NETWORK", "--engine", "nix"): "engine 'nix'",
    ("run", "NETWORK", "--shape", "x=1,3,9,9", "--shape", "x=1"): "stands twice",
    ("run", "NETWORK", "--shape", "x=1,3,9,9"): "[1, 3, 9, 9]",
    ("inspect", "nowhere.onnx"): "cannot be read",
    ("check", "nowhere.onnx"): "cannot be read",
    ("check", "model.mlprogram"): "is a saved program, expected a graph",
    ("convert", "NETWORK", "out.tflite"): "out.tflite",
}


@pytest.mark.parametrize("arguments", ERRORS)
def test_errors_are_one_line(
    arguments: tuple[str, ...], network: str, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = str(Path(network).parent)
    given = [each.replace("NETWORK", network).replace("FOLDER", folder) for each in arguments]
    said = refused(capsys, *given)
    assert said.startswith("webnn-py: ")
    assert ERRORS[arguments].replace("FOLDER", folder) in said


HEADERS = [b"{'descr': '<f4', 'fortran_order': False, 'shape': (True,)}\n", b"((("]


@pytest.mark.parametrize("header", HEADERS)
def test_damaged_arrays_are_refused(
    network: str, header: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "x.npy"
    path.write_bytes(b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header + bytes(4))
    assert "x.npy holds no array" in refused(capsys, "run", network, "--input", f"x={path}")


def test_labels_that_are_nested_too_deeply(
    network: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "labels.json"
    path.write_text("[" * 100_000)
    assert "holds no labels" in refused(capsys, "run", network, "--labels", str(path))


WITHOUT = """
import sys
sys.modules[sys.argv[1]] = None
from webnn_py.cli.main import main
sys.exit(main(sys.argv[2:]))
"""


@pytest.mark.parametrize(
    ("package", "arguments", "remedy"),
    [
        ("onnx", ["run", "NETWORK"], 'pip install "webnn-py[onnx]"'),
        ("PIL", ["run", "NETWORK", "--input", "NETWORK"], 'pip install "webnn-py[all]"'),
    ],
)
def test_what_is_not_installed_is_named(
    package: str, arguments: list[str], remedy: str, network: str
) -> None:
    given = [package, *(each.replace("NETWORK", network) for each in arguments)]
    command = [sys.executable, "-c", WITHOUT, *given]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 2
    *hints, said = done.stderr.splitlines()
    assert remedy in said
    assert hints == [hint for hint in hints if hint.startswith("no fast engine")][:1]


@pytest.mark.parametrize(
    "arguments",
    [
        ["--shape", "x"],
        ["--shape", "x=0"],
        ["--shape", "x=a"],
        ["--device", "tpu"],
        ["--input", "x="],
        ["--mean", "grey"],
        ["--benchmark", "0"],
    ],
)
def test_options_are_checked(
    arguments: list[str], network: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["run", network, *arguments])
    assert f"argument {arguments[0]}" in capsys.readouterr().err


def test_it_is_a_program(network: str) -> None:
    """As one calls it, in a process of its own: errors on standard error, nothing else."""
    command = [sys.executable, "-m", "webnn_py", "run"]
    done = subprocess.run([*command, network], capture_output=True, text=True, check=True)
    assert "float32[1,5]" in done.stdout
    # What takes long on a busy machine is told there, too.
    assert not [line for line in done.stderr.splitlines() if not line.startswith("reading ")]
    failed = subprocess.run([*command, "nowhere.onnx"], capture_output=True, text=True)
    assert failed.returncode == 2
    assert not failed.stdout
    assert "Traceback" not in failed.stderr


def test_a_row_of_a_profile_is_no_longer_than_one_can_read(
    tmp_path: Path, gpu: MLContext, capsys: pytest.CaptureFixture[str]
) -> None:
    """One kernel computes all nodes."""
    names = [f"v{number}" for number in range(41)]
    nodes = [
        helper.make_node("Sin", [a], [b], name=f"{b}/sin") for a, b in itertools.pairwise(names)
    ]
    path = tmp_path / "chain.onnx"
    onnx.save(model(nodes, {names[0]: [2]}, names[-1:]), path)
    given = ["run", str(path), "--device", "gpu", "--profile", "--benchmark", "1"]
    assert main(given) == 0
    (row,) = (line for line in capsys.readouterr().out.splitlines() if "v1/sin" in line)
    assert "…" in row
    assert len(row) < 160


def test_sizes_that_contradict_the_inputs(
    doubling: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    np.save(tmp_path / "x.npy", np.zeros((2, 2), np.float32))
    saved = str(tmp_path / "doubling.mlgraph")
    assert main(["convert", doubling, saved]) == 0
    for path in (doubling, saved):
        said = refused(
            capsys, "run", path, "--input", f"x={tmp_path / 'x.npy'}", "--shape", "batch=3"
        )
        assert "batch" in said
        assert "2" in said
        assert "3" in said
    said = refused(capsys, "run", saved, "--shape", f"batch={10**11}")
    assert said == f"webnn-py: --shape: batch is {10**11}, expected 1..2147483647\n"

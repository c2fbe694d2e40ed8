"""`webnn-py run`: benchmarks, comparisons, programs, standard input, files of outputs."""

from __future__ import annotations

import io
import json
import sys
import zipfile
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import onnx
import pytest

from tests.unit.cli.commands import refused, told
from webnn_py import MLContext, MLExecution, MLGraphBuilder, ml
from webnn_py.cli.main import main
from webnn_py.ir import Array

X = np.arange(8, dtype=np.float32).reshape(2, 4)
INFINITE = np.array([[np.inf, np.nan, 0, -np.inf], [1, 2, 3, 4]], np.float32)


@pytest.fixture
def saved(tmp_path: Path) -> str:
    """A saved graph with an open size: x to x + x, called "file", and to -x."""
    with ml.create_context_sync(engine="reference") as context:
        builder = MLGraphBuilder(context)
        x = builder.input("x", "float32", ["n", 4])
        outputs = {"file": builder.add(x, x), "other": builder.neg(x)}
        builder.build_sync(outputs).save(tmp_path / "m.mlgraph")
    return str(tmp_path / "m.mlgraph")


@pytest.fixture
def program(saved: str, tmp_path: Path, gpu: MLContext) -> str:
    """The same as a program, of two rows."""
    path = str(tmp_path / "m.mlprogram")
    assert main(["convert", saved, path, "--shape", "n=2"]) == 0
    return path


@pytest.fixture
def array(tmp_path: Path) -> str:
    np.save(tmp_path / "x.npy", X)
    return str(tmp_path / "x.npy")


def _savez(path: Path, arrays: dict[str, Array]) -> None:
    """Write arrays of any name, also one that is a parameter of `numpy.savez`."""
    with zipfile.ZipFile(path, "w") as archive:
        for name, values in arrays.items():
            with archive.open(f"{name}.npy", "w") as entry:
                np.save(entry, values)


# Benchmarks


@pytest.mark.parametrize("mode", ["execution", "awaited"])
def test_runs_at_once_are_counted(
    saved: str, mode: str, capsys: pytest.CaptureFixture[str]
) -> None:
    given = ["--shape", "n=2", "--benchmark", "40", "--warmup", "2", "--concurrency", "4"]
    seconds = told(capsys, "run", saved, *given, "--mode", mode)["seconds"]
    assert seconds["runs"] == 40
    assert seconds["at once"] == 4
    quantiles = ["fastest run", "median run", "p90 run", "p95 run", "p99 run", "slowest run"]
    assert [seconds[name] for name in quantiles] == sorted(seconds[name] for name in quantiles)
    assert seconds["fastest run"] <= seconds["mean run"] <= seconds["slowest run"]
    assert seconds["runs a second"] > 0


def test_a_duration_ends_the_runs(saved: str, capsys: pytest.CaptureFixture[str]) -> None:
    given = ["run", saved, "--shape", "n=1", "--duration"]
    assert told(capsys, *given, "1e-9")["seconds"]["runs"] == 1
    assert told(capsys, *given, "3600", "--benchmark", "5")["seconds"]["runs"] == 5


def test_an_error_of_a_run_ends_all(
    saved: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    calls: list[int] = []
    compute = MLExecution.compute

    def failing(*args: object) -> object:
        calls.append(0)
        if len(calls) > 9:
            raise MemoryError("of a run")
        return compute(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(MLExecution, "compute", failing)
    given = ["--shape", "n=1", "--duration", "3600", "--concurrency", "3"]
    assert "of a run" in refused(capsys, "run", saved, *given)
    assert len(calls) < 20


# Comparisons


@pytest.mark.parametrize("engine", ["reference", "webgpu"])
def test_engines_agree(
    saved: str, engine: str, gpu: MLContext, array: str, capsys: pytest.CaptureFixture[str]
) -> None:
    report = told(capsys, "run", saved, "--input", array, "--compare", engine)
    assert [(each["output"], each["equal"]) for each in report["differences"]] == [
        ("file", True),
        ("other", True),
    ]


def test_differences_from_arrays_are_told(
    saved: str, array: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "expected.npz"
    given = ["run", saved, "--input", array, "--compare", str(path)]
    expected = {"file": 2 * X, "other": -X}
    _savez(path, expected)
    assert main(given) == 0
    expected["other"] = -X + np.float32(0.25)
    _savez(path, expected)
    first, second = told(capsys, *given, status=1)["differences"]
    assert first["equal"]
    assert (second["equal"], second["different"]) == (False, 8)
    assert second["max_absolute"] == 0.25
    assert main([*given, "--atol", "0.25"]) == 0
    assert main([*given, "--atol", "0.2", "--rtol", "0.01"]) == 1
    del expected["other"]
    _savez(path, expected)
    assert "has no array 'other', but 'file'" in refused(capsys, *given)


def test_what_is_no_number_is_equal_to_its_like(
    saved: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    np.save(tmp_path / "x.npy", INFINITE)
    expected = {"file": 2 * INFINITE, "other": -INFINITE}
    _savez(tmp_path / "e.npz", expected)
    given = ["run", saved, "--input", str(tmp_path / "x.npy"), "--compare", str(tmp_path / "e.npz")]
    assert main(given) == 0
    expected["other"][0, 1] = 0
    _savez(tmp_path / "e.npz", expected)
    _, second = told(capsys, *given, status=1)["differences"]
    assert (second["different"], second["max_absolute"]) == (1, "nan")


# Files


def test_outputs_are_written_by_the_ending(
    saved: str, array: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = [f"--output={tmp_path / 'all.npz'}", f"--output=other={tmp_path / 'y.pb'}"]
    assert main(["run", saved, "--input", array, *files]) == 0
    with np.load(tmp_path / "all.npz") as found:
        np.testing.assert_array_equal(found["file"], 2 * X)
        np.testing.assert_array_equal(found["other"], -X)
    tensor = onnx.TensorProto.FromString((tmp_path / "y.pb").read_bytes())
    assert tensor.name == "other"
    np.testing.assert_array_equal(onnx.numpy_helper.to_array(tensor), -X)
    assert main(["run", saved, "--input", f"x={tmp_path / 'y.pb'}"]) == 0
    message = refused(capsys, "run", saved, "--input", array, f"--output={tmp_path / 'y.npy'}")
    assert "say which one: NAME=FILE; file, other" in message


def test_inputs_come_by_name_from_one_file(
    saved: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    np.savez(tmp_path / "x.npz", x=X)
    first = told(capsys, "run", saved, "--input", str(tmp_path / "x.npz"))["outputs"]["file"]
    assert first["first"] == [0, 2, 4, 6]
    np.savez(tmp_path / "x.npz", z=X)
    assert "no input 'z'" in refused(capsys, "run", saved, "--input", str(tmp_path / "x.npz"))
    message = refused(capsys, "run", saved, "--input", f"x={tmp_path / 'x.npz'}")
    assert "has no array 'x', but 'z'" in message


def test_seeds_change_random_inputs(saved: str, capsys: pytest.CaptureFixture[str]) -> None:
    reports = [told(capsys, "run", saved, "--shape=n=1", f"--seed={n}") for n in (0, 0, 1)]
    assert reports[0] == reports[1] != reports[2]


@pytest.mark.parametrize("what", ["model", "program", "input"])
def test_standard_input_is_a_file(
    saved: str,
    program: str,
    array: str,
    what: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path, given = {
        "model": (saved, ["-", "--input", array]),
        "program": (program, ["-", "--input", f"x={array}"]),
        "input": (array, [saved, "--input=-"]),
    }[what]
    stream = SimpleNamespace(buffer=io.BytesIO(Path(path).read_bytes()), isatty=lambda: False)
    monkeypatch.setattr(sys, "stdin", stream)
    assert told(capsys, "run", *given)["outputs"]["file"]["first"] == [0, 2, 4, 6]
    assert told(capsys, "inspect", program, status=0)["arguments"][0]["name"] == "x"
    with pytest.raises(SystemExit, match="2"):
        main(["run", "-"])
    assert "standard input is empty" in capsys.readouterr().err


# Programs, adapters, threads


def test_programs_run_and_are_profiled(
    program: str, array: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace = tmp_path / "trace.json"
    given = ["--input", f"x={array}", "--benchmark", "2", f"--trace={trace}", "--compare=webgpu"]
    report = told(capsys, "run", program, *given)
    assert report["mode"] == "awaited"
    assert report["outputs"]["other"]["min"] == -7
    assert report["seconds"]["runs"] == 2
    assert report["profile"]["arguments"] == 3
    assert len(json.loads(trace.read_text())["traceEvents"]) == len(report["profile"]["steps"])
    assert "mode awaited" in refused(capsys, "run", program, "--mode", "encoder")
    assert "sizes of a saved program" in refused(capsys, "run", program, "--shape", "n=2")


def test_a_program_s_arguments_are_shown(program: str, capsys: pytest.CaptureFixture[str]) -> None:
    found = told(capsys, "inspect", program)
    assert [(each["name"], each["access"]) for each in found["arguments"]] == [
        ("x", "read"),
        ("file", "write"),
        ("other", "write"),
    ]
    assert main(["inspect", program]) == 0
    out = capsys.readouterr().out
    assert "float32[2,4]" in out
    assert "1 times:" in out


def test_an_adapter_is_chosen(
    saved: str, gpu: MLContext, capsys: pytest.CaptureFixture[str]
) -> None:
    name = gpu.device.adapter.info["device"]
    for adapter in (name.upper(), "0"):
        report = told(capsys, "run", saved, "--shape=n=1", "--adapter", adapter)
        assert report["mode"] == "awaited"  # as on a GPU
    message = refused(capsys, "run", saved, "--shape=n=1", "--adapter", "no such GPU")
    assert "there is no 'no such GPU'" in message
    assert f"0 {name}" in message


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--warmup", "2"], "--warmup needs --benchmark N or --duration SECONDS"),
        (["--adapter", "0", "--device", "cpu"], "--adapter names a GPU"),
        (["--threads", "2", "--device", "gpu"], "--threads"),
        (["--threads", "2", "--engine", "reference"], "has no option 'threads'"),
        (["--device=gpu", "--mode=encoder", "--benchmark=2", "--concurrency=2"], "one run after"),
    ],
)
def test_options_that_contradict_each_other(
    saved: str,
    arguments: list[str],
    message: str,
    gpu: MLContext,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert message in refused(capsys, "run", saved, "--shape", "n=1", *arguments)


@pytest.mark.parametrize(
    ("option", "expected"),
    [
        ("--compare=nothing", "or an engine: reference"),
        ("--output=y.txt", ".npy, .npz, .pb"),
        ("--output=nowhere/y.npy", "there is no folder nowhere"),
        ("--trace=trace.txt", "expected a file .json"),
        ("--duration=0", "expected seconds above 0"),
        ("--rtol=-1", "expected a number from 0"),
        ("--seed=a", "expected a number from 0"),
        ("--nothing", "unrecognized arguments"),
    ],
)
def test_errors_of_options_are_one_line(
    option: str, expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["run", "nowhere.onnx", option])
    said = capsys.readouterr().err
    assert expected in said
    assert said.count("\n") == 1

"""The benchmark of models on a GPU still runs, and its peers compute the same."""

from __future__ import annotations

import copy
import dataclasses
import json
import math
import time
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

pytest.importorskip("onnx")
from benchmarks import gpu, gpu_builds, gpu_operators, gpu_peers, networks, report
from benchmarks.cases import OPERATORS
from benchmarks.large_operators import CASES
from benchmarks.models import ENCODER, LIGHT, batched, half, inputs_of, logits, model
from webnn_py import MLExecution, MLGraphBuilder, ml
from webnn_py import onnx as webnn_onnx

CASE = "relu, 4 floats"


def test_it_writes_what_it_can_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(gpu, "SECONDS", 0.0)
    monkeypatch.setattr(gpu, "WAKE", 0.0)
    monkeypatch.setattr(gpu, "until_steady", lambda run: run())
    monkeypatch.setattr(report, "TURN_SECONDS", 0.0)
    monkeypatch.setattr(gpu, "missing_torch", lambda: "no PyTorch today")
    path, written = tmp_path / "gpu.json", tmp_path / "gpu.md"
    figures = gpu.main(["--models", CASE, "--runs", "1", "--json", str(path)])
    (row,) = figures["rows"]
    assert not row["failed"]
    assert {"await", "first_await", "await16", "call", "gpu", "gpu16"} <= set(row)
    printed = capsys.readouterr().out
    assert gpu.main(["--from-json", str(path), "--markdown", str(written)]) == figures
    assert json.loads(path.read_text()) == figures
    assert capsys.readouterr().out in printed
    text = written.read_text()
    assert f"| {CASE} | –" in text
    assert text.endswith("no PyTorch today\n")


def test_a_run_that_is_cut_short_keeps_its_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measure = gpu.Row.measure

    def once(row: gpu.Row, *options: Any) -> None:
        if row.figures["model"] != CASE:
            raise KeyboardInterrupt
        measure(row, *options)

    monkeypatch.setattr(gpu, "SECONDS", 0.0)
    monkeypatch.setattr(gpu, "WAKE", 0.0)
    monkeypatch.setattr(gpu, "until_steady", lambda run: run())
    monkeypatch.setattr(gpu, "missing_torch", lambda: "no PyTorch today")
    monkeypatch.setattr(gpu.Row, "measure", once)
    path = tmp_path / "gpu.json"
    with pytest.raises(KeyboardInterrupt):
        gpu.main(["--models", CASE, "softmax 64x1024", "--runs", "1", "--json", str(path)])
    assert [row["model"] for row in json.loads(path.read_text())["rows"]] == [CASE]


def test_starts_are_measured_in_processes_that_keep_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(gpu_builds, "missing_onnxruntime", lambda: "no ONNX Runtime today")
    path = tmp_path / "builds.json"
    figures = gpu_builds.main(["--models", CASE, "--rounds", "1", "--json", str(path)])
    (row,) = figures["rows"]
    assert row["model"] == CASE
    assert min(row["cold"], row["again"]) > 0
    assert figures["notes"] == ["no ONNX Runtime today"]
    printed = capsys.readouterr().out
    assert gpu_builds.main(["--from-json", str(path)]) == figures
    assert capsys.readouterr().out in printed


def test_a_start_that_fails_says_why(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match=r"missing\.onnx"):
        gpu_builds.in_process("cold", tmp_path / "missing.onnx", tmp_path, gpu_builds.COLD)


def test_what_counts_is_recorded_once_the_clock_is_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the GPU did before: one that has rested takes two seconds to be as fast."""
    begin = time.perf_counter()

    class Rested:
        def seconds(self, count: int) -> float:
            return 0.005 if time.perf_counter() < begin + 0.4 else 0.001

    monkeypatch.setattr(gpu, "SECONDS", 0.0)
    monkeypatch.setattr(gpu, "WAKE", 0.0)
    rested: Any = Rested()
    assert gpu.recorded_times({"gpu": rested}) == {"gpu": pytest.approx(1)}


@pytest.mark.parametrize("data_type", ["float32", "float16"])
def test_large_operators(data_type: str) -> None:
    """Recorded alone, which takes no memory."""
    with ml.create_context_sync(device_type="cpu", engine="reference") as context:
        for case in CASES.values():
            b = MLGraphBuilder(context)
            kinds = [data_type] * (len(case.shapes) - len(case.most)) + ["int32"] * len(case.most)
            inputs = enumerate(zip(kinds, case.shapes, strict=True))
            y = case.build(b, *(b.input(f"x{number}", *each) for number, each in inputs))  # type: ignore[arg-type]
            assert math.prod(y.shape) > 0


def test_an_operator_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    small = dataclasses.replace(CASES["product"], shapes=((3, 4), (4, 5)))
    monkeypatch.setitem(CASES, "product", small)
    monkeypatch.setattr(gpu, "SECONDS", 0.0)
    monkeypatch.setattr(gpu, "WAKE", 0.0)
    monkeypatch.setattr(gpu, "until_steady", lambda run: run())
    monkeypatch.setattr(gpu_operators, "missing_torch", lambda: "no PyTorch today")
    figures = gpu_operators.main(["--cases", "product", "--data-type", "float16"])
    (row,) = figures["rows"]
    assert row["gb_s"] == pytest.approx((12 + 20 + 15) * 2 / row["gpu"] / 1e6)
    ((title, _, lines),), _ = gpu_operators.tables(figures)
    assert title.startswith("float16 at large sizes, ")
    assert lines[0][:2] == ["product", row["gpu"]]


def test_a_peer_that_fails_is_a_note(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(given: onnx.ModelProto, channels_last: bool) -> None:
        raise RuntimeError("out of order")

    monkeypatch.setattr(gpu, "by_torch", fails)
    with gpu.opened() as (contexts, _):
        row = gpu.Row(contexts, CASE, 1)
        row.measure((), torch=True)
    assert row.figures["failed"] == {
        "cuda": "RuntimeError: out of order",
        "tf32": "RuntimeError: out of order",
        "cuda16": "RuntimeError: out of order",
    }
    figures = {"machine": {"adapter": "a GPU"}, "notes": [], "rows": [row.figures]}
    assert f"{CASE}, cuda: RuntimeError: out of order" in gpu.tables(figures)[1]


def test_a_peer_that_computes_something_else_is_a_note(monkeypatch: pytest.MonkeyPatch) -> None:
    def load(given: onnx.ModelProto, inputs: gpu_peers.Arrays) -> gpu_peers.Run:
        return lambda: np.ones(4, np.float32)

    monkeypatch.setitem(gpu_peers.PEERS, "ort", (lambda: None, load))
    with gpu.opened() as (contexts, _):
        row = gpu.Row(contexts, CASE, 1)
        row.measure(["ort"], torch=False)
    assert row.figures["failed"]["ort"].startswith("WRONG: its logits are off by ")
    assert row.figures["ort"] > 0
    figures = {"machine": {"adapter": "a GPU"}, "notes": [], "rows": [row.figures]}
    (*_, (title, columns, (line,))), _ = gpu.tables(figures)
    assert title.startswith("largest error of the logits")
    assert dict(zip(columns, line, strict=True))["ORT"].endswith(" WRONG")  # type: ignore[attr-defined]
    assert dict(zip(columns, line, strict=True))["f32"] == "0.0e+00"


def test_results_that_are_not_numbers_are_wrong() -> None:
    with gpu.opened() as (contexts, _):
        row = gpu.Row(contexts, CASE, 1)
    row._compare("ort", "", np.full(4, np.nan, np.float32))
    assert "ort" in row.figures["failed"]


def test_logits_are_compared_in_the_place_of_a_softmax() -> None:
    """Whose result is 1 in one place for the right logits, and for others."""
    found = model("squeezenet")
    inputs = inputs_of(found)
    with ml.create_context_sync() as context:
        results = [
            next(iter(MLExecution(context).compute(webnn_onnx.load(m, context), inputs).values()))
            for m in (found, logits(found))
        ]
    shares, values = (np.asarray(result, np.float64).ravel() for result in results)
    whole = np.exp(values - values.max())
    np.testing.assert_allclose(shares, whole / whole.sum(), atol=1e-4)
    assert abs(values.sum() - 1) > 1
    for name in (ENCODER, "softmax 64x1024"):
        whole_model = gpu.MODELS[name]()
        assert logits(whole_model) is whole_model


def test_models_for_wonnx() -> None:
    found = gpu_peers.for_wonnx(model("squeezenet")).graph
    assert "Dropout" not in {node.op_type for node in found.node}
    shapes = {v.name: v.type.tensor_type.shape.dim for v in (*found.value_info, *found.output)}
    assert all(shapes[name] for node in found.node for name in node.output)


def test_the_product_tells_its_rate() -> None:
    row = {"model": "matmul 4096", "failed": {}, "gpu": 2.0, "cuda16": 1.0}
    figures = {"machine": {"adapter": "a GPU"}, "notes": [], "rows": [row]}
    assert gpu.tables(figures)[1] == ["matmul 4096, TFLOP/s: f32 68.7, CUDA f16 137.4"]


def test_ratios_end_with_their_medians() -> None:
    names = {"f16": [1.0, 3.0, 8.0, 5.0], "CUDA f16": [2.0, 2.0, 2.0, None]}
    rows = [
        {"model": f"m{n}", "failed": {}, "dawn16": ours, "cuda16": theirs}
        for n, (ours, theirs) in enumerate(zip(*names.values(), strict=True))
    ]
    figures = {"machine": {"adapter": "a GPU"}, "notes": [], "rows": rows}
    (_, columns, lines), _ = gpu.tables(figures)[0]
    place = columns.index("ratio f16")
    assert [line[place] for line in lines] == [0.5, 1.5, 4.0, None, 1.5]
    assert lines[-1][columns.index("ratio")] is None


NETWORKS = {
    "encoder": lambda: networks.encoder(2, 1, 32, 4),
    "resnet50": lambda: batched(model("resnet50"), 2),
    "ViT": lambda: networks.vision_transformer(2, 1),
    "Whisper": lambda: networks.whisper_tiny(1),
    "YOLO": lambda: networks.yolo_v8n(64),
    "SD block": lambda: networks.diffusion_block(320, 8),
    "SD decoder": lambda: networks.diffusion_decoder(8),
    "Llama": lambda: networks.prefill(12, 1, "float32"),
    "attention": lambda: networks.attention(16),
    "super-resolution": lambda: networks.super_resolution(12, 16),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_float16_holds_the_values_of_networks(name: str) -> None:
    """Their weights are random: a spread that is too wide would overflow."""
    whole = NETWORKS[name]()
    results = []
    with ml.create_context_sync() as context:
        for found in (whole, half(copy.deepcopy(whole))):
            graph = webnn_onnx.load(found, context)
            results.append(
                next(iter(MLExecution(context).compute(graph, inputs_of(found)).values()))
            )
    exact, rounded = (np.asarray(result, np.float64) for result in results)
    assert np.abs(exact).max() > 0
    assert gpu.apart(rounded, exact) < gpu.LARGE["16"]


@pytest.mark.parametrize("name", NETWORKS)
def test_networks_by_pytorch(name: str) -> None:
    check_torch(NETWORKS[name]())


@pytest.mark.parametrize("name", ["squeezenet", "shufflenet", "inception_v1", ENCODER])
def test_models_by_pytorch(name: str) -> None:
    check_torch(model(name))


def check_torch(found: onnx.ModelProto) -> None:
    """Check that PyTorch computes what we do, with both orders of channels."""
    torch = pytest.importorskip("torch", reason="PyTorch is only measured against")
    from benchmarks.torch_model import TorchModel

    inputs = inputs_of(found)
    arrays = {key: torch.from_numpy(a) for key, a in inputs.items()}
    with ml.create_context_sync() as context:
        expected = MLExecution(context).compute(webnn_onnx.load(found, context), inputs)
    (wanted,) = expected.values()
    for channels_last in (False, True):
        with torch.inference_mode():
            got = TorchModel(found, channels_last=channels_last)(arrays).numpy()
        assert gpu.apart(got, np.asarray(wanted)) < 1e-4


def test_pytorch_has_every_operator_that_is_measured() -> None:
    """Its functions are read without importing it."""
    source = Path(gpu_peers.__file__).with_name("torch_model.py").read_text()
    large = {"bvlc_alexnet", "vgg19"}  # slow to fill, and of the same operators as others
    for name in {*LIGHT, ENCODER, *OPERATORS} - large:
        for node in gpu.MODELS[name]().graph.node:
            assert f'    "{node.op_type}": ' in source

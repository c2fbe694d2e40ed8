"""Weights that lie outside of a model's structure: in other files, and large ones in its own."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

from tests.onnx.models import model
from tests.onnx.test_importer import computed
from webnn_py import DataError, MLContext, MLExecution
from webnn_py.onnx import load

node = helper.make_node


def test_external_data(cpu: MLContext, tmp_path: Path) -> None:
    made = model([node("Add", ["x", "w"], ["y"])], {"x": [300]}, ["y"], {"w": np.ones(300, "f4")})
    onnx.save(
        made, tmp_path / "m.onnx", save_as_external_data=True, location="w.bin", size_threshold=0
    )
    assert computed(cpu, tmp_path / "m.onnx", np.ones(300, np.float32))["y"].tolist() == [2] * 300
    (tmp_path / "w.bin").write_bytes(b"short")
    with pytest.raises(DataError, match="'w'"):
        load(tmp_path / "m.onnx", cpu)
    (tmp_path / "w.bin").unlink()
    with pytest.raises(DataError, match="external data"):
        load(tmp_path / "m.onnx", cpu)


def test_large_external_data(cpu: MLContext, tmp_path: Path) -> None:
    """A graph keeps its weights when the file changes behind it."""
    weights = np.random.default_rng(0).normal(size=(300, 1000)).astype(np.float32)
    made = model([node("Add", ["x", "w"], ["y"])], {"x": [1000]}, ["y"], {"w": weights})
    path, data, x = tmp_path / "m.onnx", tmp_path / "w.bin", np.ones(1000, np.float32)
    onnx.save(made, path, save_as_external_data=True, location="w.bin", size_threshold=0)
    whole = data.read_bytes()
    graph = load(path, cpu)
    data.write_bytes(bytes(len(whole)))
    np.testing.assert_array_equal(MLExecution(cpu).compute(graph, {"x": x})["y"], weights + 1)
    data.write_bytes(whole[:-4])
    with pytest.raises(DataError, match="'w': its external data cannot be read"):
        load(path, cpu)
    (tmp_path / "elsewhere").mkdir()
    data.rename(tmp_path / "elsewhere/w.bin")
    data.symlink_to("/etc/hostname")
    with pytest.raises(DataError, match="'w'"):
        load(path, cpu)


def test_external_data_behind_links(cpu: MLContext, tmp_path: Path) -> None:
    """A cache keeps contents in one folder and links to them in others; no link leads elsewhere."""
    made = model([node("Add", ["x", "w"], ["y"])], {"x": [300]}, ["y"], {"w": np.ones(300, "f4")})
    (tmp_path / "blobs").mkdir()
    onnx.save(made, tmp_path / "m.onnx", save_as_external_data=True, size_threshold=0, location="d")
    (tmp_path / "m.onnx").rename(tmp_path / "blobs/1")
    (tmp_path / "d").rename(tmp_path / "blobs/2")
    (tmp_path / "names").mkdir()
    (tmp_path / "names/m.onnx").symlink_to("../blobs/1")
    (tmp_path / "names/d").symlink_to("../blobs/2")
    (tmp_path / "blobs/d").symlink_to("2")
    x = np.zeros(300, np.float32)
    for path in ("names/m.onnx", "blobs/1"):
        assert computed(cpu, tmp_path / path, x)["y"].tolist() == [1] * 300
    (tmp_path / "names/m.onnx").unlink()
    (tmp_path / "names/m.onnx").write_bytes((tmp_path / "blobs/1").read_bytes())
    with pytest.raises(DataError, match="its external data cannot be read"):
        load(tmp_path / "names/m.onnx", cpu)


def test_large_weights_from_any_source(cpu: MLContext, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    weights = {
        "w": rng.normal(size=(2, 5000)).astype(np.float32),
        "h": rng.normal(size=(2, 5000)).astype(np.float16),
        "i": rng.integers(0, 99, (2, 5000)),
    }
    casts = [node("Cast", [name], [f"{name}_"], to=onnx.TensorProto.FLOAT) for name in "hi"]
    made = model(
        [*casts, node("Sum", ["x", "w", "h_", "i_"], ["y"])], {"x": [5000]}, ["y"], weights
    )
    made.graph.initializer[0].doc_string = "after the data"
    contents = made.SerializeToString()
    (tmp_path / "m.onnx").write_bytes(contents)
    x = np.ones(5000, np.float32)
    expected = x + sum(weight.astype(np.float32) for weight in weights.values())
    for source in (made, contents, memoryview(contents), tmp_path / "m.onnx"):
        np.testing.assert_allclose(computed(cpu, source, x)["y"], expected, rtol=1e-5, atol=1e-6)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no pipes with names")
@pytest.mark.parametrize("link", [False, True])
def test_a_pipe_is_no_external_data(cpu: MLContext, tmp_path: Path, link: bool) -> None:
    made = model([node("Add", ["x", "w"], ["y"])], {"x": [300]}, ["y"], {"w": np.ones(300, "f4")})
    path, data = tmp_path / "m.onnx", tmp_path / "w.bin"
    onnx.save(made, path, save_as_external_data=True, location="w.bin", size_threshold=0)
    data.unlink()
    os.mkfifo(tmp_path / "pipe" if link else data)
    if link:
        data.symlink_to(tmp_path / "pipe")
    with pytest.raises(DataError, match="expected a file, got a pipe"):
        load(path, cpu)

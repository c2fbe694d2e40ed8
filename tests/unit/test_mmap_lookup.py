"""Which files arrays are mapped from: found, unless a name is that of another one by now."""

from __future__ import annotations

import mmap
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from webnn_py import MLContext, MLExecution, MLGraph, MLGraphBuilder, ml
from webnn_py.memory import weight_spill
from webnn_py.memory.mmap_lookup import find_file_ranges
from webnn_py.memory.weight_spill import WeightSpill

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="Linux says what is mapped")
Array = np.ndarray[Any, Any]


def mapped(path: Path, first: int) -> Array:
    with path.open("rb") as file:
        memory = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    return np.frombuffer(memory, np.float32, offset=first)


@pytest.mark.parametrize("name", ["weights", "with a space", "(deleted)", "\u00fc\u65e5"])
def test_arrays_of_files_are_found(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    numbers = np.arange(3 * 4096, dtype=np.float32)
    path.write_bytes(numbers.tobytes())
    array = mapped(path, 64)
    part = array[5000:]
    with find_file_ranges({"part": part, "own": np.ones(3, np.float32)}) as found:
        assert list(found) == ["part"]
    folder, file, offset, length = found["part"]
    assert Path(folder, file) == path
    read = np.frombuffer(path.read_bytes()[offset : offset + length], np.float32)
    np.testing.assert_array_equal(read, part)


def test_files_that_were_replaced_are_not(tmp_path: Path) -> None:
    path, other = tmp_path / "weights", tmp_path / "other"
    for place in (path, other):
        place.write_bytes(bytes(8192))
    array = mapped(path, 0)

    def is_found() -> bool:
        with find_file_ranges({"x": array}) as found:
            return bool(found)

    assert is_found()
    other.replace(path)
    assert not is_found()
    path.unlink()
    assert not is_found()


def test_files_without_names_have_some_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weight_spill, "MAX_PLAIN_BYTES", 0)
    kept, given = WeightSpill(), [np.full((512, 512 + i), i, np.float32) for i in range(3)]
    arrays = {str(i): kept.copy(array) for i, array in enumerate(given)}
    with find_file_ranges(arrays) as found:
        for name, (folder, file, offset, length) in found.items():
            read = np.frombuffer(Path(folder, file).read_bytes()[offset : offset + length], "f4")
            np.testing.assert_array_equal(read, given[int(name)].reshape(-1))
        assert found.keys() == arrays.keys()
    assert not any(Path(place.folder).exists() for place in found.values())


def test_names_go_where_there_is_no_descriptor_left(monkeypatch: pytest.MonkeyPatch) -> None:
    resource = pytest.importorskip("resource")
    monkeypatch.setattr(weight_spill, "MAX_PLAIN_BYTES", 0)
    array = WeightSpill().copy(np.ones((512, 512), np.float32))
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        with find_file_ranges({"x": array}) as found:
            resource.setrlimit(resource.RLIMIT_NOFILE, (3, limits[1]))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert not Path(found["x"].folder).exists()


@pytest.fixture
def context() -> MLContext:
    pytest.importorskip("onnxruntime")
    return ml.create_context_sync(engine="onnxruntime")


def saved(context: MLContext, path: Path, seed: int) -> tuple[MLGraph, Array]:
    rng = np.random.default_rng(seed)
    weights = rng.normal(size=(64, 64)).astype(np.float32)
    builder = MLGraphBuilder(context)
    x = builder.input("x", "float32", ["n", 64])
    builder.build_sync({"y": builder.matmul(x, builder.constant(weights))}).save(path)
    return context.load_graph_sync(path), weights


def test_sessions_map_weights_of_files_themselves(context: MLContext, tmp_path: Path) -> None:
    graph, weights = saved(context, tmp_path / "graph", 1)
    x = np.random.default_rng(0).normal(size=(2, 64)).astype(np.float32)
    made = MLExecution(context).compute(graph, {"x": x})["y"]
    np.testing.assert_allclose(made, x @ weights, rtol=1e-4, atol=1e-5)
    compiled: Any = graph._compiled.executable(graph._compiled.session, sizes=(("n", 2),))
    assert compiled._model.weights == []


def test_sessions_map_weights_without_a_file_of_the_users_too(
    context: MLContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as those of a builder: ONNX Runtime would copy them before it lays them out."""
    monkeypatch.setattr(weight_spill, "MAX_PLAIN_BYTES", 0)
    weights = np.random.default_rng(0).normal(size=(512, 513)).astype(np.float32)
    builder = MLGraphBuilder(context)
    x = builder.input("x", "float32", ["n", 512])
    graph = builder.build_sync({"y": builder.matmul(x, builder.constant(weights))})
    rows = np.random.default_rng(1).normal(size=(2, 512)).astype(np.float32)
    made = MLExecution(context).compute(graph, {"x": rows})["y"]
    np.testing.assert_allclose(made, rows @ weights, rtol=1e-4, atol=1e-4)
    compiled: Any = graph._compiled.executable(graph._compiled.session, sizes=(("n", 2),))
    assert compiled._model.weights == []


def test_a_graph_keeps_its_weights_where_its_file_is_replaced(
    context: MLContext, tmp_path: Path
) -> None:
    """It is compiled with the first sizes, when the file is another one."""
    graph, weights = saved(context, tmp_path / "graph", 1)
    _, others = saved(context, tmp_path / "graph", 2)
    x = np.random.default_rng(0).normal(size=(2, 64)).astype(np.float32)
    made = MLExecution(context).compute(graph, {"x": x})["y"]
    np.testing.assert_allclose(made, x @ weights, rtol=1e-4, atol=1e-5)
    assert not np.allclose(weights, others)

"""Models that are known from an earlier process: the same as imported anew, and only the same."""

from __future__ import annotations

import gc
import json
import os
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from tests.graphs import normal
from tests.internals import built_from, engine_of, recipe_of
from tests.onnx.models import model
from tests.property.graphs import seeded_case
from webnn_py import MLContext, MLError, MLExecution, MLGraph, ml
from webnn_py.core import cache
from webnn_py.engines.reference import ReferenceEngine
from webnn_py.ir import Graph
from webnn_py.onnx import import_cache, load, load_impl, protobuf_strip, to_onnx
from webnn_py.passes import TILES
from webnn_py.passes.pipeline import verify_types

INPUTS = {"x": normal(1, 16, 8, 8, seed=9)}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("WEBNN_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(import_cache, "MIN_NODES", 1)
    monkeypatch.setattr(ReferenceEngine, "rewrites_by", "as for hardware")
    return tmp_path / "cache" / import_cache.KIND


@pytest.fixture
def context() -> Iterator[MLContext]:
    """Whose engine has the passes of hardware."""
    with ml.create_context_sync(device_type="cpu", engine="reference") as made:
        engine_of(made).passes = TILES
        yield made


@pytest.fixture
def imports(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The models that are imported node by node."""
    models = []

    def imported(context: MLContext, given: Any, *others: Any) -> Any:
        models.append(given)
        return plain(context, given, *others)

    plain = load_impl.imported
    monkeypatch.setattr(load_impl, "imported", imported)
    return models


def network(seed: int = 0, channels: int = 64, slope: float = 0.5) -> onnx.ModelProto:
    """Convolutions, one transposed, normalized, a concat, a product with weights transposed."""
    node = helper.make_node
    weights = {
        "w0": normal(channels, 16, 3, 3, seed=seed),
        "w1": normal(channels, channels, 1, 1, seed=seed + 1),
        "w2": normal(channels, channels, 3, 3, seed=seed + 10),
        "scale": 1 + np.abs(normal(channels, seed=seed + 2)),
        "bias": normal(channels, seed=seed + 3),
        "mean": normal(channels, seed=seed + 4),
        "variance": 1 + np.abs(normal(channels, seed=seed + 5)),
        "factor": np.asarray(slope, np.float32),
        "fc": normal(10, 2 * channels * 64, seed=seed + 6),
        "unread": normal(64, 64, seed=seed + 7),
    }
    nodes = [
        node("Conv", ["x", "w0"], ["c0"], name="first", pads=[1, 1, 1, 1]),
        node("BatchNormalization", ["c0", "scale", "bias", "mean", "variance"], ["n0"]),
        node("LeakyRelu", ["n0"], ["r0"], alpha=slope),
        node("ConvTranspose", ["r0", "w2"], ["t0"], strides=[2, 2], pads=[0, 0, 1, 1]),
        node("MaxPool", ["t0"], ["p0"], kernel_shape=[2, 2], strides=[2, 2]),
        node("Conv", ["p0", "w1"], ["c1"], name="second"),
        node("Relu", ["c1"], ["r1"]),
        node("Mul", ["r1", "factor"], ["m1"]),
        node("Concat", ["r0", "m1"], ["k"], axis=1),
        node("Flatten", ["k"], ["f"]),
        node("Gemm", ["f", "fc"], ["y"], transB=1),
    ]
    return model(nodes, {"x": [1, 16, 8, 8]}, ["y"], weights)


def saved(path: Path, given: onnx.ModelProto) -> Path:
    onnx.save(given, path)
    return path


def results(context: MLContext, graph: MLGraph, inputs: Any = None) -> Any:
    return MLExecution(context).compute(graph, INPUTS if inputs is None else inputs)


def parts(graph: Graph) -> Any:
    """All of a graph."""
    constants = [(str(v), v.name, a.tobytes()) for v, a in graph.constants.items()]
    options = [(n.op, n.label, repr(dict(n.given)), repr(dict(n.inferred))) for n in graph.nodes]
    return str(graph), constants, options


def listed(graph: MLGraph) -> Graph:
    listing: Any = graph._compiled._listing
    return listing.graph  # type: ignore[no-any-return]


def assert_same(graph: MLGraph, other: MLGraph) -> None:
    assert parts(recipe_of(graph)) == parts(recipe_of(other))
    assert parts(listed(graph)) == parts(listed(other))
    verify_types(recipe_of(graph))
    verify_types(listed(graph))


def test_the_second_start_is_the_same(
    context: MLContext, tmp_path: Path, imports: list[Any]
) -> None:
    path = saved(tmp_path / "model.onnx", network())
    first, again = load(path, context), load(path, context)
    assert len(imports) == 1
    assert_same(again, first)
    wanted, got = results(context, first), results(context, again)
    assert wanted["y"].tobytes() == got["y"].tobytes()
    assert not any(array.flags.writeable for array in listed(again).constants.values())


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_bytes_of_a_file(kind: Any, context: MLContext, tmp_path: Path, imports: list[Any]) -> None:
    path = saved(tmp_path / "model.onnx", network())
    first = load(path, context)
    contents = bytearray(path.read_bytes())
    again = load(kind(contents), context)
    assert len(imports) == 1
    contents[:] = bytes(len(contents))  # which is the user's
    assert_same(again, first)
    load(kind(path.read_bytes()), context)
    assert len(imports) == 1


def test_bytes_before_a_file(context: MLContext, tmp_path: Path, imports: list[Any]) -> None:
    path = saved(tmp_path / "model.onnx", network())
    first = load(path.read_bytes(), context)
    assert_same(load(path, context), first)
    assert len(imports) == 1


def test_the_model_goes_when_its_graph_is_built(
    context: MLContext, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    models = []

    def imported(ctx: MLContext, given: Any, *others: Any) -> Any:
        models.append(weakref.ref(given))
        return plain(ctx, given, *others)

    plain = load_impl.imported
    monkeypatch.setattr(load_impl, "imported", imported)
    graph = load(saved(tmp_path / "model.onnx", network()), context)
    gc.collect()
    (model,) = models
    assert model() is None
    assert results(context, graph)


def test_what_is_large_is_not_kept(context: MLContext, tmp_path: Path, folder: Path) -> None:
    """Derived weights are not either."""
    path = saved(tmp_path / "model.onnx", network(channels=256))
    load(path, context)
    (file,) = folder.iterdir()
    assert file.stat().st_size < path.stat().st_size / 20


@pytest.mark.parametrize("seed", range(60))
def test_random_graphs(
    seed: int,
    context: MLContext,
    tmp_path: Path,
    folder: Path,
    imports: list[Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With all weights left in the file, and every other time all that can be is derived."""
    monkeypatch.setattr(protobuf_strip, "MIN_STRIPPED_BYTES", 1)
    if seed % 2:
        monkeypatch.setattr(import_cache, "MAX_INLINE_BYTES", 8)
    try:
        given = to_onnx(built_from(context, seeded_case(seed).graph))
        path = saved(tmp_path / "model.onnx", given)
        first = load(path, context)
    except MLError:
        pytest.skip("ONNX cannot express it")
    kept = folder.exists()
    assert kept or seed % 2
    assert_same(load(path, context), first)
    assert len(imports) == (1 if kept else 2)


@pytest.mark.parametrize("name", ["w0", "w1", "w2", "fc", "scale", "mean", "unread"])
def test_other_weights_in_the_same_file(
    name: str, context: MLContext, tmp_path: Path, imports: list[Any]
) -> None:
    """In place, with the times as they were: of those that nobody reads, all is imported, too."""
    path = saved(tmp_path / "model.onnx", network())
    before = results(context, load(path, context))["y"]
    times = path.stat()
    given = onnx.load(path)
    (tensor,) = (one for one in given.graph.initializer if one.name == name)
    changed = onnx.numpy_helper.to_array(tensor).copy()
    changed.reshape(-1)[-1] += 1
    contents = path.read_bytes()
    assert contents.count(tensor.raw_data) == 1
    path.write_bytes(contents.replace(tensor.raw_data, changed.tobytes()))
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    after = results(context, load(path, context))["y"]
    assert len(imports) == 2
    tensor.raw_data = changed.tobytes()
    wanted = results(context, load(given, context))["y"]
    assert after.tobytes() == wanted.tobytes()
    assert (after.tobytes() == before.tobytes()) == (name == "unread")
    load(path, context)
    assert len(imports) == 3  # that of the ModelProto, and none for what is known by now


@pytest.mark.parametrize(
    "other", [network(slope=0.25), network(channels=32)], ids=["slope", "channels"]
)
def test_other_models(
    other: onnx.ModelProto, context: MLContext, tmp_path: Path, imports: list[Any]
) -> None:
    first = load(saved(tmp_path / "model.onnx", network()), context)
    again = load(saved(tmp_path / "model.onnx", other), context)
    assert len(imports) == 2
    assert parts(recipe_of(first)) != parts(recipe_of(again))


def test_the_same_model_elsewhere(context: MLContext, tmp_path: Path, imports: list[Any]) -> None:
    load(saved(tmp_path / "model.onnx", network()), context)
    load(saved(tmp_path / "copy.onnx", network()), context)
    assert len(imports) == 1


def test_other_shapes(context: MLContext, tmp_path: Path, imports: list[Any]) -> None:
    given = network()
    given.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "batch"
    path = saved(tmp_path / "model.onnx", given)
    for batch in (1, 2, 1):
        graph = load(path, context, {"x": [batch, 16, 8, 8]})
        assert graph.inputs["x"].shape[0] == batch
    assert len(imports) == 2
    assert load(path, context).inputs["x"].shape[0] != 1  # an open dimension: nothing is kept
    load(path, context)
    assert len(imports) == 4


def test_another_device(
    context: MLContext, tmp_path: Path, imports: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = saved(tmp_path / "model.onnx", network())
    load(path, context)
    monkeypatch.setattr(ReferenceEngine, "rewrites_by", "something else")
    load(path, context)
    assert len(imports) == 2


@pytest.mark.parametrize("changed", ["sources", "onnx", "off", "debug"])
def test_what_else_it_follows_from(
    changed: str,
    context: MLContext,
    tmp_path: Path,
    imports: list[Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    path = saved(tmp_path / "model.onnx", network())
    load(path, context)
    if changed == "sources":
        monkeypatch.setattr(cache, "source_fingerprint", lambda *folders: "changed")
    elif changed == "onnx":
        monkeypatch.setattr(onnx, "__version__", "99")
    elif changed == "off":
        monkeypatch.setenv("WEBNN_CACHE", "0")
    else:  # which prints what passes do
        monkeypatch.setenv("WEBNN_DEBUG", "1")
    load(path, context)
    assert len(imports) == 2


def test_external_data_is_read_anew(context: MLContext, tmp_path: Path, imports: list[Any]) -> None:
    path = tmp_path / "model.onnx"
    onnx.save(network(), path, save_as_external_data=True, location="weights", size_threshold=1024)
    load(path, context)
    load(path, context)
    assert len(imports) == 2


def _lines(change: Callable[[Any], Any]) -> Callable[[bytes], bytes]:
    """Changes what a file says, with the checksum of that."""

    def changed(whole: bytes) -> bytes:
        found = json.loads(whole[8:])
        change(found)
        return cache._with_checksum(json.dumps(found)).encode()

    return changed


@pytest.mark.parametrize(
    "damage",
    [
        lambda whole: b"",
        lambda whole: whole[:-100],
        lambda whole: whole[:500] + b"7" + whole[501:],
        _lines(lambda found: found.clear()),
        _lines(lambda found: found["arrays"].clear()),
        _lines(lambda found: found["computations"].clear()),
        _lines(lambda found: found["computations"][0].__setitem__(1, "open('x')")),
        _lines(lambda found: found["computations"][0].__setitem__(1, "(")),
        _lines(lambda found: found.update(texts="")),
        _lines(lambda found: found["digests"].pop()),
    ],
)
def test_damaged_files_are_written_anew(
    damage: Callable[[bytes], bytes],
    context: MLContext,
    tmp_path: Path,
    folder: Path,
    imports: list[Any],
) -> None:
    path = saved(tmp_path / "model.onnx", network())
    first = load(path, context)
    (file,) = folder.iterdir()
    whole = file.read_bytes()
    file.write_bytes(damage(whole))
    assert_same(load(path, context), first)
    assert len(imports) == 2
    assert file.read_bytes() == whole


def test_small_tensors_of_other_types(
    context: MLContext, tmp_path: Path, imports: list[Any]
) -> None:
    weights = {"i": np.arange(6, dtype=np.int64), "b": np.array([True, False] * 3)}
    nodes = [
        helper.make_node("Cast", ["b"], ["c"], to=TensorProto.INT64),
        helper.make_node("Add", ["x", "i"], ["s"]),
        helper.make_node("Mul", ["s", "c"], ["y"]),
    ]
    given = model(nodes, {"x": [6]}, ["y"], weights, elem=TensorProto.INT64)
    path = saved(tmp_path / "model.onnx", given)
    first, again = load(path, context), load(path, context)
    assert len(imports) == 1
    assert_same(again, first)
    inputs = {"x": np.arange(6)}
    assert results(context, again, inputs)["y"].tolist() == [0, 0, 4, 0, 8, 0]

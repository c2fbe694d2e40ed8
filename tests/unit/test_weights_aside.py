"""Weights that lie in files without names: what they hold, where there is no file, what is held."""

from __future__ import annotations

import os
import pickle
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.internals import recipe_of
from tests.processes import run_alone
from webnn_py import DataError, MLContext, MLExecution, MLGraph, MLGraphBuilder, ml
from webnn_py.memory import memory_trim, weight_spill
from webnn_py.memory.mapped_file import MappedFile, mapping_of
from webnn_py.memory.mmap_lookup import find_file_ranges

pytestmark = pytest.mark.skipif(not hasattr(os, "pwrite"), reason="takes a call of Unix")


@pytest.fixture(autouse=True)
def in_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few weights, too."""
    monkeypatch.setattr(weight_spill, "MAX_PLAIN_BYTES", 0)


def weights(count: int) -> list[np.ndarray[Any, Any]]:
    rng = np.random.default_rng(count)
    return [rng.normal(size=(512, 512 + i)).astype(np.float32) for i in range(count)]


def test_copies_are_what_was_given_and_lie_in_few_files() -> None:
    copies, given = weight_spill.WeightSpill(), weights(9)
    made = [copies.copy(array) for array in given]
    files = {id(mapping_of(array)) for array in made}
    assert id(None) not in files
    assert len(files) <= 5
    memory_trim._drop_pages(made)
    for array, wanted in zip(made, given, strict=True):
        np.testing.assert_array_equal(array, wanted)
        assert not array.flags.writeable
        assert array.ctypes.data % weight_spill.ALIGNMENT == 0


def test_what_lies_in_a_file_is_kept_there() -> None:
    """As what a pass makes of a weight without moving its elements."""
    copies = weight_spill.WeightSpill()
    (given,) = weights(1)
    kept = copies.keep(given)
    assert not np.shares_memory(kept, given)
    assert np.shares_memory(copies.keep(kept.reshape(512, 1, 1, 512)), kept)


@pytest.mark.skipif(sys.platform != "linux", reason="others do not send to files")
def test_arrays_of_users_files_are_copied_without_reading_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, (given,) = tmp_path / "weights", weights(1)
    path.write_bytes(bytes(12) + given.tobytes())
    mapped = MappedFile.of(os.open(path, os.O_RDONLY))
    array = np.frombuffer(mapped, np.float32, given.size, 12).reshape(given.shape)
    monkeypatch.delattr(os, "pwrite")
    made = weight_spill.WeightSpill().copy(array)
    path.write_bytes(bytes(12 + given.nbytes))
    assert mapping_of(made) is not None
    np.testing.assert_array_equal(made, given)
    os.truncate(path, 100)
    with pytest.raises(DataError, match="has become shorter; write a new file"):
        weight_spill.WeightSpill().copy(array)


def test_small_ones_lie_in_plain_memory() -> None:
    given = np.ones(7, np.float32)
    made = weight_spill.WeightSpill().copy(given)
    assert mapping_of(made) is None
    assert not np.shares_memory(made, given)


def test_the_first_ones_stay_in_plain_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    given = weights(4)
    monkeypatch.setattr(weight_spill, "MAX_PLAIN_BYTES", given[0].nbytes + given[1].nbytes)
    copies = weight_spill.WeightSpill()
    assert [mapping_of(copies.copy(array)) is None for array in given] == [True] * 2 + [False] * 2
    assert [mapping_of(copies.keep(array)) is None for array in given] == [False] * 4
    assert copies.keep(given[0].reshape(-1)[:7]).base is given[0]
    others = weight_spill.WeightSpill()
    assert [others.keep(array) is array for array in given] == [True] * 2 + [False] * 2


def test_a_full_disk_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*given: object) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr(os, "pwrite", full)
    (given,) = weights(1)
    made = weight_spill.WeightSpill().copy(given)
    assert mapping_of(made) is None
    np.testing.assert_array_equal(made, given)


def test_other_threads_get_the_interpreter_once_for_each_array(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls, write, ends = [], os.pwrite, threading.Event()

    def counted(descriptor: int, data: bytes, first: int) -> int:
        calls.append(len(data))
        return write(descriptor, data, first)

    monkeypatch.setattr(os, "pwrite", counted)
    other = threading.Thread(target=ends.wait)
    other.start()
    try:
        (given,) = weights(1)
        np.testing.assert_array_equal(weight_spill.WeightSpill().copy(given), given)
    finally:
        ends.set()
        other.join()
    assert calls == [given.nbytes]


@pytest.mark.skipif(sys.platform != "linux", reason="others have no nameless files")
def test_disks_that_have_no_nameless_files_or_links(monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as those of networks: then engines have weights at their addresses."""
    opened = os.open

    def refused(*given: object, **options: object) -> None:
        raise OSError("not supported")

    def plainly(path: str, flags: int, *rest: Any, **options: Any) -> int:
        if flags & os.O_TMPFILE == os.O_TMPFILE:
            refused()
        return opened(path, flags, *rest, **options)

    monkeypatch.setattr(os, "open", plainly)
    monkeypatch.setattr(os, "link", refused)
    (given,) = weights(1)
    made = weight_spill.WeightSpill().copy(given)
    np.testing.assert_array_equal(made, given)
    with find_file_ranges({"x": made}) as found:
        assert not found
    assert mapping_of(made) is not None


@pytest.mark.parametrize(("engine", "apart"), [("onnxruntime", True), ("reference", False)])
def test_weights_that_engines_lay_out_anew_can_be_given_back(
    tmp_path: Path, engine: str, apart: bool
) -> None:
    if engine == "onnxruntime":
        pytest.importorskip(engine)
    with ml.create_context_sync(engine=engine) as context:
        builder = MLGraphBuilder(context)
        x, (given,) = builder.input("x", "float32", [2, 512]), weights(1)
        graph = builder.build_sync({"y": builder.matmul(x, builder.constant(given))})
        (held,) = recipe_of(graph).constants.values()
        assert (mapping_of(held) is not None) == apart
        memory_trim._drop_pages([held])
        graph.save(tmp_path / "graph")
        rows = np.random.default_rng(1).normal(size=(2, 512)).astype(np.float32)
        for again in (graph, context.load_graph_sync(tmp_path / "graph"), pickled(graph, context)):
            made = MLExecution(context).compute(again, {"x": rows})["y"]
            np.testing.assert_allclose(made, rows @ given, rtol=1e-4, atol=1e-4)


def test_what_passes_compute_lies_there_too() -> None:
    pytest.importorskip("onnxruntime")
    with ml.create_context_sync(engine="onnxruntime") as context:
        builder = MLGraphBuilder(context)
        x, (given,) = builder.input("x", "float32", [2, 512]), weights(1)
        doubled = builder.add(builder.constant(given), builder.constant(given))
        graph = builder.build_sync({"y": builder.matmul(x, doubled)})
        listing: Any = graph._compiled._listing
        held = max(listing.graph.constants.values(), key=len)
        assert mapping_of(held) is not None
        np.testing.assert_array_equal(held, 2 * given)


def pickled(graph: MLGraph, context: MLContext) -> MLGraph:
    ml.default_context = context
    try:
        made: MLGraph = pickle.loads(pickle.dumps(graph))
    finally:
        ml.default_context = None
    return made


def resident() -> int:
    """Bytes of memory that this process has."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def hold_weights_once() -> None:
    def build(count: int) -> MLGraph:
        builder = MLGraphBuilder(context)
        x, rng = builder.input("x", "float32", [1, 512]), np.random.default_rng(0)
        for _ in range(count):
            array = rng.standard_normal((512, 512), np.float32)
            x = builder.matmul(x, builder.constant(array))
        return builder.build_sync({"y": x})

    with ml.create_context_sync(engine="onnxruntime") as context:
        build(1)
        before, megabytes = resident(), 48
        graph = build(megabytes)
        MLExecution(context).compute(graph, {"x": np.ones((1, 512), np.float32)})
        assert resident() - before <= 1.2 * (megabytes << 20)


def test_weights_are_held_once() -> None:
    pytest.importorskip("onnxruntime")
    run_alone(hold_weights_once)


def hold_external_weights_once() -> None:
    """Many small ones, as models with weights of 4 bits have."""
    import onnx

    from tests.onnx.models import model
    from webnn_py.onnx import load

    def write(path: Path, count: int) -> int:
        rng = np.random.default_rng(0)
        arrays = {f"w{i}": rng.random((256, 256), np.float32) for i in range(count)}
        names = ["x", *(f"y{i}" for i in range(count))]
        nodes = [
            onnx.helper.make_node("MatMul", [names[i], f"w{i}"], [names[i + 1]])
            for i in range(count)
        ]
        made = model(nodes, {"x": [1, 256]}, names[-1:], arrays)
        onnx.save(made, path, save_as_external_data=True, location=f"{path.name}.data")
        return sum(array.nbytes for array in arrays.values())

    with tempfile.TemporaryDirectory() as folder, ml.create_context_sync(engine="onnxruntime") as c:
        small, large = Path(folder, "small"), Path(folder, "large")
        write(small, 1)
        size = write(large, 192)
        load(small, c)
        memory_trim.trim_memory([np.empty(memory_trim.MIN_TRIMMED_BYTES, np.uint8)])
        before = resident()
        kept = load(large, c)
        MLExecution(c).compute(kept, {"x": np.ones((1, 256), np.float32)})
        assert resident() - before <= 1.3 * size


@pytest.mark.skipif(sys.platform != "linux", reason="others do not send to files")
def test_small_external_weights_are_held_once() -> None:
    pytest.importorskip("onnxruntime")
    run_alone(hold_external_weights_once)


def most_resident() -> int:
    """The most that this process had since `forget_most_resident`, in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    (found,) = (line.split()[1] for line in lines if line.startswith("VmHWM:"))
    return int(found) << 10


def forget_most_resident() -> None:
    Path("/proc/self/clear_refs").write_text("5")


def import_weights_once() -> None:
    """Convolutions with batch normalizations, which are folded into new weights."""
    import onnx

    from tests.onnx.models import model
    from webnn_py.onnx import load

    def write(path: Path, count: int) -> int:
        nodes, arrays, rng = [], {}, np.random.default_rng(0)
        shapes = {"w": (512, 256, 3, 3), "s": (512,), "b": (512,), "m": (512,), "v": (512,)}
        for i in range(count):
            names = {name: f"{name}{i}" for name in shapes}
            arrays |= {names[name]: rng.random(shape, np.float32) for name, shape in shapes.items()}
            nodes.append(onnx.helper.make_node("Conv", ["x", names.pop("w")], [f"c{i}"]))
            nodes.append(
                onnx.helper.make_node("BatchNormalization", [f"c{i}", *names.values()], [f"y{i}"])
            )
        made = model(nodes, {"x": [1, 256, 3, 3]}, [f"y{i}" for i in range(count)], arrays)
        onnx.save(made, path)
        return sum(array.nbytes for array in arrays.values())

    with tempfile.TemporaryDirectory() as folder:
        small, large = Path(folder, "small"), Path(folder, "large")
        write(small, 1)
        size = write(large, 16)
        context = ml.create_context_sync(engine="onnxruntime")
        load(small, context)
        memory_trim.trim_memory([np.empty(memory_trim.MIN_TRIMMED_BYTES, np.uint8)])
        forget_most_resident()
        before = resident()
        kept = load(large, context)
        assert most_resident() - before <= 2.4 * size
        assert resident() - before <= 1.3 * size, kept


@pytest.mark.skipif(sys.platform != "linux", reason="Linux says how much memory there was")
def test_importing_takes_little_more_than_the_session() -> None:
    """Weights of files go through memory one at a time, once as they are and once as folded."""
    pytest.importorskip("onnxruntime")
    run_alone(import_weights_once)

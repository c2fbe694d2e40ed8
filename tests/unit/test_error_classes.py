"""What webnn_py decides is an MLError; what Python finds about a call stays Python's TypeError."""

from __future__ import annotations

import asyncio
import errno
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import webnn_py.onnx
from tests.graphs import ONES, doubling
from webnn_py import (
    DataError,
    FileError,
    InvalidStateError,
    MLAwaitedExecution,
    MLContext,
    MLError,
    MLExecution,
    MLGraphBuilder,
    NotSupportedError,
    Timeline,
    ValidationError,
    ml,
)

Case = tuple[Callable[[MLContext, Path], Any], type[MLError]]

CASES: dict[str, Case] = {
    "graph file": (lambda c, p: c.load_graph_sync(p / "no"), FileError),
    "graph file, awaited": (lambda c, p: asyncio.run(c.load_graph_async(p / "no")), FileError),
    "folder": (lambda c, p: c.load_graph_sync(p), DataError),
    "damaged": (lambda c, p: c.load_graph_sync(file(p, b"x" * 99)), DataError),
    "no path": (lambda c, _: c.load_graph_sync(7), ValidationError),
    "model": (lambda c, p: webnn_py.onnx.load(p / "no", c), FileError),
    "model by name": (lambda c, p: webnn_py.onnx.load(str(p / "no"), c), FileError),
    "model folder": (lambda c, p: webnn_py.onnx.load(p, c), FileError),
    "model added": (lambda c, p: webnn_py.onnx.add_to(MLGraphBuilder(c), p / "no"), FileError),
    "model, damaged": (lambda c, p: webnn_py.onnx.load(file(p, b"x" * 99), c), DataError),
    "model, no path": (lambda c, _: webnn_py.onnx.load(7, c), ValidationError),
    "save": (lambda c, p: doubling(c).save(p / "no" / "x"), FileError),
    "save over a folder": (lambda c, p: doubling(c).save(p), FileError),
    "program": (lambda c, p: doubling(c).compile_to(p / "no" / "x"), FileError),
    "trace": (lambda c, p: profile(c).save_trace(p / "no" / "x"), FileError),
    "program on a CPU": (lambda c, p: c.load_program_sync(p / "no"), InvalidStateError),
    "device type": (lambda *_: ml.create_context_sync(device_type="tpu"), ValidationError),
    "engine": (lambda *_: ml.create_context_sync(engine="none"), NotSupportedError),
    "engine's option": (
        lambda *_: ml.create_context_sync(engine="reference", engine_options={"a": 1}),
        ValidationError,
    ),
    "workers": (lambda *_: ml.create_context_sync(workers="2"), ValidationError),
    "context": (lambda *_: MLGraphBuilder(None), ValidationError),
    "input": (lambda c, _: MLGraphBuilder(c).input("x", "float32", [0]), ValidationError),
    "constant": (lambda c, _: MLGraphBuilder(c).constant("text"), ValidationError),
    "operator": (lambda c, _: MLGraphBuilder(c).relu(1), ValidationError),
    "operator's option": (lambda c, _: MLGraphBuilder(c).relu(1, alpha=2), ValidationError),
    "outputs": (lambda c, _: MLGraphBuilder(c).build_sync([]), ValidationError),
    "tensor": (lambda c, _: c.create_tensor_sync("float32", ["n"]), ValidationError),
    "graph": (lambda c, _: MLExecution(c).compute("graph", {}), ValidationError),
    "inputs": (lambda c, _: MLExecution(c).compute(doubling(c), None), DataError),
    "outputs of a run": (
        lambda c, _: MLExecution(c).compute(doubling(c), {"x": ONES}, {"z": ONES}),
        DataError,
    ),
    "awaited": (
        lambda c, _: asyncio.run(waiting(MLAwaitedExecution(c).compute(doubling(c), {"x": 1}))),
        DataError,
    ),
    "batch": (lambda c, _: MLAwaitedExecution(c, batch=1), ValidationError),
    "sync": (lambda c, _: c.dispatch(doubling(c), {}, {}, sync=[1]), ValidationError),
    "timeline": (lambda *_: Timeline().signal("1"), ValidationError),
    "mode": (lambda c, _: webnn_py.MLCommandEncoder(c), InvalidStateError),
}


def file(folder: Path, contents: bytes) -> Path:
    path = folder / "file"
    path.write_bytes(contents)
    return path


def profile(cpu: MLContext) -> Any:
    return doubling(cpu).profile({"x": ONES}, runs=1)


async def waiting(run: Any) -> Any:
    return await run


@pytest.mark.parametrize("case", CASES)
def test_what_is_refused_is_an_ml_error(cpu: MLContext, tmp_path: Path, case: str) -> None:
    call, kind = CASES[case]
    with pytest.raises(MLError) as caught:
        call(cpu, tmp_path)
    assert isinstance(caught.value, kind), repr(caught.value)
    assert len(str(caught.value)) > 10


@pytest.mark.parametrize("case", [case for case, (_, kind) in CASES.items() if kind is FileError])
def test_a_file_error_is_what_python_raises_too(cpu: MLContext, tmp_path: Path, case: str) -> None:
    with pytest.raises(FileError) as caught:
        CASES[case][0](cpu, tmp_path)
    error = caught.value
    folder = error.errno == errno.EISDIR
    assert isinstance(error, IsADirectoryError if folder else FileNotFoundError)
    assert error.errno in (errno.EISDIR, errno.ENOENT)
    assert str(error.filename) in str(error)
    assert str(error.filename).startswith(str(tmp_path))
    assert str(error).endswith(str(error.strerror))
    copied = pickle.loads(pickle.dumps(error))
    assert type(copied) is FileError
    assert str(copied) == str(error)


SIGNATURES: dict[str, Callable[[MLContext], Any]] = {
    "too few": lambda c: MLExecution(),  # type: ignore[call-arg]
    "too many": lambda c: c.load_graph_sync("a", "b"),  # type: ignore[misc]
    "twice": lambda c: MLGraphBuilder(c, context=c),  # type: ignore[misc]
    "unknown": lambda c: MLExecution(c).compute(doubling(c), {}, output={}),  # type: ignore[call-arg]
    "unknown option": lambda c: c.load_graph_sync("a", quick=True),  # type: ignore[call-arg]
}


@pytest.mark.parametrize("case", SIGNATURES)
def test_a_call_that_does_not_fit_is_a_type_error(cpu: MLContext, case: str) -> None:
    with pytest.raises(TypeError) as caught:
        SIGNATURES[case](cpu)
    assert not isinstance(caught.value, MLError)

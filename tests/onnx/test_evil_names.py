"""Names with escape sequences and line ends, from models and callers, reach no terminal as such."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from webnn_py import (
    DataError,
    MLContext,
    MLError,
    MLGraphBuilder,
    NotSupportedError,
    ValidationError,
)
from webnn_py.cli.main import main
from webnn_py.onnx import load

EVIL = "a\x1b]0;t\x07\x1b[2J\x9b31m\r\nb\u202e\u2028"
node = helper.make_node


def model(nodes: Any, name: str = "x", shape: Any = (2,), output: str = "y", **opsets: int) -> Any:
    inputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)]
    outputs = [helper.make_tensor_value_info(output, TensorProto.FLOAT, None)]
    known = [numpy_helper.from_array(np.ones(2, np.float32), f"w{EVIL}")]
    graph = helper.make_graph(nodes, f"g{EVIL}", inputs, outputs, known)
    imports = [helper.make_opsetid("", 21), *(helper.make_opsetid(d, v) for d, v in opsets.items())]
    return helper.make_model(graph, opset_imports=imports)


RELU = [node("Relu", ["x"], ["y"])]
MODELS: dict[str, Any] = {
    "operator": model([node(f"No{EVIL}", ["x"], ["y"])]),
    "domain": model([node("No", ["x"], ["y"], domain=EVIL)], **{EVIL: 1}),
    "node": model([node("NonZero", ["x"], ["y"], name=EVIL)]),
    "node of an operator that refuses": model([node("Softmax", ["x"], ["y"], axis=7, name=EVIL)]),
    "missing tensor": model([node("Relu", [f"none{EVIL}"], ["y"])]),
    "attribute": model([node("Relu", ["x"], ["y"], **{EVIL: 1})]),
    "string": model([node("Cast", ["x"], ["y"], to=TensorProto.STRING, name=EVIL)]),
    "mode": model([node("DepthToSpace", ["x"], ["y"], mode=EVIL, blocksize=2)]),
    "twice": model([node("Relu", ["x"], [EVIL]), node("Relu", ["x"], [EVIL]), *RELU]),
    "output": model(RELU, output=EVIL),
    "dimension": model([node("Add", ["x", f"w{EVIL}"], ["y"])], shape=[f"n{EVIL}", 7]),
    "body": model([node("Loop", ["x", "x"], ["y"], name=EVIL)]),
}


def assert_harmless(text: str, lines: int = 3) -> None:
    assert all(character.isprintable() or character == "\n" for character in text), repr(text)
    assert "\nb" not in text
    assert len(text.splitlines()) <= lines


@pytest.mark.parametrize("what", MODELS)
def test_errors_of_the_importer(cpu: MLContext, what: str) -> None:
    with pytest.raises(MLError) as caught:
        load(MODELS[what], cpu)
    assert_harmless(str(caught.value))


CALLS: dict[str, Callable[[MLGraphBuilder, Any], Any]] = {
    "label": lambda b, x: b.matmul(x, x, label=EVIL),
    "input": lambda b, x: [b.input(EVIL, "float32", [2]), b.input(EVIL, "float32", [2])],
    "output": lambda b, x: b.build_sync({EVIL: x}),
    "dimension": lambda b, x: b.input("z", "float32", [EVIL]),
    "option": lambda b, x: b.pad(x, [0], [0], mode=EVIL),
    "data type": lambda b, x: b.cast(x, EVIL),
}


@pytest.mark.parametrize("what", CALLS)
def test_errors_of_the_builder(cpu: MLContext, what: str) -> None:
    b = MLGraphBuilder(cpu)
    with pytest.raises(MLError) as caught:
        CALLS[what](b, b.input("x", "float32", [2]))
    assert_harmless(str(caught.value))


@pytest.mark.parametrize("kind", [ValidationError, DataError, NotSupportedError])
def test_every_error_is_printable(kind: type[MLError]) -> None:
    assert str(kind(f"{EVIL}: no")) == "a\\x1b]0;t\\x07\\x1b[2J\\x9b31m\\r\nb\\u202e\\u2028: no"
    assert (str(kind()), str(kind("a", 1))) == ("", "('a', 1)")


@pytest.fixture(scope="module")
def evil_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("evil") / "m.onnx"
    nodes = [node("Add", [EVIL, f"w{EVIL}"], ["h"], name=EVIL), node("Sin", ["h"], [f"y{EVIL}"])]
    onnx.save(model(nodes, EVIL, output=f"y{EVIL}"), path)
    return path


def test_inspect(evil_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", str(evil_file)]) == 0
    told = capsys.readouterr()
    assert_harmless(told.out + told.err, 500)


def test_run_and_check(evil_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["run", str(evil_file)])
    main(["check", str(evil_file)])
    told = capsys.readouterr()
    assert_harmless(told.out + told.err, 500)


def test_listings(cpu: MLContext, evil_file: Path) -> None:
    graph = load(evil_file, cpu)
    assert_harmless(str(graph), 50)
    assert_harmless(repr(graph), 50)


def test_html(evil_file: Path, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    assert main(["inspect", str(evil_file), "--html", str(page)]) == 0
    text = page.read_text(encoding="utf-8")
    assert "\x1b" not in text
    assert "\x9b" not in text

"""A name that no open dimension has is refused, with the names that there are."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import webnn_py.onnx
from tests.graphs import assert_works
from webnn_py import MLAwaitedExecution, MLContext, MLGraph, MLGraphBuilder, ValidationError
from webnn_py.cli.main import main

ONES = np.ones((2, 3), np.float32)


def doubled(cpu: MLContext, shape: list[Any], **dimensions: Any) -> MLGraph:
    builder = MLGraphBuilder(cpu, dimensions=dimensions)
    x = builder.input("x", "float32", shape)
    return builder.build_sync({"y": builder.add(x, x)})


def awaited(graph: MLGraph, cpu: MLContext, name: str) -> Any:
    return asyncio.run(MLAwaitedExecution(cpu, batch=name).compute(graph, {"x": ONES}))["y"]


CALLS: dict[str, Callable[[MLGraph, MLContext, str, Path], Any]] = {
    "batch": lambda graph, cpu, name, _: awaited(graph, cpu, name),
    "prepare": lambda graph, _, name, __: graph.prepare_sync({name: 2}),
    "prepare_async": lambda graph, _, name, __: asyncio.run(graph.prepare_async({name: 2})),
    "output_shapes": lambda graph, _, name, __: graph.output_shapes({name: 2}),
    "compile_to": lambda graph, _, name, path: graph.compile_to(path / "x.mlprogram", {name: 2}),
}


@pytest.mark.parametrize("call", CALLS)
def test_a_name_that_a_graph_lacks(cpu: MLContext, tmp_path: Path, call: str) -> None:
    graph = doubled(cpu, ["batch", 3])
    with pytest.raises(ValidationError, match=r"'bacth' .*has batch; did you mean batch\?$"):
        CALLS[call](graph, cpu, "bacth", tmp_path)
    CALLS[call](graph, cpu, "batch", tmp_path)
    with pytest.raises(ValidationError, match=r"'batch' is no open dimension .* which has none$"):
        CALLS[call](doubled(cpu, [2, 3]), cpu, "batch", tmp_path)
    with pytest.raises(ValidationError, match=r"none$"):
        CALLS[call](doubled(cpu, ["batch", 3], batch=2), cpu, "batch", tmp_path)
    assert_works(cpu)


@pytest.mark.parametrize("bounds", [(1, 8), (1, None), 2])
@pytest.mark.parametrize(
    ("shape", "message"),
    [
        (["batch", 3], r"'bacth' stands in the shape of no input, and batch does; did you mean"),
        ([2, 3], r"'bacth' stands in the shape of no input, and no name does$"),
        ([-1, "a"], r"and a does$"),
    ],
)
def test_bounds_of_a_name_that_no_shape_has(
    cpu: MLContext, bounds: Any, shape: list[Any], message: str
) -> None:
    with pytest.raises(ValidationError, match=message):
        doubled(cpu, shape, bacth=bounds)
    builder = MLGraphBuilder(cpu, dimensions={"bacth": bounds})
    x = builder.input("x", "float32", shape)
    with pytest.raises(ValidationError, match=message):
        asyncio.run(builder.build_async({"y": builder.add(x, x)}))
    builder.input("z", "float32", ["bacth"])  # nothing was built yet
    assert builder.build_sync({"y": builder.add(x, x)}).outputs


def test_names_in_products_and_of_sizes_that_are_fixed_are_used(cpu: MLContext) -> None:
    builder = MLGraphBuilder(cpu, dimensions={"n": (1, 4), "m": 3})
    x = builder.input("x", "float32", ["n", "m"])
    rows = builder.input("rows", "float32", [x.shape[0] * 2])
    graph = builder.build_sync({"y": builder.relu(x), "z": builder.relu(rows)})
    assert graph.output_shapes({"n": 2}) == {"y": (2, 3), "z": (4,)}


def test_names_on_the_command_line(
    cpu: MLContext, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    graph = doubled(cpu, ["batch", 3])
    graph.save(tmp_path / "x.mlgraph")
    (tmp_path / "x.onnx").write_bytes(webnn_py.onnx.to_onnx(graph).SerializeToString())
    for file in ("x.mlgraph", "x.onnx"):
        assert main(["run", str(tmp_path / file), "--shape", "bacth=2"]) == 2
        assert "'bacth'" in (told := capsys.readouterr().err), told
        assert "batch" in told
        assert main(["run", str(tmp_path / file), "--shape", "batch=2"]) == 0
        capsys.readouterr()

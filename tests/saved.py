"""A graph with some of all that a saved file holds, and what such a file says."""

from __future__ import annotations

import json
import math
import tempfile
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np

from tests.graphs import awaited
from webnn_py import MLContext, MLExecution, MLGraph, MLGraphBuilder

Array = np.ndarray[Any, Any]
Document = Any
SCHEMA = json.loads(
    (Path(__file__).parents[1] / "spec/saved_graph.schema.json").read_text(encoding="utf-8")
)
validator = jsonschema.Draft202012Validator(SCHEMA)
INPUTS = {"x": np.arange(24, dtype=np.float32).reshape(2, 3, 4)}


def built(context: MLContext) -> MLGraph:
    """A graph with some of all that a file holds."""
    b = MLGraphBuilder(context, dimensions={"batch": (1, 64)})
    x = b.input("x", "float32", ["batch", 3, -1])
    batch, length = x.shape[0], x.shape[2]
    w = b.constant(np.arange(6, dtype=np.float32).reshape(2, 3), name="w\n")
    packed = b.constant(np.array([0x21, 0x0F], np.uint8), "int4", [3], name="packed")
    zero = b.constant(np.array([0x10], np.uint8), "int4", [1])
    scale = b.constant(np.array([0.5], np.float32))
    y = b.matmul(w, x, label="first \ud800")
    y = b.clamp(y, min_value=-math.inf, max_value=2**63 - 1)
    y = b.reshape(y, [batch * 2 * length])
    y = b.pad(y, [0], [length // 2 + 1], value=-0.0)
    halves = b.split(b.concat([y, y], 0), 2)
    weights = b.dequantize_linear(packed, scale, zero)
    return b.build_sync({"y": halves[1], "weights": weights})


def entries(path: Path) -> dict[str, bytes]:
    """The parts of a file by name."""
    with zipfile.ZipFile(path) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def write(path: Path, parts: Mapping[str, bytes]) -> None:
    """Make a file of such parts."""
    with zipfile.ZipFile(path, "w") as archive:
        for name, part in parts.items():
            archive.writestr(name, part)


def document_of(path: Path) -> Document:
    return json.loads(entries(path)["graph.json"])


def rewrite(path: Path, change: Callable[[Document], object]) -> None:
    """Change the document of a file."""
    parts = entries(path)
    document = json.loads(parts["graph.json"])
    change(document)
    write(path, parts | {"graph.json": json.dumps(document).encode()})


def computed(graph: MLGraph, context: MLContext) -> dict[str, Array]:
    return MLExecution(context, allow_blocking=True).compute(graph, INPUTS)


def contents(graph: MLGraph) -> dict[str, bytes]:
    """All that a file would say of a graph."""
    with tempfile.TemporaryDirectory() as folder:
        graph.save(Path(folder, "graph"))
        return entries(Path(folder, "graph"))


def assert_same(graph: MLGraph, expected: MLGraph) -> None:
    """The same operators, options, labels, constants and results."""
    assert contents(graph) == contents(expected)
    results = awaited(expected, INPUTS)
    for name, array in awaited(graph, INPUTS).items():
        assert array.tobytes() == results[name].tobytes(), name

"""A graph with some of all that a saved file holds, and what such a file says."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np

from tests.internals import context_of, recipe_of
from webnn_py import MLContext, MLExecution, MLGraph, MLGraphBuilder
from webnn_py.ir import Array
from webnn_py.storage.archive import Archive, write_archive

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
    archive = Archive.open(path)
    return {name: archive.read(name) for name in archive.names}


def document_of(path: Path) -> Document:
    return json.loads(entries(path)["graph.json"])


def rewrite(path: Path, change: Callable[[Document], object]) -> None:
    """Change the document of a file."""
    parts = entries(path)
    document = json.loads(parts["graph.json"])
    change(document)
    with open(path, "wb") as stream:
        write_archive(
            stream,
            {
                n: [json.dumps(document).encode() if n == "graph.json" else part]
                for n, part in parts.items()
            },
        )


def computed(graph: MLGraph, context: MLContext) -> dict[str, Array]:
    return MLExecution(context, allow_blocking=True).compute(graph, INPUTS)


def assert_same(graph: MLGraph, expected: MLGraph) -> None:
    """The same listings, options and results."""
    recipe, wanted = recipe_of(graph), recipe_of(expected)
    assert str(recipe) == str(wanted)
    for node, other in zip(recipe.nodes, wanted.nodes, strict=True):
        assert repr((node.given, node.label)) == repr((other.given, other.label))
    results = computed(expected, context_of(expected))
    for name, array in computed(graph, context_of(graph)).items():
        assert array.tobytes() == results[name].tobytes(), name

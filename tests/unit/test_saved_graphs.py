"""Saved graphs: what is kept, what is shared, what is mapped."""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.loops import Run
from tests.saved import assert_same, built, document_of, rewrite, validator
from webnn_py import (
    ContextLostError,
    DataError,
    InvalidStateError,
    MLContext,
    MLExecution,
    MLGraph,
    MLGraphBuilder,
    NotSupportedError,
    ValidationError,
    ml,
)


@pytest.mark.parametrize("kind", [str, Path])
def test_a_graph_is_what_was_saved(cpu: MLContext, path: Path, kind: Any) -> None:
    graph = built(cpu)
    graph.save(kind(path))
    loaded = cpu.load_graph_sync(kind(path))
    assert_same(loaded, graph)
    assert str(dict(loaded.inputs)) == str(dict(graph.inputs))
    assert str(loaded) == str(graph)
    assert loaded.output_shapes({"batch": 2, "?0": 5}) == graph.output_shapes({"batch": 2, "?0": 5})
    with ml.create_context_sync(engine="reference") as other:
        assert_same(other.load_graph_sync(path, verify=True), graph)


def test_what_is_saved_again_has_the_same_bytes(cpu: MLContext, path: Path) -> None:
    built(cpu).save(path)
    first = path.read_bytes()
    cpu.load_graph_sync(path).save(path)
    assert path.read_bytes() == first
    assert os.listdir(path.parent) == [path.name]


def test_a_file_is_as_the_schema_says(cpu: MLContext, path: Path) -> None:
    built(cpu).save(path)
    validator.validate(document_of(path))


def option(cpu: MLContext, path: Path, **options: Any) -> Any:
    """What options of a clamp are in a file, and after it was loaded."""
    b = MLGraphBuilder(cpu)
    x = b.input("x", options.pop("data_type", "float32"), [2])
    b.build_sync({"y": b.clamp(x, **options)}).save(path)
    document = document_of(path)
    validator.validate(document)
    cpu.load_graph_sync(path).save(path)
    assert document_of(path) == document
    return document["nodes"][0]["options"]


@pytest.mark.parametrize(
    "number", [0.1, -0.0, 1.0, 1, 5e-324, math.inf, -math.inf, math.nan, 2**63 - 1, -(2**70)]
)
def test_numbers_are_kept_exactly(cpu: MLContext, path: Path, number: float) -> None:
    # A NaN is a bound that nothing is above or below.
    data_type = "int64" if isinstance(number, int) else "float32"
    kept = option(cpu, path, data_type=data_type, max_value=number)["max_value"]
    assert repr(float(kept["float"]) if isinstance(kept, dict) else kept) == repr(number)


def test_a_number_too_long_for_json_is_not_saved(cpu: MLContext, path: Path) -> None:
    with pytest.raises(NotSupportedError, match="number cannot be written"):
        option(cpu, path, max_value=10**5000)
    assert not path.exists()


@pytest.mark.parametrize("times", [6, 9])
def test_long_expressions_are_saved(cpu: MLContext, path: Path, times: int) -> None:
    b = MLGraphBuilder(cpu)
    x = b.input("x", "float32", ["n"])
    graph = b.build_sync({"y": b.expand(b.slice(x, [0], [1]), [math.prod([x.shape[0]] * times)])})
    graph.save(path)
    assert str(cpu.load_graph_sync(path)) == str(graph)


def test_shared_contents_are_saved_once_and_shared_again(cpu: MLContext, path: Path) -> None:
    tensor = cpu.create_constant_tensor_sync(np.arange(1000, dtype=np.float32))
    b = MLGraphBuilder(cpu)
    one, two = b.constant(tensor), b.constant(tensor, name="two")
    graph = b.build_sync({"y": b.add(one, two), "z": b.sub(two, one)})
    graph.save(path)
    assert path.stat().st_size < 2 * 4000
    first, second = document_of(path)["constants"]
    assert first["weight"] == second["weight"]
    assert second["name"] == "two"
    before = path.read_bytes()
    cpu.load_graph_sync(path).save(path)
    assert path.read_bytes() == before


def test_another_file_may_take_the_place_of_one_that_is_loaded(cpu: MLContext, path: Path) -> None:
    b = MLGraphBuilder(cpu)
    graph = b.build_sync({"y": b.add(b.constant(np.ones(9, np.float32)), b.input("x", "float32"))})
    graph.save(path)
    graph.destroy()
    loaded = cpu.load_graph_sync(path)
    built(cpu).save(path)
    result = MLExecution(cpu).compute(loaded, {"x": np.float32(1)})
    assert result["y"].tolist() == [2.0] * 9


def test_loading_is_awaited(cpu: MLContext, path: Path, run: Run) -> None:
    graph = built(cpu)
    graph.save(path)
    found: list[MLGraph] = []

    async def main() -> None:
        found.append(await cpu.load_graph_async(path))
        with pytest.raises(FileNotFoundError):
            await cpu.load_graph_async(path.with_name("missing"))

    run(main)
    assert_same(found[0], graph)


def test_what_cannot_be_saved_or_loaded_says_so(cpu: MLContext, path: Path) -> None:
    graph = built(cpu)
    for wrong in (None, 7, b"x", "a\0b", ""):
        with pytest.raises(ValidationError, match=r"path: got .*, expected a str or Path"):
            graph.save(wrong)  # type: ignore[arg-type]
        with pytest.raises(ValidationError, match=r"path: got .*, expected a str or Path"):
            cpu.load_graph_sync(wrong)  # type: ignore[arg-type]
    with pytest.raises(FileNotFoundError):
        graph.save(path / "in no folder")
    graph.save(path)
    graph.destroy()
    with pytest.raises(InvalidStateError, match="destroyed"):
        graph.save(path)
    cpu.destroy()
    with pytest.raises(ContextLostError):
        cpu.load_graph_sync(path)


def test_damaged_weights_are_found_where_asked_for(cpu: MLContext, path: Path) -> None:
    built(cpu).save(path)
    data = bytearray(path.read_bytes())
    at = data.index(np.float32(5).tobytes())
    data[at] ^= 1
    path.write_bytes(data)
    cpu.load_graph_sync(path)
    with pytest.raises(DataError, match=r"weights\.safetensors: its checksum is"):
        cpu.load_graph_sync(path, verify=True)


def test_a_later_version_is_not_supported(cpu: MLContext, path: Path) -> None:
    built(cpu).save(path)
    rewrite(path, lambda d: d.update(version=2, more="than there was"))
    with pytest.raises(NotSupportedError, match=r"version 2 .* is later than 1.*install a newer"):
        cpu.load_graph_sync(path)

"""Saved graphs: what is kept, what is shared, what is mapped."""

from __future__ import annotations

import math
import mmap
import os
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.graphs import build
from tests.internals import recipe_of, session_of
from tests.loops import Run
from tests.saved import assert_same, built, document_of, rewrite, validator
from webnn_py import (
    ContextLostError,
    DataError,
    InvalidStateError,
    MLContext,
    MLExecution,
    MLGraphBuilder,
    NotSupportedError,
    ValidationError,
    ml,
)
from webnn_py.api import loading
from webnn_py.ir import Array
from webnn_py.ops.declare import REGISTRY
from webnn_py.storage import graph_file


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
    """What an option of a clamp of int64 is in a file and after."""
    b = MLGraphBuilder(cpu)
    x = b.input("x", options.pop("data_type", "float32"), [2])
    b.build_sync({"y": b.clamp(x, **options)}).save(path)
    validator.validate(document_of(path))
    (node,) = recipe_of(cpu.load_graph_sync(path)).nodes
    return node.given


@pytest.mark.parametrize(
    "number", [0.1, -0.0, 1.0, 1, 5e-324, math.inf, -math.inf, math.nan, 2**63 - 1, -(2**70)]
)
def test_numbers_are_kept_exactly(cpu: MLContext, path: Path, number: float) -> None:
    # A NaN is a bound that nothing is above or below.
    data_type = "int64" if isinstance(number, int) else "float32"
    given = option(cpu, path, data_type=data_type, max_value=number)
    assert repr(dict(given)) == repr({"min_value": None, "max_value": number})


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
    recipe = recipe_of(cpu.load_graph_sync(path))
    first, second = recipe.constants.values()
    assert first is second
    assert [value.name for value in recipe.constants] == ["", "two"]


def base_of(array: Array) -> object:
    base: Any = array
    while isinstance(base, (np.ndarray, memoryview)):
        base = base.obj if isinstance(base, memoryview) else base.base
    return base


def test_weights_are_mapped(cpu: MLContext, path: Path) -> None:
    b = MLGraphBuilder(cpu)
    graph = b.build_sync({"y": b.add(b.constant(np.ones(9, np.float32)), b.input("x", "float32"))})
    graph.save(path)
    graph.destroy()
    loaded = cpu.load_graph_sync(path)
    (array,) = recipe_of(loaded).constants.values()
    assert isinstance(base_of(array), mmap.mmap)
    assert not array.flags.writeable
    # Another file may take its place meanwhile.
    built(cpu).save(path)
    result = MLExecution(cpu).compute(loaded, {"x": np.float32(1)})
    assert result["y"].tolist() == [2.0] * 9


def test_loading_awaited_happens_on_a_thread_of_the_context(
    cpu: MLContext, path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = built(cpu)
    graph.save(path)
    threads: list[str] = []
    read = loading.read_recipe

    def noting(*arguments: Any) -> Any:
        threads.append(threading.current_thread().name)
        return read(*arguments)

    monkeypatch.setattr(loading, "read_recipe", noting)

    async def main() -> None:
        assert_same(await cpu.load_graph_async(path), graph)
        with pytest.raises(FileNotFoundError):
            await cpu.load_graph_async(path.with_name("missing"))

    run(main)
    (thread,) = threads
    assert thread.startswith("webnn-cpu-build")


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


def test_data_types_that_a_context_lacks_are_not_damage(
    cpu: MLContext, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    built(cpu).save(path)
    session = session_of(cpu)
    clamp = REGISTRY["clamp"]
    types = {**session.compiler.supported_types[clamp], "input": ("int32",)}
    monkeypatch.setitem(session.compiler.supported_types, clamp, types)
    with pytest.raises(NotSupportedError, match="clamp: operand 'input': this context does not"):
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


def test_a_graph_of_too_many_nodes_is_neither_saved_nor_loaded(
    cpu: MLContext, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = build(cpu, lambda b: {"y": b.sin(b.cos(b.input("x", "float32", [2])))})
    graph.save(path)
    monkeypatch.setattr(graph_file, "MAX_NODES", 1)
    with pytest.raises(NotSupportedError, match="has 2 nodes, and files 1 at most"):
        graph.save(path)
    with pytest.raises(DataError, match=r"nodes: a list of 2 members, expected 1 at most"):
        cpu.load_graph_sync(path)

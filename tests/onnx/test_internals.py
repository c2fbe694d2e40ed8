"""Tests that look behind the public objects: each belongs to a file beside this one."""

from __future__ import annotations

import functools
import inspect
import os
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from onnx.helper import make_node

from tests.compiler.compiled import legalized
from tests.internals import built_from, recipe_of
from tests.onnx.models import model
from tests.onnx.own_operators import alone
from tests.onnx.test_exporter import run, session_of
from tests.onnx.test_folding import NUMBERS, _own, folded
from tests.onnx.test_fourier import of
from tests.onnx.test_functions import calling, function
from tests.onnx.test_group_query import group_query
from tests.onnx.test_multi_head import floats
from tests.onnx.test_official_suite import PASSING, SHARE, assert_pass
from tests.onnx.test_sizes_of_models import ladder, node
from tests.property.graphs import seeded_case
from webnn_py import (
    DataError,
    MLContext,
    MLExecution,
    MLGraphBuilder,
    NotSupportedError,
    OperationError,
    ValidationError,
    ml,
)
from webnn_py.cli.models import sizes_of
from webnn_py.engines.registry import FAST
from webnn_py.engines.webgpu.compiler.legalize.attention import ATTENTION
from webnn_py.engines.webgpu.program.storage import Features
from webnn_py.onnx import add_to, backend, load, to_onnx
from webnn_py.onnx import schema as definitions
from webnn_py.onnx.handlers import HANDLERS, handler_of
from webnn_py.onnx.handlers.reduction import POWERS
from webnn_py.onnx.load_impl import Importer, Model
from webnn_py.ops import numeric

# test_exporter


@pytest.mark.parametrize("seed", range(int(os.environ.get("WEBNN_RANDOM_CASES", "20"))))
def test_random_graph(cpu: MLContext, seed: int) -> None:
    case = seeded_case(seed)
    try:
        model = to_onnx(built_from(cpu, case.graph))
    except NotSupportedError as error:
        assert "powers of integers" in str(error) or "max_pool2d" in str(error)  # noqa: PT017
        return
    if session_of(model) is not None:  # what ONNX's reference computes is no judge of whole graphs
        case.assert_close(run(model, case.inputs))


# test_folding


@pytest.mark.parametrize("source", ["float32", "float16", "double", "bfloat16"])
@pytest.mark.parametrize(
    "target", ["int8", "uint8", "int32", "uint32", "int64", "uint64", "bool", "float", "float16"]
)
@pytest.mark.parametrize("size", [1, 1 << 14])
def test_constants_are_cast_as_inputs_are(
    cpu: MLContext, source: str, target: str, size: int
) -> None:
    elem = TensorProto.DataType.Value(source.upper().replace("32", ""))
    with np.errstate(all="ignore"):
        numbers = np.tile(np.array(NUMBERS), size).astype(helper.tensor_dtype_to_np_dtype(elem))
        real = numbers.astype(np.float64)
        to = TensorProto.DataType.Value(target.upper())
        wanted = real != 0 if target == "bool" else numeric.cast(real, _own(target))  # type: ignore[arg-type]
    node = helper.make_node("Cast", ["x"], ["y"], to=to)
    np.testing.assert_array_equal(folded(cpu, node, {"x": numbers}), wanted)


# test_fourier


@pytest.mark.parametrize("count", [8192, 16000, 16381, 48000])
def test_constants_grow_as_the_length_does(cpu: MLContext, count: int) -> None:
    """One matrix of 8,192 samples took 3 GB."""
    builder, made = MLGraphBuilder(cpu), of([1, count, 1], 1, None, {})
    tracemalloc.start()
    try:
        add_to(builder, made)
        assert tracemalloc.get_traced_memory()[1] < 300 * count + (1 << 22)
    finally:
        tracemalloc.stop()


# test_functions


def test_nodes_of_functions_are_labelled_behind_their_calls(cpu: MLContext) -> None:
    nodes = [
        onnx.helper.make_node("f", ["x"], ["m"], domain="own", name="first"),
        onnx.helper.make_node("f", ["m"], ["y"], domain="own", name="second"),
    ]
    made = calling(*nodes, functions=[function("f", "Tanh")])
    labels = [node.label for node in recipe_of(load(made, cpu)).nodes]
    assert labels == ["first/the_Tanh", "second/the_Tanh"]


# test_group_query


@pytest.mark.parametrize("case", [{"packed": True, "do_rotary": 1}, {"local_window_size": 8}])
def test_a_prompt_is_attention_of_one_kernel(cpu: MLContext, case: dict[str, Any]) -> None:
    """On graphics hardware: the lowering is one that its compiler recognizes."""
    made, _ = group_query(32, 0, [32, 32], 32, **case)
    nodes = legalized(recipe_of(load(made, cpu)), Features()).nodes
    assert [node.op for node in nodes].count(ATTENTION) == 1


# test_importer

SPELLED_OTHERWISE = {
    "GRU-1.direction",  # 'foward'
    *(f"RNN-{version}.activations" for version in (1, 7, 14, 22)),  # None, which means the same
    *(f"MeanVarianceNormalization-{version}.axes" for version in (9, 13)),  # the same
}


def test_handlers_begin_with_definitions() -> None:
    """So that the version of an operator set finds the one for the definition in it."""
    known: dict[tuple[str, str], set[int]] = {}
    for schema in onnx.defs.get_all_schemas_with_history():
        known.setdefault((schema.domain, schema.name), set()).add(schema.since_version)
    for key, found in HANDLERS.items():
        versions = known.get(key, {1})
        assert {handler.since for handler in found[1:]} <= versions, key
        assert found[0].since <= max(versions), key


SCHEMAS = onnx.defs.get_all_schemas_with_history()
OF_ONNX_RUNTIME = {("", "SimplifiedLayerNormalization")}
"""What it has in ONNX's domain, though ONNX does not define it."""
OF_ONNX = sorted(key for key in {*HANDLERS} - OF_ONNX_RUNTIME if not key[0])


@pytest.mark.parametrize("operator", OF_ONNX)
def test_handlers_know_the_attributes_of_the_definitions(operator: tuple[str, str]) -> None:
    """Every attribute is a keyword argument, with the definition's default."""
    schemas = [s for s in SCHEMAS if (s.domain, s.name) == operator]
    assert schemas
    for schema in schemas:
        handler = handler_of(*operator, schema.since_version)
        if handler is None:
            continue
        arguments = inspect.signature(handler.function).parameters
        for name, attribute in schema.attributes.items():
            title = f"{schema.name}-{schema.since_version}.{name}"
            assert name in arguments, title
            if attribute.default_value.type and title not in SPELLED_OTHERWISE:
                default = helper.get_attribute_value(attribute.default_value)
                default = default.decode() if isinstance(default, bytes) else default
                given = arguments[name].default
                close = pytest.approx(default, rel=1e-6) if isinstance(default, float) else default
                assert given == close, title


# test_integer_reductions


def test_powers_of_e() -> None:
    assert np.log(POWERS.astype(np.longdouble)).astype(int).tolist() == list(range(1, 44))


# test_malformed_nodes


def test_no_memory_left_at_import(cpu: MLContext, monkeypatch: pytest.MonkeyPatch) -> None:
    def check(*_: Any) -> None:
        raise MemoryError("no bytes left")

    monkeypatch.setattr(definitions, "check", check)
    with pytest.raises(OperationError, match="out of memory: no bytes left"):
        load(model([make_node("Relu", ["x"], ["y"])], {"x": [2]}, ["y"]), cpu)


# test_multi_head


def test_an_encoder_is_attention_of_one_kernel(cpu: MLContext) -> None:
    """On graphics hardware: the lowering is one that its compiler recognizes."""
    x, mask = floats(2, 32, 64), np.ones([2, 32], np.int32)
    given = [x, floats(64, 192), floats(192), mask]
    for attributes in ({}, {"unidirectional": 1}):
        made, _ = alone("Attention", given, 1, {"num_heads": 4, **attributes}, known=[1, 2])
        nodes = legalized(recipe_of(load(made, cpu)), Features()).nodes
        assert [node.op for node in nodes].count(ATTENTION) == 1


# test_official_suite


@pytest.mark.timeout(3000 // SHARE)
@pytest.mark.parametrize("kind", PASSING)
@pytest.mark.parametrize("engine", FAST)
def test_cases_pass_on_other_engines_of_the_cpu(engine: str, kind: str) -> None:
    pytest.importorskip(engine, reason=f"{engine} is not installed")
    with ml.create_context_sync(engine=engine) as context:
        assert_pass(kind, functools.partial(backend.PreparedModel, context=context), engine)


# test_pooled_places


@pytest.mark.parametrize(
    ("size", "taps", "strides"), [(8, 2, 2), (2048, 2, 2), (512, 256, 1), (2048, 2000, 1)]
)
def test_neither_sizes_nor_windows_are_walked_through(
    cpu: MLContext, monkeypatch: pytest.MonkeyPatch, size: int, taps: int, strides: int
) -> None:
    what = make_node("MaxPool", ["x"], ["y", "i"], kernel_shape=[taps] * 2, strides=[strides] * 2)
    importer = Importer(MLGraphBuilder(cpu), Model(model([what], {"x": [1, 1, size, size]}, "yi")))
    emitted: list[Any] = []
    own = importer.emitter.slice

    def counted(*given: Any, **how: Any) -> Any:
        emitted.append(given)
        return own(*given, **how)

    monkeypatch.setattr(importer.emitter, "slice", counted, raising=False)
    tracemalloc.start()
    try:
        importer.run()
        assert tracemalloc.get_traced_memory()[1] < 1 << 24
    finally:
        tracemalloc.stop()
    assert 0 < len(emitted) <= 8 * taps.bit_length()


@pytest.mark.parametrize("taps", [[0, 2], [2, 2**40]])
def test_windows_of_no_or_too_many_elements(cpu: MLContext, taps: list[int]) -> None:
    what = make_node("MaxPool", ["x"], ["y", "i"], kernel_shape=taps)
    importer = Importer(MLGraphBuilder(cpu), Model(model([what], {"x": [1, 1, 8, 8]}, "yi")))
    with pytest.raises((DataError, NotSupportedError), match="MaxPool"):
        importer.run()


# test_sizes_of_models


def test_multiples_are_saved_exported_and_said(cpu: MLContext, tmp_path: Path) -> None:
    graph = load(ladder(), cpu)
    graph.save(tmp_path / "ladder.mlgraph")
    x = np.random.default_rng(0).normal(size=(1, 2, 8, 4)).astype(np.float32)
    wanted = MLExecution(cpu).compute(graph, {"x": x})["y"]
    for again in (cpu.load_graph_sync(tmp_path / "ladder.mlgraph"), load(to_onnx(graph), cpu)):
        np.testing.assert_array_equal(MLExecution(cpu).compute(again, {"x": x})["y"], wanted)
    assert sizes_of(graph, {"x": [1, 2, 8, 4]}) == {"n": 1, "h_by_4": 2, "w_by_4": 1}
    with pytest.raises(ValidationError, match="--shape"):
        sizes_of(graph, {"x": [1, 2, 8, 6]})


def test_numbers_that_follow_from_sizes_leave_a_graph_whole(cpu: MLContext) -> None:
    """As the mask of a decoder, which would wait for another engine in its midst."""
    engine = pytest.importorskip("webnn_py.engines.onnxruntime.engine").OnnxRuntimeEngine()
    weights = {"zero": np.asarray(0), "one": np.asarray(1)}
    nodes = [
        node("Shape", ["x"], ["shape"]),
        node("Gather", ["shape", "zero"], ["n"]),
        node("Gather", ["shape", "one"], ["m"]),
        node("Add", ["n", "m"], ["end"]),
        node("Range", ["n", "end", "one"], ["y"]),
    ]
    graph = load(model(nodes, {"x": ["n", "m"]}, ["y"], weights), cpu)
    assert [node.op for node in recipe_of(graph).nodes if not engine.supports(node)] == []
    found = MLExecution(cpu).compute(graph, {"x": np.ones((3, 4), np.float32)})
    assert found["y"].tolist() == [3, 4, 5, 6]

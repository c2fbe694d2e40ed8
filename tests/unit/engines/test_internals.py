"""Tests that look behind the public objects: each belongs to a file beside this one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.backend.networks import encoder
from tests.graphs import normal
from tests.internals import engine_of, executable_of, recipe_of
from tests.unit.engines.test_onnxruntime import FAST, doubled, fast, squares
from tests.unit.engines.test_openvino import run
from webnn_py import MLContext, MLGraph, MLGraphBuilder, OperationError, ml

pytest.importorskip("onnxruntime")
pytest.importorskip("openvino")
import onnx
import onnxruntime

from webnn_py.engines import fastest
from webnn_py.engines.onnxruntime import kernels
from webnn_py.engines.onnxruntime.engine import LoadedModel
from webnn_py.engines.openvino.engine import (
    CACHE_CAPACITY_OPTION,
    MAX_CACHED_KERNELS,
    SNIPPETS_OPTION,
    CompiledModel,
)
from webnn_py.engines.openvino.unsupported import INTEGER_FAMILIES, INTEGER_OPERATORS
from webnn_py.ops.declare import REGISTRY

__all__ = ["FAST", "fast"]


@pytest.fixture(scope="module")
def context() -> MLContext:
    return ml.create_context_sync(engine="onnxruntime")


# test_onnxruntime


def test_large_results_are_written_by_the_session_itself(context: MLContext) -> None:
    executable = executable_of(doubled(context))._executable
    x, y, z = squares(1), squares(0), squares(0)
    executable.run([x], [y, z])
    bound = executable._local.places
    assert bound == [array.ctypes.data for array in (x, y, z)]
    executable.run([x], [y, z])
    assert executable._local.places is bound


def test_the_session_computes_with_the_weights_themselves(context: MLContext) -> None:
    builder = MLGraphBuilder(context)
    x = builder.input("x", "float32", [1, 64])
    graph = builder.build_sync({"y": builder.matmul(x, builder.constant(np.eye(64, dtype="f4")))})
    executable = executable_of(graph)
    (weight,) = executable._model.weights
    (array,) = graph._compiled.recipe.constants.values()
    assert weight.data_ptr() == array.ctypes.data


def test_a_failure_names_the_engine(fast: MLContext) -> None:
    executable = executable_of(doubled(fast, 2))
    wrong = np.zeros(3, np.float32)
    with pytest.raises(OperationError, match=f"engine '{fast.engine}': "):
        executable.run([wrong], [squares(0, 2), squares(0, 2)])


def test_a_failure_of_new_results_names_the_engine(context: MLContext) -> None:
    executable = executable_of(doubled(context))
    ends = [(squares(0).shape, squares(0).dtype)] * 2
    with pytest.raises(OperationError, match="engine 'onnxruntime': "):
        executable.new_results([np.zeros(3, np.float32)], ends)


@pytest.mark.parametrize("count", [1 << 8, 1 << 21])
def test_constants_that_are_too_large_to_fold_are_made_by_each_run(
    cpu: MLContext, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    left_out: list[Any] = []
    make = onnxruntime.InferenceSession

    def recorded(*given: Any, **how: Any) -> Any:
        left_out.append(how["disabled_optimizers"])
        return make(*given, **how)

    builder = MLGraphBuilder(cpu)
    x = builder.input("x", "float32", [1])
    wide = builder.expand(builder.constant(2.0, "float32"), [count])
    recipe = recipe_of(builder.build_sync({"y": builder.add(wide, x)}))
    monkeypatch.setattr(onnxruntime, "InferenceSession", recorded)
    model = LoadedModel(recipe, 1)
    (names,) = left_out
    assert ("ConstantFolding" in names) is (4 * count > 1 << 20)
    (found,) = model.run(model.names[1:], {model.names[0]: np.ones(1, np.float32)}, None)
    np.testing.assert_array_equal(found, np.full(count, 3, np.float32))


# test_openvino


@pytest.fixture(scope="module")
def openvino_context() -> MLContext:
    return ml.create_context_sync(engine="openvino")


def test_integers_are_moved_and_not_computed_with() -> None:
    families = {REGISTRY[name].family for name in REGISTRY}
    assert set(INTEGER_FAMILIES) <= families
    assert set(INTEGER_OPERATORS) <= set(REGISTRY)


def test_the_model_has_the_weights_themselves(openvino_context: MLContext) -> None:
    """Where they lie: what is written there is computed with."""
    b = MLGraphBuilder(openvino_context)
    x = b.input("x", "float32", [600])
    graph = b.build_sync({"y": b.add(x, b.constant(np.ones(600, np.float32)))})
    executable = executable_of(graph)._executable
    (weight,) = executable._model.weights
    (array,) = graph._compiled.recipe.constants.values()
    assert weight is array
    assert executable.memory_use() == {id(array): array.nbytes}


def test_what_it_fails_over_goes_to_the_reference(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    class Failing:
        def read_model(self, model: bytes) -> None:
            raise RuntimeError("no such layout")

    with ml.create_context_sync(engine="openvino") as context:
        monkeypatch.setattr(engine_of(context), "_core", Failing())
        b = MLGraphBuilder(context)
        graph = b.build_sync({"y": b.neg(b.input("x", "float32", [2]))})
        assert "# engine reference" in str(graph)
        assert run(graph, context, x=np.ones(2, np.float32))["y"].tolist() == [-1, -1]
    assert "engine openvino cannot compile, reference runs it: " in caplog.text


@pytest.fixture
def openvino_models(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Of each model that is compiled from now on, whether it has open dimensions."""
    made: list[bool] = []
    init = CompiledModel.__init__

    def counted(self: Any, graph: Any, *given: Any) -> None:
        made.append(bool(graph.open_sizes))
        init(self, graph, *given)

    monkeypatch.setattr(CompiledModel, "__init__", counted)
    return made


@pytest.mark.parametrize("name", ["openvino", "fastest"])
def test_all_sizes_of_an_encoder_have_one_model(
    name: str, openvino_models: list[bool], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WEBNN_CACHE", str(tmp_path))
    monkeypatch.setattr(fastest, "MEASURE_SECONDS", 0)

    def encoding(where: MLContext) -> MLGraph:
        b = MLGraphBuilder(where, dimensions={"batch": (1, 8), "length": (1, 64)})
        return b.build_sync({"y": encoder(b, "batch", "length", 1, 16, 2)})

    reference = ml.create_context_sync(engine="reference")
    with ml.create_context_sync(engine=name) as where:
        graph, wanted = encoding(where), encoding(reference)
        for batch, length in ((1, 1), (3, 2), (2, 7), (1, 2)):
            given = {"x": normal(batch, length, 16), "mask": normal(batch, length)}
            made, array = run(graph, where, **given)["y"], run(wanted, reference, **given)["y"]
            np.testing.assert_allclose(made, array, rtol=2e-4, atol=2e-5)
    assert openvino_models == [True]


def test_what_is_not_exact_with_open_sizes_is_compiled_for_each(
    openvino_context: MLContext, openvino_models: list[bool]
) -> None:
    """It takes the highest int32 for the lowest then."""
    b = MLGraphBuilder(openvino_context)
    graph = b.build_sync({"y": b.cast(b.input("x", "float32", ["n"]), "int32")})
    for n in (2, 3):
        x = np.full(n, 3e9, np.float32)
        assert run(graph, openvino_context, x=x)["y"].tolist() == [2**31 - 1] * n
    assert openvino_models == [False, False]


def test_sizes_at_which_it_is_not_exact_are_compiled_for(
    openvino_context: MLContext, openvino_models: list[bool]
) -> None:
    """Convolutions of one channel and one column, which the reference runs."""
    b = MLGraphBuilder(openvino_context)
    x = b.input("x", "float32", [1, 1, 4, "n"])
    graph = b.build_sync({"y": b.conv2d(x, b.constant(np.ones((1, 1, 2, 1), np.float32)))})
    for n in (3, 1, 2):
        made = run(graph, openvino_context, x=np.ones((1, 1, 4, n), np.float32))["y"]
        np.testing.assert_array_equal(made, np.full((1, 1, 3, n), 2))
    assert openvino_models == [True]


def test_what_is_kept_for_ever_new_sizes(
    openvino_context: MLContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[int | None] = []
    core = type(engine_of(openvino_context)._core)
    compile_model = core.compile_model

    def compiling(self: Any, model: Any, device: str, settings: dict[str, str]) -> Any:
        kept = settings.get(CACHE_CAPACITY_OPTION)
        given.append(kept and int(kept))
        return compile_model(self, model, device, settings)

    monkeypatch.setattr(core, "compile_model", compiling)
    for size in (2, "n"):
        b = MLGraphBuilder(openvino_context)
        x = b.input("x", "float32", [size, 4])
        graph = b.build_sync({"y": b.matmul(x, b.constant(np.eye(4, dtype=np.float32)))})
        assert run(graph, openvino_context, x=np.ones((2, 4), np.float32))["y"].sum() == 8
    fixed, kept = given
    assert fixed is None
    assert kept is not None
    assert 16 <= kept < MAX_CACHED_KERNELS


@pytest.mark.parametrize(
    ("length", "to_integers", "joined"),
    [(60, False, True), (700, False, False), (150, True, True)],
)
def test_nodes_in_long_rows_are_not_joined(
    openvino_context: MLContext,
    monkeypatch: pytest.MonkeyPatch,
    length: int,
    to_integers: bool,
    joined: bool,
) -> None:
    """To join 700 took OpenVINO 20 s, and twice as many 8 times that."""
    given: list[bool] = []
    core = type(engine_of(openvino_context)._core)
    compile_model = core.compile_model

    def compiling(self: Any, model: Any, device: str, settings: dict[str, str]) -> Any:
        given.append(settings.get(SNIPPETS_OPTION) != "DISABLE")
        return compile_model(self, model, device, settings)

    monkeypatch.setattr(core, "compile_model", compiling)
    values = np.linspace(-2, 2, 6, dtype=np.float32).reshape(2, 3)

    def computed(on: MLContext) -> Any:
        b = MLGraphBuilder(on)
        x = y = b.input("x", "float32", [2, 3])
        for i in range(length):
            y = b.mul(b.tanh(y), x) if i % 2 else b.transpose(b.transpose(b.neg(y)))
        if to_integers:
            y = b.cast(b.mul(y, b.constant(1e30, "float32")), "int32")
        return run(b.build_sync({"y": y}), on, x=values)["y"]

    with ml.create_context_sync(engine="reference") as reference:
        np.testing.assert_allclose(
            computed(openvino_context), computed(reference), rtol=1e-3, atol=1e-5
        )
    assert given == [joined]


# onnxruntime/kernels


def test_kernels_are_asked_for_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    count = 0
    session = kernels._session

    def counted(*arguments: Any) -> Any:
        nonlocal count
        count += 1
        return session(*arguments)

    monkeypatch.setattr(kernels, "_session", counted)
    monkeypatch.setattr(kernels, "_known", {})
    typed = [
        (onnx.helper.make_node(kind, ["x"], ["y"]), (data_type,), (data_type,))
        for kind in ("Relu", "Exp", "Neg", "Abs")
        for data_type in ("float32", "uint32")
    ]
    for asked, sessions in ((typed[::2], 1), (typed, 8), (typed, 0)):
        count = 0
        expected = [types == ("float32",) or node.op_type == "Abs" for node, types, _ in asked]
        assert kernels.has_kernels(asked) == expected
        assert count <= sessions

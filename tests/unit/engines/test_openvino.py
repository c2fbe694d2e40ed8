"""The engine that runs graphs by OpenVINO: what it holds, and what is not left to it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.backend.networks import encoder
from tests.graphs import normal
from tests.internals import engine_of, executable_of
from tests.processes import run_alone
from webnn_py import MLContext, MLExecution, MLGraph, MLGraphBuilder, ml

pytest.importorskip("openvino")
from webnn_py.engines import fastest
from webnn_py.engines.openvino.engine import (
    CACHE_CAPACITY_OPTION,
    MAX_CACHED_KERNELS,
    SNIPPETS_OPTION,
    CompiledModel,
)
from webnn_py.engines.openvino.unsupported import INTEGER_FAMILIES, INTEGER_OPERATORS
from webnn_py.ops.declare import REGISTRY


@pytest.fixture(scope="module")
def context() -> MLContext:
    return ml.create_context_sync(engine="openvino")


def run(graph: MLGraph, context: MLContext, **inputs: Any) -> dict[str, Any]:
    return MLExecution(context).compute(graph, inputs)


def test_the_model_has_the_weights_themselves(context: MLContext) -> None:
    """Where they lie: what is written there is computed with."""
    b = MLGraphBuilder(context)
    x = b.input("x", "float32", [600])
    graph = b.build_sync({"y": b.add(x, b.constant(np.ones(600, np.float32)))})
    executable = executable_of(graph)._executable
    (weight,) = executable._model.weights
    (array,) = graph._compiled.recipe.constants.values()
    assert weight is array
    assert executable.memory_use() == {id(array): array.nbytes}


def test_wide_integers_are_not_left_to_it(context: MLContext) -> None:
    b = MLGraphBuilder(context)
    x = b.input("x", "int64", [2])
    graph = b.build_sync({"y": b.add(x, x)})
    assert "# engine openvino" not in str(graph)
    values = np.array([2**40 + 1, 2**53 + 1])
    assert run(graph, context, x=values)["y"].tolist() == (2 * values).tolist()


def test_integers_are_moved_and_not_computed_with() -> None:
    families = {REGISTRY[name].family for name in REGISTRY}
    assert set(INTEGER_FAMILIES) <= families
    assert set(INTEGER_OPERATORS) <= set(REGISTRY)


def test_results_that_follow_from_no_input(context: MLContext) -> None:
    b = MLGraphBuilder(context)
    x, seven = b.input("x", "float32", [2]), b.constant(7.0, "float32")
    graph = b.build_sync({"y": b.identity(seven), "z": b.add(x, seven), "w": b.abs(seven)})
    for value in (1, 2):
        made = run(graph, context, x=np.full(2, value, np.float32))
        assert made["y"] == made["w"] == 7
        assert made["z"].tolist() == [value + 7] * 2


def test_inputs_may_be_read_only(context: MLContext) -> None:
    b = MLGraphBuilder(context)
    graph = b.build_sync({"y": b.neg(b.input("x", "float32", [2]))})
    x = np.ones(2, np.float32)
    x.flags.writeable = False
    assert run(graph, context, x=x)["y"].tolist() == [-1, -1]


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


@pytest.mark.parametrize(
    ("window", "padding", "strides", "shape", "layout"),
    [
        ((1, 1), [1, 1, 1, 0], [1, 2], (1, 2, 4, 4), "nchw"),
        ((3, 3), [0, 0, 1, 0], [1, 2], (1, 1, 7, 3), "nchw"),
        ((3, 3), [0, 0, 1, 0], [1, 2], (1, 7, 3, 1), "nhwc"),
    ],
)
def test_convolutions_that_it_mistakes(
    context: MLContext, window: Any, padding: Any, strides: Any, shape: Any, layout: Any
) -> None:
    rng = np.random.default_rng(0)
    channels = shape[layout.index("c")]
    first, second = (rng.normal(size=(channels, channels, *w)) for w in ((1, 1), window))
    x = rng.normal(size=shape).astype(np.float32)
    results = []
    for engine in (context, ml.create_context_sync(engine="reference")):
        b = MLGraphBuilder(engine)
        y = b.input("x", "float32", shape)
        y = b.conv2d(y, b.constant(first.astype(np.float32)), input_layout=layout)
        filter = b.constant(second.astype(np.float32))
        options: Any = {"padding": padding, "strides": strides, "input_layout": layout}
        graph = b.build_sync({"y": b.conv2d(y, filter, **options)})
        results.append(run(graph, engine, x=x)["y"])
    np.testing.assert_allclose(*results, rtol=1e-4, atol=1e-5)


def scalars_behind_products() -> None:
    x = np.arange(3, dtype=np.float32).reshape(1, 3)
    one = ml.create_context_sync(engine="openvino")
    for product in ("matmul", "gemm"):
        for shape in ([], [1]):
            b = MLGraphBuilder(one)
            made = getattr(b, product)(b.input("x", "float32", [1, 3]), b.constant(x.T.copy()))
            scalar = b.reshape(b.reshape(b.abs(made), shape), [])
            graph = b.build_sync({"y": scalar, "z": b.expand(scalar, [2])})
            results = run(graph, one, x=x)
            assert results["y"] == 5
            assert results["z"].tolist() == [5, 5]
    b = MLGraphBuilder(one)
    scale = b.matmul(b.input("x", "float32", [1, 3]), b.constant(x.T.copy()))
    zero = b.constant(np.zeros((1, 1), np.uint8))
    q = b.quantize_linear(b.input("y", "float32", [2, 2]), scale, zero)
    y = np.full((2, 2), 10, np.float32)
    assert run(b.build_sync({"q": q}), one, x=x, y=y)["q"].tolist() == [[2, 2], [2, 2]]


def test_scalars_behind_products() -> None:
    """OpenVINO would end the process."""
    run_alone(scalars_behind_products)


def windows_in_the_padding() -> None:
    x = np.arange(6, dtype=np.float32).reshape(1, 1, 3, 2)
    results = []
    for name in ("openvino", "reference"):
        one = ml.create_context_sync(engine=name)
        b = MLGraphBuilder(one)
        filter = b.constant(np.arange(9, dtype=np.float32).reshape(3, 1, 3, 1))
        bias = b.constant(np.ones(3, np.float32))
        options: Any = {"padding": [1, 0, 0, 1], "strides": [2, 1], "bias": bias}
        y = b.conv2d(b.input("x", "float32", x.shape), filter, **options)
        results.append(run(b.build_sync({"y": y}), one, x=x)["y"].tolist())
    assert results[0] == results[1]


def test_windows_in_the_padding() -> None:
    """OpenVINO would read what is not there."""
    run_alone(windows_in_the_padding)


def test_importing_it_tells_nobody() -> None:
    code = (
        "import sys, webnn_py; webnn_py.ml.create_context_sync(engine='openvino');"
        "assert 'openvino' in sys.modules; assert 'openvino_telemetry' not in sys.modules"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.fixture
def models(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
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
    name: str, models: list[bool], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
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
    assert models == [True]


def test_what_is_not_exact_with_open_sizes_is_compiled_for_each(
    context: MLContext, models: list[bool]
) -> None:
    """It takes the highest int32 for the lowest then."""
    b = MLGraphBuilder(context)
    graph = b.build_sync({"y": b.cast(b.input("x", "float32", ["n"]), "int32")})
    for n in (2, 3):
        x = np.full(n, 3e9, np.float32)
        assert run(graph, context, x=x)["y"].tolist() == [2**31 - 1] * n
    assert models == [False, False]


def test_sizes_at_which_it_is_not_exact_are_compiled_for(
    context: MLContext, models: list[bool]
) -> None:
    """Convolutions of one channel and one column, which the reference runs."""
    b = MLGraphBuilder(context)
    x = b.input("x", "float32", [1, 1, 4, "n"])
    graph = b.build_sync({"y": b.conv2d(x, b.constant(np.ones((1, 1, 2, 1), np.float32)))})
    for n in (3, 1, 2):
        made = run(graph, context, x=np.ones((1, 1, 4, n), np.float32))["y"]
        np.testing.assert_array_equal(made, np.full((1, 1, 3, n), 2))
    assert models == [True]


def test_what_is_kept_for_ever_new_sizes(
    context: MLContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[int | None] = []
    core = type(engine_of(context)._core)
    compile_model = core.compile_model

    def compiling(self: Any, model: Any, device: str, settings: dict[str, str]) -> Any:
        kept = settings.get(CACHE_CAPACITY_OPTION)
        given.append(kept and int(kept))
        return compile_model(self, model, device, settings)

    monkeypatch.setattr(core, "compile_model", compiling)
    for size in (2, "n"):
        b = MLGraphBuilder(context)
        x = b.input("x", "float32", [size, 4])
        graph = b.build_sync({"y": b.matmul(x, b.constant(np.eye(4, dtype=np.float32)))})
        assert run(graph, context, x=np.ones((2, 4), np.float32))["y"].sum() == 8
    fixed, kept = given
    assert fixed is None
    assert kept is not None
    assert 16 <= kept < MAX_CACHED_KERNELS


@pytest.mark.parametrize(
    ("length", "to_integers", "joined"),
    [(60, False, True), (700, False, False), (150, True, True)],
)
def test_nodes_in_long_rows_are_not_joined(
    context: MLContext,
    monkeypatch: pytest.MonkeyPatch,
    length: int,
    to_integers: bool,
    joined: bool,
) -> None:
    """To join 700 took OpenVINO 20 s, and twice as many 8 times that."""
    given: list[bool] = []
    core = type(engine_of(context)._core)
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
        np.testing.assert_allclose(computed(context), computed(reference), rtol=1e-3, atol=1e-5)
    assert given == [joined]

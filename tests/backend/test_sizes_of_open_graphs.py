"""What the executables of an open graph share, and how many of them are kept."""

from __future__ import annotations

import asyncio
import gc
import os
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.backend.networks import assert_like, encoder
from tests.graphs import awaited, normal
from tests.internals import engine_of, prepared_sizes, session_of
from webnn_py import (
    MLAwaitedExecution,
    MLContext,
    MLGraph,
    MLGraphBuilder,
    MLOperand,
    Timeline,
    ValidationError,
    ml,
)
from webnn_py.api.compiled import compiled_of
from webnn_py.engines.reference.engine import ReferenceExecutable

LARGE = os.environ.get("WEBNN_LARGE_ENCODER") == "1"
LAYERS, WIDTH, HEADS = (12, 384, 6) if LARGE else (2, 16, 2)
SIZES = [(1, 1), (2, 5), (1, 7), (3, 2)]
if LARGE:
    SIZES = [(batch, length) for batch in (1, 2, 3, 4) for length in (16, 37, 64, 100, 128)]


class Made:
    """What is made on a GPU's device from now on.

    Attributes:
        constants: The bytes of each buffer of a constant.
        pipelines: The names of the kernels that were compiled.
    """

    def __init__(self, gpu: MLContext, monkeypatch: pytest.MonkeyPatch) -> None:
        self.constants: list[int] = []
        self.pipelines: list[str] = []
        device = engine_of(gpu).gpu
        make_buffer, make_pipeline = device.buffer, type(device.handle).create_compute_pipeline

        def buffer(size: int, usage: int, label: str = "", mapped: bool = False) -> Any:
            if label == "constants":
                self.constants.append(size)
            return make_buffer(size, usage, label, mapped)

        def pipeline(handle: Any, **options: Any) -> Any:
            self.pipelines.append(options["label"])
            return make_pipeline(handle, **options)

        monkeypatch.setattr(device, "buffer", buffer)
        monkeypatch.setattr(type(device.handle), "create_compute_pipeline", pipeline)


@pytest.fixture
def made(gpu: MLContext, monkeypatch: pytest.MonkeyPatch) -> Made:
    return Made(gpu, monkeypatch)


def encoding(context: MLContext, batch: Any = "batch", length: Any = "length") -> MLGraph:
    bounds = {"batch": (1, 64), "length": (1, 512)} if batch == "batch" else {}
    b = MLGraphBuilder(context, dimensions=bounds)
    return b.build_sync({"y": encoder(b, batch, length, LAYERS, WIDTH, HEADS)})


def at(batch: int, length: int) -> tuple[tuple[str, int], ...]:
    return ("batch", batch), ("length", length)


def inputs_of(batch: int, length: int) -> dict[str, Any]:
    return {
        "x": normal(batch, length, WIDTH, seed=batch),
        "mask": normal(batch, length, seed=length),
    }


def test_an_encoder_of_texts_of_any_length(context: MLContext, gpu: MLContext, made: Made) -> None:
    on_gpu = context is gpu
    fixed = [encoding(context, *sizes) for sizes in SIZES]
    wanted = [awaited(g, inputs_of(*s))["y"] for g, s in zip(fixed, SIZES, strict=True)]
    weights = sum(made.constants) // len(SIZES)
    made.constants.clear()
    del fixed

    graph = encoding(context)
    for sizes, array in zip(SIZES, wanted, strict=True):
        got = awaited(graph, inputs_of(*sizes))["y"]
        np.testing.assert_allclose(got, array, rtol=2e-4, atol=2e-5)
    assert sum(made.constants) == (weights if on_gpu else 0)
    assert (weights > 4 * LAYERS * 12 * WIDTH**2) == on_gpu


def test_a_size_is_compiled_once(gpu: MLContext, made: Made) -> None:
    graph = encoding(gpu)
    assert not made.pipelines
    asyncio.run(graph.prepare_async({"batch": 2, "length": 11}))
    assert made.pipelines
    assert made.constants
    made.pipelines.clear()
    made.constants.clear()
    for _ in range(2):
        awaited(graph, inputs_of(2, 11))
    assert (made.pipelines, made.constants) == ([], [])
    awaited(graph, inputs_of(2, 13))
    assert made.pipelines
    assert not made.constants
    made.pipelines.clear()
    for length in (13, 11):
        awaited(graph, inputs_of(2, length))
    assert (made.pipelines, made.constants) == ([], [])


def keeping(context: MLContext, **options: Any) -> MLContext:
    """A context of the same kind that keeps fewer executables."""
    return ml.create_context_sync(device_type=context.device_type, **options)


def compiled_for(
    context: MLContext, monkeypatch: pytest.MonkeyPatch
) -> tuple[MLGraph, list[tuple[int, ...]]]:
    """An open encoder, and a list of the shapes that it is compiled for from now on."""
    graph = encoding(context)
    return graph, prepared_sizes(graph, monkeypatch)


def test_sizes_used_last_stay_compiled(context: MLContext, monkeypatch: pytest.MonkeyPatch) -> None:
    with keeping(context, max_prepared_sizes=2) as context:
        graph, compiled = compiled_for(context, monkeypatch)
        one, two, three = (1, 1), (2, 2), (1, 3)
        for sizes in (one, two, one, three, one, three, one):
            awaited(graph, inputs_of(*sizes))
        assert compiled == [one, two, three]
        awaited(graph, inputs_of(*two))
        awaited(graph, inputs_of(*three))
        assert compiled == [one, two, three, two, three]


def test_memory_limits_what_stays_compiled(gpu: MLContext, monkeypatch: pytest.MonkeyPatch) -> None:
    large, small = (2, 32), (1, 1)
    with ml.create_context_sync(device_type="gpu", max_prepared_bytes=1 << 17) as context:
        graph, compiled = compiled_for(context, monkeypatch)
        made = Made(context, monkeypatch)
        for sizes in (small, (1, 2), small, (1, 2)):
            awaited(graph, inputs_of(*sizes))
        assert compiled == [small, (1, 2)]
        for sizes in (large, large, small, small):
            awaited(graph, inputs_of(*sizes))
        assert compiled == [small, (1, 2), large, small]
        weights = sum(made.constants)
        encoding(context, 1, 1)
        assert sum(made.constants) == 2 * weights


@pytest.mark.parametrize(("says", "times"), [(True, 2), (False, 3)])
def test_an_engine_that_says_nothing_of_weights_has_them_for_each_size(
    monkeypatch: pytest.MonkeyPatch, says: bool, times: int
) -> None:
    if not says:
        monkeypatch.setattr(ReferenceExecutable, "memory_use", lambda self: {})
    with ml.create_context_sync(engine="reference", max_prepared_bytes=1 << 12) as context:
        graph, compiled = compiled_for(context, monkeypatch)
        for sizes in ((1, 1), (1, 2), (1, 1)):
            awaited(graph, inputs_of(*sizes))
        assert len(compiled) == times


def test_what_runs_needs_no_room(context: MLContext) -> None:
    sizes = SIZES[:4] * 6
    with keeping(context, max_prepared_sizes=1, max_prepared_bytes=0) as context:
        graph, execution = encoding(context), MLAwaitedExecution(context)

        async def main() -> list[dict[str, Any]]:
            runs = (execution.compute(graph, inputs_of(*each)) for each in sizes)
            return await asyncio.gather(*runs)

        for each, got in zip(sizes, asyncio.run(main()), strict=True):
            assert_like(got, awaited(graph, inputs_of(*each)))


def test_what_waits_needs_no_room(context: MLContext) -> None:
    """A dispatch is parked, its executable is dropped, and then it runs."""
    with keeping(context, max_prepared_sizes=1) as context:
        graph, go = encoding(context), Timeline()
        inputs = {n: context.create_tensor_sync("float32", array.shape, writable=True)
                  for n, array in inputs_of(2, 5).items()}  # fmt: skip
        for name, array in inputs_of(2, 5).items():
            context.write_tensor(inputs[name], array)
        output = context.create_tensor_sync("float32", [2, 5, WIDTH], readable=True)
        context.dispatch(graph, inputs, {"y": output}, sync=[go(wait=1)])
        there = weakref.ref(compiled_of(graph).executable(session_of(context), sizes=at(2, 5)))
        graph.prepare_sync({"batch": 1, "length": 1})
        assert compiled_of(graph).check_usable(session_of(context)).find(at(2, 5)) is None
        go.signal(1)
        got = context.read_tensor_sync(output)
        gc.collect()
        assert there() is None
        np.testing.assert_allclose(got, awaited(graph, inputs_of(2, 5))["y"], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", ["max_prepared_sizes", "max_prepared_bytes"])
def test_numbers_that_say_nothing_are_refused(name: str) -> None:
    wrong: list[Any] = [-1, 1.5, "16", True, *([None, 0] if name == "max_prepared_sizes" else [])]
    for value in wrong:
        with pytest.raises(ValidationError, match=f"option '{name}'"):
            ml.create_context_sync(**{name: value})


Weighted = Callable[[MLGraphBuilder, MLOperand], MLOperand]

# From an input of shape [n, 32], by weights that passes compute others from.
WEIGHTED: dict[str, Weighted] = {
    "folded": lambda b, x: b.matmul(x, b.transpose(b.neg(b.constant(normal(8, 32))))),
    "transposed": lambda b, x: b.gemm(x, b.constant(normal(24, 32)), b_transpose=True, alpha=0.5),
    "normalized": lambda b, x: b.batch_normalization(
        b.matmul(x, b.constant(normal(32, 8))),
        *(b.constant(np.abs(normal(8, seed=seed))) for seed in (1, 2)),
    ),
    "a filter": lambda b, x: b.linear(
        b.conv2d(
            b.reshape(x, [x.shape[0], 2, 4, 4]),
            b.constant(normal(4, 2, 3, 3)),
            bias=b.constant(normal(4)),
        ),
        alpha=3,
    ),
    "another layout": lambda b, x: b.transpose(
        b.mul(
            b.transpose(b.reshape(x, [x.shape[0], 8, 4]), permutation=[0, 2, 1]),
            b.constant(normal(4, 8)),
        ),
        permutation=[0, 2, 1],
    ),
    "dequantized": lambda b, x: b.matmul(
        x,
        b.dequantize_linear(
            b.constant(np.arange(256, dtype=np.uint8).reshape(32, 8)),
            b.constant(np.full((1, 1), 0.1, np.float32)),
            b.constant(np.full((1, 1), 128, np.uint8)),
        ),
    ),
    "a cell": lambda b, x: b.gru_cell(
        x, b.constant(normal(24, 32)), b.constant(normal(24, 8)), b.slice(x, [0, 0],
        [x.shape[0], 8]), 8, bias=b.constant(normal(24)),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", WEIGHTED)
def test_what_is_computed_from_weights_is_so_once(
    context: MLContext, made: Made, name: str
) -> None:
    def build(n: Any) -> MLGraph:
        b = MLGraphBuilder(context)
        return b.build_sync({"y": WEIGHTED[name](b, b.input("x", "float32", [n, 32]))})

    graph, session = build("n"), session_of(context)
    arrays = []
    for n in (3, 5, 2):
        made.constants.clear()
        x = normal(n, 32, seed=n)
        got = awaited(graph, {"x": x})["y"]
        np.testing.assert_allclose(got, awaited(build(n), {"x": x})["y"], rtol=1e-5, atol=1e-6)
        listing = compiled_of(graph).check_usable(session).get((("n", n),)).listing
        assert not isinstance(listing, str)
        arrays.append({id(array) for array in listing.graph.constants.values() if array.size > 1})
    assert arrays[0]
    assert arrays[0] == arrays[1] == arrays[2]

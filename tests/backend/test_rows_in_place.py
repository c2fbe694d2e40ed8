"""New rows are scattered into a cache in place, or into a copy where that is another buffer."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.backend.buffers import buffer_of, read
from tests.backend.tensors import tensor
from tests.graphs import awaited, build, kernels_of
from webnn_py import MLCommandEncoder, MLContext, MLGraph, MLGraphBuilder, MLOperand, MLProgram

SHAPE = (2, 3, 8, 4)
CACHE = np.random.default_rng(0).normal(size=SHAPE).astype(np.float32)
ROWS = np.random.default_rng(1).normal(size=(2, 3, 2, 4)).astype(np.float32)
STARTS = np.array([1, 7], np.int32)  # the last row of the second batch is dropped


def scattered(cache: Any = CACHE, rows: Any = ROWS, starts: Any = STARTS) -> Any:
    """The cache with doubled rows in their places."""
    made = cache.copy()
    for batch, start in enumerate(starts):
        for row in range(rows.shape[2]):
            if 0 <= start + row < cache.shape[2]:
                made[batch, :, start + row] = 2 * rows[batch, :, row]
    return made


def step(context: MLContext, dtype: str = "float32", also: bool = False) -> MLGraph:
    """after = cache with doubled rows scattered into it; sum = what `after` sums to.

    With `also`, another output depends on the cache as it was before.
    """

    def what(b: MLGraphBuilder) -> dict[str, MLOperand]:
        cache = b.input("cache", dtype, SHAPE)
        rows = b.input("rows", dtype, ROWS.shape)
        starts = b.input("starts", "int32", [2])
        after = b.scatter_rows(cache, b.mul(rows, b.constant(2.0, dtype)), starts)
        made = {"after": after, "sum": b.reduce_sum(after, axes=[2])}
        return made | ({"before": b.reduce_sum(cache, axes=[2])} if also else {})

    return build(context, what)


def given(context: MLContext, dtype: str = "float32") -> dict[str, Any]:
    arrays = {"rows": ROWS.astype(dtype), "starts": STARTS}
    return {name: tensor(context, array) for name, array in arrays.items()}


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_the_same_tensor(gpu: MLContext, dtype: str) -> None:
    graph, cache = step(gpu, dtype), tensor(gpu, CACHE.astype(dtype))
    total = tensor(gpu, np.zeros((2, 3, 4), dtype))
    inputs = given(gpu, dtype)
    wanted = scattered(CACHE.astype(dtype), ROWS.astype(dtype))
    for _ in range(3):  # the later ones repeat recorded commands
        gpu.dispatch(graph, {"cache": cache, **inputs}, {"after": cache, "sum": total})
    np.testing.assert_array_equal(gpu.read_tensor_sync(cache), wanted)
    tolerance = 1e-5 if dtype == "float32" else 1e-2
    np.testing.assert_allclose(
        gpu.read_tensor_sync(total), wanted.astype(np.float32).sum(2), tolerance, tolerance
    )


def test_rotated_rows_are_computed_where_they_are_scattered(
    hardware: MLContext, reference: MLContext
) -> None:
    rng = np.random.default_rng(2)
    tables = [rng.normal(size=(16, 2)).astype(np.float32) for _ in range(2)]

    def what(b: MLGraphBuilder) -> dict[str, MLOperand]:
        starts, rows = b.input("starts", "int32", [2]), b.input("rows", "float32", ROWS.shape)
        at = b.add(b.reshape(starts, [2, 1]), b.constant(np.array([0, 1], np.int32)))
        rotated = b.rotary_embedding(rows, *map(b.constant, tables), positions=at)
        return {"after": b.scatter_rows(b.input("cache", "float32", SHAPE), rotated, starts)}

    inputs = {"cache": CACHE, "rows": ROWS, "starts": STARTS}
    graph = build(hardware, what)
    wanted = awaited(build(reference, what), inputs)["after"]
    np.testing.assert_allclose(awaited(graph, inputs)["after"], wanted, 1e-6, 1e-6)
    assert not any("sub" in name for name in kernels_of(graph, inputs))


def test_another_tensor(gpu: MLContext) -> None:
    graph, inputs = step(gpu), given(gpu)
    cache, other, total = (tensor(gpu, a) for a in (CACHE, 0 * CACHE, CACHE[:, :, 0]))
    for turn in range(3):
        gpu.write_tensor(cache, CACHE + turn)
        gpu.dispatch(graph, {"cache": cache, **inputs}, {"after": other, "sum": total})
        np.testing.assert_array_equal(gpu.read_tensor_sync(other), scattered(CACHE + turn))
        np.testing.assert_array_equal(gpu.read_tensor_sync(cache), CACHE + turn)


def test_a_cache_that_is_read_as_it_was(gpu: MLContext) -> None:
    graph, cache, inputs = step(gpu, also=True), tensor(gpu, CACHE), given(gpu)
    total, before = (tensor(gpu, CACHE[:, :, 0]) for _ in range(2))
    outputs = {"after": cache, "sum": total, "before": before}
    gpu.dispatch(graph, {"cache": cache, **inputs}, outputs)
    np.testing.assert_array_equal(gpu.read_tensor_sync(cache), scattered())
    np.testing.assert_allclose(gpu.read_tensor_sync(before), CACHE.sum(2), 1e-5, 1e-5)


@pytest.mark.parametrize("own", [False, True])
def test_arrays(gpu: MLContext, own: bool) -> None:
    graph, after = step(gpu), CACHE.copy()
    for turn in range(4):
        cache = CACHE + turn
        outputs = {"after": after} if own else {}
        made = awaited(graph, {"cache": cache, "rows": ROWS, "starts": STARTS}, outputs)
        np.testing.assert_array_equal(made["after"], scattered(CACHE + turn))
        np.testing.assert_array_equal(cache, CACHE + turn)


def test_an_array_into_a_tensor(gpu: MLContext) -> None:
    graph, after = step(gpu), tensor(gpu, 0 * CACHE)
    for turn in range(3):
        inputs = {"cache": CACHE + turn, "rows": ROWS, "starts": STARTS}
        awaited(graph, inputs, {"after": after})
        np.testing.assert_array_equal(gpu.read_tensor_sync(after), scattered(CACHE + turn))


@pytest.mark.parametrize("place", ["same", "behind", "overlapping", "unaligned"])
def test_buffers(gpu: MLContext, place: str) -> None:
    """The output is the input's range of a buffer, or another range of the same buffer."""
    size = CACHE.nbytes
    offset = {"same": 0, "behind": size, "overlapping": 256, "unaligned": 4}[place]
    contents = np.concatenate([CACHE.ravel(), np.zeros(size // 4, np.float32)])
    buffer = buffer_of(gpu.device, contents)
    ranges = [{"buffer": buffer, "offset": at, "size": size} for at in (0, offset)]
    if place == "unaligned":
        ranges.reverse()
    awaited(
        step(gpu),
        {"cache": ranges[0], "rows": ROWS, "starts": STARTS},
        {"after": ranges[1]},
    )
    start, end = ranges[0]["offset"] // 4, ranges[1]["offset"]
    source = contents[start : start + CACHE.size].reshape(SHAPE)
    np.testing.assert_array_equal(read(buffer, SHAPE, offset=end), scattered(source))


def test_an_encoder_and_a_constant_cache(gpu: MLContext) -> None:
    graph, cache, after = step(gpu), tensor(gpu, CACHE), tensor(gpu, 0 * CACHE)
    total, inputs = tensor(gpu, CACHE[:, :, 0]), given(gpu)
    for _ in range(2):
        encoder = MLCommandEncoder(gpu)
        encoder.dispatch(graph, {"cache": cache, **inputs}, {"after": cache, "sum": total})
        gpu.submit([encoder.finish()])
    np.testing.assert_array_equal(gpu.read_tensor_sync(cache), scattered())
    gpu.write_tensor(cache, CACHE)
    graph = step(gpu)
    encoder = MLCommandEncoder(gpu)
    encoder.initialize_graph(graph, {"cache": cache})
    for starts in ([0, 0], [4, 4]):
        gpu.write_tensor(inputs["starts"], np.array(starts, np.int32))
        encoder.dispatch(graph, inputs, {"after": after, "sum": total})
        gpu.submit([encoder.finish()])
        found = gpu.read_tensor_sync(after)
        np.testing.assert_array_equal(found, scattered(starts=starts))  # of the constant
        encoder = MLCommandEncoder(gpu)


def test_slices(gpu: MLContext) -> None:
    graph, cache, inputs = step(gpu), tensor(gpu, CACHE), given(gpu)
    total = tensor(gpu, CACHE[:, :, 0])
    outputs = {"after": cache, "sum": total}
    job = gpu.slice_dispatch(graph, {"cache": cache, **inputs}, outputs)
    done = False
    while not done:
        encoder = MLCommandEncoder(gpu)
        done = encoder.dispatch_slice(job, budget_ms=1e-6)
        gpu.submit([encoder.finish()])
    np.testing.assert_array_equal(gpu.read_tensor_sync(cache), scattered())


@pytest.mark.parametrize("same", [True, False])
def test_programs(gpu: MLContext, same: bool) -> None:
    program = MLProgram(gpu)
    arguments = {
        name: program.argument(name, str(array.dtype), array.shape)
        for name, array in (("cache", CACHE), ("rows", ROWS), ("starts", STARTS))
    }
    after = arguments["cache"] if same else program.argument("after", "float32", SHAPE)
    run = program.sequence()
    total = program.buffer("float32", [2, 3, 4])
    run.dispatch(step(gpu), arguments, {"after": after, "sum": total})
    program.append(run, repeat=2)
    program.compile_sync()
    texts = {"cache": CACHE.copy(), "rows": ROWS, "starts": STARTS}
    made = program.run_sync(texts if same else texts | {"after": 0 * CACHE})
    np.testing.assert_array_equal(made["cache" if same else "after"], scattered())

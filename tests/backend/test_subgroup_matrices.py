"""Products and attention by subgroup matrices, emulated and on tensor cores."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, Literal

import numpy as np
import pytest

from tests.backend.subgroup_emulation import emulated
from tests.graphs import awaited, build
from tests.graphs import expected as reference
from tests.internals import engine_of, recipe_of, taken_for
from webnn_py import MLContext, MLGraphBuilder, MLOperand, NotSupportedError, ml
from webnn_py.core.devices import Float32Precision
from webnn_py.engines.webgpu.compiler.kernel import Kernel
from webnn_py.engines.webgpu.compiler.kernels import costs, gemm_subgroup
from webnn_py.engines.webgpu.compiler.kernels.costs import Cost
from webnn_py.engines.webgpu.compiler.kernels.gemm_types import SubgroupTile
from webnn_py.engines.webgpu.compiler.legalize import split_products
from webnn_py.engines.webgpu.program.storage import MatrixShape
from webnn_py.passes import halve_float32, multiply_by_halves, multiply_integers

TOLERANCE = 1e-3
"""Relative to the norm of the result, whose elements are rounded to float16."""

SMALL_COSTS = (Cost(SubgroupTile(32, 16, 16, 2, 1), 1, 1, 1, 1),)
"""A tile that software adapters compile soon."""

Array = np.ndarray[Any, Any]
Record = Callable[..., MLOperand]


anywhere = pytest.mark.parametrize("matrices", ["emulated", "tensor cores"], indirect=True)
on_tensor_cores = pytest.mark.parametrize("matrices", ["tensor cores"], indirect=True)
"""Software adapters take 10 s to compile an emulated kernel."""


@pytest.fixture
def matrices(
    request: pytest.FixtureRequest, gpu: MLContext, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[MLContext, list[str]]]:
    """A context whose device has subgroup matrices, and the WGSL of its kernels."""
    codes: list[str] = []
    make, is_emulated = Kernel.of, request.param == "emulated"

    def record(*arguments: Any) -> Kernel:
        kernel = make(*arguments)
        codes.append(kernel.code)
        return replace(kernel, code=emulated(kernel.code)) if is_emulated else kernel

    monkeypatch.setattr(Kernel, "of", record)
    if is_emulated:
        if "shader-f16" not in gpu.device.features:
            pytest.skip("the adapter has no shader-f16")
        shapes = {"f16_matrix": MatrixShape(16, 16, 16), "i8_matrix": MatrixShape(16, 16, 32)}
        with taken_for(gpu.device, kind="gpu", **shapes) as context:
            engine = engine_of(context)
            engine.passes = (multiply_integers, *engine.passes)
            yield context, codes
        return
    try:
        context = ml.create_context_sync(device_type="gpu", engine="dawn")
    except NotSupportedError as error:
        pytest.skip(f"no adapter for Dawn: {error}")
    with context:
        if "chromium-experimental-subgroup-matrix" not in context.device.features:
            pytest.skip("the adapter has no subgroup matrices")
        yield context, codes


@contextlib.contextmanager
def multiplying(context: MLContext, precision: Float32Precision) -> Iterator[MLContext]:
    """A context on the same device, seeming or not, that may compute float32 less precisely."""
    features = engine_of(context).gpu.features
    changes = {"kind": "gpu", "f16_matrix": features.f16_matrix, "float32_precision": precision}
    with taken_for(context.device, **changes) as made, pytest.MonkeyPatch.context() as patch:
        for module in (halve_float32, split_products):
            patch.setattr(module, "MIN_MULTIPLICATIONS", 1 << 12)
        engine_of(made).passes += (multiply_by_halves,) if precision == "medium" else ()
        yield made


def drawn(*shape: int) -> Array:
    rng = np.random.default_rng(sum(shape))
    return rng.standard_normal(shape).astype(np.float16)


def check(
    matrices: tuple[MLContext, list[str]], record: Record, inputs: dict[str, Array], expected: Array
) -> None:
    """Run a graph of these inputs, and compare with the result in float64."""
    context, codes = matrices

    def whole(b: MLGraphBuilder) -> dict[str, MLOperand]:
        operands = (b.input(name, "float16", list(x.shape)) for name, x in inputs.items())
        return {"y": record(b, *operands)}

    graph = build(context, whole)
    assert any("subgroupMatrixMultiplyAccumulate" in code for code in codes)
    result = awaited(graph, inputs)["y"].astype(np.float64)
    assert np.linalg.norm(result - expected) < TOLERANCE * np.linalg.norm(expected)


@anywhere
def test_products_with_rests(matrices: tuple[MLContext, list[str]]) -> None:
    """Rows, columns and k that leave rests; an epilogue, and one that reads a matrix."""
    a, c, d, e = drawn(37, 70), drawn(70, 52), drawn(52), drawn(37, 52)
    inputs = {"a": a, "c": c, "d": d}
    expected = np.maximum(a.astype(np.float64) @ c.astype(np.float64) + d, 0)
    check(matrices, lambda b, a, c, d: b.relu(b.add(b.matmul(a, c), d)), inputs, expected)

    def record(b: MLGraphBuilder, a: MLOperand, c: MLOperand, *others: MLOperand) -> MLOperand:
        return b.mul(b.relu(b.add(b.matmul(a, c), others[0])), others[1])

    check(matrices, record, inputs | {"e": e}, expected * e)


UNEVEN = Cost(SubgroupTile(32, 48, 32, 2, 1), 1, 1, 1, 1)
"""A tile whose columns are no power of 2, small enough for software adapters to compile it."""


@pytest.mark.parametrize(
    ("matrices", "cost"),
    [
        ("emulated", UNEVEN),
        *(("tensor cores", cost) for cost in (UNEVEN, *costs.MATRIX_COSTS)),
    ],
    indirect=["matrices"],
)
def test_tiles(
    matrices: tuple[MLContext, list[str]], cost: Cost, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Several tiles with rests; columns of one operand are loaded along k, of the other not."""
    monkeypatch.setattr(costs, "MATRIX_COSTS", (cost,))
    for others in ("F16_COSTS", "F16_VEC8_COSTS"):
        monkeypatch.setattr(costs, others, ())
    tile = cost.tile
    rows, depth, columns = tile.rows + 20, tile.depth + 24, tile.cols + 40
    a, c, d = drawn(rows, depth), drawn(depth, columns), drawn(columns, depth)
    expected = a.astype(np.float64) @ (c.astype(np.float64) + d.T)

    def record(b: MLGraphBuilder, a: MLOperand, c: MLOperand, d: MLOperand) -> MLOperand:
        return b.add(b.matmul(a, c), b.matmul(a, b.transpose(d)))

    check(matrices, record, {"a": a, "c": c, "d": d}, expected)


@on_tensor_cores
def test_products_of_transposed_operands(matrices: tuple[MLContext, list[str]]) -> None:
    a, c = drawn(72, 40), drawn(48, 72)
    expected = a.T.astype(np.float64) @ c.T.astype(np.float64)

    def record(b: MLGraphBuilder, a: MLOperand, c: MLOperand) -> MLOperand:
        return b.matmul(b.transpose(a), b.transpose(c))

    check(matrices, record, {"a": a, "c": c}, expected)


@on_tensor_cores
def test_convolutions(matrices: tuple[MLContext, list[str]]) -> None:
    """NHWC, so that eight channels are loaded at a time; padding, strides and several images."""
    x, w = drawn(3, 9, 9, 24), drawn(32, 3, 3, 24)
    padded = np.pad(x.astype(np.float64), ((0, 0), (1, 1), (1, 1), (0, 0)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), (1, 2))[:, ::2, ::2]
    expected = np.einsum("nhwcij,oijc->nhwo", windows, w.astype(np.float64))

    def record(b: MLGraphBuilder, x: MLOperand, w: MLOperand) -> MLOperand:
        layouts: dict[str, Any] = {"input_layout": "nhwc", "filter_layout": "ohwi"}
        return b.conv2d(x, w, strides=[2, 2], padding=[1, 1, 1, 1], **layouts)

    check(matrices, record, {"x": x, "w": w}, expected)


@anywhere
@pytest.mark.parametrize(
    ("rows", "keys", "depth", "width"),
    [(40, 70, 16, 20), (20, 70, 112, 20), (20, 70, 36, 150), (20, 20, 160, 160)],
)
def test_attention(
    matrices: tuple[MLContext, list[str]], rows: int, keys: int, depth: int, width: int
) -> None:
    """Several tiles of keys with a rest, a mask, and scores that rise late."""
    q, k, v = drawn(1, 2, rows, depth), drawn(1, 2, keys, depth), drawn(1, 2, keys, width)
    k[:, :, keys // 2 :] *= 8
    mask = np.where(np.arange(keys) % 3 == 1, -np.inf, 0).astype(np.float16)
    inputs = {"q": q, "k": k, "v": v, "mask": mask}

    def record(
        b: MLGraphBuilder, q: MLOperand, k: MLOperand, v: MLOperand, mask: MLOperand
    ) -> MLOperand:
        scores = b.matmul(q, b.transpose(k, permutation=[0, 1, 3, 2]))
        scores = b.mul(scores, b.constant(0.25, "float16"))
        return b.matmul(b.softmax(b.add(scores, mask), 3), v)

    scores = q.astype(np.float64) @ np.swapaxes(k, 2, 3).astype(np.float64) / 4 + mask
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    check(matrices, record, inputs, weights @ v.astype(np.float64))


SPLIT_BITS = 20
"""Bits of a sum of magnitudes that products of split float32 keep."""


@contextlib.contextmanager
def split_soon(context: MLContext, run: int) -> Iterator[MLContext]:
    """A context that splits float32, in a tile that compiles soon, and adds up runs of k."""
    with pytest.MonkeyPatch.context() as patch:
        roomy = SubgroupTile(32, 16, 32, 2, 1)
        patch.setattr(costs, "MATRIX_COSTS", (Cost(roomy, 1, 1, 1, 1),))
        patch.setattr(gemm_subgroup, "MAX_SPLIT_DEPTH", run)
        with multiplying(context, "high") as made:
            yield made


def check_split(results: dict[str, Array], a: Array, c: Array, bits: int = SPLIT_BITS) -> None:
    """Check that products of float32 err by at most some bits of their sums of magnitudes."""
    wide = a.astype(np.float64), c.astype(np.float64)
    bound = np.abs(wide[0]) @ np.abs(wide[1]) * 2.0**-bits
    for result in results.values():
        assert (np.abs(result - wide[0] @ wide[1]) <= bound).all()


def badly_scaled(rng: np.random.Generator, rows: int, depth: int, columns: int) -> list[Array]:
    """Operands whose rows and columns have magnitudes from 1e-12 to 1e12."""
    a = rng.standard_normal((rows, depth)) * 10.0 ** rng.uniform(-12, 12, (rows, 1))
    c = rng.standard_normal((depth, columns)) * 10.0 ** rng.uniform(-12, 12, (1, columns))
    a[7] = 0
    return [a.astype(np.float32), c.astype(np.float32)]


@anywhere
@pytest.mark.parametrize("size", [(40, 72, 48), (37, 70, 51)])
def test_split_float32(matrices: tuple[MLContext, list[str]], size: tuple[int, int, int]) -> None:
    """Constant and other operands; rests everywhere; several runs of k, the last one shorter."""
    context, codes = matrices
    rows, depth, columns = size
    a, c = badly_scaled(np.random.default_rng(1), rows, depth, columns)

    def record(b: MLGraphBuilder) -> dict[str, MLOperand]:
        x = b.input("a", "float32", a.shape)
        right = b.input("c", "float32", c.shape)
        return {"y": b.matmul(x, b.constant(c)), "z": b.matmul(x, right)}

    with split_soon(context, 32) as made:
        graph = build(made, record)
        assert "float32 precision of products: high" in str(graph)
        check_split(awaited(graph, {"a": a, "c": c}), a, c)
        assert any("subgroupMatrixMultiplyAccumulate" in code for code in codes)
        assert any("fn gemm_b_low8(" in code for code in codes) == (columns % 8 == 0)
        # All terms have one sign.
        check_split({"z": awaited(graph, {"a": np.abs(a), "c": np.abs(c)})["z"]}, abs(a), abs(c))
        # Products are finite although rows and columns are next to the ends of the range. They
        # are normal numbers: GPUs may take others for 0.
        a[:, 1:], c[1:] = 0, 0
        a[:, 0], c[0] = np.float32(2e-38), np.float32(3e38)
        a[1, 0], c[0, 1] = np.float32(3e38), np.float32(2e-38)
        a[2, 3], a[3, 4], a[5] = np.inf, np.nan, 0
        z = awaited(graph, {"a": a, "c": c})["z"]
    assert np.isnan(z[[2, 3]]).all()
    with np.errstate(over="ignore"):
        expected = np.outer(a[:, 0].astype(np.float64), c[0]).astype(np.float32)
    others = [0, *range(4, rows)]
    np.testing.assert_allclose(z[others], expected[others], 2e-6, 1e-37)
    assert z[1, 1] == pytest.approx(6)
    assert np.isinf(z[1, 2:]).all()


@anywhere
def test_split_batches_and_views(matrices: tuple[MLContext, list[str]]) -> None:
    """Batches that become rows, batches of both operands, and transposed operands."""
    context, codes = matrices
    rng = np.random.default_rng(2)
    a, c = (rng.standard_normal(shape).astype(np.float32) for shape in ((2, 20, 36), (2, 24, 36)))

    def record(b: MLGraphBuilder) -> dict[str, MLOperand]:
        x, right = b.input("a", "float32", a.shape), b.input("c", "float32", c.shape)
        turned = b.transpose(right, permutation=[0, 2, 1])
        return {"y": b.matmul(x, b.constant(c[0].T)), "z": b.matmul(x, turned)}

    with split_soon(context, 1024) as made:
        results = awaited(build(made, record), {"a": a, "c": c})
    assert any("subgroupMatrixMultiplyAccumulate" in code for code in codes)
    for i in range(2):
        check_split({"y": results["y"][i]}, a[i], c[0].T)
        check_split({"z": results["z"][i]}, a[i], c[i].T)


@anywhere
@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
def test_split_convolutions(matrices: tuple[MLContext, list[str]], layout: Any) -> None:
    """Images and output channels of different magnitudes, a bias and an epilogue."""
    context, codes = matrices
    rng = np.random.default_rng(3)
    images, channels = 10.0 ** np.array([[-9], [9]]), 10.0 ** rng.uniform(-9, 9, (16, 1))
    x = (rng.standard_normal((2, 16 * 36)) * images).astype(np.float32)
    w = (rng.standard_normal((16, 16 * 9)) * channels).astype(np.float32)
    d = w[:, 0].copy()
    if layout == "nchw":
        x, w = x.reshape(2, 16, 6, 6), w.reshape(16, 16, 3, 3)
    else:
        x, w = x.reshape(2, 6, 6, 16), w.reshape(16, 3, 3, 16)

    def record(b: MLGraphBuilder, absolute: bool = False) -> dict[str, MLOperand]:
        options: Any = {"input_layout": layout}
        options["filter_layout"] = "oihw" if layout == "nchw" else "ohwi"
        filter_, bias = (b.constant(np.abs(one) if absolute else one) for one in (w, d))
        y = b.conv2d(b.input("x", "float32", x.shape), filter_, bias=bias, **options)
        return {"y": b.relu(y)}

    with split_soon(context, 64) as made:
        result = awaited(build(made, record), {"x": x})["y"]
    assert any("subgroupMatrixMultiplyAccumulate" in code for code in codes)
    if layout == "nhwc":
        assert any("fn gemm_b_low8(" in code for code in codes)
    magnitude = reference(lambda b: record(b, absolute=True), {"x": np.abs(x)})["y"]
    error = np.abs(result - reference(record, {"x": x})["y"])
    assert (error <= magnitude * 2.0**-SPLIT_BITS).all()


@on_tensor_cores
def test_deep_split_products(matrices: tuple[MLContext, list[str]]) -> None:
    """Tensor cores truncate their sums, so that each adds up a part of k only."""
    context, codes = matrices
    a, c = badly_scaled(np.random.default_rng(4), 128, 4096, 256)
    with multiplying(context, "high") as made:
        graph = build(
            made,
            lambda b: {"y": b.matmul(b.input("a", "float32", a.shape), b.constant(c))},
        )
        check_split(awaited(graph, {"a": a}), a, c)
        positive = np.abs(a)
        assert any("fn gemm_b_low8(" in code for code in codes)
        graph = build(
            made,
            lambda b: {"y": b.matmul(b.input("a", "float32", a.shape), b.constant(np.abs(c)))},
        )
        check_split(awaited(graph, {"a": positive}), positive, np.abs(c), 16)


@on_tensor_cores
def test_float32_as_float16(matrices: tuple[MLContext, list[str]]) -> None:
    """Rows and columns of magnitudes from 1e-12 to 1e12, and a row of zeros."""
    context, codes = matrices
    a, c = badly_scaled(np.random.default_rng(1), 200, 300, 144)

    def record(b: MLGraphBuilder) -> dict[str, MLOperand]:
        x, right = b.input("a", "float32", a.shape), b.input("c", "float32", c.shape)
        return {"y": b.matmul(x, b.constant(c)), "z": b.matmul(x, right)}

    with multiplying(context, "medium") as made:
        check_split(awaited(build(made, record), {"a": a, "c": c}), a, c, 9)
    assert sum("subgroupMatrixMultiplyAccumulate" in code for code in codes) == 2


@anywhere
def test_attention_by_position(matrices: tuple[MLContext, list[str]]) -> None:
    """Grouped heads; tiles that no query sees, that some see, and that all see."""
    q, k, v = drawn(2, 2, 70, 16), drawn(2, 1, 180, 16), drawn(2, 1, 180, 16)
    inputs = {"q": q, "k": k, "v": v}

    def record(b: MLGraphBuilder, q: MLOperand, k: MLOperand, v: MLOperand) -> MLOperand:
        lengths = b.constant(np.array([180, 90], np.int32))
        return b.scaled_dot_product_attention(q, k, v, causal=True, window=120, lengths=lengths)

    def whole(b: MLGraphBuilder) -> dict[str, MLOperand]:
        return {"y": record(b, *(b.input(n, "float16", x.shape) for n, x in inputs.items()))}

    check(matrices, record, inputs, reference(whole, inputs)["y"].astype(np.float64))


def check_integers(
    matrices: tuple[MLContext, list[str]],
    record: Callable[[MLGraphBuilder], dict[str, MLOperand]],
    inputs: dict[str, Array],
    products: int = 1,
    table: Sequence[Cost] = SMALL_COSTS,
) -> None:
    """Run a graph, whose products are of int8, and compare with the reference exactly."""
    context, codes = matrices
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(costs, "MATRIX_COSTS", table)
        deep = [replace(cost, tile=replace(cost.tile, depth=32)) for cost in table]
        patch.setattr(costs, "QUANTIZING_COSTS", deep)
        results = awaited(build(context, record), inputs)
    assert sum("subgroup_matrix_left<i8" in code for code in codes) == products
    for name, wanted in reference(record, inputs).items():
        np.testing.assert_array_equal(results[name], wanted)


@anywhere
def test_products_of_integers(matrices: tuple[MLContext, list[str]]) -> None:
    """Unsigned rows with zero points, signed columns with one each, and rests everywhere."""
    rng = np.random.default_rng(1)
    a = rng.integers(0, 256, (37, 70)).astype(np.uint8)
    c = rng.integers(-128, 128, (70, 51)).astype(np.int8)
    rows = rng.integers(0, 256, (37, 1)).astype(np.uint8)
    zeros = rng.integers(-128, 128, 51).astype(np.int8)

    def record(b: MLGraphBuilder) -> dict[str, MLOperand]:
        x, of_rows = b.input("a", "uint8", a.shape), b.input("rows", "uint8", rows.shape)
        of_columns = b.constant(zeros)
        y = b.matmul_integer(x, b.constant(c), a_zero_point=of_rows, b_zero_point=of_columns)
        return {"y": y}

    check_integers(matrices, record, {"a": a, "rows": rows})


@anywhere
def test_open_products_of_integers(matrices: tuple[MLContext, list[str]]) -> None:
    """What a graph keeps for any number of rows, it can run for few, too."""
    engine = engine_of(matrices[0])

    def product(b: MLGraphBuilder) -> dict[str, MLOperand]:
        return {
            "y": b.matmul_integer(b.input("a", "uint8", [3, 32]), b.input("c", "int8", [32, 16]))
        }

    (node,) = recipe_of(build(matrices[0], product)).nodes
    assert engine.supports(node)
    assert not engine.keeps_whole(node)


@anywhere
def test_images_by_steps_of_two(matrices: tuple[MLContext, list[str]]) -> None:
    """Paddings that begin inside a square or not, of unsigned codes whose zero point pads."""
    rng = np.random.default_rng(3)
    x = rng.integers(0, 256, (2, 8, 10, 3)).astype(np.uint8)
    w = rng.integers(-128, 128, (16, 3, 4, 3)).astype(np.int8)

    def record(b: MLGraphBuilder) -> dict[str, MLOperand]:
        options: Any = {"input_layout": "nhwc", "filter_layout": "ohwi", "strides": [2, 2]}
        image, zero = b.input("x", "uint8", x.shape), b.constant(np.uint8(100))
        y = b.conv2d_integer(
            image, b.constant(w), input_zero_point=zero, padding=[1, 0, 2, 1], **options
        )
        return {"y": y}

    roomy = Cost(SubgroupTile(32, 16, 32, 2, 1), 1, 1, 1, 1)  # for results where a tile was
    check_integers(matrices, record, {"x": x}, table=[roomy])
    assert any("fn window16(" in code for code in matrices[1])
    assert not any("gemm_result" in code for code in matrices[1])


def quantized_network(
    data_type: str, layout: Literal["nchw", "nhwc"]
) -> Callable[[MLGraphBuilder], Any]:
    """Two convolutions between codes: padding, a bias, steps, and what the first one adds later."""
    low = 0 if data_type == "uint8" else -128
    rng = np.random.default_rng(1)
    w = rng.integers(-128, 128, (24, 3, 3, 3)).astype(np.int8)
    v = rng.integers(-128, 128, (24, 24, 1, 1)).astype(np.int8)
    # Powers of two, so that no scale rounds.
    scales = 0.5 ** (np.arange(24) % 4).reshape(-1, 1, 1, 1).astype(np.float32)
    zero = np.full((1, 1, 1, 1), low + 100, data_type)
    order = ["nchw".index(letter) for letter in layout]

    def record(b: MLGraphBuilder) -> dict[str, MLOperand]:
        def scale(number: float) -> MLOperand:
            return b.constant(np.full((1, 1, 1, 1), number, np.float32))

        def dequantized(codes: MLOperand, number: float) -> MLOperand:
            return b.dequantize_linear(codes, scale(number), b.constant(zero))

        def weights(array: Array) -> MLOperand:
            zeros = np.zeros(scales.shape, np.int8)
            return b.dequantize_linear(b.constant(array), b.constant(scales), b.constant(zeros))

        def convolved(x: MLOperand, array: Array, **options: Any) -> MLOperand:
            return b.conv2d(x, weights(array), input_layout=layout, **options)

        shape = [(2, 3, 7, 9)[axis] for axis in order]
        bias = b.constant(np.arange(24, dtype=np.float32))
        y = dequantized(b.input("x", data_type, shape), 0.5)  # type: ignore[arg-type]
        y = b.relu(convolved(y, w, bias=bias, padding=[1, 1, 1, 1]))
        codes = b.quantize_linear(y, scale(8), b.constant(zero))
        y = b.quantize_linear(convolved(dequantized(codes, 8), v), scale(64), b.constant(zero))
        y = b.add(dequantized(y, 64), dequantized(codes, 8))
        return {"codes": codes, "y": b.quantize_linear(b.relu(y), scale(32), b.constant(zero))}

    return record


def check_network(
    matrices: tuple[MLContext, list[str]], data_type: str, layout: Literal["nchw", "nhwc"]
) -> None:
    low = 0 if data_type == "uint8" else -128
    x = np.random.default_rng(2).integers(low, low + 256, (2, 3, 7, 9)).astype(data_type)
    image = np.ascontiguousarray(x.transpose(["nchw".index(letter) for letter in layout]))
    check_integers(matrices, quantized_network(data_type, layout), {"x": image}, products=2)


@anywhere
def test_quantized_networks(matrices: tuple[MLContext, list[str]]) -> None:
    """Channels last and not in fours, unsigned codes whose zero point pads."""
    check_network(matrices, "uint8", "nhwc")


@on_tensor_cores
def test_quantized_networks_of_signed_codes(matrices: tuple[MLContext, list[str]]) -> None:
    check_network(matrices, "int8", "nchw")

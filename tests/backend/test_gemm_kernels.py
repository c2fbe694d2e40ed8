"""The emitted matrix multiplication kernels, run through wgpu and compared with NumPy."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pytest

from tests.adapters import need_halves
from webnn_py import MLContext
from webnn_py.engines.webgpu.compiler.kernels.costs import COSTS, F16_COSTS, F16_VEC8_COSTS
from webnn_py.engines.webgpu.compiler.kernels.gemm_direct import DirectTile, emit_direct
from webnn_py.engines.webgpu.compiler.kernels.gemm_reduce import ReduceTile, emit_reduce
from webnn_py.engines.webgpu.compiler.kernels.gemm_tiled import emit_tiled
from webnn_py.engines.webgpu.compiler.kernels.gemm_types import SharedTile
from webnn_py.engines.webgpu.compiler.kernels.matmul import (
    GemmProblem,
    Limits,
    TileKernel,
    emit_gemm,
)
from webnn_py.engines.webgpu.compiler.loop_bounds import without_tags

pytestmark = pytest.mark.kernels

wgpu = pytest.importorskip("wgpu")

Array = np.ndarray[Any, Any]
TYPES = {"f32": np.float32, "f16": np.float16, "i32": np.int32, "u32": np.uint32}
TOLERANCE = {"f32": 2e-6, "f16": 2e-2, "i32": 0.0, "u32": 0.0}
DEVICES = ("gpu", "cpu")


@pytest.fixture(scope="module")
def device(gpu: MLContext) -> Iterator[Any]:
    """A device with the default limits."""
    adapter = gpu.device.adapter
    features = [name for name in ("shader-f16",) if name in adapter.features]
    device = adapter.request_device_sync(required_features=features)
    yield device
    device.destroy()


@dataclass(frozen=True)
class Case:
    """Contiguous matrices, and how they lie in memory."""

    m: int
    n: int
    k: int
    batch: int = 1
    compute: str = "f32"
    a_major: Literal["k", "m"] = "k"
    b_major: Literal["n", "k"] = "n"
    wide: bool = True
    long_stores: bool = False

    def __str__(self) -> str:
        return (
            f"{self.batch}*{self.m}x{self.n}x{self.k}-{self.compute}-"
            f"{self.a_major}{self.b_major}{'' if self.wide else '-single'}"
            f"{'-long' if self.long_stores else ''}"
        )

    def problem(self) -> GemmProblem:
        """The problem over the arrays that `bindings` declares."""
        m, n, k = self.m, self.n, self.k

        def at_a(batch: str, row: str, depth: str) -> str:
            inner = f"{depth} * {m}u + {row}" if self.a_major == "m" else f"{row} * {k}u + {depth}"
            return f"({batch} * {m * k}u + {inner})"

        def at_b(batch: str, depth: str, col: str) -> str:
            inner = f"{col} * {k}u + {depth}" if self.b_major == "k" else f"{depth} * {n}u + {col}"
            return f"({batch} * {n * k}u + {inner})"

        def at_c(batch: str, row: str, col: str) -> str:
            return f"(({batch} * {m}u + {row}) * {n}u + {col})"

        along_a, along_b = (k if self.a_major == "k" else m), (n if self.b_major == "n" else k)
        vectors = self.vector_store
        return GemmProblem(
            m=m,
            n=n,
            k=k,
            batch=self.batch,
            compute=self.compute,
            a=lambda *at: f"a[{at_a(*at)}]",
            b=lambda *at: f"b[{at_b(*at)}]",
            a4=(lambda *at: f"a_vectors[{at_a(*at)} / 4u]")
            if self.wide and along_a % 4 == 0
            else None,
            b4=(lambda *at: f"b_vectors[{at_b(*at)} / 4u]")
            if self.wide and along_b % 4 == 0
            else None,
            a8=(lambda *at: f"a_eights[{at_a(*at)} / 8u]") if self._in_eights("a") else None,
            b8=(lambda *at: f"b_eights[{at_b(*at)} / 8u]") if self._in_eights("b") else None,
            store=lambda batch, row, col, value: (
                f"c[{at_c(batch, row, col)} / 4u][{col} % 4u] = {self.compute}({value});"
                if vectors
                else f"c[{at_c(batch, row, col)}] = {self.compute}({value});"
            ),
            store4=(
                lambda batch, row, col, value: (
                    f"c[{at_c(batch, row, col)} / 4u] = vec4<{self.compute}>({value});"
                )
            )
            if vectors
            else None,
            long_stores=self.long_stores,
            a_major=self.a_major,
            b_major=self.b_major,
        )

    def _in_eights(self, name: str) -> bool:
        """Whether eight halves of an operand along k can be loaded at once."""
        major = self.a_major if name == "a" else self.b_major
        return self.wide and self.compute == "f16" and major == "k" and self.k % 8 == 0

    @property
    def vector_store(self) -> bool:
        """Whether C is written as vec4s."""
        return self.wide and self.n % 4 == 0

    def operands(self) -> tuple[Array, Array]:
        """Random A and B, integers over their whole range so that products wrap."""
        rng = np.random.default_rng([self.m, self.n, self.k])
        shapes = ((self.batch, self.m, self.k), (self.batch, self.k, self.n))
        dtype = TYPES[self.compute]
        if np.issubdtype(dtype, np.integer):
            a, b = (rng.integers(0, 2**32, shape, np.uint32).view(dtype) for shape in shapes)
        else:
            a, b = (rng.standard_normal(shape, np.float32).astype(dtype) for shape in shapes)
        return a, b

    def product(self, a: Array, b: Array) -> Array:
        """The expected product, exact for integers and in float64 otherwise."""
        if np.issubdtype(a.dtype, np.integer):
            return np.asarray(a @ b)
        return np.asarray(a.astype(np.float64) @ b.astype(np.float64))


def bindings(case: Case) -> str:
    """The arrays that the hooks of a case name; operands as elements, vec4s and halves in words."""
    element, vec4 = case.compute, f"vec4<{case.compute}>"
    kinds = {"": element, "_vectors": vec4, "_eights": "vec4<u32>"}
    arrays = [(f"{name}{suffix}", kind) for name in "ab" for suffix, kind in kinds.items()]
    lines = [
        f"@group(0) @binding({i}) var<storage, read> {name}: array<{type_}>;"
        for i, (name, type_) in enumerate(arrays)
    ]
    c = vec4 if case.vector_store else element
    lines.append(f"@group(0) @binding(6) var<storage, read_write> c: array<{c}>;\n")
    return ("enable f16;\n" if element == "f16" else "") + "\n".join(lines)


def run(device: Any, code: str, kernel: TileKernel, a: Array, b: Array, out: Array) -> Array:
    """Runs a kernel over A and B as they lie in memory; fills a copy of `out`."""
    layout = device.create_bind_group_layout(
        entries=[
            {
                "binding": i,
                "visibility": "COMPUTE",
                "buffer": {"type": "storage" if i == 6 else "read-only-storage"},
            }
            for i in range(7)
        ]
    )
    module = device.create_shader_module(code=code + without_tags(kernel.entry.printed()))
    pipeline = device.create_compute_pipeline(
        layout=device.create_pipeline_layout(bind_group_layouts=[layout]),
        compute={"module": module, "entry_point": "main"},
    )

    def upload(array: Array) -> Any:
        data = array.reshape(-1).view(np.uint8)
        padded = np.concatenate([data, np.zeros(-data.size % 16, np.uint8)])
        return device.create_buffer_with_data(data=padded, usage="STORAGE|COPY_SRC")

    x, y, z = upload(a), upload(b), upload(out)
    group = device.create_bind_group(
        layout=layout,
        entries=[
            {"binding": i, "resource": {"buffer": buffer, "offset": 0, "size": buffer.size}}
            for i, buffer in enumerate((x, x, x, y, y, y, z))
        ],
    )
    encoder = device.create_command_encoder()
    compute = encoder.begin_compute_pass()
    compute.set_pipeline(pipeline)
    compute.set_bind_group(0, group)
    compute.dispatch_workgroups(*kernel.workgroups)
    compute.end()
    device.queue.submit([encoder.finish()])
    raw = np.frombuffer(device.queue.read_buffer(z), np.uint8)[: out.nbytes]
    return raw.view(out.dtype).reshape(out.shape)


def check(device: Any, case: Case, kernel: TileKernel) -> None:
    """Runs a case's kernel and compares it with NumPy."""
    if case.compute == "f16":
        need_halves(device)
    a, b = case.operands()
    expected = case.product(a, b)
    # Poison: NaN in floats, -1 in integers.
    out = np.full(expected.size * a.itemsize, 255, np.uint8).view(a.dtype).reshape(expected.shape)
    stored_a = np.ascontiguousarray(a.swapaxes(1, 2)) if case.a_major == "m" else a
    stored_b = np.ascontiguousarray(b.swapaxes(1, 2)) if case.b_major == "k" else b
    actual = run(device, bindings(case), kernel, stored_a, stored_b, out)
    if TOLERANCE[case.compute] == 0:
        np.testing.assert_array_equal(actual, expected)
        return
    assert np.isfinite(actual).all()
    error = np.linalg.norm(actual - expected) / np.linalg.norm(expected)
    assert error <= TOLERANCE[case.compute]


CASES = (
    Case(1, 1, 1),
    Case(1, 1, 300),
    Case(2, 3, 5, batch=7),
    Case(1, 100, 200),
    Case(1, 100, 200, b_major="k"),
    Case(5, 33, 129, batch=2),
    Case(90, 1, 128),
    Case(90, 3, 70, a_major="m", b_major="k"),
    Case(40, 40, 40),
    Case(33, 65, 127, a_major="m"),
    Case(70, 50, 36, batch=3, b_major="k"),
    Case(20, 130, 68, wide=False),
    Case(64, 64, 128, compute="i32"),
    Case(17, 23, 19, batch=2, compute="u32"),
    Case(1, 30, 100, compute="i32"),
    Case(1, 30, 100, compute="i32", b_major="k"),
    Case(33, 52, 70, compute="f16", b_major="k"),
    Case(3, 64, 96, compute="f16"),
    Case(33, 52, 136, batch=2, compute="f16", b_major="k"),
    Case(33, 52, 136, compute="f16"),
    Case(2, 2, 2, batch=70_000, wide=False),
    Case(16, 16, 16, batch=100),
)


@pytest.mark.parametrize("kind", DEVICES)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_products(device: Any, case: Case, kind: str) -> None:
    check(device, case, emit_gemm(case.problem(), Limits(), kind))


# The tiles that large problems choose, on problems that are small enough for a software adapter.
TILES = [cost.tile for cost in COSTS]
HALF_TILES = [
    *dict.fromkeys(cost.tile for cost in (*F16_COSTS, *F16_VEC8_COSTS)),
    SharedTile(32, 32, 8, 8, 8),
    SharedTile(16, 16, 16, 4, 4),
]
TILED = [
    *itertools.product(
        (
            Case(130, 72, 40, batch=2),
            Case(65, 129, 33, a_major="m", b_major="k"),
            Case(128, 128, 64, compute="i32", b_major="k"),
        ),
        TILES,
    ),
    *itertools.product(
        (
            Case(72, 68, 100, compute="f16"),
            Case(72, 68, 100, compute="f16", a_major="m", b_major="k"),
            Case(72, 67, 200, compute="f16", b_major="k"),
        ),
        HALF_TILES,
    ),
    *itertools.product(
        (
            Case(130, 72, 40, batch=2, long_stores=True),
            Case(65, 129, 33, a_major="m", b_major="k", long_stores=True),
            Case(72, 68, 104, compute="f16", b_major="k", long_stores=True),
        ),
        HALF_TILES,
    ),
]


@pytest.mark.parametrize(
    ("case", "tile"), TILED, ids=[f"{case}-{t.rows}x{t.cols}x{t.depth}" for case, t in TILED]
)
def test_shared_tiles(device: Any, case: Case, tile: SharedTile) -> None:
    check(device, case, emit_tiled(case.problem(), tile, Limits()))


@pytest.mark.parametrize("b_major", ["n", "k"])
@pytest.mark.parametrize("kind", ["tiled", "direct", "blocks", "reduce"])
def test_folded_grids(device: Any, kind: str, b_major: Literal["n", "k"]) -> None:
    case = Case(4, 40, 24, batch=6, b_major=b_major)
    limits = Limits(max_workgroups_per_dim=6)
    problem = case.problem()
    kernel = {
        "tiled": lambda: emit_tiled(problem, SharedTile(16, 16, 16, 4, 4), limits),
        "direct": lambda: emit_direct(problem, DirectTile(2, 4, 8), limits),
        "blocks": lambda: emit_direct(problem, DirectTile(1, 4, 8, "blocks"), limits),
        "reduce": lambda: emit_reduce(problem, ReduceTile(2, 8), limits),
    }[kind]()
    assert max(kernel.workgroups) <= 6
    check(device, case, kernel)


@pytest.mark.parametrize("kind", DEVICES)
@pytest.mark.parametrize("m", [3, 20])
def test_padding_is_no_number(device: Any, m: int, kind: str) -> None:
    """What is read for a ragged last step of k must not meet an infinity: 0 * inf is NaN."""
    case = Case(m, 20, 70)
    a, b = np.ones((1, m, 70), np.float32), np.ones((1, 70, 20), np.float32)
    a[0, 1, -1] = np.inf
    b[0, -1, 2] = np.inf
    kernel = emit_gemm(case.problem(), Limits(), kind)
    out = np.full((1, m, 20), np.nan, np.float32)
    np.testing.assert_array_equal(run(device, bindings(case), kernel, a, b, out), a @ b)


@pytest.mark.parametrize("kind", DEVICES)
def test_a_convolution_through_hooks(device: Any, kind: str) -> None:
    """Padding and gather in the load hook, bias and relu in the store hook."""
    size, channels, outs = 9, 3, 10
    rng = np.random.default_rng(3)
    image = rng.standard_normal((1, channels, size, size), np.float32)
    weights = rng.standard_normal((outs, channels, 3, 3), np.float32)
    m, n, k = outs, size * size, channels * 9
    window = f"""
fn window(k: u32, place: u32) -> f32 {{
  let row = i32(place / {size}u + k / 3u % 3u) - 1;
  let col = i32(place % {size}u + k % 3u) - 1;
  if (row < 0 || col < 0 || row >= {size} || col >= {size}) {{ return 0.0; }}
  return b[(k / 9u * {size}u + u32(row)) * {size}u + u32(col)];
}}
"""
    # The hook declares a name of its own, and one of the template's.
    problem = GemmProblem(
        m=m,
        n=n,
        k=k,
        a=lambda batch, row, k: f"a[{row} * 27u + {k}]",
        b=lambda batch, k, col: f"window({k}, {col})",
        store=lambda batch, row, col, value: (
            f"let bias = f32({row}) * 0.5; let batch = {row} * {n}u + {col}; "
            f"c[batch] = max({value} + bias, 0.0);"
        ),
    )
    kernel = emit_gemm(problem, Limits(), kind)
    code = bindings(Case(m, n, k, wide=False)) + window
    out = np.full((outs, size, size), np.nan, np.float32)
    actual = run(device, code, kernel, weights, image, out)
    padded = np.pad(image[0], ((0, 0), (1, 1), (1, 1)))
    expected = np.zeros((outs, size, size))
    for y in range(3):
        for x in range(3):
            part = padded[:, y : y + size, x : x + size]
            expected += np.einsum("oc,chw->ohw", weights[:, :, y, x], part)
    expected += np.arange(outs)[:, None, None] * 0.5
    np.testing.assert_allclose(actual, np.maximum(expected, 0), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("slices", [1, 4])
def test_long_sums_of_halves_keep_their_digits(device: Any, slices: int) -> None:
    """As float16 alone, a sum would not grow where what is added is less than half a unit of it."""
    need_halves(device)
    case = Case(16, 16, 8192, compute="f16")
    rng = np.random.default_rng(1)
    a, b = (rng.uniform(0.25, 0.5, shape).astype(np.float16) for shape in ((16, 8192), (8192, 16)))
    kernel = emit_tiled(case.problem(), SharedTile(16, 16, 16, 4, 4, slices), Limits())
    out = np.zeros((16, 16), np.float16)
    actual = run(device, bindings(case), kernel, a, b, out)
    expected = a.astype(np.float64) @ b.astype(np.float64)
    np.testing.assert_allclose(actual, expected, rtol=2e-3)

"""Times the matrix multiplication kernels alone, with timestamp queries, and checks each result.

    python -m benchmarks gemm                       # the sizes that suit the adapter
    python -m benchmarks gemm 1024x1024x1024 12*128x128x32 --dtype f16 --json gemm.json

A size is [batch*]MxNxK; a trailing t means that B is stored transposed, as [N, K].
"""

from __future__ import annotations

import argparse
import json
import re
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import wgpu

from webnn_py.engines.webgpu.compiler.code.index import Index
from webnn_py.engines.webgpu.compiler.kernels.matmul import (
    GemmProblem,
    Limits,
    TileKernel,
    emit_gemm,
)
from webnn_py.engines.webgpu.runtime.devices.adapters import all_adapters

# fmt: off
GPU_SIZES = [
    "4096x4096x4096", "2048x2048x2048", "2*2048x2048x2048", "1024x1024x1024", "2048x768x768",
    "512x512x512", "128x384x1536", "128x1536x384", "128x384x384", "64x3136x576", "512x49x4608",
    "256x196x2304", "64x12544x147", "12*128x128x32", "12*128x32x128", "512*64x64x64",
    "4096*16x16x16", "65536*4x4x4", "1x4096x4096", "1x4096x4096t", "1x1000x2048t", "4096x1x4096",
]
CPU_SIZES = [
    "1024x1024x1024", "512x512x512", "128x384x1536", "128x1536x384", "64x3136x576", "512x49x4608",
    "12*128x128x32", "12*128x32x128", "4096*16x16x16", "1x4096x4096", "1x4096x4096t",
    "4096x1x4096",
]
# fmt: on


@dataclass(frozen=True, slots=True)
class Size:
    """One product of contiguous row-major matrices."""

    batch: int
    m: int
    n: int
    k: int
    transposed: bool

    @classmethod
    def parse(cls, text: str) -> Size:
        """The size a command line names."""
        match = re.fullmatch(r"(?:(\d+)\*)?(\d+)x(\d+)x(\d+)(t?)", text)
        if match is None:
            raise argparse.ArgumentTypeError(f"not a size: {text}")
        batch, m, n, k, transposed = match.groups()
        return cls(int(batch or 1), int(m), int(n), int(k), bool(transposed))

    def __str__(self) -> str:
        batch = f"{self.batch}*" if self.batch > 1 else ""
        return f"{batch}{self.m}x{self.n}x{self.k}{'t' if self.transposed else ''}"

    @property
    def operations(self) -> int:
        """Floating-point operations of the product."""
        return 2 * self.batch * self.m * self.n * self.k


@dataclass(frozen=True, slots=True)
class Result:
    """What one size took."""

    size: str
    dtype: str
    milliseconds: float
    tflops: float
    error: float
    compile_seconds: float
    workgroups: tuple[int, int, int]


def kernel(size: Size, dtype: str, limits: Limits, device: str) -> tuple[str, TileKernel]:
    """Bindings and kernel for contiguous matrices.

    The operands are bound twice, as elements and as vec4s, so that either hook is one plain load.
    """
    m, n, k = size.m, size.n, size.k
    along_b = k if size.transposed else n
    vec_c = n % 4 == 0

    def at_a(batch: Index, row: Index, depth: Index) -> Index:
        return (batch * m + row) * k + depth

    def at_b(batch: Index, depth: Index, col: Index) -> Index:
        outer, inner = (col, depth) if size.transposed else (depth, col)
        return batch * (n * k) + outer * along_b + inner

    def at_c(batch: Index, row: Index, col: Index) -> Index:
        return (batch * m + row) * n + col

    problem = GemmProblem(
        m=m,
        n=n,
        k=k,
        batch=size.batch,
        compute=dtype,
        a=lambda *at: f"a[{at_a(*at)}]",
        b=lambda *at: f"b[{at_b(*at)}]",
        a4=(lambda *at: f"a_vectors[{at_a(*at) // 4}]") if k % 4 == 0 else None,
        b4=(lambda *at: f"b_vectors[{at_b(*at) // 4}]") if along_b % 4 == 0 else None,
        store=lambda batch, row, col, value: (
            f"c[{at_c(batch, row, col)}] = {dtype}({value});"
            if not vec_c
            else f"c[{at_c(batch, row, col) // 4}][{at_c(batch, row, col) % 4}] = {dtype}({value});"
        ),
        store4=(
            lambda batch, row, col, value: (
                f"c[{at_c(batch, row, col) // 4}] = vec4<{dtype}>({value});"
            )
        )
        if vec_c
        else None,
        b_major="k" if size.transposed else "n",
    )
    vec4 = f"vec4<{dtype}>"
    arrays = [("a", dtype), ("a_vectors", vec4), ("b", dtype), ("b_vectors", vec4)]
    lines = ["enable f16;"] if dtype == "f16" else []
    lines += [
        f"@group(0) @binding({i}) var<storage, read> {name}: array<{element}>;"
        for i, (name, element) in enumerate(arrays)
    ]
    element = vec4 if vec_c else dtype
    lines.append(f"@group(0) @binding(4) var<storage, read_write> c: array<{element}>;\n")
    return "\n".join(lines), emit_gemm(problem, limits, device)


class Bench:
    """A device with a timestamp query."""

    def __init__(self, adapter: wgpu.GPUAdapter) -> None:
        limits = adapter.limits
        names = (
            "max-compute-workgroup-storage-size",
            "max-storage-buffer-binding-size",
            "max-buffer-size",
        )
        self.software = adapter.info["adapter_type"] == "CPU"
        self.device = adapter.request_device_sync(
            required_features=[
                name for name in ("timestamp-query", "shader-f16") if name in adapter.features
            ],
            required_limits={name: limits[name] for name in names},
        )
        self.limits = Limits(max_workgroup_storage=limits[names[0]])
        self.bindings = self.device.create_bind_group_layout(
            entries=[
                {
                    "binding": i,
                    "visibility": "COMPUTE",
                    "buffer": {"type": "storage" if i == 4 else "read-only-storage"},
                }
                for i in range(5)
            ]
        )
        self.layout = self.device.create_pipeline_layout(bind_group_layouts=[self.bindings])
        self.queries = self.device.create_query_set(type="timestamp", count=2)
        self.ticks = self.device.create_buffer(size=16, usage="QUERY_RESOLVE|COPY_SRC")

    def _time(self, pipeline: Any, group: Any, workgroups: tuple[int, ...], repeat: int) -> float:
        encoder = self.device.create_command_encoder()
        run = encoder.begin_compute_pass(
            timestamp_writes={
                "query_set": self.queries,
                "beginning_of_pass_write_index": 0,
                "end_of_pass_write_index": 1,
            }
        )
        run.set_pipeline(pipeline)
        run.set_bind_group(0, group)
        for _ in range(repeat):
            run.dispatch_workgroups(*workgroups)
        run.end()
        encoder.resolve_query_set(self.queries, 0, 2, self.ticks, 0)
        self.device.queue.submit([encoder.finish()])
        begin, end = np.frombuffer(self.device.queue.read_buffer(self.ticks), np.uint64)
        return float(end - begin) * 1e-9 / repeat

    def run(self, size: Size, dtype: str, runs: int) -> Result:
        """Compiles, checks and times one size."""
        kind = "cpu" if self.software else "gpu"
        start = time.perf_counter()
        head, tile = kernel(size, dtype, self.limits, kind)
        module = self.device.create_shader_module(code=head + tile.entry.wgsl)
        pipeline = self.device.create_compute_pipeline(
            layout=self.layout, compute={"module": module, "entry_point": "main"}
        )
        compiled = time.perf_counter() - start
        rng = np.random.default_rng(7)
        numpy_type = np.float32 if dtype == "f32" else np.float16
        shapes = ((size.batch, size.m, size.k), (size.batch, size.k, size.n))
        a, b = (rng.standard_normal(shape, np.float32).astype(numpy_type) for shape in shapes)
        stored = np.ascontiguousarray(b.swapaxes(1, 2)) if size.transposed else b
        c_bytes = size.batch * size.m * size.n * a.itemsize
        # NaN everywhere: an element that is never written cannot pass.
        mark_failed = np.full(-(-c_bytes // 16) * 16, 255, np.uint8)
        buffers = [
            self.device.create_buffer_with_data(data=_padded(x), usage="STORAGE|COPY_SRC")
            for x in (a, stored, mark_failed)
        ]
        group = self.device.create_bind_group(
            layout=self.bindings,
            entries=[
                {"binding": i, "resource": {"buffer": x, "offset": 0, "size": x.size}}
                for i, x in enumerate(buffers[j] for j in (0, 0, 1, 1, 2))
            ],
        )
        once = self._time(pipeline, group, tile.workgroups, 1)
        repeat = max(1, min(200, int(4e-3 / max(once, 1e-6))))
        times = [self._time(pipeline, group, tile.workgroups, repeat) for _ in range(runs)]
        raw = self.device.queue.read_buffer(buffers[2])
        c = np.frombuffer(raw, numpy_type)[: c_bytes // a.itemsize].reshape(-1, size.m, size.n)
        seconds = float(np.median(times))
        return Result(
            str(size),
            dtype,
            seconds * 1e3,
            size.operations / seconds * 1e-12,
            _error(a, b, c),
            compiled,
            tile.workgroups,
        )


def _padded(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    flat = array.reshape(-1).view(np.uint8)
    return np.concatenate([flat, np.zeros(-flat.size % 16, np.uint8)])


def _error(a: np.ndarray[Any, Any], b: np.ndarray[Any, Any], c: np.ndarray[Any, Any]) -> float:
    """Relative error of the product, all of it: of C times random vectors, in float64."""
    probe = np.random.default_rng(8).standard_normal((b.shape[0], b.shape[2], 2))
    expected = a.astype(np.float64) @ (b.astype(np.float64) @ probe)
    actual = c.astype(np.float64) @ probe
    return float(np.linalg.norm(actual - expected) / np.linalg.norm(expected))


def _adapter(name: str) -> wgpu.GPUAdapter:
    vulkan_first = sorted(all_adapters(), key=lambda x: x.info["backend_type"] != "Vulkan")
    for adapter in vulkan_first:
        if name.lower() in f"{adapter.info['device']} {adapter.info['description']}".lower():
            return adapter
    raise SystemExit(f"no adapter matches {name!r}")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("sizes", nargs="*", type=Size.parse, metavar="[batch*]MxNxK[t]")
    parser.add_argument("--adapter", default="", help="part of the adapter's name")
    parser.add_argument("--dtype", choices=("f32", "f16"), default="f32")
    parser.add_argument("--runs", type=int, default=15, help="timed runs of each size")
    parser.add_argument("--json", type=Path, help="write the results to this file")
    args = parser.parse_args()
    adapter = _adapter(args.adapter)
    bench = Bench(adapter)
    sizes = args.sizes or [Size.parse(x) for x in (CPU_SIZES if bench.software else GPU_SIZES)]
    print(f"{adapter.info['device']} ({adapter.info['description']}), {args.dtype}")
    print(f"{'size':>22} {'ms':>10} {'TFLOP/s':>8} {'error':>8} {'compile s':>9}  workgroups")
    results = []
    for size in sizes:
        result = bench.run(size, args.dtype, args.runs)
        results.append(result)
        print(
            f"{result.size:>22} {result.milliseconds:>10.4f} {result.tflops:>8.3f} "
            f"{result.error:>8.1e} {result.compile_seconds:>9.2f}  {result.workgroups}",
            flush=True,
        )
    if args.json:
        record = {"adapter": adapter.info["device"], "results": [asdict(x) for x in results]}
        args.json.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()

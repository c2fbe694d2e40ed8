"""TFLOP/s of a whole graph: one matmul, built by MLGraphBuilder and recorded by MLCommandEncoder.

    python -m benchmarks graph_matmul [--size 4096] [--data-type float32] [--json FILE]

Timed on the GPU by timestamps of the user's own passes before and after, and checked by sampling.
"""

from __future__ import annotations

import argparse
import json
import statistics
from pathlib import Path
from typing import Any

import numpy as np
import wgpu

from webnn_py import MLCommandEncoder, MLGraphBuilder, MLOperandDataType, ml
from webnn_py.engines.webgpu.runtime.devices.adapters import find_adapter


def open_device() -> Any:
    """A device with timestamps and all the adapter has."""
    adapter = find_adapter("high-performance")
    if adapter is None:
        raise SystemExit("no GPU adapter")
    wanted = ("timestamp-query", "shader-f16", "shader-int64")
    names = [name for name in adapter.limits if "storage-buffer" in name or "workgroup" in name]
    limits = {name: adapter.limits[name] for name in [*names, "max-buffer-size"]}
    return adapter.request_device_sync(
        required_features=[name for name in wanted if name in adapter.features],
        required_limits=limits,
    )


def stamp(encoder: Any, queries: Any, index: int) -> None:
    """An empty pass that leaves a timestamp."""
    writes = {"query_set": queries, "end_of_pass_write_index": index}
    encoder.begin_compute_pass(timestamp_writes=writes).end()


def stamped_seconds(device: Any, commands: Any, queries: Any) -> float:
    """Submit what was recorded, and give the seconds between its two stamps."""
    usage = wgpu.BufferUsage.QUERY_RESOLVE | wgpu.BufferUsage.COPY_SRC
    stamps = device.create_buffer(size=16, usage=usage)
    commands.resolve_query_set(queries, 0, 2, stamps, 0)
    device.queue.submit([commands.finish()])
    begin, end = np.frombuffer(device.queue.read_buffer(stamps), np.uint64)
    return int(end - begin) * 1e-9


def measure(device: Any, size: int, data_type: MLOperandDataType, runs: int) -> dict[str, Any]:
    """Median time of one run, and the largest relative error of sampled elements."""
    context = ml.create_context_sync(device)
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal((size, size)).astype(data_type) for _ in range(2))
    builder = MLGraphBuilder(context)
    x = builder.input("x", data_type, [size, size])
    graph = builder.build_sync({"y": builder.matmul(x, builder.constant(b))})
    usage = wgpu.BufferUsage.STORAGE | wgpu.BufferUsage.COPY_SRC
    source = device.create_buffer_with_data(data=a, usage=usage)
    target = device.create_buffer(size=a.nbytes, usage=usage)
    queries = device.create_query_set(type="timestamp", count=2)
    times = []
    for _ in range(runs + 2):
        commands = device.create_command_encoder()
        recorder = MLCommandEncoder(context, encoder=commands)
        stamp(commands, queries, 0)
        recorder.dispatch(graph, {"x": source}, {"y": target})
        stamp(commands, queries, 1)
        times.append(stamped_seconds(device, commands, queries))
    seconds = statistics.median(times[2:])
    y = np.frombuffer(device.queue.read_buffer(target), data_type).reshape(size, size)
    rows = rng.integers(0, size, 16)
    exact = a[rows].astype(np.float64) @ b.astype(np.float64)
    error = float(np.abs(y[rows] - exact).max() / np.abs(exact).max())
    return {
        "adapter": device.adapter.info["device"],
        "size": size,
        "data_type": data_type,
        "seconds": seconds,
        "tflops": 2 * size**3 / seconds / 1e12,
        "relative_error": error,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--size", type=int, default=4096)
    parser.add_argument("--data-type", choices=["float32", "float16"], default="float32")
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    figures = measure(open_device(), options.size, options.data_type, options.runs)
    print(
        "{adapter}: matmul {size}³ {data_type}: {seconds:.6f} s, {tflops:.2f} TFLOP/s,"
        " relative error {relative_error:.1e}".format(**figures)
    )
    if options.json:
        options.json.write_text(json.dumps(figures, indent=1) + "\n")


if __name__ == "__main__":
    main()

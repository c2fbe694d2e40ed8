"""Models on a GPU: awaited, recorded, in float16, built; ONNX Runtime's WebGPU beside them.

    python -m benchmarks gpu [--models squeezenet resnet50] [--runs 30] [--json FILE]

Milliseconds, medians, interleaved. `await` uploads, runs and reads back; `GPU` is one dispatch of
many in a recording, by timestamps. `build` is from the model to the first result, in a process
where the device is there already. ONNX Runtime is measured where the package onnxruntime-webgpu
is installed in the place of onnxruntime.
"""

from __future__ import annotations

import argparse
import asyncio
import functools
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx

import webnn_py.onnx
from benchmarks.graph_matmul import open_device, stamp, stamped_seconds
from benchmarks.models import ENCODER, LIGHT, inputs_of, model
from benchmarks.report import Figures, interleaved, machine, show, write_json
from webnn_py import MLAwaitedExecution, MLCommandEncoder, MLContext, MLGraph, ml

PROVIDER = "WebGpuExecutionProvider"
RECORDED = 20
"""Dispatches in a recording."""
Arrays = dict[str, np.ndarray[Any, Any]]


def rival(given: onnx.ModelProto) -> Callable[[Arrays], Any] | None:
    """ONNX Runtime's session on the GPU; None where it has none."""
    try:
        import onnxruntime
    except ImportError:
        return None
    if PROVIDER not in onnxruntime.get_available_providers():
        return None
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(
        given.SerializeToString(), options, providers=[PROVIDER, "CPUExecutionProvider"]
    )
    return lambda inputs: session.run(None, inputs)


def recorded(context: MLContext, graph: MLGraph, inputs: Arrays) -> float:
    """Seconds of GPU time that one dispatch takes among many."""
    device = context.device
    given, made = {}, {}
    for name, descriptor in graph.inputs.items():
        given[name] = context.create_tensor_sync(descriptor, writable=True)
        context.write_tensor(given[name], inputs[name])
    for name, descriptor in graph.outputs.items():
        made[name] = context.create_tensor_sync(descriptor)
    queries = device.create_query_set(type="timestamp", count=2)
    times = []
    for _ in range(5):
        commands = device.create_command_encoder()
        recorder = MLCommandEncoder(context, encoder=commands)
        stamp(commands, queries, 0)
        for _ in range(RECORDED):
            recorder.dispatch(graph, given, made)
        stamp(commands, queries, 1)
        times.append(stamped_seconds(device, commands, queries) / RECORDED)
    return statistics.median(times[1:])


def measure(context: MLContext, name: str, runs: int) -> Figures:
    """One row."""
    found = model(name)
    inputs = inputs_of(found)
    execution = MLAwaitedExecution(context)
    loop = asyncio.new_event_loop()

    def awaited(graph: MLGraph, given: Arrays) -> Any:
        return loop.run_until_complete(execution.compute(graph, given))

    begin = time.perf_counter()
    graph = webnn_py.onnx.load(found, context)
    awaited(graph, inputs)
    figures: Figures = {"build": (time.perf_counter() - begin) * 1e3}
    begin = time.perf_counter()
    session = rival(found)
    if session is not None:
        expected = session(inputs)
        figures["build_ort"] = (time.perf_counter() - begin) * 1e3
        got = list(awaited(graph, inputs).values())
        scale = float(np.abs(expected[0]).max())
        figures["difference"] = float(np.abs(got[0] - expected[0]).max()) / scale

    half = model(name, "float16")
    half_graph = webnn_py.onnx.load(half, context)
    half_inputs = inputs_of(half)
    cases: dict[str, Callable[[], Any]] = {
        "await": lambda: awaited(graph, inputs),
        "await16": lambda: awaited(half_graph, half_inputs),
    }
    if session is not None:
        cases["ort"] = lambda: session(inputs)

    def timed(case: Callable[[], Any]) -> float:
        begin = time.perf_counter()
        case()
        return (time.perf_counter() - begin) * 1e3

    for case in cases.values():
        case()
    taken = interleaved({key: functools.partial(timed, case) for key, case in cases.items()}, runs)
    figures |= {key: statistics.median(values) for key, values in taken.items()}
    figures["gpu"] = recorded(context, graph, inputs) * 1e3
    figures["gpu16"] = recorded(context, half_graph, half_inputs) * 1e3
    loop.close()
    return figures


COLUMNS = {
    "ORT await": "ort",
    "await": "await",
    "GPU": "gpu",
    "await f16": "await16",
    "GPU f16": "gpu16",
    "ORT build": "build_ort",
    "build": "build",
    "difference": "difference",
}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--models", nargs="*", default=[*LIGHT, ENCODER])
    parser.add_argument("--runs", type=int, default=30)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    device = open_device()
    rows: dict[str, Figures] = {}
    with ml.create_context_sync(device) as context:
        for name in options.models:
            rows[name] = measure(context, name, options.runs)
            print(name, {key: round(value, 3) for key, value in rows[name].items()}, flush=True)
    lines = [[name, *(row.get(key) for key in COLUMNS.values())] for name, row in rows.items()]
    show(f"milliseconds, {device.adapter.info['device']}", ["model", *COLUMNS], lines)
    write_json(options.json, machine(device.adapter.info["device"]) | {"rows": rows})


if __name__ == "__main__":
    main()

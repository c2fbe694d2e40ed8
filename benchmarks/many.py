"""Graphs of many steps, many updates and many parts: how long they take to build and to run.

    python -m benchmarks many [--device cpu|gpu] [--runs 5] [--json FILE]

Seconds: building, the first run (in which a driver may still compile), the median of later runs,
with uploads and readbacks. Each result is compared with the reference engine's.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.report import machine, show, write_json
from webnn_py import MLAwaitedExecution, MLContext, MLGraphBuilder, MLOperand, ml
from webnn_py.core import dtypes

Array = np.ndarray[Any, Any]
Apply = Callable[..., dict[str, MLOperand]]
_RNG = np.random.default_rng(0)


def floats(*shape: int) -> Array:
    return _RNG.normal(0, 0.3, shape).astype(np.float32)


def recurrent(op: str, steps: int, hidden: int) -> tuple[Apply, dict[str, Array]]:
    gates = 4 if op == "lstm" else 3

    def apply(b: MLGraphBuilder, x: MLOperand, w: MLOperand, r: MLOperand) -> dict[str, MLOperand]:
        return {"y": getattr(b, op)(x, w, r, steps, hidden, return_sequence=True)[-1]}

    inputs = {"x": floats(steps, 1, 64), "w": floats(1, gates * hidden, 64)}
    # Weights of a network that forgets: others would make any rounding grow from step to step.
    return apply, inputs | {"r": floats(1, gates * hidden, hidden) / np.float32(hidden**0.5)}


def scattered(op: str, data_type: str) -> tuple[Apply, dict[str, Array]]:
    indices = _RNG.integers(0, 50_000, 200_000).astype(np.int32)

    def apply(b: MLGraphBuilder, x: MLOperand, i: MLOperand, u: MLOperand) -> dict[str, MLOperand]:
        return {"y": getattr(b, op)(x, b.reshape(i, [200_000, 1]) if "nd" in op else i, u)}

    values = _RNG.integers(0, 200, 250_000).astype(data_type)
    return apply, {"x": values[:50_000], "i": indices, "u": values[50_000:]}


def parted() -> tuple[Apply, dict[str, Array]]:
    def apply(b: MLGraphBuilder, x: MLOperand) -> dict[str, MLOperand]:
        return {f"y{i}": part for i, part in enumerate(b.split(x, 2048, axis=1))}

    return apply, {"x": floats(3, 4096)}


CASES = {
    "lstm, 1,000 steps, hidden 64": lambda: recurrent("lstm", 1000, 64),
    "lstm, 1,000 steps, hidden 256": lambda: recurrent("lstm", 1000, 256),
    "gru, 1,000 steps, hidden 64": lambda: recurrent("gru", 1000, 64),
    "scatter_nd, 200,000 float32": lambda: scattered("scatter_nd", "float32"),
    "scatter_elements, 200,000 uint8": lambda: scattered("scatter_elements", "uint8"),
    "split into 2,048": parted,
}


def measure(context: MLContext, apply: Apply, inputs: Mapping[str, Array], runs: int) -> Any:
    """Seconds to build, of the first run, of later ones; and the results."""
    builder = MLGraphBuilder(context)
    operands = {
        name: builder.input(name, dtypes.from_numpy(a.dtype), a.shape) for name, a in inputs.items()
    }
    begin = time.perf_counter()
    graph = builder.build_sync(apply(builder, *operands.values()))
    built = time.perf_counter() - begin

    async def run() -> tuple[list[float], Mapping[str, Array]]:
        seconds, results = [], {}
        for _ in range(runs + 1):
            begin = time.perf_counter()
            results = await MLAwaitedExecution(context).compute(graph, inputs)
            seconds.append(time.perf_counter() - begin)
        return seconds, results

    (first, *later), results = asyncio.run(run())
    return (built, first, statistics.median(later)), results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", choices=("cpu", "gpu"), default="gpu")
    parser.add_argument("--runs", type=int, default=5, help="later runs of each graph")
    parser.add_argument("--json", type=Path, help="write the figures there")
    options = parser.parse_args()
    context = ml.create_context_sync(device_type=options.device)
    reference = ml.create_context_sync(engine="reference")
    adapter = None if context.device is None else context.device.adapter.summary
    rows, figures = [], {}
    for name, case in CASES.items():
        apply, inputs = case()
        seconds, results = measure(context, apply, inputs, options.runs)
        _, wanted = measure(reference, apply, inputs, 1)
        error = max(float(np.max(np.abs(results[key] - wanted[key]))) for key in wanted)
        rows.append((name, *(round(s, 3) for s in seconds), f"{error:.1e}"))
        figures[name] = dict(zip(("build", "first", "later"), seconds, strict=True))
    columns = ("graph", "build s", "first run s", "later runs s", "largest error")
    show(f"many steps, updates, parts on {adapter or 'the CPU'}", columns, rows)
    write_json(options.json, {"machine": machine(adapter), "seconds": figures})


if __name__ == "__main__":
    main()

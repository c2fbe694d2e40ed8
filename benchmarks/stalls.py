"""How long the event loop stalls while the reference engine computes single operators at 134 MB.

    python -m benchmarks stalls [--cases gelu tile] [--runs 5] [--json FILE]

Of several runs the one with the shortest stall counts: NumPy holds the interpreter in each, other
programs take the core in some.
"""

from __future__ import annotations

import argparse
import asyncio
from pathlib import Path

from benchmarks import report
from benchmarks.async_latency import stall
from benchmarks.gpu_peers import Arrays
from benchmarks.large_operators import CASES, SQUARE, Case, drawn
from webnn_py import MLAwaitedExecution, MLContext, MLGraphBuilder, MLOperandDescriptor, ml
from webnn_py.core.dtypes import from_numpy

MORE: dict[str, Case] = {
    "tile": Case(((2896, 2896),), lambda b, x: b.tile(x, [2, 2])),
    "expand": Case(((1, 5792),), lambda b, x: b.expand(x, SQUARE)),
    "reverse": Case((SQUARE,), lambda b, x: b.reverse(x)),
    "split": Case((SQUARE,), lambda b, x: b.split(x, 2, axis=1)[0]),
    "where": Case((SQUARE,), lambda b, x: b.where(b.greater(x, x), x, x)),
    "cast to int32": Case((SQUARE,), lambda b, x: b.cast(x, "int32")),
    "top k": Case(((8192, 4096),), lambda b, x: b.arg_top_k(x, 1, 5)),
    "prelu": Case((SQUARE,), lambda b, x: b.prelu(x, x)),
    "erf": Case((SQUARE,), lambda b, x: b.erf(x)),
    "divide integers": Case((SQUARE,), lambda b, x: b.div(b.cast(x, "int32"), b.cast(x, "int32"))),
}


def all_cases() -> dict[str, Case]:
    """By their names."""
    return CASES | MORE


async def measure(context: MLContext, name: str, runs: int) -> report.Figures:
    """A row of the table."""
    case, b = all_cases()[name], MLGraphBuilder(context)
    arrays = drawn(case, "float32")
    given = arrays[: len(arrays) - case.weights]
    inputs: Arrays = {f"x{i}": array for i, array in enumerate(given)}
    operands = [
        b.input(key, MLOperandDescriptor(from_numpy(array.dtype), array.shape))
        for key, array in inputs.items()
    ]
    y = case.build(b, *operands, *map(b.constant, arrays[len(given) :]))
    graph = await b.build_async({"y": y})
    mode, stalls, times = MLAwaitedExecution(context), [], []
    for _ in range(runs):
        _, seconds, longest = await stall(mode.compute(graph, inputs))
        stalls.append(longest)
        times.append(seconds)
    return {"case": name, "stall": 1e3 * min(stalls), "seconds": min(times)}


def main() -> None:
    parser = argparse.ArgumentParser(prog="benchmarks stalls", description=__doc__)
    parser.add_argument("--cases", nargs="*", choices=list(all_cases()), default=list(all_cases()))
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    rows = []
    with ml.create_context_sync(engine="reference") as context:
        for name in options.cases:
            row = asyncio.run(measure(context, name, options.runs))
            print(f"{name:32} {row['stall']:8.1f} ms  of {row['seconds']:8.3f} s", flush=True)
            rows.append(row)
    if options.json:
        report.write_json(options.json, {"machine": report.machine(), "rows": rows})


if __name__ == "__main__":
    main()

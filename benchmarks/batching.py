"""Small kernels a second: one submit for each, against dispatches that are batched.

    python -m benchmarks batching --json batching.json --plot batching.svg
    python -m benchmarks batching --from-json batching.json --plot batching.svg

The kernel is x + 1 on n floats, from one tensor to another and back, so that each run depends on
the one before. Three ways to have it run many times are timed, each until the device is done:

- `by hand`: wgpu-py alone, one command encoder, one compute pass and one submit for each kernel
- `one submit each`: `ctx.dispatch` and `ctx.flush`
- `batched`: `ctx.dispatch`
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import report
from webnn_py import MLContext, MLGraphBuilder, Timeline, ml

HAND, ONE_EACH, BATCHED = "by hand", "one submit each", "batched"
SIZES = [1 << k for k in range(10, 21)]
SHADER = """
@group(0) @binding(0) var<storage, read> x: array<f32>;
@group(0) @binding(1) var<storage, read_write> y: array<f32>;
@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3u) {
  if (id.x < arrayLength(&x)) { y[id.x] = x[id.x] + 1.0; }
}
"""


class Case:
    """One size on one context."""

    def __init__(self, context: MLContext, n: int) -> None:
        self._context = context
        self._n = n
        builder = MLGraphBuilder(context)
        x = builder.input("x", "float32", [n])
        y = builder.add(x, builder.constant(1.0, "float32"))
        self._graph = builder.build_sync({"y": y})
        self._tensors = [
            context.create_tensor_sync("float32", [n], readable=True, writable=True)
            for _ in range(2)
        ]
        self._runs = 0

    def dispatch(self, count: int, flush: bool) -> float:
        """Seconds that `count` dispatches take until the device is done."""
        context, graph, done = self._context, self._graph, Timeline()
        there, back = self._tensors
        start = time.perf_counter()
        for _ in range(count // 2):
            context.dispatch(graph, {"x": there}, {"y": back})
            if flush:
                context.flush()
            context.dispatch(graph, {"x": back}, {"y": there})
            if flush:
                context.flush()
        context.submit([], sync=[done(signal=1)])
        done.wait_sync(1)
        self._runs += count
        return time.perf_counter() - start

    def check(self) -> None:
        """Every dispatch so far has added 1, and none was lost."""
        got = self._context.read_tensor_sync(self._tensors[0])
        np.testing.assert_array_equal(got, np.full(self._n, self._runs, np.float32))


class ByHand:
    """The same with wgpu-py alone."""

    def __init__(self, device: Any, n: int) -> None:
        self._device = device
        self._n = n
        module = device.create_shader_module(code=SHADER)
        self._pipeline = device.create_compute_pipeline(
            layout="auto", compute={"module": module, "entry_point": "main"}
        )
        self._buffers = [
            device.create_buffer(size=4 * n, usage="STORAGE|COPY_SRC|COPY_DST") for _ in range(2)
        ]
        layout = self._pipeline.get_bind_group_layout(0)
        self._groups = [
            device.create_bind_group(
                layout=layout,
                entries=[{"binding": i, "resource": {"buffer": b}} for i, b in enumerate(order)],
            )
            for order in (self._buffers, self._buffers[::-1])
        ]
        self._runs = 0

    def dispatch(self, count: int) -> float:
        """Seconds that `count` submits take until the device is done."""
        device, pipeline, workgroups = self._device, self._pipeline, -(-self._n // 64)
        start = time.perf_counter()
        for number in range(count):
            encoder = device.create_command_encoder()
            compute = encoder.begin_compute_pass()
            compute.set_pipeline(pipeline)
            compute.set_bind_group(0, self._groups[number % 2])
            compute.dispatch_workgroups(workgroups)
            compute.end()
            device.queue.submit([encoder.finish()])
        device.queue.read_buffer(self._buffers[0], 0, 4)
        self._runs += count
        return time.perf_counter() - start

    def check(self) -> None:
        """As `Case.check`."""
        got = np.frombuffer(self._device.queue.read_buffer(self._buffers[0]), np.float32)
        np.testing.assert_array_equal(got, np.full(self._n, self._runs, np.float32))


def enough(run: Callable[[int], float], seconds: float) -> int:
    """An even number of dispatches that take about so long."""
    count = 64
    run(count)  # the first one takes longer
    while (took := run(count)) < seconds / 2 and count < 1 << 16:
        count *= 2
    return max(64, int(count * seconds / took) // 2 * 2)


def measure(context: MLContext, n: int, rounds: int, seconds: float) -> report.Figures:
    """Dispatches a second by way, medians of the rounds, and ratios."""
    case, hand = Case(context, n), ByHand(context.device, n)
    count = enough(lambda count: case.dispatch(count, flush=True), seconds)
    rates = report.interleaved(
        {
            HAND: lambda: count / hand.dispatch(count),
            ONE_EACH: lambda: count / case.dispatch(count, flush=True),
            BATCHED: lambda: count / case.dispatch(count, flush=False),
        },
        rounds,
    )
    case.check()
    hand.check()
    figures: report.Figures = {name: statistics.median(values) for name, values in rates.items()}
    return {
        "n": n,
        "count": count,
        **figures,
        "batched / one submit each": report.ratio(rates[BATCHED], rates[ONE_EACH]),
        "batched / by hand": report.ratio(rates[BATCHED], rates[HAND]),
    }


def tables(figures: report.Figures) -> report.Tables:
    """Kernels a second by way."""
    rows = figures["sizes"]
    columns = [name for name in rows[0] if name != "count"]
    title = f"x + 1 on n floats, kernels a second, on {figures['machine']['adapter']}"
    return [(title, columns, [[row[name] for name in columns] for row in rows])], []


def plot(figures: report.Figures, path: Path) -> None:
    """Draw kernels a second by n; what `path` ends in says in which format."""
    drawing = report.new_drawing(7, 4)
    axes = drawing.add_subplot()
    rows = figures["sizes"]
    for name, marker in ((BATCHED, "o"), (ONE_EACH, "s"), (HAND, "^")):
        axes.plot([r["n"] for r in rows], [r[name] for r in rows], marker=marker, label=name)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xlabel("floats in the tensor")
    axes.set_ylabel("kernels a second")
    axes.set_title(f"x + 1, {figures['machine']['adapter']}")
    axes.grid(True, which="both", alpha=0.3)
    axes.legend()
    report.save_drawing(drawing, path)


def main(arguments: list[str] | None = None) -> report.Figures:
    """Measure or read, print, write, draw."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES, metavar="N")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=0.05, help="of each way in each round")
    report.add_figure_options(parser, "them")
    options = parser.parse_args(arguments)

    def measured() -> report.Figures:
        with ml.create_context_sync(device_type="gpu") as context:
            sizes = [measure(context, n, options.rounds, options.seconds) for n in options.sizes]
            info = context.device.adapter.info
        return {"machine": report.machine(info["device"]), "sizes": sizes}

    return report.measured_or_read(options, measured, tables, plot)


if __name__ == "__main__":
    main()

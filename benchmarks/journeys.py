"""How many files one call leads through: python -m benchmarks journeys.

Each journey is traced at its second run, for the first one imports, compiles and fills caches. A
*call* is a Python function of webnn_py that begins. A *hop* is a call into another file than the
one before on the same thread, and a *return* a hop to a file that the thread has been in and left.
Few hops and fewer returns mean code that a reader can follow from top to bottom.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from types import FrameType

import numpy as np
import wgpu

import webnn_py
from webnn_py import (
    MLAwaitedExecution,
    MLCommandEncoder,
    MLContext,
    MLExecution,
    MLGraph,
    MLGraphBuilder,
    ml,
)

PACKAGE = str(Path(webnn_py.__file__).parent)
SETTLED = 0.05
"""Seconds for threads to end what a journey leaves to them."""
X = np.linspace(-1, 1, 32, dtype=np.float32).reshape(4, 8)


@dataclass(frozen=True)
class Trace:
    """What one journey led through."""

    files: tuple[str, ...]
    calls: int
    hops: int
    returns: int


class Tracer:
    """Records, for each thread, the files of webnn_py whose functions begin while it is `on`.

    It must be installed before the threads begin that it is to see.
    """

    def __init__(self) -> None:
        self.on = False
        self._entered: dict[int, list[str]] = {}

    def install(self) -> None:
        """Watch this thread, and those that begin from now on."""
        threading.setprofile(self._note)
        sys.setprofile(self._note)

    def _note(self, frame: FrameType, event: str, arg: object) -> None:
        if self.on and event == "call" and frame.f_code.co_filename.startswith(PACKAGE):
            thread = self._entered.setdefault(threading.get_ident(), [])
            thread.append(frame.f_code.co_filename[len(PACKAGE) + 1 :])

    def trace(self, journey: Callable[[], object]) -> Trace:
        """Count calls, hops and returns of a journey, over all threads."""
        self._entered, self.on = {}, True
        journey()
        time.sleep(SETTLED)
        self.on = False
        hops = returns = 0
        for entered in self._entered.values():
            seen = {entered[0]}
            for before, after in itertools.pairwise(entered):
                if after != before:
                    hops += 1
                    returns += after in seen
                    seen.add(after)
        files = sorted({file for thread in self._entered.values() for file in thread})
        return Trace(tuple(files), sum(map(len, self._entered.values())), hops, returns)


def small_graph(context: MLContext) -> MLGraph:
    """Build a graph of a few fused operators."""
    b = MLGraphBuilder(context)
    x = b.input("x", "float32", [4, 8])
    w = b.constant(np.ones((8, 8), np.float32))
    return b.build_sync({"y": b.softmax(b.relu(b.add(b.matmul(x, w), x)), 1)})


def compute(tracer: Tracer) -> Trace:
    """Trace `MLExecution.compute` on the CPU."""
    with ml.create_context_sync(device_type="cpu") as context:
        graph, execution = small_graph(context), MLExecution(context)
        execution.compute(graph, {"x": X})
        return tracer.trace(lambda: execution.compute(graph, {"x": X}))


def awaited_compute(tracer: Tracer) -> Trace:
    """Trace an awaited compute on a GPU."""
    with ml.create_context_sync(device_type="gpu") as context:
        graph, execution = small_graph(context), MLAwaitedExecution(context)

        async def once() -> None:
            await execution.compute(graph, {"x": X})

        asyncio.run(once())
        time.sleep(SETTLED)
        return tracer.trace(lambda: asyncio.run(once()))


def dispatch(tracer: Tracer) -> Trace:
    """Trace `dispatch` into a user's encoder."""
    with ml.create_context_sync(device_type="gpu") as context:
        graph, device = small_graph(context), context.device
        usage = wgpu.BufferUsage.STORAGE | wgpu.BufferUsage.COPY_SRC
        x = device.create_buffer_with_data(data=X, usage=usage)
        y = device.create_buffer(size=X.nbytes, usage=usage)

        def once() -> None:
            commands = device.create_command_encoder()
            MLCommandEncoder(context, encoder=commands).dispatch(graph, {"x": x}, {"y": y})
            device.queue.submit([commands.finish()])

        once()
        return tracer.trace(once)


def build(tracer: Tracer) -> Trace:
    """Trace `build_sync` of a graph that equals a live one, and what records it, on a GPU."""
    with ml.create_context_sync(device_type="gpu") as context:
        graph = small_graph(context)
        trace = tracer.trace(lambda: small_graph(context))
        graph.destroy()
        return trace


JOURNEYS = (compute, awaited_compute, dispatch, build)


def main() -> None:
    parser = argparse.ArgumentParser(prog="benchmarks journeys", description=__doc__)
    parser.add_argument("--files", action="store_true", help="list the files of each journey")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the table as JSON, too")
    options = parser.parse_args()
    tracer = Tracer()
    tracer.install()
    found = {journey.__name__: journey(tracer) for journey in JOURNEYS}
    print(f"{'journey':18}{'files':>8}{'calls':>8}{'hops':>8}{'returns':>9}")
    for name, trace in found.items():
        counts = f"{len(trace.files):8}{trace.calls:8}{trace.hops:8}{trace.returns:9}"
        print(f"{name.replace('_', ' '):18}{counts}")
        for file in trace.files if options.files else ():
            print(f"    {file}")
    if options.json:
        table = {name: asdict(trace) for name, trace in found.items()}
        options.json.write_text(json.dumps(table, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()

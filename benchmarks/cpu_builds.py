"""What a build takes on a CPU: from a model's bytes to what can run, in a process of its own.

In a process that holds other models, memory has to be made free first, and takes ten times as long.
Each has built one operator before, so that all is imported that a build needs.
"""

from __future__ import annotations

import functools
import multiprocessing
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.cpu_peers import Given, case, peers
from benchmarks.report import interleaved

PREPARED = ("benchmarks.cpu_peers", "onnxruntime", "webnn_py.engines.onnxruntime.engine")
"""What all processes have imported."""
SMALL = "relu, 4 floats"


def milliseconds(peer: str, path: str, threads: int | None) -> float:
    """What a peer takes to build the model in a file, once it is read."""
    load = peers()[0][peer]
    load(case(SMALL), threads)
    given = Given(Path(path).read_bytes(), {})
    begin = time.perf_counter()
    load(given, threads)
    return (time.perf_counter() - begin) * 1e3


def builds(
    given: Given, names: Sequence[str], threads: int | None, rounds: int
) -> dict[str, list[float]]:
    """By peer, milliseconds of each round's build."""
    known = multiprocessing.get_all_start_methods()
    context = multiprocessing.get_context("forkserver" if "forkserver" in known else "spawn")
    if isinstance(context, multiprocessing.context.ForkServerContext):
        context.set_forkserver_preload(list(PREPARED))
    with tempfile.TemporaryDirectory() as folder, context.Pool(1, maxtasksperchild=1) as pool:
        path = Path(folder, "model.onnx")
        path.write_bytes(given.data)
        return interleaved(
            {
                name: functools.partial(pool.apply, milliseconds, (name, str(path), threads))
                for name in names
            },
            rounds,
        )

"""Where Python has no memory left: an MLError, and a context that works on."""

from __future__ import annotations

import subprocess
import sys

import pytest

ELEMENTS = 2**29 - 4096
"""Nearly 2 GiB of float32, which is what a tensor may take."""

PROGRAM = """
import asyncio, resource, sys
import numpy as np
from webnn_py import MLAwaitedExecution, MLError, MLExecution, MLGraphBuilder, ml

stage, count = sys.argv[1], int(sys.argv[2])
context = ml.create_context_sync()
wide = np.broadcast_to(np.float32(1), (count,))
one = {"x": np.ones(1, np.float32)}

def build(size):
    builder = MLGraphBuilder(context)
    x = builder.input("x", "float32", [1])
    return builder.build_sync({"y": builder.expand(x, [size])})

def awaited(graph):
    return asyncio.run(MLAwaitedExecution(context).compute(graph, one))

small, large = build(4), build(count)
awaited(small)
stages = {
    "run": lambda: MLExecution(context).compute(large, one),
    "awaited run": lambda: awaited(large),
    "tensor": lambda: context.create_tensor_sync("float32", [count]),
    "constant": lambda: MLGraphBuilder(context).constant(wide),
    "constant tensor": lambda: context.create_constant_tensor_sync(wide),
}
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + (500 << 20),) * 2)
try:
    stages[stage]()
except MLError as error:
    print(type(error).__name__, error)
print(awaited(small)["y"].tolist())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="limits of memory are set as on Linux")
@pytest.mark.parametrize("stage", ["run", "awaited run", "tensor", "constant", "constant tensor"])
def test_no_memory(stage: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, stage, str(ELEMENTS)],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    told, results = done.stdout.splitlines()[0], done.stdout.splitlines()[-1]
    assert told.startswith("OperationError"), done.stdout
    assert results == "[1.0, 1.0, 1.0, 1.0]"

"""Python ends while threads of the user compute: what has begun ends, and nothing is aborted."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest

from webnn_py.engines.registry import FAST

PROGRAM = """
    import atexit, sys, threading

    atexit.register(lambda: print(execution.compute(graph, inputs)["y"][0, 0]))  # the last one

    import numpy as np
    from webnn_py import MLExecution, MLGraphBuilder, ml

    context = ml.create_context_sync(engine=sys.argv[1])
    builder = MLGraphBuilder(context)
    x = builder.input("x", "float32", [500, 500])
    graph = builder.build_sync({"y": builder.matmul(x, x)})
    execution, inputs = MLExecution(context), {"x": np.ones((500, 500), np.float32)}
    begun = threading.Barrier(3)

    def compute():
        execution.compute(graph, inputs)
        begun.wait()
        while True:
            execution.compute(graph, inputs)

    for _ in range(2):
        threading.Thread(target=compute, daemon=True).start()
    begun.wait()
"""


@pytest.mark.parametrize("engine", FAST)
def test_daemon_threads_that_compute(engine: str) -> None:
    pytest.importorskip(engine, reason=f"{engine} is not installed")
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(PROGRAM), engine],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "500.0\n", "")

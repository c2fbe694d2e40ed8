"""Python ends while threads of the user compute: what has begun ends, and nothing is told."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest

FAST = ("onnxruntime", "openvino")

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

ENDLESS = """
    import asyncio, sys, threading

    import numpy as np
    from webnn_py import MLAwaitedExecution, MLGraphBuilder, ml

    engine, what = sys.argv[1:]
    kind = {"device_type": "gpu"} if engine == "webgpu" else {"engine": engine}
    context = ml.create_context_sync(**kind)
    array = np.ones((64, 64), np.float32)
    begun = threading.Barrier(4)

    def build():
        builder = MLGraphBuilder(context)
        y = x = builder.input("x", "float32", [64, 64])
        for _ in range(10):
            y = builder.softmax(builder.matmul(y, x), 1)
        return builder, {"y": y}

    def graph():
        builder, outputs = build()
        return builder.build_sync(outputs)

    async def awaited():
        mode, made = MLAwaitedExecution(context), graph()
        begun.wait()
        while True:
            await asyncio.gather(*(mode.compute(made, {"x": array}) for _ in range(4)))

    async def awaited_builds():
        begun.wait()
        while True:
            builder, outputs = build()
            await builder.build_async(outputs)

    def tensors():
        made = graph()
        x, y = (
            context.create_tensor_sync("float32", [64, 64], readable=True, writable=True)
            for _ in range(2)
        )
        begun.wait()
        while True:
            context.write_tensor(x, array)
            context.dispatch(made, {"x": x}, {"y": y})
            context.read_tensor_sync(y)

    def builds():
        begun.wait()
        while True:
            graph()

    works = {
        "awaited": lambda: asyncio.run(awaited()),
        "awaited builds": lambda: asyncio.run(awaited_builds()),
        "tensors": tensors,
        "builds": builds,
    }
    for _ in range(3):
        threading.Thread(target=works[what], daemon=True).start()
    begun.wait()
"""

LATE = """
    import atexit, sys

    @atexit.register
    def read():  # the last one: the context's threads have ended
        try:
            context.read_tensor_sync(tensor, timeout=20.0)
        except ContextLostError as error:
            print(error)

    import numpy as np
    from webnn_py import ContextLostError, ml

    context = ml.create_context_sync(engine="reference")
    tensor = context.create_tensor_sync("float32", [2], readable=True, writable=True)
"""


def _ends_of(program: str, *arguments: str) -> tuple[int, str, str]:
    """The exit status of a program, and what it prints."""
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program), *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize("engine", FAST)
def test_daemon_threads_that_compute(engine: str) -> None:
    pytest.importorskip(engine, reason=f"{engine} is not installed")
    assert _ends_of(PROGRAM, engine) == (0, "500.0\n", "")


@pytest.mark.parametrize("what", ["awaited", "awaited builds", "tensors", "builds"])
@pytest.mark.parametrize("engine", ["reference", *FAST, "webgpu"])
def test_daemon_threads_end_silently(
    request: pytest.FixtureRequest, engine: str, what: str
) -> None:
    if engine == "webgpu":
        request.getfixturevalue("gpu")
    elif engine in FAST:
        pytest.importorskip(engine, reason=f"{engine} is not installed")
    assert _ends_of(ENDLESS, engine, what) == (0, "", "")


def test_work_is_refused_once_the_threads_have_ended() -> None:
    assert _ends_of(LATE) == (0, "Python ends\n", "")

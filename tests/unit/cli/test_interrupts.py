"""Ctrl-C ends a command within a moment, whatever it is at."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from webnn_py.cli.main import COMMANDS, main

INTERRUPTED = 130

LONG = 20
"""Seconds that no end takes, and all that holds one up does."""

PROGRAM = """
import atexit, ctypes, importlib, os, sys, threading, time

{stage}

def run(options):
    at()

sys.argv = ["webnn-py", *sys.argv[1:]]
from webnn_py.cli import main
importlib.import_module("webnn_py.cli." + sys.argv[1]).run = run
sys.exit(main.main())
"""


STAGES = {
    "waiting": """
        def at():
            print("here", flush=True)
            time.sleep(60)
    """,
    "threads hold the end up": """
        def at():
            threading.Thread(target=time.sleep, args=(60,)).start()
            print("here", flush=True)
            time.sleep(60)
    """,
    "a block waits for threads": """
        from concurrent.futures import ThreadPoolExecutor

        def at():
            with ThreadPoolExecutor(1) as pool:
                pool.submit(time.sleep, 60)
                print("here", flush=True)
                time.sleep(60)
    """,
    "a library makes another error of it": """
        def at():
            print("here", flush=True)
            try:
                time.sleep(60)
            except KeyboardInterrupt as error:
                raise ImportError("initialization failed") from error
    """,
    "somebody drops it": """
        def at():
            while True:
                try:
                    print("here", flush=True)
                    time.sleep(60)
                except KeyboardInterrupt:
                    pass
    """,
    "a library sees no signals": """
        def at():
            lock, mutex = ctypes.CDLL(None).pthread_mutex_lock, ctypes.create_string_buffer(64)
            lock(mutex)
            print("here", flush=True)
            lock(mutex)
    """,
    "Python ends": """
        def at():
            atexit.register(time.sleep, 60)
            atexit.register(print, "here", flush=True)
    """,
}
"""What a command is at."""


def _interrupted(*command: str, seconds: float = 0.0) -> tuple[int, str]:
    """The exit status and standard error of a process that gets Ctrl-C once it says "here".

    Args:
        command: Begins it.
        seconds: For which it goes on before.
    """
    with subprocess.Popen(
        command,
        env=os.environ | {"WEBNN_CACHE": "0"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # A job in the background ignores interrupts, and its children would, too.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    ) as process:
        try:
            assert process.stdout is not None
            if process.stdout.readline() == "here\n":
                time.sleep(seconds)
                process.send_signal(signal.SIGINT)
            _, told = process.communicate(timeout=LONG)
        finally:
            process.kill()
    return process.returncode, told


@pytest.mark.parametrize("stage", STAGES)
def test_it_ends_at_any_stage(stage: str) -> None:
    program = PROGRAM.format(stage=textwrap.dedent(STAGES[stage]))
    status, told = _interrupted(sys.executable, "-c", program, "info")
    assert (status, told) == (INTERRUPTED, "webnn-py: interrupted\n")


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_ends(command: str) -> None:
    program = PROGRAM.format(stage=textwrap.dedent(STAGES["threads hold the end up"]))
    arguments = {"info": [], "convert": ["a.onnx", "b.mlgraph"]}.get(command, ["a.onnx"])
    status, told = _interrupted(sys.executable, "-c", program, command, *arguments)
    assert (status, told) == (INTERRUPTED, "webnn-py: interrupted\n")


def test_a_call_from_python_returns(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def write(text: str) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(sys.stdout, "write", write)
    before = signal.getsignal(signal.SIGINT)
    assert main(["info"]) == INTERRUPTED
    assert signal.getsignal(signal.SIGINT) is before
    assert capsys.readouterr().err == "webnn-py: interrupted\n"


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A chain of convolutions, each with a kernel of its own on a GPU."""
    random, nodes, weights, last = np.random.default_rng(0), [], [], "x"
    for n in range(60):
        shape = (16 + n, 15 + n if n else 3, 3, 3)
        array = random.standard_normal(shape).astype(np.float32)
        weights.append(numpy_helper.from_array(array, f"w{n}"))
        nodes.append(helper.make_node("Conv", [last, f"w{n}"], [f"c{n}"], pads=[1, 1, 1, 1]))
        last = f"c{n}"
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 3, 64, 64])
    y = helper.make_tensor_value_info(last, TensorProto.FLOAT, [1, 75, 64, 64])
    graph = helper.make_graph(nodes, "g", [x], [y], weights)
    path = tmp_path / "model.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), path)
    return path


@pytest.mark.parametrize("seconds", [0.2, 0.5, 1.0, 3.0])
@pytest.mark.parametrize("device", ["cpu", "gpu"])
def test_a_run_ends_wherever_it_is(model: Path, device: str, seconds: float) -> None:
    program = "import sys; from webnn_py.cli.main import main; print('here', flush=True); main()"
    command = ["run", str(model), "--device", device, "--benchmark", "10000"]
    status, told = _interrupted(sys.executable, "-c", program, *command, seconds=seconds)
    assert status == INTERRUPTED, told
    assert "Traceback" not in told
    assert told.endswith("webnn-py: interrupted\n")

"""Without what is private in wgpu the results are the same."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import wgpu

from tests.backend.buffers import buffer_of, empty_buffer, read, run_recorded
from tests.backend.tensors import LONG, ONES, SHAPE, adding, tensor
from tests.backend.test_forks import fork_with_a_gpu_context
from tests.graphs import assert_awaits, awaited, doubling
from tests.internals import session_of
from tests.processes import ROOT, run_alone
from webnn_py import DataError, MLCommandEncoder, MLContext, MLError, Timeline, ml

if os.environ.get("WEBNN_TEST_ENGINE") == "dawn":  # where importing wgpu-native's part breaks Dawn
    pytest.skip("of wgpu-native alone", allow_module_level=True)

from webnn_py.engines.webgpu.runtime.wgpu_native.capabilities import ALL, FORKING

FILES = (
    "tests/tiny",
    "tests/backend/test_encoder.py",
    "tests/backend/test_awaited.py",
    "tests/backend/test_device_queue.py",
    "tests/backend/test_exported_tensors.py",
    "tests/backend/test_shared_outputs.py",
    "tests/backend/test_tensors.py",
    "tests/backend/test_timelines.py",
)
PYTEST = (sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider")
OF_NATIVE = (
    "test_nobody_waits_within_wgpu",  # here they do
    "test_how_long_is_looked_for_the_end",  # nobody finds out
    "test_dispatches_are_submitted_together",  # wgpu's mapping of buffers submits, too
    "test_a_signal_and_an_export_submit",
    "test_a_tensor_destroyed_within_its_export",  # wgpu-native ends the process over its buffer
    "test_a_context_destroyed_within_an_export",
    "test_a_buffer_is_not_destroyed_in_the_midst",
)
OTHER_NAMES = ("_internal", "_device", "_poller", "_release", "_the_instance")
OTHER_MODULES = ("_api", "_ffi", "_helpers")


def all_modes(context: MLContext) -> None:
    """Awaited, recorded and dispatched runs, over memory of every kind."""
    graph, x = doubling(context), buffer_of(context.device, ONES)
    assert_awaits(context)
    for offset in (0, 256):
        y = empty_buffer(context.device, 512)
        awaited(graph, {"x": x}, {"y": {"buffer": y, "offset": offset}})
        np.testing.assert_array_equal(read(y, SHAPE, offset=offset), ONES * 2)
    y = empty_buffer(context.device, 24)
    run_recorded(graph, {"x": ONES}, {"y": y})
    np.testing.assert_array_equal(read(y, SHAPE), ONES * 2)

    adds, k, done = adding(context), tensor(context, ONES), Timeline()
    a, b = tensor(context, ONES), tensor(context, exportable=True)
    for _ in range(3):
        context.dispatch(adds, {"x": a, "k": k}, {"y": b})
        context.dispatch(graph, {"x": b}, {"y": a}, sync=[done(signal=done.value + 1)])
        done.wait_sync(done.value, timeout=LONG)
    np.testing.assert_array_equal(context.read_tensor_sync(a), ONES * 22)
    with context.export_to_gpu(b) as rented:
        np.testing.assert_array_equal(read(rented, SHAPE), ONES * 11)
    rented.destroy()
    np.testing.assert_array_equal(context.read_tensor_sync(b), ONES * 11)

    encoder = MLCommandEncoder(context)
    encoder.initialize_graph(adds, {"k": ONES * 5})
    encoder.dispatch(adds, {"x": ONES}, {"y": y})
    context.submit([encoder.finish()])
    np.testing.assert_array_equal(read(y, SHAPE), ONES * 6)
    np.testing.assert_array_equal(awaited(adds, {"x": ONES})["y"], ONES * 6)


def refused(context: MLContext) -> None:
    """What public calls can find out, too."""
    graph, gone = doubling(context), empty_buffer(context.device, 24)
    gone.destroy()
    with pytest.raises(DataError, match="destroyed"):
        awaited(graph, {"x": gone})
    with ml.create_context_sync(device_type="gpu") as other:
        foreign = empty_buffer(other.device, 24)
        with pytest.raises(DataError, match="another GPUDevice"):
            awaited(graph, {"x": foreign})
    context.device.destroy()
    with pytest.raises(MLError):
        awaited(graph, {"x": ONES})
    message = session_of(context).lost.wait(LONG).message
    assert "lost" in message or "destroyed" in message


@pytest.mark.parametrize("name", [c.name for c in ALL])
def test_without_one_capability(
    gpu: MLContext, name: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (capability,) = (c for c in ALL if c.name == name)
    monkeypatch.setattr(capability, "missing", "taken away")
    with ml.create_context_sync(device_type="gpu") as context:
        all_modes(context)
        refused(context)
    caplog.clear()


def fork_without_native() -> None:
    FORKING.missing = "taken away"
    fork_with_a_gpu_context()


def test_forks_without_their_capability(gpu: MLContext) -> None:
    run_alone(fork_without_native)


def test_without_any(gpu: MLContext) -> None:
    left_out = [f"not {name}" for name in ("cpu", *OF_NATIVE)]
    # It is no worker of pytest-xdist: other plugins warn in one.
    known = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST_XDIST")}
    done = subprocess.run(
        [*PYTEST, *FILES, "-k", " and ".join(left_out)],
        cwd=ROOT,
        env=known | {"WEBNN_NATIVE": "0"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    assert re.search(r"\d\d\d passed", done.stdout), done.stdout[-4000:]


# A release of wgpu with other names


@pytest.fixture
def release(tmp_path: Path) -> Path:
    """A folder with this release of wgpu, in which everything private is called otherwise."""
    source = Path(wgpu.__file__).parent
    target = tmp_path / "wgpu"
    shutil.copytree(source, target, ignore=shutil.ignore_patterns("resources", "__pycache__"))
    (target / "resources").symlink_to(source / "resources")
    private = re.compile(rf"\b({'|'.join((*OTHER_NAMES, *OTHER_MODULES))})\b")
    for path in target.rglob("*.py"):
        path.write_text(private.sub(r"\1_renamed", path.read_text()))
    for path in list(target.rglob("*.py")):
        if path.stem in (*OTHER_NAMES, *OTHER_MODULES, "_poller"):
            path.rename(path.with_name(f"{path.stem}_renamed.py"))
    return tmp_path


def work_in_another_release() -> None:
    assert hasattr(wgpu.GPUObjectBase, "_release_renamed")
    with ml.create_context_sync(device_type="gpu") as context:
        assert [c.name for c in ALL if c.is_available] == ["observing"]
        all_modes(context)
        refused(context)


def test_a_release_with_other_names(gpu: MLContext, release: Path) -> None:
    others = [str(release), str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    run_alone(work_in_another_release, PYTHONPATH=os.pathsep.join(others))

"""Where a device has no memory left: a clear error, nothing kept, and a context that works on."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import wgpu

from tests.backend.program_cases import X, mixed
from tests.backend.tensors import tensor
from tests.graphs import ONES, assert_awaits, awaited, build, doubling
from tests.internals import settle
from webnn_py import MLCommandEncoder, MLContext, MLGraphBuilder, MLOperand, OperationError

CALLS = range(6)
"""Which buffer is the one that there is no memory for."""


class Scarce:
    """A device's buffers, of which one cannot be made."""

    def __init__(self, device: Any, patch: pytest.MonkeyPatch) -> None:
        self.left = -1
        self.failed = False
        self.made: list[weakref.ref[Any]] = []
        create = device.create_buffer

        def scarce(**given: Any) -> Any:
            if self.left == 0:
                self.failed = True
                raise wgpu.GPUOutOfMemoryError("Not enough memory left.")
            self.left -= 1
            buffer = create(**given)
            self.made.append(weakref.ref(buffer))
            return buffer

        patch.setitem(vars(device), "create_buffer", scarce)

    def kept(self) -> int:
        gc.collect()
        return sum(ref() is not None for ref in self.made)


@pytest.fixture
def scarce(gpu: MLContext, monkeypatch: pytest.MonkeyPatch) -> Scarce:
    return Scarce(gpu.device, monkeypatch)


def weighted(b: MLGraphBuilder) -> dict[str, MLOperand]:
    y = b.matmul(b.input("x", "float32", [2, 3]), b.constant(np.ones((3, 300), np.float32)))
    return {"y": b.softmax(b.matmul(y, b.constant(np.ones((300, 3), np.float32))), 1)}


def encoding(context: MLContext) -> None:
    graph = doubling(context)
    x, y = tensor(context, ONES), tensor(context)
    encoder = MLCommandEncoder(context)
    encoder.dispatch(graph, {"x": ONES}, {"y": y})
    encoder.finish()
    job = context.slice_dispatch(graph, {"x": x}, {"y": y})
    encoder = MLCommandEncoder(context)
    encoder.dispatch_slice(job, budget_ms=1.0)


def loading(context: MLContext, path: Path) -> None:
    mixed(context).save(path)
    program = context.load_program_sync(path)
    program.run_sync({"x": X, "total": np.zeros((4, 3), np.float32)})


def tensors(context: MLContext) -> None:
    x = tensor(context, ONES)
    np.testing.assert_array_equal(context.read_tensor_sync(x), ONES)


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("use", ["build", "run", "tensors", "encoding", "loading", "profile"])
def test_no_memory_for_a_buffer(
    gpu: MLContext, scarce: Scarce, use: str, call: int, tmp_path: Path
) -> None:
    uses: dict[str, Callable[[], Any]] = {
        "build": lambda: build(gpu, weighted),
        "run": lambda: awaited(build(gpu, weighted), {"x": ONES}),
        "tensors": lambda: tensors(gpu),
        "encoding": lambda: encoding(gpu),
        "loading": lambda: loading(gpu, tmp_path / "program"),
        "profile": lambda: build(gpu, weighted).profile({"x": ONES}, runs=1),
    }
    assert_awaits(gpu)
    scarce.left = call
    told = ""
    try:
        uses[use]()
    except OperationError as error:
        told = str(error)
    assert ("memory" in told) == scarce.failed
    scarce.left = -1
    settle(gpu)
    assert scarce.kept() <= 4, "buffers of what failed are kept"
    assert_awaits(gpu)

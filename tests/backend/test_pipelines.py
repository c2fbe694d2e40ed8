"""Pipelines are made once for the same code, on several threads, and fail with their own error."""

from __future__ import annotations

import functools
import os
import re
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.backend.webgpu import WEBGPU
from tests.graphs import normal
from tests.internals import engine_of, executable_of
from tests.interrupts import Interrupt, interrupted, is_call
from tests.processes import LONG
from tests.threads import in_threads
from webnn_py import MLContext, MLGraphBuilder, OperationError, ml
from webnn_py.engines.webgpu.program.plan import COUNTED_LOOP_MARK
from webnn_py.engines.webgpu.runtime import engine
from webnn_py.engines.webgpu.runtime.devices import pipelines
from webnn_py.engines.webgpu.runtime.devices.pipelines import PipelineCache, PipelineKey

KERNEL = "@compute @workgroup_size(1) fn main() {{ _ = {}u; }}"


def new_cache(device: Any) -> PipelineCache:
    return PipelineCache(device, WEBGPU)


class Counting:
    """A device that counts the pipelines it makes."""

    def __init__(self, device: Any) -> None:
        self._device = device
        self.made = 0
        self.names: list[str] = []
        self.threads: set[str] = set()
        self._lock = threading.Lock()

    def create_shader_module(self, **arguments: Any) -> Any:
        return self._device.create_shader_module(**arguments)

    def create_compute_pipeline(self, **arguments: Any) -> Any:
        with self._lock:
            self.made += 1
            self.names.append(arguments["label"])
            self.threads.add(threading.current_thread().name)
        return self._device.create_compute_pipeline(**arguments)


@pytest.fixture
def device(gpu: MLContext) -> Counting:
    return Counting(engine_of(gpu).gpu.handle)


def test_each_code_is_compiled_once(device: Counting) -> None:
    cache = new_cache(device)
    kernels = [(f"k{i}", PipelineKey(KERNEL.format(i % 5))) for i in range(20)]
    made = cache.get_all(kernels)
    assert device.made == 5
    assert made == made[:5] * 4
    assert len(set(map(id, made))) == 5
    assert cache.get_all(reversed(kernels)) == made[::-1]
    assert cache.get("k3", KERNEL.format(3)) is made[3]
    assert device.made == 5


def test_what_another_thread_is_at_is_waited_for(device: Counting) -> None:
    begun, goes = threading.Event(), threading.Event()

    class Held(Counting):
        def create_compute_pipeline(self, **arguments: Any) -> Any:
            begun.set()
            assert goes.wait(10)
            return super().create_compute_pipeline(**arguments)

    held = Held(device)
    cache, key = new_cache(held), PipelineKey(KERNEL.format(1))
    with ThreadPoolExecutor(2) as pool:
        one = pool.submit(cache.get_all, [("one", key)])
        assert begun.wait(10)
        other = pool.submit(cache.get_all, [("other", key)])
        goes.set()
        assert one.result(10)[0] is other.result(10)[0]
    assert held.names == ["one"]


def test_several_threads_make_them(device: Counting) -> None:
    new_cache(device).get_all((f"k{i}", PipelineKey(KERNEL.format(i))) for i in range(50))
    several = (os.cpu_count() or 1) > 1
    assert (threading.current_thread().name in device.threads) != several


@pytest.mark.skipif((os.cpu_count() or 1) < 2, reason="one thread does everything")
def test_there_is_other_work_meanwhile(device: Counting) -> None:
    other = threading.Event()
    waited: list[bool] = []

    class Waiting(Counting):
        def create_compute_pipeline(self, **arguments: Any) -> Any:
            waited.append(other.wait(10))
            return super().create_compute_pipeline(**arguments)

    kernels = [(f"k{i}", PipelineKey(KERNEL.format(i))) for i in range(4)]
    new_cache(Waiting(device)).get_all(kernels, other.set)
    assert waited == [True] * 4


def test_what_was_begun_is_not_made_again(device: Counting) -> None:
    cache = new_cache(device)
    kernels = [(f"k{i}", PipelineKey(KERNEL.format(i))) for i in range(6)]
    for name, key in (*kernels[3:], *kernels[3:]):
        cache.begin(name, key)
    assert len(set(map(id, cache.get_all(kernels)))) == 6
    assert device.made == 6
    cache.begin(*kernels[0])
    cache.get_all(kernels)
    assert device.made == 6


def test_a_failure_of_what_was_begun_is_told_to_who_asks(device: Counting) -> None:
    cache = new_cache(device)
    kernels = [("broken", PipelineKey("fn main() { nonsense }"))]
    cache.begin(*kernels[0])
    with pytest.raises(OperationError, match="compiling the kernel broken"):
        cache.get_all(kernels)


@pytest.fixture
def begun(gpu: MLContext, monkeypatch: pytest.MonkeyPatch) -> list[PipelineKey]:
    """The pipelines that are begun before all kernels are written."""
    keys = []
    cache = engine_of(gpu).gpu.pipelines
    begin = cache.begin

    def beginning(name: str, key: PipelineKey) -> None:
        keys.append(key)
        begin(name, key)

    monkeypatch.setattr(cache, "begin", beginning)
    monkeypatch.setattr(engine, "LONG_CODE", 1_000)
    return keys


def test_long_kernels_are_compiled_while_others_are_written(
    gpu: MLContext, begun: list[PipelineKey]
) -> None:
    b = MLGraphBuilder(gpu)
    x, w = b.input("x", "float32", [1, 3, 9, 9]), b.constant(normal(7, 3, 3, 3))
    graph = b.build_sync({"y": b.softmax(b.conv2d(x, w), 1)})
    loaded = executable_of(graph).loaded
    codes = {kernel.code for kernel in loaded.compiled.kernels}
    assert begun
    assert {key.code for key in begun} == {code for code in codes if len(code) >= 1_000}


def test_of_kernels_that_share_their_code_one_is_begun(
    gpu: MLContext, begun: list[PipelineKey]
) -> None:
    b = MLGraphBuilder(gpu)
    outputs = {}
    for size in (9, 11, 13):
        x, w = b.input(f"x{size}", "float32", [1, 3, size, size]), b.constant(normal(7, 3, 3, 3))
        outputs[f"y{size}"] = b.conv2d(x, w)
    b.build_sync(outputs)
    assert begun
    assert len({re.sub(r"\d+", "", key.code) for key in begun}) == len(begun)


def test_work_that_fails_meanwhile_ends_it(device: Counting) -> None:
    def fail() -> None:
        raise OperationError("out of memory")

    kernels = [(f"k{i}", PipelineKey(KERNEL.format(i))) for i in range(9)]
    with pytest.raises(OperationError, match="out of memory"):
        new_cache(device).get_all(kernels, fail)


def test_the_kernel_that_fails_is_named(device: Counting) -> None:
    cache = new_cache(device)
    kernels = [(f"k{i}", PipelineKey(KERNEL.format(i))) for i in range(9)]
    kernels[6] = ("broken", PipelineKey("fn main() { nonsense }"))
    with pytest.raises(OperationError, match="compiling the kernel broken"):
        cache.get_all(kernels)
    del kernels[6]
    assert len(cache.get_all(kernels)) == 8


def test_what_was_begun_and_waits_is_taken_or_left(device: Counting) -> None:
    """Who wants a pipeline does not wait for the threads that have it in their queue."""
    cache = new_cache(device)
    held = threading.Event()
    for _ in range(pipelines.MAX_EARLY_COMPILE_THREADS):
        cache._early.submit(lambda: bool(held.wait(LONG)), lambda error: None)
    kernels = [(f"k{i}", PipelineKey(KERNEL.format(i))) for i in range(4)]
    for kernel in kernels:
        cache.begin(*kernel)
    try:
        made = cache.get_all(kernels[:3])
    finally:
        held.set()
    assert len(set(map(id, made))) == 3
    assert not cache._waiting
    assert not cache._begun
    assert cache.get_all(kernels[:3]) == made
    assert device.made == 3


def test_what_was_begun_and_waits_is_made_in_its_turn(
    device: Counting, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The longest first, which others would wait for at the end, whether they were begun or not."""
    monkeypatch.setattr(pipelines, "MAX_COMPILE_THREADS", 1)
    monkeypatch.setattr(pipelines, "MAX_EARLY_COMPILE_THREADS", 1)
    cache = new_cache(device)
    kernels = [(f"k{i}", PipelineKey(KERNEL.format(10**i))) for i in range(6)]
    held, holding = threading.Event(), threading.Event()

    def hold() -> None:
        holding.set()
        held.wait(LONG)

    cache._early.submit(hold, lambda error: None)
    assert holding.wait(LONG)
    for kernel in kernels[1::2]:
        cache.begin(*kernel)
    try:
        cache.get_all(kernels)
    finally:
        held.set()
    assert device.names == [f"k{i}" for i in range(5, -1, -1)]


def test_of_what_waits_the_longest_is_begun_first(
    device: Counting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pipelines, "MAX_EARLY_COMPILE_THREADS", 1)
    cache = new_cache(device)
    kernels = [(f"k{i}", PipelineKey(KERNEL.format(10**i))) for i in range(4)]
    held = threading.Event()
    cache._early.submit(lambda: bool(held.wait(LONG)), lambda error: None)
    for kernel in kernels:
        cache.begin(*kernel)
    held.set()
    cache._early.run(lambda: None).wait(LONG)
    assert device.names == ["k3", "k2", "k1", "k0"]


def test_only_kernels_written_here_are_known_to_end(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Programs are of files, and of kernels that users write: their loops count rounds."""
    made: list[str] = []
    ending = WEBGPU.module_of_ending_loops

    def counting(device: Any, code: str, label: str) -> Any:
        made.append(code)
        return ending(device, code, label)

    monkeypatch.setattr(WEBGPU, "module_of_ending_loops", counting)
    with ml.create_context_sync(device_type="gpu") as context:
        b = MLGraphBuilder(context)
        x, w = b.input("x", "float32", [1, 3, 9, 9]), b.constant(normal(7, 3, 3, 3))
        graph = b.build_sync({"y": b.softmax(b.conv2d(x, w), 1)})
        codes = {kernel.code for kernel in executable_of(graph).loaded.compiled.kernels}
        assert sorted(made) == sorted(codes)
        assert any("for (" in code for code in codes)
        graph.compile_to(tmp_path / "program")
    with ml.create_context_sync(device_type="gpu") as context:
        program = context.load_program_sync(tmp_path / "program")
        program.run_sync({"x": np.zeros((1, 3, 9, 9), np.float32)})
    assert len(made) == len(codes)


def test_code_that_is_refused_where_loops_end(gpu: MLContext) -> None:
    with pytest.raises(OperationError, match="compiling the kernel broken"):
        engine_of(gpu).gpu.pipelines.get_all([("broken", PipelineKey("nonsense", ends=True))])


def test_loops_that_shall_count_their_rounds_do(
    gpu: MLContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(WEBGPU, "module_of_ending_loops", lambda *_: pytest.fail("they do not"))
    code = f"@compute @workgroup_size(1) fn main() {{\n  {COUNTED_LOOP_MARK}\n}}"
    (made,) = engine_of(gpu).gpu.pipelines.get_all([("counted", PipelineKey(code, ends=True))])
    assert made is not None


def test_what_is_interrupted_is_made_by_who_asks_next(device: Counting) -> None:
    """Also where that comes just before it would have been made: others waited for ever."""

    def interrupt_each() -> None:
        cache = new_cache(device)
        number, came = 0, True
        while came:
            code = KERNEL.format(number)
            interrupt = Interrupt(functools.partial(is_call, number))
            interrupted(functools.partial(cache.get, "k", code), interrupt)
            assert cache.get("k", code) is cache.get("k", code)
            came = interrupt.came
            number += 1

    in_threads(interrupt_each)

"""Tests that look behind the public objects: each belongs to a file beside this one."""

from __future__ import annotations

import asyncio
import gc
import logging
import threading
import weakref
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import wgpu

from tests.adapters import need_wgpu_native, new_device
from tests.backend.buffers import buffer_of, empty_buffer, read
from tests.backend.libraries import Library
from tests.backend.program_cases import X, expected_total, mixed
from tests.backend.tensors import ONES, SHAPE, Parked, tensor
from tests.backend.test_dlpack_memory import collected
from tests.backend.test_open_graphs import arrays, attention, awaited
from tests.backend.test_timelines import PASSES
from tests.backend.texels import HEIGHT, WIDTH, copying, run, texture
from tests.backend.webgpu import WEBGPU
from tests.graphs import build, doubling, normal
from tests.internals import bindings_of, engine_of, executable_of, prepared_sizes, storage_of
from tests.loops import Run
from webnn_py import (
    ContextLostError,
    MLAwaitedExecution,
    MLCommandEncoder,
    MLContext,
    MLGraph,
    MLGraphBuilder,
    MLOperand,
    OperationError,
    Timeline,
    ValidationError,
    ml,
)
from webnn_py.engines.webgpu.runtime import roofline
from webnn_py.engines.webgpu.runtime.devices import adapters
from webnn_py.engines.webgpu.runtime.devices.device_lifetime import life_of
from webnn_py.engines.webgpu.runtime.devices.staging import Staging
from webnn_py.engines.webgpu.runtime.profiling import HostClock
from webnn_py.engines.webgpu.runtime.program_arguments import place_arguments
from webnn_py.engines.webgpu.runtime.submit_chunks import Encodable
from webnn_py.ordering.timeline import state_of

# test_dlpack_memory


def test_a_capsule_that_nobody_takes_frees_its_memory(cpu: MLContext) -> None:
    made = tensor(cpu, ONES)
    storage = weakref.ref(storage_of(made))
    for version in (None, (1, 0)):
        for _ in range(10):
            made.__dlpack__(max_version=version)
    made.destroy()
    assert collected(storage)


def test_a_consumer_that_lets_go_frees_the_memory(library: Library) -> None:
    with ml.create_context_sync(device_type="cpu") as context:
        made = tensor(context, ONES)
        storage = weakref.ref(storage_of(made))
        taken = library.take(made)
        made.destroy()
        gc.collect()
        assert storage() is not None
        np.testing.assert_array_equal(np.asarray(taken), ONES)
        del taken
        assert collected(storage)


# test_exported_tensors


def test_a_buffer_is_not_destroyed_in_the_midst_of_a_submission(gpu: MLContext) -> None:
    """On a device of its own, which nobody else uses meanwhile."""
    with ml.create_context_sync(new_device()) as context:
        queue, rented = context.device.queue, tensor(context, ONES, exportable=True)
        with context.export_to_gpu(rented) as buffer:
            with engine_of(context).gpu.life:
                rented.destroy()
                np.testing.assert_array_equal(read(buffer, SHAPE), ONES)
            with pytest.raises(ValidationError, match="GPUBuffer is destroyed"):
                queue.read_buffer(buffer)


def test_what_was_never_made_is_not_exported(gpu: MLContext) -> None:
    made, timeline = tensor(gpu, exportable=True), Timeline()
    state_of(timeline).fail(1, ValueError("boom"))
    gpu.dispatch(doubling(gpu), {"x": tensor(gpu)}, {"y": made}, sync=[timeline(wait=1)])
    with pytest.raises(OperationError, match="boom"), gpu.export_to_gpu(made):
        pass
    gpu.write_tensor(made, ONES)
    with gpu.export_to_gpu(made) as buffer:
        np.testing.assert_array_equal(read(buffer, SHAPE), ONES)


# test_open_graphs


def test_what_is_prepared_is_not_compiled_again(
    context: MLContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = attention(context)
    compiled = prepared_sizes(graph, monkeypatch)
    asyncio.run(graph.prepare_async({"batch": 2, "length": 5}))
    graph.prepare_sync({"batch": 2, "length": 5})
    for _ in range(3):
        awaited(context, graph, arrays(2, 5))
    assert len(compiled) == 1
    awaited(context, graph, arrays(1, 5))
    assert len(compiled) == 2


# test_programs


def test_long_runs_are_submitted_in_pieces_on_hardware(
    gpu: MLContext, contexts: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    context = contexts("gpu")
    monkeypatch.setattr(engine_of(context).gpu, "hardware", True)
    submitted: list[Any] = []
    submit = engine_of(context).gpu.submit

    def counting(*commands: Any) -> None:
        submitted.append(commands)
        submit(*commands)

    monkeypatch.setattr(engine_of(context).gpu, "submit", counting)
    program = mixed(context, repeat=301, own=True)
    results = program.run_sync({"x": X})["total"]
    wanted = 1 + expected_total(X, 301)
    np.testing.assert_allclose(results, wanted, rtol=1e-4, atol=1e-3)
    in_pieces = len(submitted)
    assert in_pieces > 6
    # Somebody else's commands may now come between the pieces.
    encoder = MLCommandEncoder(context)
    total = empty_buffer(context.device, 48)
    encoder.execute(program, {"x": buffer_of(context.device, X), "total": total})
    encoder.finish()
    submitted.clear()
    program.run_sync({"x": X})
    assert 0 < len(submitted) < in_pieces / 2


def test_recorded_runs_are_submitted_in_pieces_where_that_takes_long(
    gpu: MLContext, contexts: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    context = contexts("gpu")
    device = engine_of(context).gpu
    monkeypatch.setattr(device, "hardware", True)
    monkeypatch.setattr(device.webgpu, "ENCODES_ON_SUBMIT", True)
    submitted: list[int] = []  # command buffers of each submission
    submit = device.submit

    def counting(commands: Any, before: Any = ()) -> None:
        submitted.append(1 + len(before))
        submit(commands, before)

    monkeypatch.setattr(device, "submit", counting)
    program = mixed(context, repeat=41, own=True)
    program.run_sync({"x": X})

    def run_recorded() -> Any:
        executable: Any = program._executable
        loaded = executable.program
        run = place_arguments(loaded, {"x": X}, {"total": None}, loaded.io_buffer)
        executable.prerecorder.release()
        executable.prerecorder.record_whole(run)
        submitted.clear()
        return program.run_sync({"x": X})["total"]

    added = expected_total(X, 41)
    np.testing.assert_allclose(run_recorded(), 1 + 2 * added, rtol=1e-4, atol=1e-3)
    assert len(submitted) > 2
    encoder = MLCommandEncoder(context)  # whose commands may come between two submissions
    buffers = {"x": buffer_of(context.device, X), "total": empty_buffer(context.device, 48)}
    encoder.execute(program, buffers)
    encoder.finish()
    np.testing.assert_allclose(run_recorded(), 1 + 3 * added, rtol=1e-4, atol=1e-3)
    assert len(submitted) == 1
    assert submitted[0] > 2


@pytest.mark.parametrize("repeat", [3, 1001])
def test_of_long_runs_only_the_first_piece_is_recorded_ahead(gpu: MLContext, repeat: int) -> None:
    program = mixed(gpu, repeat, own=True)
    program.run_sync({"x": X})
    executable: Any = program._executable
    loaded = executable.program
    run = place_arguments(loaded, {"x": X}, {"total": None}, loaded.io_buffer)
    executable.prerecorder.release()
    executable.prerecorder.record_whole(run)
    recorded = executable.prerecorder.take()
    assert recorded.is_recorded is (repeat == 3)
    assert recorded.has_begun
    executable.prerecorder.record_whole(run)  # the next run goes on with it
    results = program.run_sync({"x": X})["total"]
    np.testing.assert_allclose(results, 1 + 2 * expected_total(X, repeat), rtol=1e-4, atol=1e-3)


# test_repeated_dispatches


def test_what_is_remembered_keeps_no_tensor_and_no_buffer_alive(gpu: MLContext) -> None:
    graph, x = doubling(gpu), tensor(gpu, ONES)
    for _ in range(3):
        y = tensor(gpu)
        gone = weakref.ref(y), weakref.ref(storage_of(y).buffer)
        for _ in range(3):
            gpu.dispatch(graph, {"x": x}, {"y": y})
        gpu.read_tensor_sync(y)
        del y
        gc.collect()
        assert [reference() for reference in gone] == [None, None]


def test_failed_inputs_fail_a_repeat(gpu: MLContext) -> None:
    graph, x, y, z = doubling(gpu), tensor(gpu, ONES), tensor(gpu), tensor(gpu)
    gpu.dispatch(graph, {"x": x}, {"y": y})
    gpu.dispatch(graph, {"x": y}, {"y": z})
    gate = Timeline()
    state_of(gate).fail(1, ValueError("boom"))
    gpu.dispatch(graph, {"x": x}, {"y": y}, sync=[gate(wait=1)])
    gpu.dispatch(graph, {"x": y}, {"y": z})
    with pytest.raises(OperationError, match="boom"):
        gpu.read_tensor_sync(z)
    gpu.dispatch(graph, {"x": x}, {"y": y})
    gpu.dispatch(graph, {"x": y}, {"y": z})
    np.testing.assert_array_equal(gpu.read_tensor_sync(z), ONES * 4)


# test_tensor_ends


def test_the_memory_of_a_destroyed_tensor_goes(context: MLContext) -> None:
    graph = doubling(context)
    x, y = tensor(context, ONES), tensor(context)
    context.dispatch(graph, {"x": x}, {"y": y})
    context.read_tensor_sync(y)
    memory = weakref.ref(getattr(storage_of(y), "buffer", storage_of(y)))
    y.destroy()
    gc.collect()
    assert memory() is None
    assert storage_of(x) is not None


@pytest.mark.parametrize("ended", [True, False], ids=["destroyed", "dropped"])
@pytest.mark.parametrize("kind", ["cpu", "gpu"])
def test_contexts_and_their_memory_go(kind: Any, ended: bool, gpu: MLContext) -> None:
    context = ml.create_context_sync(device_type=kind)
    graph, x, y = doubling(context), tensor(context, ONES), tensor(context)
    context.dispatch(graph, {"x": x}, {"y": y}, sync=[Timeline()(signal=1)])
    context.read_tensor_sync(y)
    parked = Parked(context)
    memory = [getattr(storage_of(t), "buffer", storage_of(t)) for t in (x, y, parked.source)]
    alive = [weakref.ref(thing) for thing in (context, graph, x, y, *memory)]
    del memory
    if ended:
        context.destroy()
    del context, graph, x, y, parked
    deadline = threading.Event()
    for _ in range(50):
        gc.collect()
        if all(ref() is None for ref in alive):
            break
        deadline.wait(0.02)
    assert [ref() for ref in alive] == [None] * len(alive)


# test_timelines


def test_what_a_failed_run_was_to_signal_fails_before_its_await(
    context: MLContext, run: Run
) -> None:
    graph = doubling(context)

    async def main() -> None:
        for _ in range(PASSES):
            broken, timeline = Timeline(), Timeline()
            state_of(broken).fail(1, ValueError("boom"))
            sync = [broken(wait=1), timeline(signal=1)]
            with pytest.raises(OperationError, match="boom"):
                await MLAwaitedExecution(context).compute(graph, {"x": ONES}, sync=sync)
            with pytest.raises(OperationError, match="boom"):
                timeline.wait_sync(1, timeout=0)

    run(main)


# test_textures, test_texture_parts


def test_conversions_are_compiled_off_the_loop(
    gpu: MLContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipelines: Any = engine_of(gpu).gpu.pipelines
    make, threads = pipelines.get, []

    def pipeline(*arguments: Any) -> Any:
        threads.append(threading.current_thread())
        return make(*arguments)

    graph = copying(gpu, [HEIGHT, WIDTH])
    monkeypatch.setattr(pipelines, "get", pipeline)
    x, y = (texture(gpu.device, "r32float") for _ in range(2))
    asyncio.run(MLAwaitedExecution(gpu).compute(graph, {"x": x}, {"y": y}))
    assert len(threads) == 2
    assert threading.main_thread() not in threads


def test_a_part_that_moves_is_compiled_once(
    gpu: MLContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipelines: Any = engine_of(gpu).gpu.pipelines
    made: list[str] = []
    make = pipelines._compile
    monkeypatch.setattr(
        pipelines, "_compile", lambda name, key: (made.append(name), make(name, key))[1]
    )
    source, graph = texture(gpu.device, size=(64, 64, 1)), copying(gpu, [1, 1, 9, 9])
    y, made[:] = empty_buffer(gpu.device, 81 * 4), []
    for step in range(2, 9):
        given = {"texture": source, "origin": (step, 2 * step), "size": (9, 9), "scale": step}
        run(graph, given, y)
    assert made == ["texture"]


# test_user_device


class Limited:
    """An adapter whose driver has so many devices at once, as one of NVIDIA's has 64 or so."""

    features: frozenset[str] = frozenset()
    summary = "limited"

    def __init__(self, at_once: int) -> None:
        self.limits = wgpu.gpu.request_adapter_sync().limits
        self._at_once = at_once
        self._made: weakref.WeakSet[Any] = weakref.WeakSet()

    def request_device_sync(self, **_: Any) -> Any:
        if len(self._made) >= self._at_once:
            raise RuntimeError("Request device failed (3): Parent device is lost")
        made = InACycle()
        self._made.add(made)
        return made


class InACycle:
    """What only the collector frees."""

    def __init__(self) -> None:
        self.self = self


def test_devices_that_wait_for_the_collector(
    gpu: MLContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    need_wgpu_native()
    adapter = Limited(2)
    monkeypatch.setattr(adapters, "find_adapter", lambda *_: adapter)
    for _ in range(5):
        adapters.request_device()
    kept = [adapters.request_device() for _ in range(2)]
    with pytest.raises(OperationError, match=r"gives no device.*too many at once"):
        adapters.request_device()
    assert len(kept) == 2


# test_profile


def test_a_device_is_woken_and_known_to_be_awake(
    gpu: MLContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = engine_of(gpu).gpu
    runs = []

    class Counting(HostClock):
        def measure(self, commands: Sequence[Encodable]) -> list[float]:
            runs.append(len(commands))
            return [seconds + 1e-3 for seconds in super().measure(commands)]

    monkeypatch.setattr(roofline, "clock_of", Counting)
    monkeypatch.setattr(roofline, "WAKING_ITERATIONS", 1)
    monkeypatch.setattr(roofline, "WAKING_GROUPS", 1)
    monkeypatch.setattr(roofline, "AWAKE_RATIO", 1e6)  # whatever else this machine does
    monkeypatch.setattr(made, "hardware", False)
    engine_of(gpu).wake()
    assert not runs  # software has no clock of its own
    monkeypatch.setattr(made, "hardware", True)
    monkeypatch.setattr(made, "awake", 0.0)
    engine_of(gpu).wake()
    assert len(runs) > 1
    assert made.awake > 0
    runs.clear()
    engine_of(gpu).wake()
    assert len(runs) == 1


# test_lost_contexts


def test_a_profile_whose_device_is_destroyed_as_a_step_ends(
    gpu: MLContext, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.CRITICAL, logger="wgpu")
    device = new_device()  # without timestamps, which are read together
    context = ml.create_context_sync(device)
    graph, map_, witness = doubling(context), Staging.map, life_of(device).witness

    def map_and_destroy(staging: Staging, buffer: Any) -> None:
        map_(staging, buffer)
        device.destroy()
        WEBGPU.is_lost(witness)  # wgpu-native destroys its buffers as somebody looks

    monkeypatch.setattr(Staging, "map", map_and_destroy)
    with pytest.raises(ContextLostError, match="destroy"):
        graph.profile({"x": ONES})


# test_independent_runs


def test_large_weights_are_held_once(monkeypatch: pytest.MonkeyPatch) -> None:
    from webnn_py.engines.onnxruntime import engine

    monkeypatch.setattr(engine, "MAX_SINGLE_THREAD_WEIGHT_BYTES", -1)
    with ml.create_context_sync(engine="onnxruntime") as context:
        executable = executable_of(doubling(context))
        executable.make_alone()
        assert executable.alone is None


def test_one_thread_needs_no_other_form() -> None:
    options = {"threads": 1}
    with ml.create_context_sync(engine="onnxruntime", engine_options=options) as context:
        executable = executable_of(doubling(context))
        assert executable.alone is executable


# test_equal_graphs


def test_graphs_on_a_device_share_weights_and_no_intermediate_values(gpu: MLContext) -> None:
    big = normal(512, 512)

    def made() -> MLGraph:
        def model(b: MLGraphBuilder) -> dict[str, MLOperand]:
            x = b.input("x", "float32", [4, 512])
            y = b.matmul(b.matmul(x, b.constant(big)), b.constant(big))
            return {"y": b.softmax(y, 1)}

        return build(gpu, model)

    first, second = made(), made()
    one, other = (executable_of(graph).loaded for graph in (first, second))
    assert one.template is other.template
    inner, theirs = (
        [place.buffer for place in bindings_of(loaded, loaded.compiled.template.slots).values()]
        for loaded in (one, other)
    )
    assert inner
    assert {id(buffer) for buffer in inner}.isdisjoint(map(id, theirs))

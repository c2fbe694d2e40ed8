"""Programs: graphs and kernels of the user's, recorded, run in every way, with their state."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.adapters import need_halves
from tests.backend.buffers import buffer_of, empty_buffer, read
from tests.backend.program_cases import DOUBLE, SHAPE, X, expected_total, mixed, product
from tests.graphs import awaited, build
from tests.internals import executable_of, plan_of
from tests.loops import Run
from webnn_py import (
    DataError,
    InvalidStateError,
    MLCommandEncoder,
    MLContext,
    MLProgram,
    NotSupportedError,
    Timeline,
)
from webnn_py.engines.webgpu.runtime.program import ProgramCommands


def close(got: Any, wanted: Any) -> None:
    np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-5)


def test_a_graph_and_a_kernel_repeated(each_device: MLContext) -> None:
    program = mixed(each_device, repeat=5)
    results = program.run_sync({"x": X})
    assert list(results) == ["total"]
    close(results["total"], expected_total(X, 5))
    assert "5 times:\n  matmul" in str(program)


def test_the_end_of_the_next_run_is_expected(gpu: MLContext) -> None:
    program = mixed(gpu)
    program.run_sync({"x": X, "total": np.zeros((4, 3), np.float32)})
    assert program._executable.prerecorder.latency.seconds > 0


def test_later_chunks_are_twice_as_long() -> None:
    step: Any = [None] * 130
    pieces = ProgramCommands([(step, 32), (step, 1)]).pieces
    times = [repeat for (piece,) in pieces for _, repeat in piece._sections]
    assert times == [1, 1, *[2] * 15, 1]


def test_an_array_is_written_in_place(gpu: MLContext) -> None:
    total = np.full((4, 3), 7, np.float32)
    results = mixed(gpu).run_sync({"x": X, "total": total})
    assert results["total"] is total
    close(total, 7 + expected_total(X))


def test_awaited_runs_keep_order_and_read_arrays_at_once(gpu: MLContext, run: Run) -> None:
    program = mixed(gpu, own=True)
    results: list[Any] = []

    async def main() -> None:
        x = X.copy()
        first = program.run_async({"x": x})
        x[:] = 0
        results.append((await first)["total"])
        results.append((await program.run_async({"x": X * 2}))["total"])

    run(main)
    one, two = results
    close(one, 1 + expected_total(X))
    close(two, one + expected_total(2 * X))


def test_own_buffers_persist_and_begin_anew_in_another_program(gpu: MLContext) -> None:
    program, other = mixed(gpu, own=True), mixed(gpu, own=True)
    for count in (1, 2, 3):
        close(program.run_sync({"x": X})["total"], 1 + count * expected_total(X))
    close(other.run_sync({"x": X})["total"], 1 + expected_total(X))


def test_tensors_keep_the_order_of_the_context(gpu: MLContext) -> None:
    program = mixed(gpu)
    flags = {"readable": True, "writable": True}
    x = gpu.create_tensor_sync("float32", SHAPE, **flags)
    total = gpu.create_tensor_sync("float32", [4, 3], **flags)
    gpu.write_tensor(x, X)
    assert program.run_sync({"x": x, "total": total})["total"] is total
    gpu.write_tensor(x, 3 * X)
    program.run_sync({"x": x, "total": total})
    close(gpu.read_tensor_sync(total), 4 * expected_total(X))


def test_a_run_waits_for_a_timeline_and_signals(gpu: MLContext) -> None:
    program, ready, done = mixed(gpu), Timeline(), Timeline()
    program.compile_sync()

    async def main() -> Any:
        sync = [ready(wait=1), done(signal=1)]
        task = asyncio.ensure_future(program.run_async({"x": X}, sync=sync))
        await asyncio.sleep(0)
        assert done.value == 0
        ready.signal(1)
        return await task

    close(asyncio.run(main())["total"], expected_total(X))
    assert done.value == 1


def test_recorded_between_the_users_own_commands(gpu: MLContext) -> None:
    device = gpu.device
    x, total = buffer_of(device, X), empty_buffer(device, 48)
    encoder = device.create_command_encoder()
    program = mixed(gpu)
    for _ in range(2):
        MLCommandEncoder(gpu, encoder=encoder).execute(program, {"x": x, "total": total})
    encoder.clear_buffer(x)
    MLCommandEncoder(gpu, encoder=encoder).execute(program, {"x": x, "total": total})
    device.queue.submit([encoder.finish()])
    close(read(total, (4, 3)), 2 * expected_total(X))


@pytest.mark.parametrize("offset", [256, 4], ids=["aligned", "copied"])
def test_parts_of_one_buffer(gpu: MLContext, offset: int) -> None:
    both = empty_buffer(gpu.device, 1024)
    gpu.device.queue.write_buffer(both, 512, X)
    parts = {
        "x": {"buffer": both, "offset": 512, "size": 128},
        "total": {"buffer": both, "offset": offset},
    }
    parts["total"]["size"] = 512 - offset
    assert mixed(gpu).run_sync(parts)["total"] is parts["total"]
    found = read(both)
    close(found[offset // 4 :][:12].reshape(4, 3), expected_total(X))
    rest = np.delete(found, np.r_[offset // 4 : offset // 4 + 12, 128:160])
    assert not rest.any()


def test_an_output_may_be_an_input_of_its_step(gpu: MLContext) -> None:
    graph = build(gpu, lambda b: {"y": b.softmax(b.input("x", "float32", SHAPE), 1)})
    program = MLProgram(gpu)
    x = program.argument("x", "float32", SHAPE)
    step = program.sequence()
    step.dispatch(graph, {"x": x}, {"y": x})
    program.append(step)
    once = awaited(graph, {"x": X})["y"]
    close(program.run_sync({"x": X.copy()})["x"], once)


def test_open_dimensions_take_the_sizes_of_arguments(gpu: MLContext) -> None:
    graph = build(gpu, lambda b: {"y": b.neg(b.input("x", "float32", ["n", 3]))})
    program = MLProgram(gpu)
    x, y = (program.argument(name, "float32", [5, 3]) for name in "xy")
    step = program.sequence()
    step.dispatch(graph, {"x": x}, {"y": y})
    program.append(step)
    values = np.arange(15, dtype=np.float32).reshape(5, 3)
    np.testing.assert_array_equal(program.run_sync({"x": values})["y"], -values)


def test_what_is_left_out_begins_as_zeros_each_time(gpu: MLContext) -> None:
    program = MLProgram(gpu)
    x = program.argument("x", "float32", [4])
    step = program.sequence()
    step.compute(DOUBLE, [x])
    program.append(step)
    given = np.ones(4, np.float32)
    assert program.run_sync({"x": given})["x"] is given
    np.testing.assert_array_equal(given, 2)
    np.testing.assert_array_equal(program.run_sync()["x"], 0)


WRONG: dict[str, tuple[Callable[[], dict[str, Any]], str]] = {
    "missing": (dict, "argument 'x' is missing; expected float32"),
    "unknown": (lambda: {"x": X, "z": X}, "unknown argument 'z'; this program has 'x', 'total'"),
    "data type": (lambda: {"x": X.astype("f8")}, "'x': data type float64, expected float32"),
    "shape": (lambda: {"x": X.T}, r"'x': shape \[8, 4\], expected \[4, 8\]"),
    "read-only": (
        lambda: {"x": X, "total": np.frombuffer(bytes(48), "f4").reshape(4, 3)},
        "'total': the array is read-only",
    ),
    "no mapping": (lambda: X, "arguments: got ndarray, expected a mapping"),  # type: ignore[dict-item, return-value]
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_arguments(gpu: MLContext, case: str) -> None:
    given, message = WRONG[case]
    program = mixed(gpu)
    with pytest.raises(DataError, match=message):
        program.run_sync(given())
    with pytest.raises(DataError, match=message):
        asyncio.run(program.run_async(given()))


def test_arguments_that_share_memory(gpu: MLContext) -> None:
    buffer = empty_buffer(gpu.device, 256)
    total = {"buffer": buffer, "offset": 64, "size": 48}
    with pytest.raises(DataError, match="'x' and 'total' share memory, and one of them is written"):
        mixed(gpu).run_sync({"x": buffer, "total": total})


def test_a_recording_needs_every_argument_on_the_device(gpu: MLContext) -> None:
    encoder, program = MLCommandEncoder(gpu), mixed(gpu)
    with pytest.raises(DataError, match="argument 'total' is missing"):
        encoder.execute(program, {"x": X})
    with pytest.raises(DataError, match="'total': got ndarray, expected a GPUBuffer"):
        encoder.execute(program, {"x": X, "total": np.zeros((4, 3), "f4")})


def test_arguments_are_called_so(gpu: MLContext) -> None:
    program, total = mixed(gpu), np.zeros((4, 3), np.float32)
    x = np.zeros(SHAPE)
    for wrong, message in (
        ({"x": x, "total": total}, "argument 'x': data type float64"),
        ({"x": X, "total": total.astype(int)}, "argument 'total': data type int64"),
        ({"x": X, "total": total[:2]}, r"argument 'total': shape \[2, 3\], expected \[4, 3\]"),
        ({"x": X, "total": [1]}, "argument 'total': got list"),
    ):
        with pytest.raises(DataError, match=f"^{message}"):
            program.run_sync(wrong)


def test_a_recorded_program_without_results(gpu: MLContext) -> None:
    program = MLProgram(gpu)
    x, total = program.argument("x", "float32", [4]), program.buffer("float32", [4])
    step = program.sequence()
    step.dispatch(
        build(gpu, lambda b: {"y": b.neg(b.input("x", "float32", [4]))}), {"x": x}, {"y": total}
    )
    program.append(step)
    encoder = MLCommandEncoder(gpu)
    encoder.execute(program, {"x": np.ones(4, np.float32)})
    gpu.device.queue.submit([encoder.finish()])


def test_blocking_on_an_event_loop_is_refused(gpu: MLContext) -> None:
    program = mixed(gpu)

    async def main() -> None:
        program.run_sync({"x": X})

    with pytest.raises(InvalidStateError, match=r"run_sync would block .* use run_async"):
        asyncio.run(main())


def test_programs_of_another_context(gpu: MLContext, contexts: Any) -> None:
    other = contexts("gpu")
    with pytest.raises(DataError, match="this MLProgram was made by another context"):
        MLCommandEncoder(other).execute(mixed(gpu), {})


def test_a_graph_that_is_destroyed_later_still_runs(gpu: MLContext) -> None:
    graph = product(gpu)
    program = MLProgram(gpu)
    x, y = program.argument("x", "float32", SHAPE), program.argument("y", "float32", [4, 3])
    step = program.sequence()
    step.dispatch(graph, {"x": x}, {"y": y})
    program.append(step)
    graph.destroy()
    close(program.run_sync({"x": X})["y"], expected_total(X, 1) / 2)


SUBGROUPS = """ // enable
{} /* enable subgroups */
@group(0) @binding(0) var<storage, read_write> x: array<f32>;
@compute @workgroup_size(4) fn main(@builtin(local_invocation_index) i: u32) {{
  x[i] = subgroupMax(x[i]);
}}
"""


@pytest.mark.parametrize(
    "directives",
    [
        "enable subgroups;",
        "enable  subgroups\n,\n;",
        "enable f16, subgroups;",
        "enable subgroups, f16;",
        "enable f16; enable f16,subgroups,;",
    ],
)
def test_kernels_of_subgroups_however_they_are_enabled(gpu: MLContext, directives: str) -> None:
    need_halves(gpu.device)
    program = MLProgram(gpu)
    x = program.argument("x", "float32", [4])
    step = program.sequence()
    try:
        step.compute(SUBGROUPS.format(directives), [x])
    except NotSupportedError:
        pytest.skip("this device has no subgroups")
    program.append(step)
    results = program.run_sync({"x": np.arange(4, dtype=np.float32)})
    np.testing.assert_array_equal(results["x"], [3, 3, 3, 3])


def test_the_kernels_of_a_graph_are_those_that_it_has_alone(gpu: MLContext) -> None:
    """Those of this device: a saved file has kernels for every device."""
    graph = product(gpu)
    program = MLProgram(gpu)
    step = program.sequence()
    x, y = program.argument("x", "float32", SHAPE), program.argument("y", "float32", [4, 3])
    step.dispatch(graph, {"x": x}, {"y": y})
    program.append(step)
    program.compile_sync()
    plan = plan_of(program)
    (variant,) = plan.variants
    kernels = executable_of(graph).compiled.kernels
    assert [plan.shaders[plan.kernels[step.kernel].shader] for step in variant.steps] == [
        kernel.code for kernel in kernels
    ]
    assert all(kernel.ends for kernel in plan.kernels)

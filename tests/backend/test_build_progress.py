"""Who asks for it is told how far a build is, on the thread that builds."""

from __future__ import annotations

import itertools
import threading
from pathlib import Path

import pytest

from webnn_py import MLContext, MLGraphBuilder, MLOperand, MLProgram, ValidationError

Steps = list[tuple[int, int]]
_fresh = itertools.count(1)


def recorded(
    context: MLContext, size: int | str = 0
) -> tuple[MLGraphBuilder, dict[str, MLOperand]]:
    """A graph of three kernels that nobody has compiled before."""
    number = next(_fresh)
    b = MLGraphBuilder(context)
    x = b.input("x", "float32", [size or 64, 8])
    y = b.softmax(b.add(x, b.constant(number / 3, "float32")), 1)
    return b, {"y": b.cumulative_sum(y, 1), "z": b.reduce_max(b.mul(x, y), axes=[0])}


class Told:
    """A callback that notes what it is told, and where."""

    def __init__(self) -> None:
        self.steps: Steps = []
        self.threads: set[str] = set()

    def __call__(self, done: int, total: int) -> None:
        self.steps.append((done, total))
        self.threads.add(threading.current_thread().name)

    def check(self) -> None:
        """From nothing to everything, each once."""
        _, total = self.steps[0]
        assert total >= 1  # kernels that other tests have built are not made again
        assert self.steps == [(done, total) for done in range(total + 1)]


def test_builds_that_block(gpu: MLContext, tmp_path: Path) -> None:
    told = Told()
    builder, outputs = recorded(gpu)
    graph = builder.build_sync(outputs, progress=told)
    told.check()
    assert told.threads == {threading.current_thread().name}

    again = Told()
    graph.save(tmp_path / "known.mlgraph")
    gpu.load_graph_sync(tmp_path / "known.mlgraph", progress=again)
    assert not again.steps, "its pipelines are there"


async def test_builds_that_are_awaited(gpu: MLContext) -> None:
    told = Told()
    builder, outputs = recorded(gpu)
    await builder.build_async(outputs, progress=told)
    told.check()
    (thread,) = told.threads
    assert thread.startswith("webnn-gpu-build")


def test_sizes_that_are_prepared(gpu: MLContext) -> None:
    told = Told()
    builder, outputs = recorded(gpu, "batch")
    builder.build_sync(outputs, progress=told).prepare_sync({"batch": 5}, progress=told)
    told.check()


def test_programs(gpu: MLContext, tmp_path: Path) -> None:
    builder, outputs = recorded(gpu)
    graph = builder.build_sync(outputs)
    program = MLProgram(gpu)
    x = program.argument("x", "float32", [64, 8])
    results = {
        name: program.argument(name, "float32", list(made.shape))
        for name, made in graph.outputs.items()
    }
    steps = program.sequence()
    steps.dispatch(graph, {"x": x}, results)
    code = (
        "@group(0) @binding(0) var<storage, read_write> x: array<f32>;\n"
        "@compute @workgroup_size(1) fn main() { x[0] += "
        f"{next(_fresh)}.0; }}"
    )
    steps.compute(code, [results["y"]], workgroups=(1, 1, 1))
    program.append(steps)
    told = Told()
    program.compile_sync(progress=told)
    assert told.steps[-1] == (told.steps[-1][1],) * 2
    assert len(told.steps) > 1


@pytest.mark.parametrize("error", [KeyboardInterrupt, LookupError])
async def test_a_callback_that_raises_ends_the_build(
    gpu: MLContext, error: type[BaseException]
) -> None:
    def stop(done: int, total: int) -> None:
        if done == 1:
            raise error("enough")

    builder, outputs = recorded(gpu)
    with pytest.raises(error, match=r"^enough$"):
        builder.build_sync(outputs, progress=stop)
    if error is not KeyboardInterrupt:
        builder, outputs = recorded(gpu)
        with pytest.raises(error, match=r"^enough$"):
            await builder.build_async(outputs, progress=stop)
    told = Told()
    builder, outputs = recorded(gpu)
    builder.build_sync(outputs, progress=told)
    told.check()


def test_what_cannot_be_called_is_refused(context: MLContext) -> None:
    builder, outputs = recorded(context)
    with pytest.raises(ValidationError, match=r"option 'progress': got 'x', expected a function"):
        builder.build_sync(outputs, progress="x")  # type: ignore[arg-type]


def test_engines_without_pipelines_tell_nothing(cpu: MLContext) -> None:
    told = Told()
    builder, outputs = recorded(cpu)
    builder.build_sync(outputs, progress=told)
    assert not told.steps

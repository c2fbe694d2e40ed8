"""What cannot be recorded or compiled is said at once, and names what it is about."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.backend.buffers import buffer_of
from tests.backend.program_cases import ACCUMULATE, DOUBLE, SHAPE, mixed, product
from tests.graphs import build
from tests.loops import Run
from webnn_py import (
    ContextLostError,
    DataError,
    InvalidStateError,
    MLCommandEncoder,
    MLContext,
    MLError,
    MLProgram,
    NotSupportedError,
    OperationError,
    ValidationError,
)


class Recorded:
    """A program of one argument, one buffer and one sequence."""

    def __init__(self, context: MLContext) -> None:
        self.context = context
        self.program = MLProgram(context)
        self.x = self.program.argument("x", "float32", SHAPE)
        self.y = self.program.buffer("float32", [4, 3])
        self.step = self.program.sequence()

    def dispatch(self, inputs: Any, outputs: Any) -> None:
        self.step.dispatch(product(self.context), inputs, outputs)

    def compute(self, resources: Any, wgsl: Any = ACCUMULATE, **more: Any) -> None:
        given = {"entry_point": "accumulate", "constants": {"factor": 1}} | more
        self.step.compute(wgsl, resources, **given)

    def compiled(self, wgsl: str, **more: Any) -> None:
        self.step.compute(wgsl, [self.x], **more)
        self.program.append(self.step)
        self.program.compile_sync()


def other(r: Recorded) -> Any:
    return MLProgram(r.context).argument("x", "float32", SHAPE)


Case = tuple[Callable[[Recorded], object], type[MLError], str]
SIZED = DOUBLE.replace("array<f32>", "array<f32, 4096>").replace("arrayLength(&x)", "4096u")
CASES: dict[str, Case] = {
    "a name twice": (
        lambda r: r.program.argument("x", "float32", [1]),
        ValidationError,
        "argument 'x': there is one of this name already",
    ),
    "no name": (
        lambda r: r.program.argument("", "float32", [1]),
        ValidationError,
        "argument '': expected some characters",
    ),
    "packed": (
        lambda r: r.program.argument("z", "int4", [1]),
        ValidationError,
        "data type int4 is for constants only",
    ),
    "open size": (
        lambda r: r.program.buffer("float32", ["n"]),  # type: ignore[list-item]
        ValidationError,
        "shape: got 'n', expected a number",
    ),
    "initial": (
        lambda r: r.program.buffer("float32", [2], initial=np.zeros(3, "f4")),
        ValidationError,
        r"buffer: initial: 3 elements, expected 2 for shape \[2\]",
    ),
    "unknown input": (
        lambda r: r.dispatch({"z": r.x}, {"y": r.y}),
        ValidationError,
        "dispatch: unknown input 'z'; this graph has 'x'",
    ),
    "missing output": (
        lambda r: r.dispatch({"x": r.x}, {}),
        ValidationError,
        "dispatch: output 'y' is missing",
    ),
    "shape": (
        lambda r: r.dispatch({"x": r.y}, {"y": r.y}),
        ValidationError,
        r"dispatch: input 'x': got float32\[4,3\], expected float32\[4,8\]",
    ),
    "an array": (
        lambda r: r.dispatch({"x": np.zeros(SHAPE, "f4")}, {"y": r.y}),
        ValidationError,
        "dispatch: input 'x': got ndarray, expected what MLProgram.argument or",
    ),
    "another program's": (
        lambda r: r.dispatch({"x": other(r)}, {"y": r.y}),
        ValidationError,
        r"input 'x': <MLProgramBuffer argument 'x' float32\[4,8\]> belongs to another program",
    ),
    "no graph": (
        lambda r: r.step.dispatch("graph", {}, {}),  # type: ignore[arg-type]
        ValidationError,
        "graph: got 'graph', expected an MLGraph",
    ),
    "too few resources": (
        lambda r: r.compute([r.y]),
        ValidationError,
        r"compute 'accumulate': 'total' is @binding\(1\); got 1 resources",
    ),
    "too many resources": (
        lambda r: r.compute([r.y, r.x, r.x]),
        ValidationError,
        r"resource 2: the WGSL declares no @group\(0\) @binding\(2\)",
    ),
    "bound twice": (
        lambda r: r.compute([r.y, r.y]),
        ValidationError,
        "'y' and 'total' are the same resource, and one of them is written",
    ),
    "no resources": (
        lambda r: r.compute(r.y),
        ValidationError,
        "compute 'accumulate': resources: got <MLProgramBuffer",
    ),
    "entry point": (
        lambda r: r.compute([r.y, r.x], entry_point="main"),
        ValidationError,
        "compute 'main': there is no compute entry point 'main'; the WGSL has 'accumulate'",
    ),
    "missing constant": (
        lambda r: r.compute([r.y, r.x], constants={}),
        ValidationError,
        "constant 'factor' has no default; give it in `constants`",
    ),
    "unknown constant": (
        lambda r: r.compute([r.y, r.x], constants={"factors": 1}),
        ValidationError,
        "unknown constant 'factors'; the WGSL has 'factor'",
    ),
    "infinite constant": (
        lambda r: r.compute([r.y, r.x], constants={"factor": float("inf")}),
        ValidationError,
        "constant factor: got inf, expected a finite number",
    ),
    "workgroups": (
        lambda r: r.compute([r.y, r.x], workgroups=(1 << 20, 1)),
        ValidationError,
        r"workgroups \[1048576, 1, 1\]; this device's max-compute-workgroups-per-dimension is",
    ),
    "no workgroups": (
        lambda r: r.compute([r.y, r.x], workgroups=0),
        ValidationError,
        "workgroups 0, expected one to three numbers, each at least 1",
    ),
    "four dimensions": (
        lambda r: r.compute([r.y, r.x], workgroups=[1, 1, 1, 1]),
        ValidationError,
        r"workgroups \[1, 1, 1, 1\], expected one to three numbers",
    ),
    "invocations": (
        lambda r: r.compute([r.y, r.x], ACCUMULATE.replace("size(4)", "size(64, 1024)")),
        ValidationError,
        r"@workgroup_size \[64, 1024, 1\]; this device allows \[",
    ),
    "workgroup variables": (
        lambda r: r.compute(
            [r.y, r.x],
            "var<workgroup> much: array<f32, 1000000>;"
            + ACCUMULATE.replace("if (id", "much[0] = 1.0; if (id"),
        ),
        ValidationError,
        "its workgroup variables take 4000000 bytes; this device's max-compute-workgroup-storage",
    ),
    "feature": (
        lambda r: r.compute([r.y, r.x], "enable clip_distances;" + ACCUMULATE),
        NotSupportedError,
        "compute 'accumulate': the WGSL needs clip-distances, which this device lacks",
    ),
    "no text": (
        lambda r: r.compute([r.y, r.x], b"wgsl"),
        ValidationError,
        "compute: wgsl: got b'wgsl', expected a string",
    ),
    "half a character": (
        lambda r: r.compute([r.y, r.x], ACCUMULATE + "// \ud800"),
        ValidationError,
        "compute 'accumulate': the WGSL holds half a surrogate pair",
    ),
    "no sequence": (
        lambda r: r.program.append("step"),  # type: ignore[arg-type]
        ValidationError,
        "append: got 'step', expected an MLProgramSequence",
    ),
    "another's sequence": (
        lambda r: r.program.append(MLProgram(r.context).sequence()),
        ValidationError,
        "append: the MLProgramSequence belongs to another program",
    ),
    "repeat": (
        lambda r: r.program.append(r.step, 0),
        ValidationError,
        "append: repeat 0, expected 1..16777216",
    ),
    "no steps": (
        lambda r: r.program.compile_sync(),
        ValidationError,
        "compile: the program has no steps; append a sequence with some",
    ),
    "unused argument": (
        lambda r: (r.program.argument("z", "int8", [3]), r.compiled(DOUBLE)),
        ValidationError,
        "argument 'z' is used by no step",
    ),
    "too many dispatches": (
        lambda r: (
            r.step.compute(DOUBLE, [r.x]),
            r.program.append(r.step, 1 << 24),
            r.compiled(DOUBLE),
        ),
        ValidationError,
        "compile: a run of .* dispatches, expected 16777216 at most",
    ),
    "WGSL that is wrong": (
        lambda r: r.compiled(DOUBLE.replace("2.0", "two")),
        OperationError,
        "compiling the kernel main: the device refused: .*two",
    ),
    "types that do not fit": (
        lambda r: r.compiled(SIZED),
        OperationError,
        "compiling the kernel main: the device refused: .*",
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_what_cannot_be_recorded(gpu: MLContext, name: str) -> None:
    action, error, message = CASES[name]
    recorded = Recorded(gpu)
    with pytest.raises(error, match=re.compile(message, re.DOTALL)):
        action(recorded)


def test_nothing_is_added_once_it_is_compiled(gpu: MLContext) -> None:
    recorded = Recorded(gpu)
    recorded.compiled(DOUBLE)
    recorded.program.compile_sync()
    for action in (
        lambda: recorded.program.argument("z", "float32", [1]),
        lambda: recorded.program.buffer("float32", [1]),
        recorded.program.sequence,
        lambda: recorded.program.append(recorded.step),
        lambda: recorded.compiled(DOUBLE),
        lambda: recorded.dispatch({"x": recorded.x}, {"y": recorded.y}),
    ):
        with pytest.raises(InvalidStateError, match="this MLProgram is compiled; make a new one"):
            action()


def test_a_program_that_does_not_compile_can_be_completed(gpu: MLContext) -> None:
    recorded = Recorded(gpu)
    with pytest.raises(ValidationError, match="the program has no steps"):
        recorded.program.compile_sync()
    recorded.compiled(DOUBLE)


def test_nothing_is_added_to_what_is_about_to_run(gpu: MLContext, run: Run) -> None:
    recorded = Recorded(gpu)
    recorded.step.compute(DOUBLE, [recorded.x])
    recorded.program.append(recorded.step)

    async def add_meanwhile() -> None:
        awaited = recorded.program.run_async({"x": np.ones(SHAPE, np.float32)})
        for action in (
            lambda: recorded.program.argument("z", "float32", SHAPE),
            lambda: recorded.step.compute(DOUBLE, [recorded.x]),
        ):
            with pytest.raises(InvalidStateError, match="this MLProgram is compiled"):
                action()
        np.testing.assert_array_equal((await awaited)["x"], np.full(SHAPE, 2, np.float32))

    run(add_meanwhile)


def test_a_run_that_is_refused_lets_more_be_added(gpu: MLContext, run: Run) -> None:
    recorded = Recorded(gpu)
    recorded.step.compute(DOUBLE, [recorded.x])
    recorded.program.append(recorded.step)

    async def refused() -> None:
        with pytest.raises(DataError, match="argument 'x': 3 elements"):
            await recorded.program.run_async({"x": np.ones(3, np.float32)})

    run(refused)
    recorded.step.compute(DOUBLE, [recorded.x])


def test_steps_are_compiled_or_refused(gpu: MLContext) -> None:
    recorded = Recorded(gpu)
    recorded.program.append(recorded.step)

    def add() -> int:
        try:
            recorded.step.compute(DOUBLE, [recorded.x])
        except InvalidStateError:
            return 0
        return 1

    async def add_meanwhile() -> int:
        added = sum(add() for _ in range(50))
        loop = asyncio.get_running_loop()
        compiled = loop.run_in_executor(None, recorded.program.compile_sync)
        while not compiled.done():
            added += add()
            await asyncio.sleep(0)
        await compiled
        return added

    added = asyncio.run(add_meanwhile())
    assert str(recorded.program).count("main<") == added


def test_cpu_contexts_have_no_programs(cpu: MLContext) -> None:
    with pytest.raises(InvalidStateError, match="an MLProgram needs a GPU context"):
        MLProgram(cpu)
    with pytest.raises(ValidationError, match="context: got None, expected an MLContext"):
        MLProgram(None)  # type: ignore[arg-type]


def test_graphs_of_another_context(gpu: MLContext, cpu: MLContext) -> None:
    recorded = Recorded(gpu)
    with pytest.raises(ValidationError, match="built by another context"):
        recorded.step.dispatch(product(cpu), {"x": recorded.x}, {"y": recorded.y})


def test_graphs_with_inputs_that_were_made_constants(gpu: MLContext) -> None:
    graph = build(gpu, lambda b: {"y": b.relu(b.input("x", "float32", SHAPE))})
    buffer = buffer_of(gpu.device, np.zeros(SHAPE, np.float32))
    encoder = MLCommandEncoder(gpu)
    encoder.initialize_graph(graph, {"x": buffer})
    recorded = Recorded(gpu)
    with pytest.raises(InvalidStateError, match=r"initialize_graph has made inputs .* constants"):
        recorded.step.dispatch(graph, {}, {"y": recorded.x})
    with pytest.raises(InvalidStateError, match="compile_to: initialize_graph has made inputs"):
        graph.compile_to("nowhere.mlprogram")


def test_two_outputs_in_one_place(gpu: MLContext) -> None:
    def two(b: Any) -> Any:
        x = b.input("x", "float32", SHAPE)
        return {"a": b.relu(x), "b": b.neg(x)}

    recorded = Recorded(gpu)
    with pytest.raises(ValidationError, match="outputs 'a' and 'b' are the same"):
        recorded.step.dispatch(
            build(gpu, two), {"x": recorded.x}, {"a": recorded.x, "b": recorded.x}
        )


def test_an_input_and_an_output_of_one_name(cpu: MLContext, tmp_path: Any) -> None:
    graph = build(cpu, lambda b: {"x": b.relu(b.input("x", "float32", [2]))})
    with pytest.raises(ValidationError, match="an input and an output are called 'x'"):
        graph.compile_to(tmp_path / "x.mlprogram")
    assert not list(tmp_path.iterdir())


def test_sizes_of_open_graphs(cpu: MLContext, tmp_path: Any) -> None:
    graph = build(cpu, lambda b: {"y": b.relu(b.input("x", "float32", ["batch", 2]))})
    with pytest.raises(ValidationError, match="batch"):
        graph.compile_to(tmp_path / "x.mlprogram")
    graph.compile_to(tmp_path / "x.mlprogram", sizes={"batch": 3})
    assert (tmp_path / "x.mlprogram").is_file()


def test_a_context_that_is_lost(gpu: MLContext, contexts: Any) -> None:
    context = contexts("gpu")
    program = mixed(context)
    program.compile_sync()
    context.destroy()
    for action in (
        lambda: program.run_sync({}),
        lambda: program.save("nowhere"),
        lambda: MLProgram(context),
        lambda: context.load_program_sync("nowhere"),
    ):
        with pytest.raises(ContextLostError, match="destroy"):
            action()

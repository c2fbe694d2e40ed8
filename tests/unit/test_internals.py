"""Tests that look behind the public objects: each belongs to a file beside this one."""

from __future__ import annotations

import array
import asyncio
import gc
import inspect
import re
import threading
import weakref
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.graphs import ONES, build, doubling
from tests.internals import engine_of, recipe_of, session_of
from tests.saved import built, entries, write
from tests.toy_engines import Careful, Partial, context_on, running
from tests.unit.passes.listings import tensor
from tests.unit.test_documentation import REFERENCE, ROOT
from tests.unit.test_far_ahead import MOST, PASSES, steps_of
from tests.unit.test_hostdata import VALUES, DLPackOnly
from tests.unit.test_packaging import EXTRAS, PROJECT
from tests.unit.test_profile import X, chain
from webnn_py import (
    ContextLostError,
    DataError,
    InvalidStateError,
    MLContext,
    MLExecution,
    MLGraphBuilder,
    MLOperand,
    NotSupportedError,
    OperationError,
    Timeline,
    ml,
)
from webnn_py.api.graph_compiler import GraphCompiler
from webnn_py.cli.main import COMMANDS
from webnn_py.core.requirements import MIN_VERSIONS, check_version
from webnn_py.engines import HostExecutable
from webnn_py.engines.profile import MAX_RISE_SECONDS, Roof, RunTime, until_steady
from webnn_py.engines.webgpu.runtime.textures.formats import FORMATS
from webnn_py.engines.webgpu.runtime.textures.parts import KEYS
from webnn_py.ir import Descriptor, Graph
from webnn_py.memory import host_arrays
from webnn_py.memory.array_remedies import relaid
from webnn_py.ops.declare import REGISTRY
from webnn_py.ordering.operation import Executor, Operation
from webnn_py.ordering.schedule import Schedule
from webnn_py.ordering.timeline import state_of
from webnn_py.passes import Derivations, DerivedConstants, SharedResults
from webnn_py.storage import graph_file

# test_array_advice


@pytest.mark.parametrize(
    ("got", "wanted"),
    [
        ((480, 640, 3), (1, 3, 224, 224)),
        ((2, 6), (3, 4)),
        ((4, 4, 6), (2, 2, 4, 6)),
        ((2, 3), (6,)),
    ],
)
def test_nothing_is_advised_that_may_scramble(
    got: tuple[int, ...], wanted: tuple[int, ...]
) -> None:
    assert relaid(got, wanted) is None


# test_damaged_graphs


def test_an_entry_that_is_not_expected(cpu: MLContext, path: Path) -> None:
    built(cpu).save(path)
    parts = entries(path)
    write(path, parts | {"more.py": b"1"})
    with pytest.raises(DataError, match=r"entry more\.py is not expected"):
        cpu.load_graph_sync(path)


# test_documentation


def test_pages_of_families_list_all_operators() -> None:
    families = (text for name, text in REFERENCE.items() if "/operators/" in name)
    listed = re.findall(r"^\| \[`(\w+)`\]\(\S+\) \| (.+) \|$", "\n".join(families), re.MULTILINE)
    assert sorted(name for name, _ in listed) == sorted(REGISTRY)
    for name, summary in listed:
        doc = inspect.getdoc(getattr(MLGraphBuilder, name)) or ""
        assert summary.replace("\\|", "|") == doc.splitlines()[0]


def test_the_page_on_the_command_line_has_every_command() -> None:
    page = (ROOT / "docs/how-to/command-line.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `webnn-py (\w+)[ `]", page, re.MULTILINE)
    assert sorted(rows) == sorted(COMMANDS)


@pytest.mark.parametrize("name", REGISTRY)
def test_docstrings_describe_parameters_and_shapes(name: str) -> None:
    op = REGISTRY[name]
    doc = inspect.getdoc(getattr(MLGraphBuilder, name)) or ""
    text, arguments, returns, *_ = re.split(r"\n\n(?:Args|Returns|Raises):\n", doc)
    assert text.strip()
    described = dict(re.findall(r"^    (\w+):(.*)", arguments, re.MULTILINE))
    assert list(described) == [n for n in op.signature.parameters if n != "self"]
    bare = [n for n, words in described.items() if not words.strip() and n not in op.limits]
    assert not bare, "options that no docstring describes"
    shape = returns.partition(" Data type as ")[0].strip().removesuffix("uint8.")
    assert shape, "say which shape the output has"
    assert max(map(len, doc.splitlines())) <= 92


def test_the_tables_of_textures_are_true() -> None:
    page = (ROOT / "docs/how-to/textures.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(\S+)` \| (\d) \| .* \| ([A-Z_, ]+) \|$", page, re.MULTILINE)
    told = {name: (int(channels), usages.split(", ")) for name, channels, usages in rows}
    ways = (("STORAGE_BINDING", "storage"), ("RENDER_ATTACHMENT", "render"))
    assert told == {
        name: (kind.channels, [usage for usage, way in ways if getattr(kind, way)])
        for name, kind in FORMATS.items()
    }
    keys = page.split("| `texture` | a GPUTexture")[1].split("\n\n")[0]
    assert tuple(re.findall("`([a-z_]+)`", "`texture`" + re.sub(r" \|.*", "", keys))) == KEYS


# test_execution


def test_a_destroyed_graph_gives_its_constants_back_and_still_prints(cpu: MLContext) -> None:
    builder = MLGraphBuilder(cpu)
    x = builder.input("x", "float32", [64])
    weight = builder.constant(np.arange(64, dtype=np.float32))
    graph = builder.build_sync({"y": builder.add(x, weight)})
    listing = str(graph)
    contents = [weakref.ref(array) for array in recipe_of(graph).constants.values()]
    assert all(array() is not None for array in contents)
    del builder, x, weight
    graph.destroy()
    gc.collect()
    assert [array() for array in contents] == [None]
    assert str(graph) == listing
    with pytest.raises(InvalidStateError, match="destroyed"):
        assert recipe_of(graph)


def test_a_destroyed_context_refuses_everything() -> None:
    context = ml.create_context_sync(device_type="cpu")
    graph, builder = doubling(context), MLGraphBuilder(context)
    execution = MLExecution(context)
    context.destroy()
    context.destroy()
    for refused in (
        lambda: execution.compute(graph, {"x": ONES}),
        lambda: MLGraphBuilder(context),
        lambda: MLExecution(context),
        lambda: builder.input("x", "float32", [1]),
    ):
        with pytest.raises(ContextLostError, match="destroy"):
            refused()
    assert "destroy" in session_of(context).lost.wait(0).message


# passes/test_open_dimensions


def test_a_computation_is_known_while_somebody_has_it() -> None:
    shared, source, computed = DerivedConstants(), tensor(2), []

    def derived(by: Derivations, what: str = "neg", array: np.ndarray = source) -> int:
        """How many computations there were by then."""

        def compute() -> tuple[np.ndarray]:
            computed.append(what)
            return (-array,)

        (made,) = by(what, [array], compute)
        np.testing.assert_array_equal(made, -array)
        return len(computed)

    one, other = Derivations(shared), Derivations(shared)
    assert derived(one) == derived(other) == derived(one) == 1
    assert derived(other, "abs") == 2
    assert derived(other, array=source.copy()) == 3
    del one
    assert derived(Derivations(shared)) == 3
    del other
    assert derived(Derivations(shared)) == 4


def test_results_are_shared_while_somebody_has_all_of_them() -> None:
    shared, computed = SharedResults(), []

    def derived(what: str, *arrays: np.ndarray) -> tuple[np.ndarray, ...]:
        def compute() -> tuple[np.ndarray, ...]:
            computed.append(what)
            return tuple(-array for array in arrays)

        return shared(what, arrays, compute)

    one, other = tensor(2), tensor(3)
    made = derived("neg", one, other)
    assert all(a is b for a, b in zip(derived("neg", one, other), made, strict=True))
    assert derived("abs", one, other)[0] is not made[0]
    assert derived("neg", other, one)[0] is not made[1]
    assert computed == ["neg", "abs", "neg"]
    kept, made = made[0], ()
    assert derived("neg", one, other)[0] is not kept
    for _ in range(1000):
        derived("neg", tensor(2))
    assert len(shared._cache) < 100


# test_far_ahead


def test_a_chain_that_fails_takes_its_length_in_steps() -> None:
    def chain_takes(length: int) -> int:
        tasks: deque[Callable[[], None]] = deque()
        schedule, timeline = Schedule(Executor(tasks.append)), Timeline()
        failed: list[BaseException] = []

        def run() -> None:
            for n in range(1, length + 1):
                sync = (timeline(wait=n, signal=n + 1),)
                schedule.submit(Operation(lambda: None, failed.append, sync))
            state_of(timeline).fail(1, ValueError("boom"))
            while tasks:
                tasks.popleft()()

        steps = steps_of(run)
        assert len(failed) == length
        return steps

    few, many = chain_takes(PASSES), chain_takes(2 * PASSES)
    assert many < MOST * few, (few, many)


# test_saved_graphs


def test_data_types_that_a_context_lacks_are_not_damage(
    cpu: MLContext, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    built(cpu).save(path)
    session = session_of(cpu)
    clamp = REGISTRY["clamp"]
    types = {**session.compiler.supported_types[clamp], "input": ("int32",)}
    monkeypatch.setitem(session.compiler.supported_types, clamp, types)
    with pytest.raises(NotSupportedError, match="clamp: operand 'input': this context does not"):
        cpu.load_graph_sync(path)


def test_a_graph_of_too_many_nodes_is_neither_saved_nor_loaded(
    cpu: MLContext, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = build(cpu, lambda b: {"y": b.sin(b.cos(b.input("x", "float32", [2])))})
    graph.save(path)
    monkeypatch.setattr(graph_file, "MAX_NODES", 1)
    with pytest.raises(NotSupportedError, match="has 2 nodes, and files 1 at most"):
        graph.save(path)
    with pytest.raises(DataError, match=r"nodes: a list of 2 members, expected 1 at most"):
        cpu.load_graph_sync(path)


# test_hostdata

SIX = Descriptor("float32", (2, 3))


@pytest.mark.parametrize(
    "value",
    [VALUES, memoryview(VALUES), array.array("f", bytes(24)), DLPackOnly(VALUES.copy())],
    ids=lambda value: type(value).__name__,
)
def test_inputs_share_memory(value: Any) -> None:
    owner = value.values if isinstance(value, DLPackOnly) else np.asarray(value)
    assert np.shares_memory(host_arrays.input_array(value, SIX, "x"), owner)


@pytest.mark.parametrize(
    ("array", "copies"),
    [
        (np.frombuffer(VALUES.tobytes(), np.float32), False),
        (np.frombuffer(VALUES.tobytes(), np.float32).reshape(3, 2), False),
        (np.frombuffer(VALUES.tobytes(), np.float32)[1:], True),  # the rest would stay, too
        (np.frombuffer(VALUES.tobytes(), np.float32)[::2], True),
        (np.frombuffer(bytearray(VALUES.tobytes()), np.float32), True),
        (VALUES, True),
    ],
)
def test_what_never_changes_is_not_copied(array: np.ndarray, copies: bool) -> None:
    made = host_arrays.immutable_copy(array)
    np.testing.assert_array_equal(made, array)
    assert np.shares_memory(made, array) != copies
    assert made.flags.c_contiguous


@pytest.mark.parametrize("rows", [1, 3 << 9, 5 << 9], ids=["small", "3 MiB", "5 MiB"])
@pytest.mark.parametrize("dtype", [np.float16, np.int64, np.uint8])
@pytest.mark.parametrize("strided", [False, True])
def test_copies_are_aligned_and_whole(rows: int, dtype: type, strided: bool) -> None:
    array = np.arange(rows << 11 if strided else rows << 10, dtype=np.uint16).view(np.uint8)
    array = array.view(dtype).reshape(rows, -1)
    given = array[:, ::2] if strided else array
    given.flags.writeable = False
    made = host_arrays.aligned_copy(given)
    np.testing.assert_array_equal(made, given)
    assert made.dtype == dtype
    assert made.flags.c_contiguous
    assert made.ctypes.data % 16 == 0
    assert not np.shares_memory(made, given)


# test_profile


def test_a_share_of_the_roof_above_one_is_told(
    cpu: MLContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cache or a unit of matrices may be faster than what was measured."""
    monkeypatch.setattr(type(engine_of(cpu)), "roof", lambda _: Roof(1.0, 1e12))
    profile = chain(cpu).profile(X, runs=1)
    for row in profile:
        assert row.roof == pytest.approx(row.flop / (row.milliseconds * 1e-3))
        assert row.roof > 1
        assert f"{row.roof:.0%}" in str(profile)


class Rested:
    """Hardware that has rested: it is faster by steps, until its clock is up."""

    def __init__(self, up: float, step: float) -> None:
        self.now = 0.0
        self._up, self._step = up, step

    def run(self) -> float:
        """Compute for a while."""
        steps = int(min(self.now, self._up) / self._step)
        seconds = 0.005 / (1 + steps)
        self.now += 0.01
        return seconds


def test_what_rested_runs_until_its_clock_is_up() -> None:
    rested = Rested(up=2, step=0.3)
    assert until_steady(rested.run, clock=lambda: rested.now) == 0.005 / 7
    assert 2 <= rested.now < 3
    begin = rested.now
    assert until_steady(rested.run, 0.005 / 7, lambda: rested.now) == 0.005 / 7
    assert rested.now < begin + 0.02  # it need not be woken


def test_what_never_is_steady_ends() -> None:
    rested = Rested(up=100, step=0.1)
    until_steady(rested.run, clock=lambda: rested.now)
    assert rested.now < MAX_RISE_SECONDS + 0.1


def test_hardware_is_awake_before_what_counts() -> None:
    """Whatever lay between a profile and the one before it."""
    rested = Rested(up=2, step=0.3)

    class Sleeping(Partial):
        def wake(self) -> None:
            until_steady(rested.run, clock=lambda: rested.now)

        def compile(self, graph: Graph) -> HostExecutable:
            return Timed(super().compile(graph))

    class Timed(Careful):
        def profile(self, inputs: Any, outputs: Any) -> RunTime:
            return RunTime((), rested.run(), "gpu")

    with context_on(Sleeping("sleeping", running(*REGISTRY))) as context:
        profile = chain(context).profile(X)
    assert profile.milliseconds == pytest.approx(5 / 7)


# test_builder


async def test_a_builder_tells_what_became_of_its_build(
    cpu: MLContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has not built where that failed or was cancelled, and is used up, as by the text."""

    def recorded() -> tuple[MLGraphBuilder, dict[str, MLOperand]]:
        builder = MLGraphBuilder(cpu)
        return builder, {"y": builder.relu(builder.input("x", "float32", [1]))}

    builder, outputs = recorded()
    held = threading.Event()
    session_of(cpu).run_on_builder(held.wait)
    task = asyncio.ensure_future(builder.build_async(outputs))
    await asyncio.sleep(0)
    with pytest.raises(InvalidStateError, match="is building its graph"):
        builder.build_sync(outputs)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    with pytest.raises(InvalidStateError, match=r"was cancelled.*make a new builder"):
        builder.build_sync(outputs)

    builder, outputs = recorded()
    with monkeypatch.context() as patch:
        patch.setattr(GraphCompiler, "compile", raising)
        with pytest.raises(OperationError, match="enough"):
            builder.build_sync(outputs)
    with pytest.raises(InvalidStateError, match=r"could not build its graph.*make a new builder"):
        await builder.build_async(outputs)

    compiled: list[object] = []
    monkeypatch.setattr(GraphCompiler, "compile", lambda *given: compiled.append(given))
    held.set()
    await session_of(cpu).run_on_builder(lambda: None)
    assert not compiled


def raising(*given: object) -> None:
    raise OperationError("enough")


# test_packaging


def test_the_oldest_versions_that_are_declared_are_those_that_are_checked() -> None:
    rows = [*PROJECT["dependencies"], *(row for rows in EXTRAS.values() for row in rows)]
    declared = {
        tuple(parts) for row in rows if (parts := re.split("[>=]=", row))[0] in MIN_VERSIONS
    }
    assert declared >= set(MIN_VERSIONS.items())  # an extra may need a newer one


def test_numpy_that_is_too_old_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for found in ("1.26.4", "2.2.5", "2.1.0rc1"):
        monkeypatch.setattr(np, "__version__", found)
        with pytest.raises(NotSupportedError, match=f"numpy {found} is installed, expected 2.2.6"):
            check_version(np)
    for found in ("2.2.6", "2.3", "2.10.0rc1", "unknown"):
        monkeypatch.setattr(np, "__version__", found)
        check_version(np)

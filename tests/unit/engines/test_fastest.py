"""The engine that measures engines: what it picks, remembers and tells."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.internals import context_on_engine as context_on
from tests.toy_engines import Partial
from webnn_py import MLContext, MLExecution, MLGraph, MLGraphBuilder, ml
from webnn_py.core import cache
from webnn_py.engines import fastest, profile, registry
from webnn_py.engines.base import HostExecutable
from webnn_py.engines.fastest import KIND, FastestEngine
from webnn_py.engines.reference import ReferenceEngine
from webnn_py.ir import Array, Graph

X = np.array([[1, 2], [3, 4]], np.float32)


class Clock:
    """What measures runs: it goes on by what these say that they take."""

    now = 0.0

    def perf_counter(self) -> float:
        return self.now


CLOCK = Clock()


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("WEBNN_CACHE", str(tmp_path))
    monkeypatch.setattr(fastest, "time", CLOCK)
    monkeypatch.setattr(fastest, "wait_for_threads", lambda: None)
    return tmp_path


class Slow(Partial):
    """Computes as the reference does, in so many seconds; or something else."""

    def __init__(self, name: str, seconds: float, wrong: bool = False) -> None:
        super().__init__(name, lambda node: True)
        self._seconds, self._wrong = seconds, wrong

    def compile(self, graph: Graph) -> HostExecutable:
        seconds, wrong, inner = self._seconds, self._wrong, super().compile(graph)

        class Taking(HostExecutable):
            def run(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
                CLOCK.now += seconds
                inner.run(inputs, outputs)
                if wrong:
                    outputs[0][...] += 1

        return Taking()


def product(context: MLContext) -> MLGraph:
    b = MLGraphBuilder(context)
    return b.build_sync({"y": b.matmul(b.input("x", "float32", [2, 2]), b.constant(X))})


def remembered(folder: Path) -> list[Any]:
    return [json.loads(path.read_text()) for path in (folder / KIND).iterdir()]


def test_the_fastest_runs_and_is_told(folder: Path) -> None:
    with context_on(FastestEngine([Slow("snail", 0.1), Slow("hare", 0)])) as context:
        assert context.engine == "fastest"
        graph = product(context)
        assert context.engine == "hare"
        assert "# engine hare" in str(graph)
        made = MLExecution(context).compute(graph, {"x": X})
        assert made["y"].tolist() == (X @ X).tolist()
    (medians,) = remembered(folder)
    assert medians["snail"] > medians["hare"]


@pytest.mark.parametrize(
    ("seconds", "wanted"),
    [
        ({"one": 1.0, "two": 0.98}, "one"),
        ({"one": 1.0, "two": 0.96}, "two"),
        ({"one": 1.0, "two": 0.96, "three": 0.95}, "two"),
        ({"two": 1.0, "three": 0.5}, "three"),
    ],
)
def test_an_engine_less_trusted_must_save_something(
    folder: Path, seconds: dict[str, float], wanted: str
) -> None:
    engines = [Slow(name, 0) for name in ("one", "two", "three")]
    with context_on(FastestEngine(engines)) as context:
        product(context)
        (path,) = (folder / KIND).iterdir()
        path.write_text(json.dumps(seconds))
        product(context)
        assert context.engine == wanted


@pytest.mark.parametrize(("spinning", "waited"), [(0, 0.005), (0.025, 0.03), (9, 0.1)])
def test_a_turn_waits_until_threads_are_idle(
    monkeypatch: pytest.MonkeyPatch, spinning: float, waited: float
) -> None:
    now = 0.0

    def sleep(seconds: float) -> None:
        nonlocal now
        now += seconds

    monkeypatch.setattr(profile.time, "sleep", sleep)
    monkeypatch.setattr(profile.time, "perf_counter", lambda: now)
    monkeypatch.setattr(profile.time, "process_time", lambda: min(now, spinning))
    profile.wait_for_threads()
    assert now == pytest.approx(waited)


def test_what_was_measured_is_not_measured_again(folder: Path) -> None:
    with context_on(FastestEngine([Slow("one", 0), Slow("two", 0.1)])) as context:
        product(context)
    one, two = Slow("one", 0.1), Slow("two", 0)
    with context_on(FastestEngine([one, two])) as context:
        product(context)
        assert context.engine == "one"
    assert (len(one.compiled), len(two.compiled)) == (1, 0)
    with context_on(FastestEngine([one, two], anew=True)) as context:
        product(context)
        assert context.engine == "two"
    assert len(remembered(folder)) == 1


def test_what_is_remembered_is_bounded(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fastest, "MAX_CACHE_BYTES", 60)
    with context_on(FastestEngine([Slow("one", 0)])) as context:
        for size in range(1, 9):
            b = MLGraphBuilder(context)
            b.build_sync({"y": b.relu(b.input("x", "float32", [size]))})
    assert 0 < len(remembered(folder)) < 8


def test_other_options_are_measured_on_their_own(folder: Path) -> None:
    for threads in (1, 2, 1):
        engine = FastestEngine([Slow("one", 0)], options={"threads": threads})
        with context_on(engine) as context:
            product(context)
    assert len(remembered(folder)) == 2


def test_other_graphs_are_measured_on_their_own(folder: Path) -> None:
    with context_on(FastestEngine([Slow("one", 0), Slow("two", 0.1)])) as context:
        product(context)
        b = MLGraphBuilder(context)
        b.build_sync({"y": b.neg(b.input("x", "int32", [2, 2]))})
    assert len(remembered(folder)) == 2


@pytest.mark.parametrize(
    "damage", [b"", b"{", b"[1]", b"\xff", b'{"one": "x"}', b"{}", b'{"z": 1}', b'{"one": [1]}']
)
def test_a_damaged_cache_is_as_if_it_were_not_there(folder: Path, damage: bytes) -> None:
    for _ in range(2):
        with context_on(FastestEngine([Slow("one", 0), Slow("two", 0.1)])) as context:
            product(context)
            assert context.engine == "one"
        (path,) = (folder / KIND).iterdir()
        path.write_bytes(damage)


def test_the_cache_can_be_turned_off(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    monkeypatch.setenv("WEBNN_CACHE", "0")
    with context_on(FastestEngine([Slow("one", 0)])) as context:
        product(context)
        assert context.engine == "one"
    assert cache.cache_folder() is None
    assert not list(folder.iterdir())


def test_the_cache_lies_where_the_platform_has_such_things(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)  # where a Vulkan driver's thread leaves what "relative" names
    monkeypatch.delenv("WEBNN_CACHE")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("USERPROFILE", str(tmp_path))
    for platform, variables, wanted in (
        ("linux", {}, tmp_path / ".cache/webnn_py"),
        ("linux", {"XDG_CACHE_HOME": str(tmp_path / "x")}, tmp_path / "x/webnn_py"),
        ("linux", {"XDG_CACHE_HOME": "relative"}, tmp_path / ".cache/webnn_py"),
        ("darwin", {}, tmp_path / "Library/Caches/webnn_py"),
        ("win32", {"LOCALAPPDATA": str(tmp_path / "l")}, tmp_path / "l/webnn_py/cache"),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(cache.sys, "platform", platform)
            patch.delenv("XDG_CACHE_HOME", raising=False)
            for name, value in variables.items():
                patch.setenv(name, value)
            assert cache.cache_folder() == wanted


def test_a_folder_that_cannot_be_written_does_no_harm(
    monkeypatch: pytest.MonkeyPatch, folder: Path
) -> None:
    (folder / "file").touch()
    monkeypatch.setenv("WEBNN_CACHE", str(folder / "file"))
    with context_on(FastestEngine([Slow("one", 0)])) as context:
        product(context)
        assert context.engine == "one"


def test_an_engine_that_computes_otherwise_is_not_taken(caplog: pytest.LogCaptureFixture) -> None:
    with context_on(FastestEngine([Slow("right", 0.01), Slow("wrong", 0, wrong=True)])) as context:
        product(context)
        assert context.engine == "right"
    assert "engine wrong computes this graph otherwise" in caplog.text


def test_numpy_is_tried_where_runs_are_short() -> None:
    with context_on(FastestEngine([Slow("slow", 0.002)], small=[ReferenceEngine()])) as context:
        product(context)
        assert context.engine == "slow"
    tried = Partial("small", lambda node: True)
    with context_on(FastestEngine([Partial("quick", lambda node: True)], small=[tried])) as context:
        b = MLGraphBuilder(context)
        b.build_sync({"y": b.neg(b.input("x", "float32", [2]))})
    assert len(tried.compiled) == 1


@pytest.fixture
def nothing_fast(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    real = registry._can_import
    monkeypatch.setattr(registry, "_can_import", lambda name: name != "onnx" and real(name))
    registry._warn_once.cache_clear()
    yield
    registry._warn_once.cache_clear()


@pytest.mark.usefixtures("nothing_fast")
@pytest.mark.parametrize("name", ["auto", "fastest"])
def test_without_any_the_reference_runs_and_it_is_said_once(
    caplog: pytest.LogCaptureFixture, name: str
) -> None:
    for _ in range(2):
        with ml.create_context_sync(engine=name) as context:
            product(context)
            assert context.engine == "reference"
    (record,) = caplog.records
    assert (record.name, record.levelno) == ("webnn_py", logging.WARNING)
    assert 'pip install "webnn-py[ort]"' in record.getMessage()


@pytest.mark.parametrize("name", registry.FAST)
def test_auto_takes_the_first_that_is_installed(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    if not registry._BUILT_IN[name].is_installed:
        pytest.skip(f"{name} is not installed")
    real = registry._can_import
    others = set(registry.FAST[: registry.FAST.index(name)])
    monkeypatch.setattr(registry, "_can_import", lambda n: n not in others and real(n))
    with ml.create_context_sync() as context:
        assert context.engine == name


def test_installed_engines_are_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fastest, "time", time)
    monkeypatch.setattr(fastest, "MEASURE_SECONDS", 0.03)
    if not all(registry._BUILT_IN[name].is_installed for name in registry.FAST):
        pytest.skip("onnxruntime and openvino are not both installed")
    with ml.create_context_sync(engine="fastest", engine_options={"threads": 1}) as context:
        graph = product(context)
        assert context.engine in (*registry.FAST, "reference")
        made = MLExecution(context).compute(graph, {"x": X})
        np.testing.assert_allclose(made["y"], X @ X)

"""What is kept of a built graph: executables, made once and not too many, and its memory."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Hashable
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.graphs import ONES, doubling
from tests.internals import session_of
from webnn_py import InvalidStateError, MLContext, MLExecution, OperationError
from webnn_py.api.compiled import MOST_EXECUTABLES, CompiledGraph, RecentlyUsed
from webnn_py.api.graph import compiled_of

THREADS = 8


class Making:
    """Makes texts of keys, and notes for which."""

    def __init__(self) -> None:
        self.made: list[Hashable] = []
        self.error: Exception | None = None
        self.gate: threading.Event | None = None
        self.begun = threading.Semaphore(0)

    def __call__(self, key: Hashable) -> str:
        self.made.append(key)
        self.begun.release()
        if self.gate is not None:
            assert self.gate.wait(30)
        if self.error is not None:
            raise self.error
        return f"for {key}"


@pytest.fixture
def make() -> Making:
    return Making()


def test_the_least_recently_used_goes(make: Making) -> None:
    cache = RecentlyUsed(make, 3)
    for key in (1, 2, 3, 1, 4):
        assert cache.get(key) == f"for {key}"
    assert make.made == [1, 2, 3, 4]
    for key in (1, 3, 4):
        cache.get(key)
    assert make.made == [1, 2, 3, 4]
    cache.get(2)
    assert make.made == [1, 2, 3, 4, 2]


def test_no_more_are_kept_than_are_to_be() -> None:
    class Made:
        pass

    cache = RecentlyUsed(lambda key: Made(), 3)
    made = [weakref.ref(cache.get(key)) for key in range(10)]
    assert [key for key, ref in enumerate(made) if ref() is not None] == [7, 8, 9]


def test_it_is_made_once_however_many_ask(make: Making) -> None:
    make.gate = threading.Event()
    cache = RecentlyUsed(make, 1)
    together = threading.Barrier(THREADS)

    def ask(_: int) -> str:
        together.wait(30)
        return cache.get("x")

    with ThreadPoolExecutor(THREADS) as pool:
        asked = [pool.submit(ask, number) for number in range(THREADS)]
        assert make.begun.acquire(timeout=30)
        make.gate.set()
        assert {future.result(30) for future in asked} == {"for x"}
    assert make.made == ["x"]


class Key:
    """One that notes when it is looked up."""

    def __init__(self) -> None:
        self.lookups = threading.Semaphore(0)

    def __hash__(self) -> int:
        self.lookups.release()
        return 0


def test_what_is_being_made_is_not_thrown_out(make: Making) -> None:
    """Else it would be made twice."""
    make.gate = threading.Event()
    cache = RecentlyUsed(make, 1)
    key = Key()
    with ThreadPoolExecutor(THREADS) as pool:
        asked = [pool.submit(cache.get, key)]
        assert make.begun.acquire(timeout=30)
        asked += [pool.submit(cache.get, number) for number in range(3)]
        for _ in range(3):
            assert make.begun.acquire(timeout=30)
        while key.lookups.acquire(blocking=False):
            pass
        asked.append(pool.submit(cache.get, key))
        for _ in ("taken out", "put in as the last one"):
            assert key.lookups.acquire(timeout=30)
        make.gate.set()
        assert len({future.result(30) for future in asked}) == 4
    assert len(make.made) == 4


def test_an_error_is_everyones_and_is_not_kept(make: Making) -> None:
    make.gate, make.error = threading.Event(), OperationError("no memory")
    cache = RecentlyUsed(make, 2)
    with ThreadPoolExecutor(THREADS) as pool:
        asked = [pool.submit(cache.get, "x") for _ in range(THREADS)]
        assert make.begun.acquire(timeout=30)
        make.gate.set()
        for future in asked:
            with pytest.raises(OperationError, match="no memory"):
                future.result(30)
    make.error = None
    assert cache.get("x") == "for x"


def test_a_graph_is_compiled_when_it_is_built_and_not_again(
    cpu: MLContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = session_of(cpu)
    compiled = []
    real = session.compile
    monkeypatch.setattr(session, "compile", lambda recipe: compiled.append(recipe) or real(recipe))
    graph = doubling(cpu)
    for _ in range(3):
        MLExecution(cpu).compute(graph, {"x": ONES})
    assert len(compiled) == 1
    assert MOST_EXECUTABLES > 1


@pytest.mark.parametrize("kind", ["cpu", "gpu"])
def test_a_graph_goes_with_its_last_user(kind: str, request: pytest.FixtureRequest) -> None:
    """At once, and not when Python next looks for circles: weights are large."""
    graph = doubling(request.getfixturevalue(kind))
    compiled = weakref.ref(compiled_of(graph))
    recipe = weakref.ref(compiled_of(graph).recipe)
    gc.collect()
    gc.disable()
    try:
        del graph
        assert (compiled(), recipe()) == (None, None)
    finally:
        gc.enable()


def test_a_destroyed_graph_keeps_its_listing_alone(cpu: MLContext) -> None:
    session = session_of(cpu)
    compiled = CompiledGraph(session, compiled_of(doubling(cpu)).recipe)
    executable, recipe = weakref.ref(compiled.executable(session)), weakref.ref(compiled.recipe)
    listing = str(compiled)
    compiled.destroy()
    gc.collect()  # what passes left
    assert (executable(), recipe()) == (None, None)
    assert str(compiled) == listing
    assert compiled.destroyed
    for use in (lambda: compiled.recipe, lambda: compiled.executable(session)):
        with pytest.raises(InvalidStateError, match="this MLGraph is destroyed"):
            use()

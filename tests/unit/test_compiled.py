"""What is kept of a built graph: executables, made once and not too many, and its memory."""

from __future__ import annotations

import functools
import gc
import threading
import weakref
from collections.abc import Hashable
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.graphs import ONES, doubling
from tests.internals import session_of
from tests.interrupts import Interrupt, interrupted, is_call
from tests.threads import in_threads
from webnn_py import InvalidStateError, MLContext, MLExecution, OperationError
from webnn_py.api.compiled import CompiledGraph, compiled_of
from webnn_py.core.lru_cache import CacheLimits, LRUCache

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
    cache = LRUCache(make, CacheLimits(3))
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

    cache = LRUCache(lambda key: Made(), CacheLimits(3))
    made = [weakref.ref(cache.get(key)) for key in range(10)]
    assert [key for key, ref in enumerate(made) if ref() is not None] == [7, 8, 9]


def test_what_takes_too_many_bytes_goes(make: Making) -> None:
    """All but the one used last, and what all of them share is free."""
    pieces = {1: {"a": 40}, 2: {"b": 30}, 3: {"c": 20, "b": 30}, 4: {"d": 500}}
    cache = LRUCache(
        make, CacheLimits(9, 100), lambda made: {"all": 1000, **pieces[int(made.split()[-1])]}
    )
    for key in (1, 2, 3):
        cache.get(key)
    assert [cache.find(key) is None for key in pieces] == [False, False, False, True]
    cache.get(4)
    assert [cache.find(key) is None for key in pieces] == [True, True, True, False]
    for key in (1, 2, 1, 4):
        cache.get(key)
    assert make.made == [1, 2, 3, 4, 1, 2, 4]


def test_what_is_there_is_found_and_nothing_is_made_for_it(make: Making) -> None:
    cache = LRUCache(make, CacheLimits(2))
    assert cache.find(1) is None
    for key in (1, 2):
        cache.get(key)
    assert cache.find(1) == "for 1"
    cache.get(3)
    assert (cache.find(1), cache.find(2)) == ("for 1", None)
    assert make.made == [1, 2, 3]


def test_something_else_may_take_the_place_of_what_is_there(make: Making) -> None:
    """Told once of what was made, and not of that; its memory counts instead."""
    told: list[object] = []
    sizes = {"for 1": 40, "for 2": 40, "better": 90}
    cache = LRUCache(
        make,
        CacheLimits(2, 100),
        lambda made: {made: sizes[made]},
        lambda *what: told.append(what),
    )
    first = cache.get(1)
    cache.replace(2, "for 2", "better")
    assert cache.find(2) is None
    cache.replace(1, "not that", "better")
    assert cache.find(1) is first
    cache.get(2)
    cache.get(1)
    cache.replace(1, first, "better")
    assert cache.get(1) == "better"
    assert cache.find(2) is None  # there is no room any more
    assert told == [(cache, 1, "for 1"), (cache, 2, "for 2")]


def test_it_is_made_once_however_many_ask(make: Making) -> None:
    make.gate = threading.Event()
    cache = LRUCache(make, CacheLimits(1))
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
    cache = LRUCache(make, CacheLimits(1))
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
    cache = LRUCache(make, CacheLimits(2))
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
    compiler = session_of(cpu).compiler
    compiled = []
    real = compiler.compile
    monkeypatch.setattr(compiler, "compile", lambda recipe: compiled.append(recipe) or real(recipe))
    graph = doubling(cpu)
    for _ in range(3):
        MLExecution(cpu).compute(graph, {"x": ONES})
    assert len(compiled) == 1


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


def test_what_is_interrupted_is_made_anew() -> None:
    """Also where that comes just before it would have been made: others waited for ever."""

    def interrupt_each() -> None:
        number, came = 0, True
        while came:
            kept = LRUCache(Making(), CacheLimits())
            interrupt = Interrupt(functools.partial(is_call, number))
            interrupted(functools.partial(kept.get, 1), interrupt)
            assert kept.get(1) == "for 1"
            came = interrupt.came
            number += 1

    in_threads(interrupt_each)

"""The engine that measures several engines for each graph and uses the fastest."""

from __future__ import annotations

import functools
import json
import math
import os
import platform
import statistics
import time
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, TypeVar

import numpy as np

from webnn_py._version import __version__
from webnn_py.core import cache, dtypes
from webnn_py.core.messages import LOG
from webnn_py.engines.base import Engine, Executable, HostExecutable
from webnn_py.engines.host import HostEngine
from webnn_py.engines.profile import wait_for_threads
from webnn_py.ir import Array, Graph

T = TypeVar("T")
Build = Callable[[Engine], tuple[T, Executable]]

MEASURE_SECONDS = 1.0
"""Time to measure all engines for one graph, without builds and first runs."""
MAX_TURNS, RUNS_PER_TURN = 12, 3
"""Most turns of each engine, and measured runs in each turn."""
RESULT_TOLERANCE = 0.01
"""Largest difference of two engines' results, relative to the largest result."""
MIN_GAIN = 0.03
"""Least share of the time that an engine must save to replace one before it; less may be noise."""
SHORT_RUN_SECONDS = 1e-4
"""Longest run for which NumPy may be as fast as an engine that starts threads."""
KIND = "engines"
MAX_CACHE_BYTES = 1 << 18
"""Most bytes of the cache on disk: about 4,000 graphs, of which the last used stay."""
NO_OPTIONS: Mapping[str, Any] = MappingProxyType({})


class FastestEngine(HostEngine):
    """An engine that runs each graph on the fastest of several engines.

    Measurements are cached on disk (`core/cache.py`) by graph and machine.

    Args:
        engines: At least one engine, in order of trust; a later one must save MIN_GAIN.
        small: Engines that are also measured if runs are short.
        anew: Ignore cached measurements.
        options: The engines' options, which are part of the cache key.

    Attributes:
        name: "fastest"; after a build, the name of the chosen engine.
        medians: Median seconds of a run of the last built graph, by engine.
    """

    name = "fastest"

    def __init__(
        self,
        engines: Sequence[Engine],
        small: Sequence[Engine] = (),
        anew: bool = False,
        options: Mapping[str, Any] = NO_OPTIONS,
    ) -> None:
        self._engines = tuple(engines)
        self._small = tuple(small)
        self._anew = anew
        self._options = options
        self.medians: Mapping[str, float] = {}

    def pick(self, recipe: Graph, build: Build[T]) -> tuple[T, Executable]:
        """Build the graph with the engine that runs it fastest."""
        engines = {engine.name: engine for engine in (*self._engines, *self._small)}
        key = f"{_machine(*engines)}\n{list(engines)} {dict(self._options)}\n{recipe}"
        built: dict[str, tuple[T, Executable]] = {}
        medians = {} if self._anew else _cached_medians(key, engines)
        if not medians:
            built, medians = self._measure(recipe, build)
            cache.store_text(KIND, key, json.dumps(medians), MAX_CACHE_BYTES)
        name = _choose(medians, engines)
        self.name, self.medians = name, medians
        return built.get(name) or build(engines[name])

    def _measure(
        self, recipe: Graph, build: Build[T]
    ) -> tuple[dict[str, tuple[T, Executable]], dict[str, float]]:
        built: dict[str, tuple[T, Executable]] = {}
        runs: dict[str, Callable[[], None]] = {}
        inputs = [_contents(value.data_type, value.shape) for value in recipe.inputs]
        expected: list[Array] = []

        def add(engine: Engine) -> None:
            made = build(engine)
            outputs = [_contents(v.data_type, v.shape) for _, v in recipe.outputs]
            run = functools.partial(_on_host(made[1]).run, inputs, outputs)
            run()
            if not expected:
                expected.extend(output.copy() for output in outputs)
            elif not all(map(_is_close, outputs, expected)):
                LOG.warning("engine %s computes this graph otherwise; not taken", engine.name)
                return
            built[engine.name], runs[engine.name] = made, run

        for engine in self._engines:
            add(engine)
        medians = _medians(runs)
        if self._small and min(medians.values()) < SHORT_RUN_SECONDS:
            for engine in self._small:
                add(engine)
            medians = _medians(runs)
        return built, medians

    def destroy(self) -> None:
        """Destroy the engines."""
        for engine in (*self._engines, *self._small):
            engine.destroy()

    def compile(self, graph: Graph) -> HostExecutable:
        """Raise: the engine that `pick` chooses compiles."""
        raise NotImplementedError


def _on_host(executable: Executable) -> HostExecutable:
    assert isinstance(executable, HostExecutable)
    return executable


def _contents(data_type: str, shape: Sequence[int]) -> Array:
    """Return random numbers from 0 to 1; integers are 0, a valid index of every table."""
    dtype = dtypes.DTYPES[data_type].numpy
    if dtype.kind != "f":
        return np.zeros(shape, dtype)
    return np.asarray(np.random.default_rng(0).random(shape, np.float32)).astype(dtype)


def _is_close(got: Array, expected: Array) -> bool:
    """Whether float results agree within the tolerance; integers may differ by rounding."""
    if got.dtype.kind != "f":
        return True
    finite = np.isfinite(expected)
    largest = float(np.max(np.abs(expected[finite]), initial=0))
    difference = np.abs(got[finite].astype(np.float64) - expected[finite])
    return bool((difference <= RESULT_TOLERANCE * largest).all())


def _choose(medians: Mapping[str, float], order: Iterable[str]) -> str:
    """Return the first engine in order that no other one beats by MIN_GAIN."""
    enough = min(medians.values()) / (1 - MIN_GAIN)
    return next(name for name in order if medians.get(name, math.inf) <= enough)


def _medians(runs: Mapping[str, Callable[[], None]]) -> dict[str, float]:
    """Measure the engines by turns, so that a busy machine slows all of them alike.

    Each turn waits until the previous engine's threads are idle, and ignores its first run.
    """
    times: dict[str, list[float]] = {name: [] for name in runs}
    end = time.perf_counter() + MEASURE_SECONDS
    for _ in range(MAX_TURNS):
        for name, run in runs.items():
            wait_for_threads()
            run()
            for _ in range(RUNS_PER_TURN):
                begin = time.perf_counter()
                run()
                times[name].append(time.perf_counter() - begin)
        if time.perf_counter() > end:
            break
    return {name: statistics.median(found) for name, found in times.items()}


def _cached_medians(key: str, engines: Container[str]) -> dict[str, float]:
    """Return the cached medians; empty if there are none or the entry is damaged."""
    try:
        found: Any = json.loads(cache.load_text(KIND, key) or "{}")
        return {name: float(found[name]) for name in found if name in engines}
    except (ValueError, TypeError):
        return {}


@functools.cache
def _machine(*engines: str) -> str:
    """Return the processor and the versions of the packages, as part of the cache key.

    Each of webnn_py's own engines has the name of the package that it runs on.
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    versions = {name: _version(name) for name in (*engines, "numpy")}
    return f"{__version__} {versions} {platform.machine()} {_processor()} {cores}"


def _version(name: str) -> str | None:
    from importlib.metadata import PackageNotFoundError, version  # a late import: it takes 15 ms

    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _processor() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            return next(line for line in file if line.startswith("model name")).strip()
    except (OSError, StopIteration):  # no Linux, or another processor
        return platform.processor()

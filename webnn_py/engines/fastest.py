"""FastestEngine: several engines, and for each graph the one that runs it fastest here."""

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

SECONDS = 1.0
"""How long the engines are measured for one graph, after a first run of each; without builds."""
TURNS, RUNS = 12, 3
"""Turns of each engine at most, and runs in each."""
ALIKE = 0.01
"""How far results of engines may lie apart, to the largest number among them."""
GAIN = 0.03
"""What an engine must save of the time of one before it: less may be chance, on another day."""
SHORT = 1e-4
"""Seconds of a run; up to these NumPy may be as fast as an engine that starts threads."""
KIND = "engines"
MOST_BYTES = 1 << 18
"""Of all that is remembered: some 4,000 graphs, as each has a file; those used last."""
NO_OPTIONS: Mapping[str, Any] = MappingProxyType({})


class FastestEngine(HostEngine):
    """Has each graph run by whichever of several engines is the fastest for it, measured here.

    What was measured is remembered on disk (`core/cache.py`), by graph and machine.

    Args:
        engines: At least one, each trusted more than the ones after it, which must save `GAIN`.
        small: Engines that are tried as well where runs are short.
        anew: Measure what is remembered, too.
        options: What the engines were told: what is remembered holds for these.

    Attributes:
        name: "fastest", and when a graph was built the name of its engine.
        medians: Seconds of a run of the graph built last, by engine; what is remembered too.
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
        """The graph built by the engine that is the fastest for it."""
        engines = {engine.name: engine for engine in (*self._engines, *self._small)}
        key = f"{_machine(*engines)}\n{list(engines)} {dict(self._options)}\n{recipe}"
        built: dict[str, tuple[T, Executable]] = {}
        medians = {} if self._anew else _known(key, engines)
        if not medians:
            built, medians = self._measured(recipe, build)
            cache.store_text(KIND, key, json.dumps(medians), MOST_BYTES)
        name = _chosen(medians, engines)
        self.name, self.medians = name, medians
        return built.get(name) or build(engines[name])

    def _measured(
        self, recipe: Graph, build: Build[T]
    ) -> tuple[dict[str, tuple[T, Executable]], dict[str, float]]:
        built: dict[str, tuple[T, Executable]] = {}
        runs: dict[str, Callable[[], None]] = {}
        inputs = [_contents(value.data_type, value.shape) for value in recipe.inputs]
        wanted: list[Array] = []

        def add(engine: Engine) -> None:
            made = build(engine)
            outputs = [_contents(v.data_type, v.shape) for _, v in recipe.outputs]
            run = functools.partial(_on_host(made[1]).run, inputs, outputs)
            run()
            if not wanted:
                wanted.extend(output.copy() for output in outputs)
            elif not all(map(_alike, outputs, wanted)):
                LOG.warning("engine %s computes this graph otherwise; not taken", engine.name)
                return
            built[engine.name], runs[engine.name] = made, run

        for engine in self._engines:
            add(engine)
        medians = _medians(runs)
        if self._small and min(medians.values()) < SHORT:
            for engine in self._small:
                add(engine)
            medians = _medians(runs)
        return built, medians

    def destroy(self) -> None:
        """Destroy the engines."""
        for engine in (*self._engines, *self._small):
            engine.destroy()

    def compile(self, graph: Graph) -> HostExecutable:
        """Never called: what `pick` gives compiles."""
        raise NotImplementedError


def _on_host(executable: Executable) -> HostExecutable:
    assert isinstance(executable, HostExecutable)
    return executable


def _contents(data_type: str, shape: Sequence[int]) -> Array:
    """Numbers from 0 to 1; integers are 0, which is a place in every table."""
    dtype = dtypes.DTYPES[data_type].numpy
    if dtype.kind != "f":
        return np.zeros(shape, dtype)
    return np.asarray(np.random.default_rng(0).random(shape, np.float32)).astype(dtype)


def _alike(got: Array, wanted: Array) -> bool:
    """Whether results are the same but for roundings; which may make another integer."""
    if got.dtype.kind != "f":
        return True
    finite = np.isfinite(wanted)
    largest = float(np.max(np.abs(wanted[finite]), initial=0))
    apart = np.abs(got[finite].astype(np.float64) - wanted[finite])
    return bool((apart <= ALIKE * largest).all())


def _chosen(medians: Mapping[str, float], order: Iterable[str]) -> str:
    """The first of the engines, in order, than which none is clearly faster."""
    enough = min(medians.values()) / (1 - GAIN)
    return next(name for name in order if medians.get(name, math.inf) <= enough)


def _medians(runs: Mapping[str, Callable[[], None]]) -> dict[str, float]:
    """Seconds of a run, in turn, so that a busy machine slows all alike.

    A turn begins when threads of the engine before are idle, and its first run does not count.
    """
    times: dict[str, list[float]] = {name: [] for name in runs}
    end = time.perf_counter() + SECONDS
    for _ in range(TURNS):
        for name, run in runs.items():
            wait_for_threads()
            run()
            for _ in range(RUNS):
                begin = time.perf_counter()
                run()
                times[name].append(time.perf_counter() - begin)
        if time.perf_counter() > end:
            break
    return {name: statistics.median(found) for name, found in times.items()}


def _known(key: str, engines: Container[str]) -> dict[str, float]:
    """What was measured before; nothing where that is damaged."""
    try:
        found: Any = json.loads(cache.load_text(KIND, key) or "{}")
        return {name: float(found[name]) for name in found if name in engines}
    except (ValueError, TypeError):
        return {}


@functools.cache
def _machine(*engines: str) -> str:
    """What measurements hold for: the processor, and the versions of what is measured.

    Our own engines are called as the package is that they run on.
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    versions = {name: _version(name) for name in (*engines, "numpy")}
    return f"{__version__} {versions} {platform.machine()} {_processor()} {cores}"


def _version(name: str) -> str | None:
    from importlib.metadata import PackageNotFoundError, version  # imported late: 15 ms

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

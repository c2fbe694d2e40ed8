"""Timing of repeated runs: how many, for how long, how many at once, and their percentiles."""

from __future__ import annotations

import argparse
import math
import statistics
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from webnn_py.api.profile import MAX_RUNS
from webnn_py.api.view.formats import format_duration
from webnn_py.cli.printing import print_facts
from webnn_py.cli.progress import Progress
from webnn_py.core.errors import ValidationError

MAX_CONCURRENCY = 1024
PERCENTILES = (90, 95, 99)
COUNTS = ("runs", "runs a second", "at once")
"""Keys of the summary that are no durations."""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of the benchmark."""
    group = parser.add_argument_group("benchmark")
    group.add_argument(
        "--benchmark", type=count(MAX_RUNS), metavar="N", help="run N more times and time that"
    )
    group.add_argument(
        "--duration", type=_seconds, metavar="SECONDS", help="time runs for so long, N at most"
    )
    group.add_argument(
        "--warmup", type=count(MAX_RUNS), metavar="N", help="runs before those (default 1)"
    )
    group.add_argument(
        "--concurrency",
        type=count(MAX_CONCURRENCY),
        metavar="N",
        help="runs at once: on threads, or awaited (default 1)",
    )


def count(most: int) -> Callable[[str], int]:
    """Return a parser of a number from 1 to `most`."""

    def parse(text: str) -> int:
        if not text.isdecimal() or not 1 <= int(text) <= most:
            raise argparse.ArgumentTypeError(f"got {text!r}, expected a number from 1 to {most}")
        return int(text)

    return parse


def _seconds(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not 0 < number < math.inf:
        raise argparse.ArgumentTypeError(f"got {text!r}, expected seconds above 0")
    return number


@dataclass(frozen=True)
class Load:
    """The runs to time.

    Attributes:
        runs: Most runs; None for no limit.
        seconds: Time after which no run begins; None for no limit.
        warmup: Runs before, the first one included.
        concurrency: Runs at once.
    """

    runs: int | None
    seconds: float | None
    warmup: int
    concurrency: int

    @staticmethod
    def of(options: argparse.Namespace) -> Load | None:
        """Return the load that the options describe, or None.

        Raises:
            ValidationError: An option needs another one.
        """
        if options.benchmark is None and options.duration is None:
            for name in ("warmup", "concurrency"):
                if getattr(options, name) is not None:
                    raise ValidationError(f"--{name} needs --benchmark N or --duration SECONDS")
            return None
        return Load(
            options.benchmark, options.duration, options.warmup or 1, options.concurrency or 1
        )


class Clock:
    """The runs of a load as they are made, by several threads or tasks.

    Args:
        load: The load.
        progress: Where the number of runs is shown.

    Attributes:
        times: The durations of the runs.
    """

    def __init__(self, load: Load, progress: Progress) -> None:
        self.times: list[float] = []
        self._progress = progress
        self._left = load.runs
        self._lock = threading.Lock()
        self._begin = time.perf_counter()
        self._end = math.inf if load.seconds is None else self._begin + load.seconds
        self._last = self._begin

    @property
    def elapsed(self) -> float:
        """Return the seconds from the begin to the end of the last run."""
        return self._last - self._begin

    def stop(self) -> None:
        """Let no further run begin."""
        with self._lock:
            self._left = 0

    def runs(self) -> Iterator[None]:
        """Yield for each run that is to be made; the caller makes it before the next one."""
        while self._may_begin():
            start = time.perf_counter()
            yield
            end = time.perf_counter()
            with self._lock:
                self.times.append(end - start)
                self._last = max(self._last, end)
                self._progress.done = len(self.times)

    def _may_begin(self) -> bool:
        with self._lock:
            if self._left == 0 or (time.perf_counter() >= self._end and self.times):
                return False
            if self._left is not None:
                self._left -= 1
            return True


def summary(
    loading: float, first: float, times: Sequence[float], elapsed: float, concurrency: int
) -> dict[str, float | int]:
    """Return durations in seconds, and counts, by name."""
    return {
        "load": loading,
        "first run": first,
        "median run": statistics.median(times),
        "mean run": statistics.fmean(times),
        **{f"p{n} run": float(np.percentile(times, n)) for n in PERCENTILES},
        "fastest run": min(times),
        "slowest run": max(times),
        "runs": len(times),
        "runs a second": len(times) / elapsed,
        "at once": concurrency,
    }


def print_summary(found: dict[str, float | int]) -> None:
    """Print a summary as a table."""
    rows = {n: value if n in COUNTS else format_duration(value) for n, value in found.items()}
    print_facts("time", rows)

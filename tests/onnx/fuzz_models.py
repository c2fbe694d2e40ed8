"""Load mutated models in processes with limits, and report what should not happen.

```
python -m tests.onnx.fuzz_models --count 200000 --seed 1 --jobs 2
python -m tests.onnx.fuzz_models --replay 4711
```

A mutant may load, and then runs on small inputs, or be refused by an MLError that says what is
wrong with it. Findings are all else: a crash, a hang, more memory than allowed, another exception,
and an MLError that passes on what Python, NumPy or onnx say. The exit status is 1 if there are any.
"""

from __future__ import annotations

import argparse
import contextlib
import faulthandler
import gc
import json
import math
import mmap
import os
import re
import resource
import selectors
import signal
import struct
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from tests.onnx.model_mutations import Source, mutant, sources
from webnn_py import MLContext, MLError, MLExecution, ml
from webnn_py.onnx import load

MEMORY = 2 << 30
"""Bytes of data that a process may have."""
SECONDS = 10
"""Seconds of computing that a mutant may take."""
LONGEST = 6 * SECONDS
"""Seconds that a mutant may take in all, on a machine that others use."""
SHARE = 1000
"""Mutants for which one process is used."""
MAX_ELEMENTS = 1 << 14
"""Elements of an input with which a graph runs."""
MAX_RESULTS = 1 << 20
"""Elements of an output of a graph that runs, so that what takes memory is not a large result."""
OF_LIBRARIES = ("google.protobuf", "onnx.onnx_cpp2py_export")
"""Modules of exceptions of protobuf and of onnx, whose texts are about the file."""
OF_PYTHON = re.compile(
    r"zip\(\)|index out of range|object is not|has no attribute|NoneType|unpack|positional arg"
    r"|keyword arg|unsupported operand|invalid literal|not supported between|broadcast together"
    r"|cannot reshape array|division by zero|math domain|too large to convert|out of bounds"
    r"|cannot convert float|maximum recursion|invalid entry|do not match|numpy|[Pp]ython int"
    r"|: $|it is not valid: (-?\d+|'[^']*')?$"
)
SLOT = struct.Struct("qd")


@dataclass
class Outcome:
    """What came of mutants.

    Attributes:
        counts: How many mutants there were of each kind.
        findings: By exception and place, the seeds, and of the first what was changed and said.
    """

    counts: Counter[str] = field(default_factory=Counter)
    findings: dict[str, list[Any]] = field(default_factory=lambda: defaultdict(list))

    def add(self, kind: str, seed: int, group: str = "", text: str = "") -> None:
        """Count a mutant, as a finding where it is in a group."""
        self.counts[kind] += 1
        if group:
            self.findings[group].append((seed, text))

    def update(self, counts: Mapping[str, int], findings: Mapping[str, list[Any]]) -> None:
        """Add what came of other mutants."""
        self.counts.update(counts)
        for group, ones in findings.items():
            self.findings[group] += ones


def place_of(error: BaseException) -> str:
    """An exception's kind and the last line of this project that it passed."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if "/webnn_py/" in frame.filename]
    where = (own or frames or [None])[-1]
    if where is None:
        return type(error).__name__
    path = where.filename.rpartition("/webnn_py/")[2]
    return f"{type(error).__name__} in {path}:{where.lineno} {where.name}"


def fault_of(error: BaseException) -> str | None:
    """Where what was raised is a finding, the group it is in."""
    if isinstance(error, MemoryError) or "out of memory" in str(error):
        return f"memory: {place_of(error.__cause__ or error)}"
    if not isinstance(error, MLError):
        return place_of(error)
    cause = error.__cause__
    while cause is not None and type(cause).__module__.startswith("webnn_py."):
        cause = cause.__cause__
    is_told = isinstance(cause, OSError) or type(cause).__module__.startswith(OF_LIBRARIES)
    if cause is not None and not is_told:
        return f"passed on: {place_of(cause)}"
    if OF_PYTHON.search(str(error)):
        return f"said: {place_of(error)}"
    return None


def feeds_of(graph: Any, seed: int) -> dict[str, Any] | None:
    """Small arrays for a graph's inputs, or None where they are not small."""
    rng = np.random.default_rng(seed)
    sizes: dict[Any, int] = {}
    feeds = {}
    for name, operand in graph.inputs.items():
        shape = [n if isinstance(n, int) else sizes.setdefault(str(n), 2) for n in operand.shape]
        if math.prod(shape) > MAX_ELEMENTS:
            return None
        feeds[name] = (rng.normal(size=shape) * 3).astype(operand.data_type)
    for operand in graph.outputs.values():
        if math.prod(n if isinstance(n, int) else 2 for n in operand.shape) > MAX_RESULTS:
            return None
    return feeds


def attempt(context: MLContext, found: Sequence[Source], seed: int, outcome: Outcome) -> None:
    """Load a mutant, and run it if it loads."""
    told, contents = mutant(found, seed)
    kind = "loaded"
    try:
        graph = load(contents, context)
        feeds = feeds_of(graph, seed)
        if feeds is not None:
            kind = "run"
            MLExecution(context).compute(graph, feeds)
    except Exception as error:
        fault = fault_of(error)
        came = f"{kind}, then refused" if kind == "run" else "refused"
        text = f"{told}: {type(error).__name__}: {error}"
        outcome.add(f"{came}: {type(error).__name__}", seed, fault or "", text[:600])
    else:
        outcome.add(kind, seed)


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Without warnings of NumPy."""
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        yield


def work(found: Sequence[Source], seeds: Sequence[int], slot: Any, pipe: int, log: int) -> None:
    """Try mutants in this process, and write what came of each."""
    os.dup2(log, 2)
    faulthandler.enable(log)
    faulthandler.register(signal.SIGUSR1, log)
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with quiet(), ml.create_context_sync(engine="reference") as context:
        for seed in seeds:
            slot[:] = SLOT.pack(seed, time.monotonic())
            outcome = Outcome()
            attempt(context, found, seed, outcome)
            line = json.dumps([outcome.counts, outcome.findings]) + "\n"
            os.write(pipe, line.encode())


class Worker:
    """A process that tries some mutants.

    Attributes:
        pid: The process.
        seeds: Those that it is to try.
        pipe: Where it writes what came of each.
        is_stopped: Whether it took too long.
    """

    def __init__(self, found: Sequence[Source], seeds: Sequence[int]) -> None:
        self.seeds = seeds
        self.is_stopped = False
        self._begin = seeds[0], 0.0
        self._slot = mmap.mmap(-1, mmap.PAGESIZE)
        self._slot[: SLOT.size] = SLOT.pack(seeds[0], time.monotonic())
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - closed by `ended`
        self.pipe, end = os.pipe()
        self.rest = b""
        self.pid = os.fork()
        if self.pid == 0:
            code = 1
            try:
                with memoryview(self._slot)[: SLOT.size] as slot:
                    work(found, seeds, slot, end, self._log.fileno())
                code = 0
            except BaseException:
                traceback.print_exc()
            finally:
                sys.stderr.flush()
                os._exit(code)
        os.close(end)

    def lines(self) -> list[bytes] | None:
        """What it has written since, line by line; None at its end."""
        read = os.read(self.pipe, 1 << 16)
        *lines, self.rest = (self.rest + read).split(b"\n")
        return lines if read else None

    @property
    def at(self) -> tuple[int, float]:
        """The seed that it tries, and since when."""
        seed, since = SLOT.unpack(self._slot[: SLOT.size])
        return seed, since

    def _computed(self) -> float:
        """Seconds that it has computed so far."""
        try:
            with open(f"/proc/{self.pid}/stat", encoding="ascii") as file:
                fields = file.read().rpartition(")")[2].split()
        except OSError:
            return 0.0
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def watch(self) -> None:
        """End it where a mutant takes too long, and have it write where it was."""
        (seed, since), total = self.at, self._computed()
        if self._begin[0] != seed:
            self._begin = seed, total
        is_late = total - self._begin[1] > SECONDS or time.monotonic() - since > LONGEST
        if is_late and not self.is_stopped:
            self.is_stopped = True
            os.kill(self.pid, signal.SIGUSR1)
            time.sleep(0.5)
            os.kill(self.pid, signal.SIGKILL)

    def ended(self) -> tuple[int, str]:
        """Its exit status, and what it wrote of its end."""
        os.close(self.pipe)
        _, status = os.waitpid(self.pid, 0)
        self._log.seek(0)
        text = self._log.read()[-4000:].decode("utf-8", "replace")
        self._log.close()
        self._slot.close()
        return os.waitstatus_to_exitcode(status), text


def buried(worker: Worker, found: Sequence[Source], outcome: Outcome) -> list[Sequence[int]]:
    """Write down what a process ended of, and give what it has left to try."""
    seed, _ = worker.at
    status, text = worker.ended()
    if not status:
        return []
    what = "hung" if worker.is_stopped else "crashed"
    last = re.search(r'File ".*/(webnn_py/\S+)", line (\d+)', text)
    where = f"{last[1]}:{last[2]}" if last else str(status)
    outcome.add(what, seed, f"{what} in {where}", f"{mutant(found, seed)[0]}\n{text}")
    rest = worker.seeds[worker.seeds.index(seed) + 1 :]
    return [rest] if rest else []


def run(count: int, first: int, jobs: int, found: Sequence[Source], told: Any = None) -> Outcome:
    """Try mutants in processes.

    Args:
        count: How many.
        first: The seed of the first one.
        jobs: How many processes at a time.
        found: The models that are changed.
        told: Where to write how far it is, if anywhere.
    """
    outcome = Outcome()
    gc.freeze()  # what is there stays shared with the processes
    waiting = [
        range(start, min(start + SHARE, first + count))
        for start in range(first, first + count, SHARE)
    ][::-1]
    selector = selectors.DefaultSelector()
    began = spoke = time.monotonic()
    known: set[str] = set()
    while waiting or selector.get_map():
        while waiting and len(selector.get_map()) < jobs:
            worker = Worker(found, waiting.pop())
            selector.register(worker.pipe, selectors.EVENT_READ, worker)
        for key, _ in selector.select(0.5):
            lines = key.data.lines()
            for line in lines or ():
                outcome.update(*json.loads(line))
            if lines is None:
                selector.unregister(key.data.pipe)
                waiting += buried(key.data, found, outcome)
        for key in selector.get_map().values():
            key.data.watch()
        for group in outcome.findings.keys() - known if told is not None else ():
            known.add(group)
            print(f"{group} {outcome.findings[group][0]}", file=told, flush=True)
        if told is not None and time.monotonic() - spoke > 10:
            spoke, done = time.monotonic(), sum(outcome.counts.values())
            pace, groups = done / (spoke - began), len(outcome.findings)
            print(f"{done}/{count} {pace:.0f}/s {groups} groups", file=told, flush=True)
    return outcome


def report(outcome: Outcome) -> str:
    """The counts, and the findings, the most frequent first."""
    lines = [f"{count:8} {kind}" for kind, count in sorted(outcome.counts.items())]
    groups = sorted(outcome.findings.items(), key=lambda item: -len(item[1]))
    lines.append(f"{len(groups)} groups of findings")
    for group, ones in groups:
        seeds = " ".join(str(seed) for seed, _ in ones[:4])
        lines += [f"\n{len(ones)} x {group} [{seeds}]", f"    {ones[0][1]}"]
    return "\n".join(lines)


def replay(seed: int, found: Sequence[Source]) -> None:
    """Try a mutant in this process, print it, and let through what it raises."""
    told, contents = mutant(found, seed)
    path = Path(tempfile.gettempdir(), f"mutant-{seed}.onnx")
    path.write_bytes(contents)
    print(f"{told}: {path}")
    with contextlib.suppress(Exception):  # it may be no model
        print(onnx.printer.to_text(onnx.ModelProto.FromString(contents))[:4000])
    with quiet(), ml.create_context_sync(engine="reference") as context:
        graph = load(contents, context)
        feeds = feeds_of(graph, seed)
        if feeds is not None:
            print(MLExecution(context).compute(graph, feeds))


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=1000, help="how many mutants")
    parser.add_argument("--seed", type=int, default=1, help="the seed of the first one")
    parser.add_argument("--jobs", type=int, default=1, help="how many processes at a time")
    parser.add_argument("--replay", type=int, metavar="SEED", help="try this mutant alone")
    given = parser.parse_args(arguments)
    os.environ["WEBNN_CACHE"] = "0"
    found = sources()
    if given.replay is not None:
        replay(given.replay, found)
        return 0
    outcome = run(given.count, given.seed, given.jobs, found, sys.stderr)
    print(report(outcome))
    return 1 if outcome.findings else 0


if __name__ == "__main__":
    sys.exit(main())

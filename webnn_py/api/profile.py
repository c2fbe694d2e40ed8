"""MLProfile, the measured time of each step of a graph or program."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from os import PathLike
from typing import Any

from webnn_py.api.session import Session
from webnn_py.api.signature import Signature
from webnn_py.api.tensor_memory import check_not_held
from webnn_py.core import convert
from webnn_py.core.errors import ValidationError
from webnn_py.core.messages import Suggesting, printable, shown
from webnn_py.engines.base import Executable
from webnn_py.engines.initialization import BoundInputs
from webnn_py.engines.profile import Roof, RunTime, StepTime, median_run
from webnn_py.storage.archive import replacing

MAX_RUNS = 10_000
WIDEST = 60
"""Maximum characters of a row's operators in the table; one step may run hundreds."""


@dataclass(frozen=True, slots=True)
class MLProfileRow:
    """Measurement of one step of a graph or program: one kernel, or one call of an engine.

    Attributes:
        step: Number of the step, from 0.
        operator: The operators that the step computes, with their labels; the kernel's name for a
            step of a program.
        kernel: Names of the kernels that run the step, or of the engine.
        milliseconds: Median time of the step.
        share: Fraction of the time of all steps, 0 to 1.
        flop: Additions, multiplications and functions that the operators require; 0 in a program.
        bytes: Bytes that the step reads and writes, counting each tensor once.
        roof: Rate of the step as a fraction of the device's measured peak rate, in arithmetic or
            in bytes, whichever is higher (roofline model). Caches and matrix units can exceed the
            measured peak, so that it may be above 1.

    Examples:
        ```python
        import numpy as np

        from webnn_py import MLGraphBuilder, ml

        b = MLGraphBuilder(ml.create_context_sync(engine="reference"))
        x = b.input("x", "float32", [64, 64])
        graph = b.build_sync({"y": b.softmax(b.matmul(x, x), 1)})
        profile = graph.profile({"x": np.ones((64, 64), np.float32)})

        row = profile[0]
        print(row.step, row.operator, row.kernel)  # 0 matmul matmul
        print(row.flop, row.bytes)  # 524288 32768
        print(row.milliseconds > 0, 0 < row.share <= 1, row.roof > 0)  # True True True
        ```

    Source: webnn_py, spec/execution.md, "Profiles".
    """

    step: int
    operator: str
    kernel: str
    milliseconds: float
    share: float
    flop: int
    bytes: int
    roof: float


class MLProfile(Suggesting):
    """Sequence of the measured steps of a graph or program; it prints as a table.

    Steps are measured one by one, with a pause of the device between them. Their sum therefore
    exceeds the time of a run.

    Attributes:
        rows: An MLProfileRow for each step; `len`, indices and `for` work on the profile, too.
        milliseconds: Median time of a whole run.
        clock: "gpu" if the times come from the device's timestamps, else "host".
        peak_flops: Measured peak of the device in float32 operations per second.
        peak_bytes: Measured peak of the device in bytes read and written per second.

    Examples:
        ```python
        import numpy as np

        from webnn_py import MLGraphBuilder, ml

        b = MLGraphBuilder(ml.create_context_sync(engine="reference"))
        x = b.input("x", "float32", [64, 64])
        graph = b.build_sync({"y": b.softmax(b.matmul(x, x), 1)})
        profile = graph.profile({"x": np.ones((64, 64), np.float32)})

        print(profile)
        slowest = max(profile, key=lambda row: row.milliseconds)
        profile.save_trace("trace.json")  # https://ui.perfetto.dev opens it
        ```

    Source: webnn_py, spec/execution.md, "Profiles".
    """

    def __init__(self, run: RunTime, roof: Roof) -> None:
        self.milliseconds = run.seconds * 1e3
        self.clock = run.clock
        self.peak_flops, self.peak_bytes = roof.flops, roof.bytes
        whole = sum(step.seconds for step in run.steps) or 1.0
        self.rows = tuple(
            MLProfileRow(
                number,
                _operators(step),
                step.name,
                step.seconds * 1e3,
                step.seconds / whole,
                step.flop,
                step.bytes,
                _nearness(step, roof),
            )
            for number, step in enumerate(run.steps)
        )

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[MLProfileRow]:
        return iter(self.rows)

    def __getitem__(self, index: int) -> MLProfileRow:
        return self.rows[index]

    def __str__(self) -> str:
        heads = ("step", "operator", "kernel", "ms", "share", "GFLOP/s", "GB/s", "of roof")
        lines = [_cells(row) for row in self.rows]
        widths = [max(map(len, column)) for column in zip(heads, *lines, strict=True)]
        left = (1, 2)
        texts = [
            "  ".join(
                cell.ljust(width) if place in left else cell.rjust(width)
                for place, (cell, width) in enumerate(zip(line, widths, strict=True))
            )
            for line in (heads, *lines)
        ]
        steps = sum(row.milliseconds for row in self.rows)
        return "\n".join(
            [
                *texts,
                f"a run takes {self.milliseconds:.3f} ms, its steps one by one {steps:.3f} ms"
                f" (clock: {self.clock}); the device was seen to do"
                f" {self.peak_flops / 1e9:,.0f} GFLOP/s and {self.peak_bytes / 1e9:,.0f} GB/s",
            ]
        )

    def save_trace(self, path: str | PathLike[str]) -> None:
        """Write the steps of a run as a trace that https://ui.perfetto.dev opens.

        Args:
            path: Path of the JSON file.

        Raises:
            FileError: The file cannot be written.

        Source: webnn_py, spec/execution.md, "Profiles".
        """
        events, begin = [], 0.0
        for row in self.rows:
            length = row.milliseconds * 1e3
            told = {"kernel": row.kernel, "flop": row.flop, "bytes": row.bytes, "roof": row.roof}
            events.append(
                {
                    "name": row.operator,
                    "ph": "X",
                    "ts": begin,
                    "dur": length,
                    "pid": 0,
                    "tid": 0,
                    "args": told,
                }
            )
            begin += length
        with replacing(path) as file:
            file.write(json.dumps({"traceEvents": events, "displayTimeUnit": "ms"}).encode())


def measure(
    session: Session,
    signature: Signature,
    executable: Executable,
    bound: BoundInputs,
    inputs: Mapping[str, Any],
    runs: int,
) -> MLProfile:
    """Run an executable several times and measure its steps.

    Args:
        session: Session of the context.
        signature: Inputs and outputs, without open sizes.
        executable: Executable to measure.
        bound: The inputs that are constants.
        inputs: The other inputs, by name.
        runs: Number of measured runs, 1 to 10,000.

    Raises:
        MLError: As in `MLGraph.profile`.
    """
    count = run_count(runs)
    with session.queue.loss():
        if session.device is None:
            given = signature.on_host(session, inputs, None)
        else:
            given = signature.on_device(session, inputs, None, bound, bound.constants.places)
        for memory in given.reads:
            check_not_held(memory, "profile: an MLTensor", reading=True)
        return measured(session, lambda: executable.profile(given.inputs, given.outputs), count)


def run_count(runs: int) -> int:
    """Return the checked number of runs; raise a ValidationError if it is out of range."""
    count = convert.unsigned(runs, "runs")
    if not 1 <= count <= MAX_RUNS:
        raise ValidationError(f"runs: got {shown(runs)}, expected 1 to {MAX_RUNS}")
    return count


def measured(session: Session, run: Callable[[], RunTime], count: int) -> MLProfile:
    """Return the profile of `count` runs, after a warm-up run and waking the device."""
    run()
    session.engine.wake()
    times = []
    for _ in range(count):
        session.check_alive()
        times.append(run())
    roof = session.engine.roof() or Roof(float("inf"), float("inf"))
    return MLProfile(median_run(times), roof)


def _operators(step: StepTime) -> str:
    """Return the distinct operators of a step, and the user's labels."""
    names = ", ".join(dict.fromkeys(node.op for node in step.nodes))
    labels = ", ".join(dict.fromkeys(node.label for node in step.nodes if node.label))
    return f"{names} [{labels}]" if labels else names or step.name


def _nearness(step: StepTime, roof: Roof) -> float:
    least = max(step.flop / roof.flops, step.bytes / roof.bytes)
    return least / step.seconds if step.seconds else 0.0


def _cells(row: MLProfileRow) -> tuple[str, ...]:
    seconds = row.milliseconds * 1e-3

    def rate(amount: int) -> str:
        return f"{amount / seconds / 1e9:,.1f}" if seconds else "-"

    operator = printable(row.operator)
    return (
        str(row.step),
        operator if len(operator) <= WIDEST else f"{operator[: WIDEST - 1]}…",
        row.kernel,
        f"{row.milliseconds:.3f}",
        f"{row.share:.1%}",
        rate(row.flop),
        rate(row.bytes),
        f"{row.roof:.0%}",
    )

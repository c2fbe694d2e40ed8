"""Runs that are recorded before they are asked for, while the device works on the one before.

Who awaits a graph again and again then waits for no recording: it takes about as long as small
models take the device.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from webnn_py.engines.webgpu.runtime.pauses import Pace


@dataclass(frozen=True, slots=True)
class Recorded:
    """The commands of a run, to be submitted once.

    Attributes:
        commands: A GPUCommandBuffer.
        results: Buffers that the host can read when it has run, and the outputs' numbers.
        fence: What to wait for, if nothing is to be read.
    """

    commands: Any
    results: list[tuple[Any, int]]
    fence: Any


class Ahead:
    """What is known before a run, and recorded, of runs that differ in nothing but contents.

    Attributes:
        pace: Of the waits for its end.
    """

    def __init__(self) -> None:
        self._recorded: list[Recorded] = []
        self._repeated = False
        self.pace = Pace()

    def take(self) -> Recorded | None:
        """The commands of a run, if they are recorded; nobody else gets them."""
        try:
            return self._recorded.pop()
        except IndexError:
            return None

    def is_wanted(self) -> bool:
        """Whether to record another run: none is, and there were some before this one."""
        repeated, self._repeated = self._repeated, True
        return repeated and not self._recorded

    def keep(self, recorded: Recorded) -> None:
        """Keep the commands of a run for whoever is next."""
        self._recorded.append(recorded)

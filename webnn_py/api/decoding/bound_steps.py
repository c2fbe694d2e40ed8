"""BoundSteps: a decoder's runs on the host, checked and bound to its caches once for each size."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from webnn_py.api.compiled import compiled_of
from webnn_py.api.decoding.cache_rows import CacheRows
from webnn_py.api.decoding.layout import DecoderLayout
from webnn_py.api.session import Session
from webnn_py.engines.base import HostExecutable
from webnn_py.ir import Array

MAX_STEPS = 16
"""Most sizes that stay bound; each one holds the logits of its rows."""


@dataclass(frozen=True, slots=True)
class _Step:
    """A run that reads and writes the same arrays each time.

    Attributes:
        inputs: Its inputs but for the caches, by name.
        logits: The logits that it writes.
        run: Runs it.
    """

    inputs: Mapping[str, Array]
    logits: Array
    run: Callable[[], None]


class BoundSteps:
    """Runs of a decoder's graph on the host; of one thread.

    Args:
        session: Session of the context.
        layout: The roles of the graph's inputs and outputs.
        caches: The caches that runs read and write.
    """

    def __init__(self, session: Session, layout: DecoderLayout, caches: CacheRows) -> None:
        self._session = session
        self._layout = layout
        self._caches = caches
        self._steps: dict[Hashable, _Step] = {}
        self._version = caches.version

    def logits(self, first: int, given: Mapping[str, Array], size: tuple[int, int]) -> Array:
        """Run a step; return its logits, which the next step of this size overwrites.

        Args:
            first: First row of the caches.
            given: Inputs of the step but for the caches, by name.
            size: Number of rows, and of new tokens of each.
        """
        executables = compiled_of(self._layout.graph).check_usable(self._session)
        if self._version != self._caches.version or len(self._steps) >= MAX_STEPS:
            self._steps.clear()
            self._version = self._caches.version
        step = self._steps.get((first, size))
        if step is None:
            step = self._steps[first, size] = self._bound(executables, first, given, size[0])
        for name, array in given.items():
            np.copyto(step.inputs[name], array)
        step.run()
        return step.logits

    def _bound(self, executables: Any, first: int, given: Mapping[str, Array], count: int) -> _Step:
        layout = self._layout
        arrays = {name: array.copy() for name, array in given.items()}
        inputs: dict[str, Any] = dict(arrays)
        outputs: dict[str, Any] = {}
        for (name, following), rows in zip(
            layout.caches, self._caches.at(first, count), strict=True
        ):
            inputs[name] = outputs[following] = rows
        signature, sizes = compiled_of(layout.graph).fixed(inputs)
        executable = executables.get(sizes).executable
        assert isinstance(executable, HostExecutable)
        bound = signature.on_host(self._session, inputs, outputs)
        logits = bound.results(bound.outputs)[layout.logits]
        return _Step(arrays, logits, executable.bind(bound.inputs, bound.outputs))

"""Awaited runs on a GPU context: submit on the worker, read back on another thread.

A run that is alone on its device is read back where it was submitted: handing it over takes longer.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from webnn_py.core.dtypes import DTYPES
from webnn_py.core.errors import MLError
from webnn_py.engines.base import AwaitedRun
from webnn_py.engines.webgpu.runtime.ahead import Recorded
from webnn_py.engines.webgpu.runtime.errors import device_errors
from webnn_py.engines.webgpu.runtime.loaded import LoadedGraph, record_pass
from webnn_py.engines.webgpu.runtime.pauses import Pace
from webnn_py.engines.webgpu.runtime.program import LoadedProgram
from webnn_py.engines.webgpu.runtime.resources import Dispatch
from webnn_py.engines.webgpu.runtime.under_way import UnderWay
from webnn_py.ir import Descriptor
from webnn_py.memory.overlap import Region, region_of
from webnn_py.ordering import operation


class Run(AwaitedRun):
    """One awaited computation on a device.

    Args:
        loaded: What is computed.
        submit_recorded: Submits what the context has recorded and not yet submitted.
        under_way: What the context has begun.
        dispatch: What is recorded before and after, and where everything lies.
        outputs: For each what was given, or None and what it is.
    """

    def __init__(
        self,
        loaded: LoadedGraph | LoadedProgram,
        submit_recorded: Callable[[], None],
        under_way: UnderWay,
        dispatch: Dispatch,
        outputs: Sequence[tuple[Any, Descriptor]],
    ) -> None:
        super().__init__()
        self._gpu = loaded.gpu
        self._loaded = loaded
        self._submit_recorded = submit_recorded
        self._under_way = under_way
        self._alone = False  # nothing else was under way when it took its turn
        self._dispatch = dispatch
        self._ahead = loaded.ahead if dispatch.only_on_host else None
        self._given = [output for output, _ in outputs if isinstance(output, np.ndarray)]
        self._outputs = [
            np.empty(made.shape, DTYPES[made.data_type].numpy) if given is None else given
            for given, made in outputs
        ]

    def when_there_is_room(self, start: operation.Run) -> None:
        """Keep the memory bounded that results wait in for being read back."""
        in_flight = self._gpu.in_flight

        def begin() -> None:
            self._alone = in_flight.under_way == 1
            self.done.on_done(in_flight.release)
            start()

        in_flight.acquire(begin)

    def begin(self) -> None:
        """Upload, record, submit; then have the outputs read back."""
        self.check_not_cancelled()
        self._under_way.add_result(self.done, self.cancellation)
        with device_errors("submitting a graph"):
            recorded = self._submit()
        gpu = self._gpu
        if self._alone and gpu.in_flight.under_way == 1 and gpu.reader.idle:
            self._record_ahead()
            self._read(recorded, None if self._ahead is None else self._ahead.pace)
        else:
            gpu.reader.submit(functools.partial(self._read, recorded), self.done.set_exception)

    def _submit(self) -> Recorded:
        """Upload, record what is not recorded yet, submit."""
        gpu = self._gpu
        self._submit_recorded()
        run = self._dispatch
        # What is only read back is not written yet, and a cancelled await need not wait for the
        # driver, which may take as long as the work before.
        section = self.cancellation.section() if run.written else contextlib.nullcontext()
        with gpu.submit_lock, section:
            if run.written:
                self.check_not_cancelled()
            run.check_usable()
            for buffer, contents in run.uploads:
                gpu.queue.write_buffer(buffer, 0, contents)
            recorded = None if self._ahead is None else self._ahead.take()
            if recorded is None:
                recorded = self._record(gpu.queue.submit)
            gpu.queue.submit([recorded.commands])
        return recorded

    def _record(self, submit: Callable[[Sequence[Any]], None] | None = None) -> Recorded:
        """Record the run; `submit` is given its first pieces before the last one is recorded."""
        gpu, run = self._gpu, self._dispatch
        encoder = gpu.encoder("MLAwaitedExecution")
        for record in run.before:
            record(encoder)
        *first, last = self._loaded.pieces(run.places)
        for piece in first:
            record_pass(encoder, piece)
            if submit is not None:
                submit([encoder.finish()])
                encoder = gpu.encoder("MLAwaitedExecution")
        record_pass(encoder, last)
        for record in run.after:
            record(encoder)
        results = [
            (gpu.staging.copy(encoder, place), number) for number, place in run.downloads.items()
        ]
        fence = None if results else gpu.staging.fence(encoder)
        return Recorded(encoder.finish(), results, fence)

    def _record_ahead(self) -> None:
        """Record the next run while the device works on this one."""
        ahead = self._ahead
        if ahead is not None and ahead.is_wanted():
            # Who reads this run back is told what is wrong with the device.
            with contextlib.suppress(MLError), device_errors("recording a graph"):
                ahead.keep(self._record())

    def memory(self) -> tuple[list[Region], list[Region]]:
        """The user's resources of the device, and the arrays that results are read back into."""
        run = self._dispatch
        written = [*run.written.values(), *self._given]
        return [region_of(span) for span in run.read], [region_of(target) for target in written]

    def release(self) -> None:
        """Keep the copies of host arrays no more."""
        self._dispatch.uploads = []

    def _read(self, recorded: Recorded, pace: Pace | None = None) -> None:
        gpu, outputs = self._gpu, self._outputs
        try:
            with device_errors("reading a graph's outputs"):
                results = [(buffer, outputs[number]) for buffer, number in recorded.results]
                gpu.staging.read(results, self.cancellation, pace)
                if recorded.fence is not None:
                    gpu.staging.wait(recorded.fence)
        except BaseException as error:
            self.done.set_exception(error)
        else:
            self.done.set_result(None)

    def results(self) -> list[Any]:
        """What was given, or the arrays that were made."""
        return self._outputs

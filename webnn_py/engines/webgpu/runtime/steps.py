"""The dispatches of a compiled graph on a device, as far as they are the same for all its sizes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from webnn_py.engines.webgpu.program.storage import aligned
from webnn_py.engines.webgpu.runtime.devices.device import Device
from webnn_py.engines.webgpu.runtime.devices.errors import device_errors
from webnn_py.engines.webgpu.runtime.devices.pipelines import PipelineKey

if TYPE_CHECKING:
    from webnn_py.engines.webgpu.compiler.kernel import Kernel, Part
    from webnn_py.engines.webgpu.compiler.template import Template

WORD = 4
"""Bytes."""


@dataclass(frozen=True, slots=True)
class Step:
    """One dispatch.

    Attributes:
        kernel: What is run.
        pipeline: The kernel compiled.
        layout: Its bind group's layout.
        parts: What is bound, in order; the last one is written.
        words: Where the words lie that it reads, in the buffer of those of all, and their bytes.
            Bound behind the parts, if it reads any.
    """

    kernel: Kernel
    pipeline: Any
    layout: Any
    parts: tuple[Part, ...]
    words: tuple[int, int]


class Steps:
    """All dispatches of a graph.

    Args:
        gpu: The device.
        template: What runs.
        meanwhile: What this thread does until pipelines are there.

    Attributes:
        all: The dispatches, in order.
    """

    def __init__(self, gpu: Device, template: Template, meanwhile: Callable[[], None]) -> None:
        by_code = {kernel.code: kernel for kernel in template.kernels}
        made = gpu.pipelines.get_all(
            ((kernel.name, PipelineKey.of_graph(kernel)) for kernel in by_code.values()), meanwhile
        )
        pipelines = {
            code: (pipeline, _layout_of(pipeline, kernel.name))
            for (code, kernel), pipeline in zip(by_code.items(), made, strict=True)
        }
        self.all: list[Step] = []
        self._size = 0  # of the buffer of words
        sources: list[int] = []
        targets: list[int] = []
        for kernel, reads in zip(template.kernels, template.reads, strict=True):
            begin, size = self._size, -(-len(reads) // 4) * 4 * WORD
            sources += reads
            targets += range(begin // WORD, begin // WORD + len(reads))
            parts = (*kernel.reads, *kernel.writes)
            self.all.append(Step(kernel, *pipelines[kernel.code], parts, (begin, size)))
            self._size += aligned(size)
        self._sources, self._targets = np.array(sources, np.intp), np.array(targets, np.intp)

    def contents(self, words: Sequence[int]) -> np.ndarray[Any, Any]:
        """What the buffer of words holds, as bytes.

        Args:
            words: All that there are, as `Compiled.words`.
        """
        made = np.zeros(self._size // WORD, np.uint32)
        made[self._targets] = np.array(words, np.uint32)[self._sources]
        return made.view(np.uint8)


def _layout_of(pipeline: Any, name: str) -> Any:
    """Of the bind group of a pipeline."""
    with device_errors(f"binding {name}"):
        return pipeline.get_bind_group_layout(0)

"""Copies of results that end within a word: the bytes behind them stay as they are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from webnn_py.engines.webgpu.runtime.binding import Binding, copy_binding
from webnn_py.engines.webgpu.runtime.device import Device
from webnn_py.engines.webgpu.runtime.loaded import COPIES, STORAGE

WORD = 4


def copy_exactly(gpu: Device, source: Binding, target: Binding, size: int) -> Callable[[Any], None]:
    """What records the copy of `size` bytes, though copies are of whole words.

    The last word of both is brought together in a buffer of its own, merged there, and put back.
    """
    whole = size // WORD * WORD
    if whole == size:
        return lambda encoder: copy_binding(encoder, source, target)
    pipeline = gpu.pipelines.get("the end of a result", _merging(size - whole))
    words = gpu.buffer(2 * WORD, STORAGE | COPIES, "the end of a result")
    entry = {"binding": 0, "resource": {"buffer": words, "offset": 0, "size": 2 * WORD}}
    layout = pipeline.get_bind_group_layout(0)
    group = gpu.handle.create_bind_group(layout=layout, entries=[entry])

    def record(encoder: Any) -> None:
        if whole:
            copy_binding(encoder, _first(source, whole), _first(target, whole))
        for place, binding in enumerate((source, target)):
            start = binding.offset + whole
            encoder.copy_buffer_to_buffer(binding.buffer, start, words, place * WORD, WORD)
        compute = encoder.begin_compute_pass()
        compute.set_pipeline(pipeline)
        compute.set_bind_group(0, group)
        compute.dispatch_workgroups(1)
        compute.end()
        encoder.copy_buffer_to_buffer(words, 0, target.buffer, target.offset + whole, WORD)

    return record


def _first(binding: Binding, size: int) -> Binding:
    return Binding(binding.buffer, binding.offset, size)


def _merging(used: int) -> str:
    """A kernel that gives the first word the bytes of the second from byte `used` on."""
    mask = (1 << 8 * used) - 1
    return f"""@group(0) @binding(0) var<storage, read_write> words: array<u32, 2>;
@compute @workgroup_size(1)
fn main() {{ words[0] = (words[0] & {mask}u) | (words[1] & {mask ^ 0xFFFFFFFF}u); }}
"""

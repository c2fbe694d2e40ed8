"""Horizontal fusion: independent kernels run as one dispatch.

A small kernel leaves most of a large GPU idle, and dispatches that share a written buffer run one
after the other.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from webnn_py.core.traced_queries import can_defer, sampled
from webnn_py.engines.webgpu.compiler.horizontal_fusion_wgsl import (
    bound_parts,
    common_arrays,
    common_invocations,
    fused_kernel,
    fusible_shader,
    is_independent,
    workgroups_of,
)
from webnn_py.engines.webgpu.compiler.kernel import Kernel, Shader
from webnn_py.engines.webgpu.program.storage import Features
from webnn_py.ir import Value

MAX_INVOCATIONS = 3000 * 64
"""Invocations of a kernel up to which it leaves processors of a large GPU idle."""

MAX_EARLY_WGSL_CHARS = 4_000
"""Characters of WGSL that drivers compile in 50 ms.

A fused kernel compiles more slowly than its parts, above all than parts that differ only in their
buffers, which share a pipeline.
"""

WINDOW = 24
"""Kernels among which independent ones are looked for, so that no early result waits long."""


@dataclass(slots=True)
class _Step:
    """A kernel that is not yet emitted.

    Attributes:
        kernel: The kernel.
        shader: Its shader; None if it has to run alone.
        needs: Numbers of the unfinished kernels that have to run before it.
    """

    kernel: Kernel
    shader: Shader | None
    needs: set[int]


def fuse_abreast(kernels: Iterable[Kernel], features: Features) -> Iterator[Kernel]:
    """Yield kernels in an order that keeps dependencies, with independent ones fused.

    Args:
        kernels: Kernels in order.
        features: The device. Software adapters gain nothing, so their kernels stay as they are.
    """
    if features.kind == "cpu":
        yield from kernels
        return
    waiting: dict[int, _Step] = {}
    order = _Order()
    for number, kernel in enumerate(kernels):
        needs = {other for other in order.before(number, kernel) if other in waiting}
        waiting[number] = _Step(kernel, _fusible(kernel), needs)
        while waiting and number - next(iter(waiting)) >= WINDOW - 1:
            yield _next(waiting, features)
    while waiting:
        yield _next(waiting, features)


def _next(waiting: dict[int, _Step], features: Features) -> Kernel:
    """Remove the first waiting kernel and those that can run beside it; return them as one."""
    first, *others = waiting
    chosen = [first]
    if waiting[first].shader is not None:
        for number in others:
            group = [waiting[other] for other in (*chosen, number)]
            if not waiting[number].needs and _fits(group, features):
                chosen.append(number)
    steps = [waiting.pop(number) for number in chosen]
    for step in waiting.values():
        step.needs.difference_update(chosen)
    if len(steps) == 1:
        return steps[0].kernel
    return fused_kernel(_pairs(steps))


def _pairs(steps: Iterable[_Step]) -> list[tuple[Kernel, Shader]]:
    """Return the kernels that can be fused, with their shaders."""
    return [(step.kernel, step.shader) for step in steps if step.shader is not None]


class _Order:
    """The dependencies between kernels.

    Kernels of different roots that write one buffer write different parts of it, as those of a
    concat's operands do. They do not depend on each other.
    """

    def __init__(self) -> None:
        self._roots: list[tuple[Value, ...]] = []
        self._writers: dict[Value, list[int]] = {}
        self._readers: dict[Value, list[int]] = {}

    def before(self, number: int, kernel: Kernel) -> set[int]:
        """Add the next kernel and return the numbers of those that must run before it."""
        self._roots.append(kernel.roots)
        found: set[int] = set()
        for part in kernel.reads:
            found.update(self._writers.get(part.value, ()))
            self._readers.setdefault(part.value, []).append(number)
        for part in kernel.writes:
            found.update(self._readers.get(part.value, ()))
            writers = self._writers.setdefault(part.value, [])
            found.update(other for other in writers if self._roots[other] == kernel.roots)
            writers.append(number)
        return found - {number}


def _fusible(kernel: Kernel) -> Shader | None:
    """Return the shader of a kernel that may run beside others, else None."""
    shader = fusible_shader(kernel) if kernel.times == 1 else None
    if shader is None:
        return None
    x, y, z = kernel.workgroups
    is_large = sampled(x * y * z) * shader.entry.invocations > MAX_INVOCATIONS
    return None if is_large or (is_independent(shader) and y * z > 1) else shader


def _fits(steps: Sequence[_Step], features: Features) -> bool:
    """Whether kernels have workgroups of one size, and one dispatch within the device's limits."""
    pairs = _pairs(steps)
    if len(pairs) < len(steps):
        return False
    shaders = [shader for _, shader in pairs]
    if len({s.entry.invocations for s in shaders if not is_independent(s)}) > 1:
        return False
    bound = {part for pair in pairs for part in bound_parts(*pair)}
    written = [each.part for each in bound if each.is_written]
    # WebGPU binds a written buffer only once. A kernel never joins one whose results it reads,
    # because that one is among the kernels that it needs.
    if len(set(written)) < len(written):
        return False
    invocations = common_invocations(shaders)
    memory = sum(array.bytes for array in common_arrays(shaders).values())
    return (
        len(bound) <= features.max_bindings
        and memory <= features.workgroup_bytes
        and sum(workgroups_of(*pair, invocations) for pair in pairs) <= features.grid
        and not _is_long([step.kernel for step in steps])
    )


def _is_long(kernels: Sequence[Kernel]) -> bool:
    """Whether compiling the fused kernel takes too long to do it before the first run."""
    length = sum(len(kernel.code) for kernel in kernels)
    numbers = (number for kernel in kernels for number in kernel.workgroups)
    return length > MAX_EARLY_WGSL_CHARS and can_defer(*numbers)

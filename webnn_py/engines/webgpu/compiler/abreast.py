"""Kernels that do not depend on each other, as one dispatch: horizontal fusion.

WebGPU runs one dispatch after the other where a buffer is written, and a small kernel leaves most of
a large GPU idle.
"""

from __future__ import annotations

from collections.abc import Sequence

from webnn_py.engines.webgpu.compiler.abreast_code import (
    Code,
    bindings_of,
    bytes_of,
    joined,
    read_code,
    shared_of,
    workgroups_of,
)
from webnn_py.engines.webgpu.compiler.kernel import Kernel
from webnn_py.engines.webgpu.program.storage import Features
from webnn_py.ir import Value

MOST_INVOCATIONS = 3000 * 64
"""Of a kernel that leaves processors idle."""

WINDOW = 24
"""Kernels among which one looks for others: those from far behind would keep their results long."""


def fuse_abreast(kernels: Sequence[Kernel], features: Features) -> list[Kernel]:
    """The kernels, those that can run side by side as one.

    Args:
        kernels: In order.
        features: What the device has. Software adapters gain nothing.
    """
    if features.kind == "cpu":
        return list(kernels)
    waits = _dependencies(kernels)
    codes = [_joinable(kernel) for kernel in kernels]
    done = [False] * len(kernels)
    made: list[Kernel] = []
    for number in range(len(kernels)):
        if done[number]:
            continue
        chosen = [number]
        others = range(number + 1, min(number + WINDOW, len(kernels)) if codes[number] else 0)
        for other in others:
            if done[other] or codes[other] is None or not all(done[n] for n in waits[other]):
                continue
            if _fits(kernels, codes, [*chosen, other], features):
                chosen.append(other)
        for each in chosen:
            done[each] = True
        if len(chosen) == 1:
            made.append(kernels[number])
        else:
            found = [codes[n] for n in chosen]
            made.append(joined([kernels[n] for n in chosen], [code for code in found if code]))
    return made


def _dependencies(kernels: Sequence[Kernel]) -> list[set[int]]:
    """By kernel, those before it that have to be done first.

    Kernels of several values that write one buffer, as concats have it, write apart from each other.
    """
    writers: dict[Value, list[int]] = {}
    readers: dict[Value, list[int]] = {}
    found: list[set[int]] = []
    for number, kernel in enumerate(kernels):
        before: set[int] = set()
        for part in kernel.reads:
            before.update(writers.get(part.value, ()))
        for part in kernel.writes:
            before.update(readers.get(part.value, ()))
            written = writers.get(part.value, ())
            before.update(n for n in written if kernels[n].roots == kernel.roots)
        found.append(before)
        for part in kernel.reads:
            readers.setdefault(part.value, []).append(number)
        for part in kernel.writes:
            writers.setdefault(part.value, []).append(number)
    return found


def _joinable(kernel: Kernel) -> Code | None:
    """The code of a kernel that may run beside others."""
    code = read_code(kernel.code) if kernel.times == 1 else None
    if code is None:
        return None
    x, y, z = kernel.workgroups
    if x * y * z * code.invocations > MOST_INVOCATIONS:
        return None
    return None if code.is_independent and y * z > 1 else code


def _fits(
    kernels: Sequence[Kernel],
    codes: Sequence[Code | None],
    numbers: Sequence[int],
    features: Features,
) -> bool:
    """Whether kernels are of one size of workgroups, and within the device's limits as one."""
    pairs = [(kernels[n], code) for n in numbers if (code := codes[n])]
    sizes = {code.invocations for _, code in pairs if not code.is_independent}
    if len(sizes) > 1:
        return False
    found = {binding for pair in pairs for binding in bindings_of(*pair)}
    written = [binding.part for binding in found if binding.access != "read"]
    read = {binding.part.value for binding in found if binding.access == "read"}
    if len(found) > features.max_bindings or len(set(written)) < len(written):
        return False
    if any(part.value in read for part in written):
        return False
    shared = shared_of([code for _, code in pairs])
    if sum(bytes_of(kind) for _, kind in shared) > features.workgroup_bytes:
        return False
    invocations = next(iter(sizes), 64)
    return sum(workgroups_of(*pair, invocations) for pair in pairs) <= features.grid

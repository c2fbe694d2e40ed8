"""Requirements of a program's variants, and their comparison with a device."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from webnn_py.core.errors import NotSupportedError
from webnn_py.engines.webgpu.program.plan import Argument, Plan, ProgramKernel, Step, Variant

DEFAULT_LIMITS = {
    "maxBufferSize": 268435456,
    "maxStorageBufferBindingSize": 134217728,
    "maxStorageBuffersPerShaderStage": 8,
    "maxComputeWorkgroupStorageSize": 16384,
    "maxComputeInvocationsPerWorkgroup": 256,
    "maxComputeWorkgroupSizeX": 256,
    "maxComputeWorkgroupSizeY": 256,
    "maxComputeWorkgroupSizeZ": 64,
    "maxComputeWorkgroupsPerDimension": 65535,
}
"""Limits that every WebGPU device has, by WebGPU's names; source: WebGPU, "Limits"."""


@dataclass(frozen=True, slots=True)
class Workgroup:
    """A workgroup of a kernel.

    Attributes:
        size: Invocations along x, y and z; None where unknown.
        bytes: Size of its variables in the workgroup address space.
    """

    size: tuple[int | None, ...] = (None, None, None)
    bytes: int = 0


def limits_of(
    arguments: Sequence[Argument],
    kernels: Sequence[ProgramKernel],
    workgroups: Sequence[Workgroup] | None,
    buffers: Sequence[int],
    steps: Sequence[Step],
) -> dict[str, int]:
    """Return the limits above the defaults that a variant needs, as far as they are known.

    Args:
        arguments: The program's arguments.
        kernels: The program's kernels.
        workgroups: The workgroup of each kernel; None if unknown.
        buffers: Sizes in bytes of the variant's own buffers.
        steps: The variant's steps.
    """
    needed = dict(DEFAULT_LIMITS)

    def need(name: str, value: int) -> None:
        needed[name] = max(needed[name], value)

    for size in (*buffers, *(argument.size for argument in arguments)):
        need("maxBufferSize", size)
    for step in steps:
        layouts = kernels[step.kernel].bindings
        storage = [p for p, b in zip(step.places, layouts, strict=True) if b.type != "uniform"]
        need("maxStorageBuffersPerShaderStage", len(storage))
        for place in storage:
            need("maxStorageBufferBindingSize", place.size)
        need("maxComputeWorkgroupsPerDimension", max(step.workgroups))
        if workgroups is None:
            continue
        group = workgroups[step.kernel]
        need("maxComputeWorkgroupStorageSize", group.bytes)
        sizes = [1 if size is None else size for size in group.size]
        for axis, size in zip("XYZ", sizes, strict=True):
            need(f"maxComputeWorkgroupSize{axis}", size)
        need("maxComputeInvocationsPerWorkgroup", sizes[0] * sizes[1] * sizes[2])
    return {name: value for name, value in needed.items() if value > DEFAULT_LIMITS[name]}


@dataclass(frozen=True, slots=True)
class DeviceCapabilities:
    """The capabilities of a device, by WebGPU's names.

    Attributes:
        hardware: Whether it is a GPU, not a software adapter.
        features: The enabled features.
        limits: The device's limits.
        subgroup_matrices: Matrix products that subgroups compute: component types of the factors
            and of the result, M, N and K.
    """

    hardware: bool
    features: frozenset[str]
    limits: Mapping[str, int]
    subgroup_matrices: tuple[tuple[str, str, int, int, int], ...] = ()


def missing_requirements(plan: Plan, variant: Variant, offer: DeviceCapabilities) -> list[str]:
    """Describe the requirements of a variant that a device does not meet.

    Includes limits that follow from the plan but are absent from the variant's own list.
    """
    missing = [f"the feature {name}" for name in variant.features if name not in offer.features]
    if variant.adapter == ("software" if offer.hardware else "hardware"):
        missing.append(f"a {variant.adapter} adapter")
    sizes = [buffer.size for buffer in variant.buffers]
    limits = limits_of(plan.arguments, plan.kernels, None, sizes, variant.steps)
    limits |= {n: max(value, limits.get(n, 0)) for n, value in variant.limits.items()}
    for name, value in limits.items():
        if name not in offer.limits:
            missing.append(f"the limit {name}, which it does not know")
        elif offer.limits[name] < value:
            missing.append(f"{name} of {value} (it has {offer.limits[name]})")
    return missing


def choose_variant(plan: Plan, offer: DeviceCapabilities) -> Variant:
    """Return the first variant that a device can run.

    Raises:
        NotSupportedError: It can run none; the message lists what each one lacks.
    """
    said = []
    for number, variant in enumerate(plan.variants):
        missing = missing_requirements(plan, variant, offer)
        if not missing:
            return variant
        said.append(f"variant {number} needs {', '.join(missing)}")
    raise NotSupportedError(f"this device cannot run the program: {'; '.join(said)}")

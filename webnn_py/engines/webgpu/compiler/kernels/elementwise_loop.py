"""Kernels whose invocations do the same by themselves, each for its number."""

from __future__ import annotations

from webnn_py.engines.webgpu.compiler.kernel import Kernel, Part, grid, place_in
from webnn_py.engines.webgpu.compiler.kernel_builder import Body, KernelBuilder


def for_each(
    builder: KernelBuilder,
    body: Body,
    name: str,
    count: int,
    part: Part | None = None,
    workgroup: int = 64,
) -> Kernel:
    """A kernel that runs the body with each number `i` below the count.

    Args:
        builder: Of the kernel.
        body: What it does, without a result.
        name: For labels and listings.
        count: How many numbers.
        part: What it writes of the root; None for the whole.
        workgroup: Invocations of a workgroup, where the device has as many.
    """
    builder.function("write", "i: u32", "", body)
    workgroup = min(workgroup, builder.features.invocations)
    groups = grid(-(-count // workgroup), builder.features.grid)
    main = f"""@compute @workgroup_size({workgroup})
fn main(@builtin(global_invocation_id) g: vec3<u32>) {{
  let i = {place_in(groups, workgroup)};
  if (i < {count}u) {{ write(i); }}
}}"""
    return builder.finish(name, main, groups, part)

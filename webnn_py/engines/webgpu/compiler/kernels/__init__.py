"""Kernels: WGSL that computes one stored value, from the template that suits its loop."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from webnn_py.engines.webgpu.compiler.kernel import Kernel
from webnn_py.engines.webgpu.compiler.kernel_builder import Make
from webnn_py.engines.webgpu.compiler.kernels import (
    arg_kernel,
    attention_kernel,
    conv_direct,
    elementwise_kernel,
    product_kernel,
    reduce_kernel,
    row_kernel,
    scan_kernel,
    scatter_kernel,
    sequence_kernel,
)
from webnn_py.engines.webgpu.compiler.legalize.attention import ATTENTION
from webnn_py.engines.webgpu.compiler.legalize.sequences import STEPS
from webnn_py.ir import Node

OWN: Mapping[str, Callable[[Make, Node], list[Kernel]]] = {
    STEPS: sequence_kernel.emit,
    ATTENTION: attention_kernel.emit,
}
"""Emitters for the compiler's own operators."""

_TEMPLATES = (
    conv_direct.emit,
    product_kernel.emit,
    row_kernel.emit,
    reduce_kernel.emit,
    arg_kernel.emit,
    scan_kernel.emit,
)
"""Templates for a kernel with a loop, in the order of trial; each returns None to decline."""


def emit(make: Make, node: Node | None) -> list[Kernel]:
    """Return the kernels that write a root: one, or one for each part of a large root.

    Scatters, split-K products and the compiler's own operators take several.

    Args:
        make: Creates the builder of a kernel that writes the root.
        node: The node whose loop the kernel runs; operators before and after it are fused. None if
            there is no loop.
    """
    if node is not None and node.op in OWN:
        return OWN[node.op](make, node)
    scattering = None if node is None else scatter_kernel.emit(make, node)
    if scattering is not None:
        return scattering
    split_k = None if node is None else product_kernel.emit_split_k(make, node)
    if split_k is not None:
        return split_k
    builder = make()
    parts = builder.parts(builder.root)
    if node is not None and len(parts) == 1:
        for template in _TEMPLATES:
            kernel = template(make(), node)
            if kernel is not None:
                return [kernel]
    return [elementwise_kernel.emit(make(), node, part) for part in parts]

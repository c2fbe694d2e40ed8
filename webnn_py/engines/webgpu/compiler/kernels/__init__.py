"""Kernels: WGSL that computes one stored value, from the template that suits its loop.

A template is a module with a function that returns kernels or declines, and a line in one of the
lists here. It declares bindings, arrays and functions by `KernelBuilder` and `EntryPoint`, and
writes numbers, loops and the names of these by `program/pieces.py`.
"""

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
from webnn_py.engines.webgpu.compiler.legalize.integer_products import (
    CODES_CONVOLUTION,
    CODES_PRODUCT,
)
from webnn_py.engines.webgpu.compiler.legalize.packed_products import PACKED_PRODUCT
from webnn_py.engines.webgpu.compiler.legalize.sequences import STEPS
from webnn_py.engines.webgpu.compiler.legalize.split_products import (
    SPLIT_CONVOLUTION,
    SPLIT_PRODUCT,
)
from webnn_py.ir import Node

OWN: Mapping[str, Callable[[Make, Node], list[Kernel]]] = {
    STEPS: sequence_kernel.emit,
    ATTENTION: attention_kernel.emit,
    CODES_PRODUCT: product_kernel.emit_whole,
    CODES_CONVOLUTION: product_kernel.emit_whole,
    PACKED_PRODUCT: product_kernel.emit_packed,
    SPLIT_PRODUCT: product_kernel.emit_product,
    SPLIT_CONVOLUTION: product_kernel.emit_product,
}
"""Emitters for the compiler's own operators."""

_OF_SEVERAL = (scatter_kernel.emit, product_kernel.emit_split_k)
"""Templates of several kernels, in the order of trial; each returns None to decline."""

_TEMPLATES = (
    conv_direct.emit,
    product_kernel.emit,
    row_kernel.emit,
    reduce_kernel.emit,
    arg_kernel.emit,
    scan_kernel.emit,
)
"""Templates of one kernel with a loop, in the order of trial, for roots with one binding."""


def emit(make: Make, node: Node | None) -> list[Kernel]:
    """Return the kernels that write a root: one, or one for each part of a large root.

    Scatters, split-K products and the compiler's own operators take several.

    Args:
        make: Creates the builder of a kernel that writes the root.
        node: The node whose loop the kernel runs; operators before and after it are fused. None if
            there is no loop.
    """
    if (states := scatter_kernel.emit_in_place(make)) is not None:
        return states
    if node is None:
        return _elementwise(make, node)
    if node.op in OWN:
        return OWN[node.op](make, node)
    for several in _OF_SEVERAL:
        kernels = several(make, node)
        if kernels is not None:
            return kernels
    builder = make()
    for template in _TEMPLATES if builder.is_whole(builder.root) else ():
        kernel = template(make(), node)
        if kernel is not None:
            return [kernel]
    return _elementwise(make, node)


def _elementwise(make: Make, node: Node | None) -> list[Kernel]:
    """Return the kernels that compute each element of a root, one for each of its parts."""
    builder = make()
    return [elementwise_kernel.emit(make(), node, part) for part in builder.parts(builder.root)]

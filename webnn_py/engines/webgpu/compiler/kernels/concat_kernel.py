"""What is left of a concat that its operands' kernels write in place: the other operands."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from webnn_py.engines.webgpu.compiler.code.affine import slice_map
from webnn_py.engines.webgpu.compiler.code.index import symbol
from webnn_py.engines.webgpu.compiler.kernel import Kernel
from webnn_py.engines.webgpu.compiler.kernel_builder import Body, KernelBuilder
from webnn_py.engines.webgpu.compiler.kernels.elementwise_loop import for_each
from webnn_py.ir import Node


def emit(builder: KernelBuilder, node: Node, left: Sequence[int]) -> Kernel:
    """The kernel that writes some operands to their places.

    Args:
        builder: Of the kernel.
        node: The concat.
        left: The operands, by their number.
    """
    operands, axis, shape = list(node.operands), node.attrs["axis"], node.output.shape
    starts = list(itertools.accumulate((v.shape[axis] for v in operands), initial=0))
    count = sum(operands[number].size for number in left)
    body = Body(builder)
    first = 0
    for number in left:
        value = operands[number]
        own = symbol("i", count) - first
        first += value.size
        start = [starts[number] if d == axis else 0 for d in range(value.rank)]
        with body.block(f"if (i < {first}u)" if first < count else ""):
            own = body.let(own.below(value.size), "own")
            view = slice_map(shape, start, value.shape, [1] * value.rank)
            body.store(view.at(own), body.load(value, own))
            body.line("return;")
    return for_each(builder, body, node.op, count)

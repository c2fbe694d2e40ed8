"""Operands of the templates as strided memory: views resolved to the buffer beneath."""

from __future__ import annotations

from dataclasses import dataclass

from webnn_py.core import shapes
from webnn_py.engines.webgpu.compiler.code.affine import Affine
from webnn_py.engines.webgpu.compiler.code.index import symbol
from webnn_py.engines.webgpu.compiler.inplace_concat import is_row_major
from webnn_py.engines.webgpu.compiler.kernel_builder import Body, KernelBuilder
from webnn_py.engines.webgpu.compiler.lower.registry import VIEWS
from webnn_py.ir import Value


@dataclass(frozen=True, slots=True)
class Strided:
    """A value as elements of a stored one.

    Attributes:
        stored: The value in whose buffer the elements lie.
        strides: Step of each dimension of the value, in elements of the buffer.
        offset: Place of the first element.
    """

    stored: Value
    strides: tuple[int, ...]
    offset: int = 0

    def is_row_major(self, value: Value) -> bool:
        """Whether the elements lie one after the other, as if the value itself were stored."""
        return is_row_major(Affine(value.shape, self.strides))


def resolve(builder: KernelBuilder, value: Value, source: Value | None = None) -> Strided | None:
    """The strided memory of a value; None where it is computed or no single stride fits.

    Args:
        builder: Of the kernel.
        value: The value.
        source: What is computed, and counts as if it were stored.
    """
    if value is source:
        return Strided(value, shapes.strides(value.shape))
    if builder.scalar(value) is not None:
        return None
    if not builder.computes(value):
        place = builder.places.view(value)
        return Strided(builder.places.buffer_of(value), place.strides, place.offset)
    node = builder.producers[value]
    if node.op not in VIEWS:
        return None
    operand = next(node.operands)
    inner = resolve(builder, operand, source)
    if inner is None or not inner.is_row_major(operand):
        return None
    if node.op == "reshape":
        return Strided(inner.stored, shapes.strides(value.shape), inner.offset)
    view = VIEWS[node.op](node, node.outputs.index(value))
    # A tile has more than one stride a dimension; a reverse has negative ones.
    if view.sizes != value.shape or any(step < 0 for step in view.strides):
        return None
    return Strided(inner.stored, view.strides, inner.offset + view.offset)


def reshaped(builder: KernelBuilder, value: Value) -> tuple[Value, Strided] | None:
    """What a value reshapes, and its strided memory; None where there is no such memory."""
    node = builder.producers[value] if builder.computes(value) else None
    if node is None or node.op != "reshape":
        return None
    operand = next(node.operands)
    inner = resolve(builder, operand)
    return None if inner is None else (operand, inner)


def loader(builder: KernelBuilder, function: str, value: Value) -> None:
    """A function of `i` that gives a value's element at a flat index, whatever it takes."""
    body = Body(builder)
    result = body.load(value, symbol("i"))
    body.line(f"return {result};")
    builder.function(function, "i: u32", builder.storage(value).compute, body)

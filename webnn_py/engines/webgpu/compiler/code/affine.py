"""Affine maps from one flat index to another."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from webnn_py.core import shapes
from webnn_py.engines.webgpu.compiler.code.index import Index, total


@dataclass(frozen=True, slots=True)
class Affine:
    """The flat index `offset + sum(coordinate[d] * stride[d])` over dimensions of these sizes.

    Attributes:
        sizes: Dimensions of the source index space, row-major.
        strides: Steps in the target space, in elements; may be 0 or negative.
        offset: Target index of the source's first element.
    """

    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int = 0

    def collapsed(self) -> Affine:
        """Return the same map with as few dimensions as possible."""
        merged: list[tuple[int, int]] = []
        for size, stride in zip(self.sizes, self.strides, strict=True):
            if size == 1:
                continue
            if merged and merged[-1][1] == stride * size:
                merged[-1] = (merged[-1][0] * size, stride)
            else:
                merged.append((size, stride))
        return Affine(tuple(s for s, _ in merged), tuple(t for _, t in merged), self.offset)

    @property
    def identity(self) -> bool:
        """Whether it maps every index to itself."""
        small = self.collapsed()
        return small.offset == 0 and small.strides in ((), (1,))

    def at(self, index: Index) -> Index:
        """Return the target index of the flat source index `index`."""
        small = self.collapsed()
        index = index.below(math.prod(small.sizes))
        inner = shapes.strides(small.sizes)
        terms = [
            index // after % size * stride
            for size, stride, after in zip(small.sizes, small.strides, inner, strict=True)
            if stride
        ]
        return total(terms) + small.offset


def broadcast_map(shape: Sequence[int], target: Sequence[int]) -> Affine:
    """Return the map from an index of `target` to the element of `shape` that broadcasts there."""
    own = shapes.strides(shape)
    lead = len(target) - len(shape)
    steps = [0] * lead + [
        0 if size == 1 else stride for size, stride in zip(shape, own, strict=True)
    ]
    return Affine(tuple(target), tuple(steps))


def transpose_map(shape: Sequence[int], permutation: Sequence[int]) -> Affine:
    """Return the map from an index of the transposed tensor to the original's."""
    own = shapes.strides(shape)
    return Affine(
        tuple(shape[axis] for axis in permutation), tuple(own[axis] for axis in permutation)
    )


def slice_map(
    shape: Sequence[int], starts: Sequence[int], sizes: Sequence[int], steps: Sequence[int]
) -> Affine:
    """Return the map from an index of a slice with output sizes `sizes` to the original's."""
    own = shapes.strides(shape)
    offset = sum(start * stride for start, stride in zip(starts, own, strict=True))
    moved = tuple(step * stride for step, stride in zip(steps, own, strict=True))
    return Affine(tuple(sizes), moved, offset)


def reverse_map(shape: Sequence[int], axes: Sequence[int]) -> Affine:
    """Return the map from an index of the reversed tensor to the original's."""
    own = shapes.strides(shape)
    steps = tuple(-s if axis in axes else s for axis, s in enumerate(own))
    offset = sum((shape[axis] - 1) * own[axis] for axis in axes)
    return Affine(tuple(shape), steps, offset)


def subset_map(shape: Sequence[int], axes: Sequence[int]) -> Affine:
    """Return the map from an index over the dimensions `axes`, in their order, to the tensor's."""
    own = shapes.strides(shape)
    return Affine(tuple(shape[axis] for axis in axes), tuple(own[axis] for axis in axes))


def coordinate(shape: Sequence[int], axis: int, index: Index) -> Index:
    """Return the coordinate along `axis` of the flat index `index`."""
    return index.below(math.prod(shape)) // shapes.strides(shape)[axis] % shape[axis]


def repeated_map(shape: Sequence[int], outer: Sequence[int], inner: Sequence[int]) -> Affine:
    """Return the map from an index of a tensor with repeated dimensions to the original's.

    Each dimension is repeated `outer` times as a whole, and each of its elements `inner` times.
    """
    own = shapes.strides(shape)
    sizes = [part for parts in zip(outer, shape, inner, strict=True) for part in parts]
    steps = [step for stride in own for step in (0, stride, 0)]
    return Affine(tuple(sizes), tuple(steps))

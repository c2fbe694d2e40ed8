"""Deformable convolution and RoiAlign, which sample images at computed positions."""

from __future__ import annotations

import functools
import math
from typing import Any

import numpy as np

from webnn_py.onnx.emitter import Emitter
from webnn_py.onnx.handlers.sampling import corners
from webnn_py.onnx.handlers.windows import edges, steps_of
from webnn_py.onnx.registry import handles
from webnn_py.onnx.tensor import Tensor, at_least, check_rank, choice, refuse


@handles("DeformConv")
def deform_conv(
    g: Emitter,
    x: Tensor,
    w: Tensor,
    offset: Tensor,
    b: Tensor | None = None,
    mask: Tensor | None = None,
    *,
    dilations: list[int] | None = None,
    group: int = 1,
    kernel_shape: list[int] | None = None,
    offset_group: int = 1,
    pads: list[int] | None = None,
    strides: list[int] | None = None,
) -> Any:
    """Convolve with offsets that move each tap: sample the image, then multiply matrices."""
    if x.rank != 4:
        refuse(f"a deformable convolution of {x.rank - 2} dimensions")
    check_rank(4, w=w, offset=offset, mask=mask)
    check_rank(1, b=b)
    at_least("group", group, 1)
    at_least("offset_group", offset_group, 1)
    strides, dilations = steps_of(2, strides, dilations)
    before = [low for low, _ in edges(2, pads)]
    batch, channels, *_ = x.shape
    filters, _, *window = w.shape
    size, taps = offset.shape[2:], math.prod(window)
    # One image per batch and offset group, as each has its own positions.
    images = batch * offset_group
    parts = g.reshape(x, [images, channels // offset_group, *x.shape[2:]])
    moves = g.reshape(g.to(offset, "float32"), [images, taps, 2, math.prod(size)])
    places = []
    for axis in (0, 1):
        rows, columns = window[axis], size[axis]
        g.afford(rows * columns, f"the places of {rows} taps in {columns} rows or columns")
        first = np.arange(columns) * strides[axis] - before[axis]
        start = np.arange(rows)[:, None] * dilations[axis] + first
        beside = [1, *(rows if i == axis else 1 for i in (0, 1))]
        beside += [columns if i == axis else 1 for i in (0, 1)]
        base = g.array(start.reshape(beside).astype(np.float32))
        own = g.slice(moves, [0, 0, axis, 0], [images, taps, 1, moves.shape[3]])
        own = g.reshape(own, [images, *window, *size])
        places.append(g.reshape(g.add(own, base), [images, taps * moves.shape[3], 1]))
    sampled = functools.reduce(g.add, corners(g, parts, places))
    if mask is not None:
        sampled = g.mul(sampled, g.reshape(mask, [images, taps * moves.shape[3], 1]))
    # From [images, taps, positions, channels] to [batch, group, channels * taps, positions].
    apart = g.reshape(sampled, [images, taps, moves.shape[3], channels // offset_group])
    columns = g.transpose(apart, permutation=[0, 3, 1, 2])
    rows = channels // group * taps
    columns = g.reshape(columns, [batch, group, rows, moves.shape[3]])
    weights = g.reshape(w, [1, group, filters // group, rows])
    made = g.reshape(g.matmul(weights, columns), [batch, filters, *size])
    return made if b is None else g.add(made, g.reshape(b, [1, filters, 1, 1]))


@handles("RoiAlign", since=16)
def roi_align(
    g: Emitter,
    x: Tensor,
    rois: Tensor,
    batch_indices: Tensor,
    *,
    coordinate_transformation_mode: str = "half_pixel",
    mode: str = "avg",
    output_height: int = 1,
    output_width: int = 1,
    sampling_ratio: int = 0,
    spatial_scale: float = 1.0,
) -> Any:
    """Divide regions into bins; return the mean or maximum of each bin's samples.

    With mode "max", the maximum is over the weighted neighbors of all samples.
    """
    if sampling_ratio < 1:
        refuse("a number of samples that depends on the regions (sampling_ratio = 0)")
    choice("mode", mode, "avg", "max")
    check_rank(4, x=x)
    check_rank(2, rois=rois)
    check_rank(1, batch_indices=batch_indices)
    at_least("output_height", output_height, 1)
    at_least("output_width", output_width, 1)
    half = coordinate_transformation_mode == "half_pixel"
    count, bins = rois.shape[0], (output_height, output_width)
    samples = [n * sampling_ratio for n in bins]
    ends = g.sub(g.mul(rois, float(spatial_scale)), 0.5 if half else 0.0)
    images = g.gather(x, batch_indices, axis=0)
    places, insides = [], []
    for axis in (0, 1):
        first = g.slice(ends, [0, 1 - axis], [count, 1])
        length = g.sub(g.slice(ends, [0, 3 - axis], [count, 1]), first)
        length = length if half else g.max(length, 1.0)
        g.afford(samples[axis], f"{bins[axis]} bins of {sampling_ratio} samples")
        steps = (np.arange(samples[axis], dtype=np.float32)[None] + 0.5) / samples[axis]
        place = g.add(first, g.mul(length, g.constant(steps, x)))
        last = x.shape[2 + axis]
        beyond = g.logical_or(g.lesser(place, -1.0), g.greater(place, float(last)))
        insides.append(g.cast(g.logical_not(beyond), x.data_type))
        held = g.clamp(place, min_value=0, max_value=last - 1)
        shape = [count, *(samples[axis] if i == axis else 1 for i in (0, 1))]
        whole = g.expand(g.reshape(held, shape), [count, *samples])
        places.append(g.reshape(whole, [count, math.prod(samples), 1]))
        insides[axis] = g.reshape(insides[axis], shape)
    inside = g.reshape(g.mul(*insides), [count, math.prod(samples), 1])
    combine = g.add if mode == "avg" else g.max
    made = g.mul(functools.reduce(combine, corners(g, images, places)), inside)
    ratio, channels = sampling_ratio, x.shape[1]
    parted = g.reshape(made, [count, bins[0], ratio, bins[1], ratio, channels])
    pooled = (g.reduce_mean if mode == "avg" else g.reduce_max)(parted, axes=[2, 4])
    return g.transpose(pooled, permutation=[0, 3, 1, 2])


@handles("RoiAlign")
def roi_align_10(
    g: Emitter,
    x: Tensor,
    rois: Tensor,
    batch_indices: Tensor,
    *,
    mode: str = "avg",
    output_height: int = 1,
    output_width: int = 1,
    sampling_ratio: int = 0,
    spatial_scale: float = 1.0,
) -> Any:
    """Handle RoiAlign before opset 16, without the offset of half a pixel."""
    return roi_align(
        g,
        x,
        rois,
        batch_indices,
        coordinate_transformation_mode="output_half_pixel",
        mode=mode,
        output_height=output_height,
        output_width=output_width,
        sampling_ratio=sampling_ratio,
        spatial_scale=spatial_scale,
    )

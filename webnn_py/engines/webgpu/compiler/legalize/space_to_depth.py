"""Convolutions of images by steps of two, as convolutions of their squares by single steps.

Kernels load several neighboring channels at once, but images have three. Space-to-depth makes the
four pixels of each square the channels of one pixel: sixteen of them, which fill whole loads.
Integers only: a float that the added taps multiply by zero may be infinite.
"""

from __future__ import annotations

import numpy as np

from webnn_py.core.dimensions import is_open
from webnn_py.engines.webgpu.compiler.legalize.integer_products import is_integer_product
from webnn_py.engines.webgpu.program.storage import Features
from webnn_py.ir import Array, Node
from webnn_py.ops.convolution import dims
from webnn_py.ops.operand import MLOperand
from webnn_py.passes.rewrite import Rewriter

STEP = 2
"""Height and width of the squares."""
CHANNELS = 4
"""Channels of a pixel in a square. Four pixels of as many bytes fill a load."""


def to_depth(rewriter: Rewriter, node: Node, features: Features) -> list[MLOperand] | None:
    """Return the convolution of an image whose squares are pixels; None where it does not apply."""
    if not _applies(node, features):
        return None
    image, filter_ = (rewriter.map[value] for value in node.inputs[:2] if value is not None)
    array = rewriter.array_of(filter_)
    if array is None:
        return None
    top, left = node.attrs["padding"][::2]
    weights = _squares_of_filter(array, node.attrs["filter_layout"], (top, left))
    height, width = dims(node.output.shape, "nhwc", "hw")
    before = [-(-pad // STEP) for pad in (top, left)]
    taps, sizes = weights.shape[1:3], dims(image.shape, "nhwc", "hw")
    after = [
        count - 1 + tap - pad - size // STEP
        for count, tap, pad, size in zip((height, width), taps, before, sizes, strict=True)
    ]
    return rewriter.apply_again(
        node,
        input=_squares_of_image(rewriter, image),
        filter=rewriter.add_constant(weights, filter_.data_type),
        filter_layout="ohwi",
        padding=[before[0], after[0], before[1], after[1]],
        strides=[1, 1],
    )


def _applies(node: Node, features: Features) -> bool:
    """Whether the device multiplies the convolution by matrices, and squares fit its steps."""
    if node.op != "conv2d_integer" or not is_integer_product(node, features):
        return False
    image, attrs = next(node.operands), node.attrs
    if attrs["input_layout"] != "nhwc" or is_open(image.shape) or is_open(node.output.shape):
        return False
    moves = (attrs["groups"], *attrs["strides"], *attrs["dilations"])
    sizes = dims(image.shape, "nhwc", "hw")
    is_whole = moves == (1, STEP, STEP, 1, 1) and not any(size % STEP for size in sizes)
    return is_whole and image.shape[-1] < CHANNELS


def _squares_of_image(rewriter: Rewriter, image: MLOperand) -> MLOperand:
    """Return an image whose pixels are squares of another's."""
    batch, height, width, channels = image.shape
    # The filter is 0 there: any number does. The pad makes one kernel write the image, too.
    image = rewriter.pad(image, [0, 0, 0, 0], [0, 0, 0, CHANNELS - channels])
    parts = (batch, height // STEP, STEP, width // STEP, STEP, CHANNELS)
    made = rewriter.transpose(rewriter.reshape(image, parts), permutation=(0, 1, 3, 2, 4, 5))
    return rewriter.reshape(made, (batch, parts[1], parts[3], STEP**2 * CHANNELS))


def _squares_of_filter(array: Array, layout: str, padding: tuple[int, int]) -> Array:
    """Return the filter of squares, [o, h, w, i], with taps added so that squares are whole."""
    filter_ = array.transpose([layout.index(letter) for letter in "ohwi"])
    before = [pad % STEP for pad in padding]
    after = [-(size + pad) % STEP for size, pad in zip(filter_.shape[1:3], before, strict=True)]
    ends = [*zip(before, after, strict=True), (0, CHANNELS - filter_.shape[-1])]
    filter_ = np.pad(filter_, [(0, 0), *ends])
    outs, height, width, channels = filter_.shape
    filter_ = filter_.reshape(outs, height // STEP, STEP, width // STEP, STEP, channels)
    filter_ = filter_.transpose(0, 1, 3, 2, 4, 5)
    filter_ = filter_.reshape(outs, height // STEP, width // STEP, STEP**2 * channels)
    return np.ascontiguousarray(filter_)

"""NonMaxSuppression, which a run computes on the host: each choice depends on those before."""

from __future__ import annotations

import functools
import math
from typing import Any

import numpy as np

from webnn_py.core.dimensions import span
from webnn_py.core.polynomials import MAX_DIMENSION
from webnn_py.ir import Array
from webnn_py.onnx.emitter import Emitter
from webnn_py.onnx.registry import handles
from webnn_py.onnx.tensor import BrokenModelError, Tensor, check_rank, refuse


@handles("NonMaxSuppression")
def non_max_suppression(
    g: Emitter,
    boxes: Tensor,
    scores: Tensor,
    max_output_boxes_per_class: Tensor | None = None,
    iou_threshold: Tensor | None = None,
    score_threshold: Tensor | None = None,
    *,
    center_point_box: int = 0,
) -> Any:
    """Select the boxes of each class that overlap no selected one of a higher score, [count, 3]."""
    check_rank(3, boxes=boxes, scores=scores)
    if center_point_box not in (0, 1):
        raise BrokenModelError(f"its center_point_box is {center_point_box}, expected 0 or 1")
    limit, overlap, least = 0, 0.0, -math.inf
    if max_output_boxes_per_class is not None:
        limit = max_output_boxes_per_class.integer("max_output_boxes_per_class")
    if iou_threshold is not None:
        overlap = iou_threshold.number("iou_threshold")
    if score_threshold is not None:
        least = score_threshold.number("score_threshold")
    if not 0 <= overlap <= 1:
        raise BrokenModelError(f"its iou_threshold is {overlap}, expected 0 to 1")
    if limit < 1:
        refuse(f"its max_output_boxes_per_class is {limit}, so that it selects no box")
    batches, classes, count = (span(size)[1] for size in scores.shape)
    select = functools.partial(
        selected, most=limit, overlap=overlap, least=least, centered=bool(center_point_box)
    )
    if not (g.can_measure(boxes) or g.can_measure(scores)):
        parts = [boxes.known("its boxes"), scores.known("its scores").transpose(0, 2, 1)]
        made = select(np.concatenate(parts, 2))
        return g.array(made) if len(made) else refuse("WebNN has no tensors without elements")
    by_box = g.transpose(scores, permutation=[0, 2, 1])
    rows = g.concat([g.to(part, "float32") for part in (boxes, by_box)], 2)
    highest = min(batches * classes * min(count, limit), MAX_DIMENSION)
    return g.chosen_on_host(rows, select, (3,), highest)


def selected(rows: Array, *, most: int, overlap: float, least: float, centered: bool) -> Array:
    """Return the batch, class and number of each selected box, int64 [count, 3].

    Args:
        rows: Coordinates of each box, and its score in each class, [batches, boxes, 4 + classes].
        most: Boxes to select in a class at most.
        overlap: The intersection over union above which a box is suppressed.
        least: The score that a box must exceed.
        centered: Whether coordinates are center and size, rather than two opposite corners.
    """
    found = []
    for batch, one in enumerate(rows):
        low, high = _corners(one[:, :4], centered)
        areas = np.prod(high - low, axis=1)
        for kind, scores in enumerate(one[:, 4:].T):
            left = np.flatnonzero(scores > least)
            left = left[np.argsort(-scores[left], kind="stable")]
            for _ in range(most):
                if not left.size:
                    break
                best, left = left[0], left[1:]
                found.append((batch, kind, best))
                sides = np.minimum(high[left], high[best]) - np.maximum(low[left], low[best])
                shared = np.prod(np.maximum(sides, 0), axis=1)
                union = areas[left] + areas[best] - shared
                # As ONNX Runtime: boxes without an area overlap nothing.
                meet = (shared > 0) & (areas[left] > 0) & (areas[best] > 0)
                left = left[~(meet & (shared > overlap * union))]
    return np.asarray(found, np.int64).reshape(-1, 3)


def _corners(boxes: Array, centered: bool) -> tuple[Array, Array]:
    """Return the lower and upper corner of each box."""
    if centered:
        half = boxes[:, 2:] / 2
        return boxes[:, :2] - half, boxes[:, :2] + half
    return np.minimum(boxes[:, :2], boxes[:, 2:]), np.maximum(boxes[:, :2], boxes[:, 2:])

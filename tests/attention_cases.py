"""Attention as exporters spell it, and what it is by NumPy."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from webnn_py import MLGraphBuilder, MLOperand

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Attention:
    """softmax(q · kᵀ, scaled and masked) · v.

    Attributes:
        batch: Dimensions before the rows.
        rows: Queries.
        columns: Keys.
        depth: Of queries and keys.
        width: Of values.
        data_type: Of all.
        mask: The shape of what is added to the scores, if anything is.
        chosen: The mask is a condition instead, where scores stay as they are.
        turned: The keys are given as [..., depth, columns].
        packed: Heads lie within rows: operands are [1, rows, heads * size], for batch [1, heads].
        shared: The keys and values have no batch dimensions.
    """

    batch: tuple[int, ...] = (2, 3)
    rows: int = 32
    columns: int = 32
    depth: int = 16
    width: int = 16
    data_type: Any = "float32"
    mask: tuple[int, ...] | None = None
    chosen: bool = False
    turned: bool = False
    packed: bool = False
    shared: bool = False

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Those of the inputs, by name."""
        of_keys = () if self.shared else self.batch
        keys = (self.depth, self.columns) if self.turned else (self.columns, self.depth)
        shapes = {
            "q": (*self.batch, self.rows, self.depth),
            "k": (*of_keys, *keys),
            "v": (*of_keys, self.columns, self.width),
        }
        if self.packed:
            one, heads = self.batch
            shapes = {name: (one, s[-2], heads * s[-1]) for name, s in shapes.items()}
        return shapes if self.mask is None else {**shapes, "m": self.mask}

    def __call__(self, b: MLGraphBuilder) -> dict[str, MLOperand]:
        """The graph's output."""
        given = {
            name: b.input(name, "uint8" if self._is_condition(name) else self.data_type, shape)
            for name, shape in self.shapes.items()
        }
        return {"y": self.apply(b, **given)}

    def apply(
        self,
        b: MLGraphBuilder,
        q: MLOperand,
        k: MLOperand,
        v: MLOperand,
        m: MLOperand | None = None,
    ) -> MLOperand:
        """The same of operands that are there."""
        q, k, v = (self._by_heads(b, x) for x in (q, k, v))
        if not self.turned:
            rank = len(k.shape)
            k = b.transpose(k, permutation=[*range(rank - 2), rank - 1, rank - 2])
        scores = b.matmul(q, k)
        scores = b.mul(scores, b.constant(np.array(self.depth**-0.5, self.data_type)))
        if m is not None and self.chosen:
            lowest = b.constant(np.array(-np.inf, self.data_type))
            scores = b.where(m, scores, lowest)
        elif m is not None:
            scores = b.add(scores, m)
        made = b.matmul(b.softmax(scores, len(scores.shape) - 1), v)
        if self.packed:
            made = b.transpose(made, permutation=[0, 2, 1, 3])
            made = b.reshape(made, [1, self.rows, self.batch[1] * self.width])
        return made

    def _is_condition(self, name: str) -> bool:
        return name == "m" and self.chosen

    def _by_heads(self, b: MLGraphBuilder, x: MLOperand) -> MLOperand:
        if not self.packed:
            return x
        one, rows, size = x.shape
        heads = b.reshape(x, [one, rows, self.batch[1], size // self.batch[1]])
        return b.transpose(heads, permutation=[0, 2, 1, 3])

    def inputs(self, seed: int = 0) -> dict[str, Array]:
        """Random ones. A mask leaves out a third; with rows of its own, all of the first one."""
        rng = np.random.default_rng(seed)
        made: dict[str, Array] = {}
        for name, shape in self.shapes.items():
            if name != "m":
                made[name] = rng.normal(size=shape).astype(self.data_type)
                continue
            kept = rng.random(shape) < 0.67
            if len(shape) > 1 and shape[-2] > 1:
                kept[..., 0, :] = False
            values = kept.astype(np.uint8) if self.chosen else np.where(kept, 0, -np.inf)
            made[name] = values.astype(np.uint8 if self.chosen else self.data_type)
        return made

    def expected(self, inputs: Mapping[str, Array]) -> Array:
        """The result in float64."""
        x = {name: array.astype(np.float64) for name, array in inputs.items()}
        if self.packed:
            heads = self.batch[1]
            for name in "qkv":
                one, rows, size = x[name].shape
                split = x[name].reshape(one, rows, heads, size // heads)
                x[name] = split.transpose(0, 2, 1, 3)
        keys = x["k"] if self.turned else np.swapaxes(x["k"], -1, -2)
        scores = x["q"] @ keys * self.depth**-0.5
        if self.chosen:
            scores = np.where(x["m"] != 0, scores, -np.inf)
        elif self.mask is not None:
            scores = scores + x["m"]
        with np.errstate(invalid="ignore"):
            weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
            made = weights / weights.sum(axis=-1, keepdims=True) @ x["v"]
        if self.packed:
            made = made.transpose(0, 2, 1, 3).reshape(1, self.rows, -1)
        return made


def of_sizes(sizes: Sequence[Sequence[int]], **options: Any) -> list[Attention]:
    """For each of some sizes, rows to width, in both data types."""
    return [
        Attention(rows=r, columns=c, depth=d, width=w, data_type=data_type, **options)
        for (r, c, d, w), data_type in itertools.product(sizes, ("float32", "float16"))
    ]

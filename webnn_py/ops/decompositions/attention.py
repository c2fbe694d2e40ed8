"""Decompositions of attention and rotary position embeddings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from webnn_py.core.dimensions import span, undecided
from webnn_py.core.dtypes import DTYPES
from webnn_py.ops.decompositions.casts import narrow, wide
from webnn_py.ops.decompositions.positions import iota, position_type
from webnn_py.ops.decompositions.registry import decomposition
from webnn_py.ops.graph_builder import GraphBuilder
from webnn_py.ops.operand import MLOperand

MAX_SCORE_BYTES = 1 << 27
"""Most bytes of scores in one operand; more rows are computed part by part."""


@dataclass(frozen=True, slots=True)
class _Attention:
    """The options of one attention, and what its parts have in common.

    Attributes:
        scale: Factor of the scores.
        causal: Whether keys behind a query are ignored.
        window: Number of keys up to its own that a query sees; None for all.
        softcap: Bound of the scores; None for none.
        rows: Number of queries.
        keys: Number of keys.
        ends: Number of keys that count, [batch or 1, 1, 1, 1]; None for all.
    """

    scale: float
    causal: bool
    window: int | None
    softcap: float | None
    rows: int
    keys: int
    ends: MLOperand | None

    def part(
        self,
        g: GraphBuilder,
        query: MLOperand,
        key: MLOperand,
        value: MLOperand,
        mask: MLOperand | None,
        first: int = 0,
        start: int = 0,
    ) -> MLOperand:
        """Compute attention of queries from row `first` on over keys from `start` on."""
        batch, heads, rows, size = query.shape
        shared, keys, width = value.shape[1:]
        group = heads // shared
        # Scale queries instead of scores: float16 products could overflow, and scores are more.
        scaled = g.mul(query, g.constant_of(self.scale, query))
        folded = g.reshape(scaled, [batch, shared, group * rows, size])
        scores = g.matmul(folded, g.transpose(key, permutation=[0, 1, 3, 2]))
        if self.softcap is not None:
            bound = g.constant_of(self.softcap, scores)
            scores = g.mul(g.tanh(g.div(scores, bound)), bound)
        keep = self._kept(g, rows, keys, first, start)
        if mask is not None:
            if mask.data_type == "uint8":
                counts = g.not_equal(mask, g.constant_of(0, mask))
            else:
                mask = narrow(g, mask, scores.data_type)
                counts = g.greater(mask, g.constant_of(-float("inf"), mask))
                scores = g.add(scores, _fold(g, mask, shared, group, rows))
            keep = counts if keep is None else g.logical_and(keep, counts)
        if keep is not None:
            lowest = g.constant_of(DTYPES[scores.data_type].min, scores)
            scores = g.where(_fold(g, keep, shared, group, rows), scores, lowest)
        made = g.matmul(g.softmax(scores, 3), value)
        made = g.reshape(made, [batch, heads, rows, width])
        if keep is None or (mask is None and self._all_see_keys):
            return made
        has_keys = None if mask is not None else self._has_keys(g, rows, first)
        if has_keys is None:
            has_keys = _any_along_keys(g, keep)
        return g.where(has_keys, made, g.constant_of(0, made))

    @property
    def _all_see_keys(self) -> bool:
        """Whether each query sees a key for sure, if there is no mask."""
        return self.ends is None and span(self.keys - self.rows)[0] >= 0

    def _kept(
        self, g: GraphBuilder, rows: int, keys: int, first: int, start: int
    ) -> MLOperand | None:
        """Return which keys count by position, [batch or 1, 1, rows, keys]; None for all."""
        kind = position_type(self.rows + self.keys)
        conditions = []
        if self.ends is not None:
            at = iota(g, keys, 3, 4, kind)
            if start:
                at = g.add(at, g.constant_of(start, at))
            conditions.append(g.lesser(at, self.ends))
        elif self.causal or self.window is not None:
            # Positions count from the last key, at 0, so that open sizes need no difference.
            at = g.neg(iota(g, keys, 3, 4, kind, reversed=True))
            if behind := self.keys - start - keys:
                at = g.sub(at, g.constant_of(behind, at))
        else:
            return None
        own = self._own(g, rows, first)
        if self.causal:
            conditions.append(g.lesser_or_equal(at, own))
        if self.window is not None:
            conditions.append(g.greater(at, g.sub(own, g.constant_of(self.window, own))))
        keep, *others = conditions
        for other in others:
            keep = g.logical_and(keep, other)
        return keep

    def _own(self, g: GraphBuilder, rows: int, first: int) -> MLOperand:
        """Return the positions of queries from row `first` on, as `_kept` counts them."""
        kind = position_type(self.rows + self.keys)
        own = g.neg(iota(g, rows, 2, 4, kind, reversed=True))
        if behind := self.rows - first - rows:
            own = g.sub(own, g.constant_of(behind, own))
        if self.ends is None:
            return own
        return g.add(own, g.sub(self.ends, g.constant_of(1, self.ends)))

    def _has_keys(self, g: GraphBuilder, rows: int, first: int) -> MLOperand | None:
        """Return which queries see a key if there is no mask; None if only `_kept` tells."""
        if self.ends is None or self.window is not None:
            return None
        if not self.causal:
            return g.greater(self.ends, g.constant_of(0, self.ends))
        own = self._own(g, rows, first)
        return g.greater_or_equal(own, g.constant_of(0, own))


def _any_along_keys(g: GraphBuilder, keep: MLOperand) -> MLOperand:
    if not keep.rank:
        return keep
    most = g.reduce_max(g.cast(keep, "float32"), axes=[keep.rank - 1], keep_dimensions=True)
    return g.greater(most, g.constant_of(0, most))


def _fold(g: GraphBuilder, x: MLOperand, shared: int, group: int, rows: int) -> MLOperand:
    """Reshape a mask for grouped queries, whose rows of one head of keys are one matrix.

    Args:
        g: The graph builder.
        x: The mask, which broadcasts to [batch, shared * group, rows, keys].
        shared: The number of heads of keys.
        group: The number of heads of queries for each head of keys.
        rows: The number of queries.

    Returns:
        [batch or 1, shared or 1, group * rows or 1, keys or 1].
    """
    batch, heads, lines, keys = [1] * (4 - x.rank) + list(x.shape)
    if group == 1:
        return x
    x = g.reshape(x, [batch, heads, lines, keys]) if x.rank < 4 else x
    if heads == 1 and lines == 1:
        return x
    x = g.expand(x, [batch, group if heads == 1 else heads, rows, keys])
    return g.reshape(x, [batch, 1 if heads == 1 else shared, group * rows, keys])


@decomposition
def scaled_dot_product_attention(
    g: GraphBuilder,
    query: MLOperand,
    key: MLOperand,
    value: MLOperand,
    mask: MLOperand | None,
    lengths: MLOperand | None,
    scale: float,
    causal: bool,
    window: int | None,
    softcap: float | None,
) -> MLOperand:
    """Multiply, mask, normalize and multiply; part by part where the scores would be large."""
    batch, heads, rows, _ = query.shape
    keys = key.shape[2]
    ends = None
    if lengths is not None:
        ends = g.reshape(g.cast(lengths, position_type(rows + keys)), [lengths.shape[0], 1, 1, 1])
    whole = _Attention(scale, causal, window, softcap, rows, keys, ends)
    row_bytes = batch * heads * keys * (DTYPES[query.data_type].bits // 8)
    if not span(rows * row_bytes)[0] > MAX_SCORE_BYTES:
        return whole.part(g, query, key, value, mask)
    step = max(1, MAX_SCORE_BYTES // row_bytes)
    parts = []
    for first in range(0, rows, step):
        last = min(first + step, rows)
        start, stop = 0, keys
        if lengths is None:
            if causal:
                stop = min(max(keys - rows + last, 1), keys)
            if window is not None:
                start = min(max(keys - rows + first - window + 1, 0), stop - 1)
        parts.append(
            whole.part(
                g,
                _cut(g, query, {2: (first, last)}),
                _cut(g, key, {2: (start, stop)}),
                _cut(g, value, {2: (start, stop)}),
                None
                if mask is None
                else _cut(g, mask, {mask.rank - 2: (first, last), mask.rank - 1: (start, stop)}),
                first,
                start,
            )
        )
    return g.concat(parts, 2)


def _cut(g: GraphBuilder, x: MLOperand, ranges: dict[int, tuple[int, int]]) -> MLOperand:
    """Slice [start, stop) along axes; axes below 0 or of size 1, which broadcast, stay whole."""
    starts, sizes = [0] * x.rank, list(x.shape)
    for axis, (start, stop) in ranges.items():
        if axis >= 0 and x.shape[axis] != 1:
            starts[axis], sizes[axis] = start, stop - start
    return x if tuple(sizes) == x.shape else g.slice(x, starts, sizes)


@decomposition
def rotary_embedding(
    g: GraphBuilder,
    x: MLOperand,
    cos: MLOperand,
    sin: MLOperand,
    positions: MLOperand | None,
    interleaved: bool,
) -> MLOperand:
    """Take the tables' rows, rotate both elements of the pairs and put them back."""
    batch, heads, rows, size = x.shape
    pairs = cos.shape[-1]

    def angles(table: MLOperand) -> MLOperand:
        taken = table if positions is None else g.gather(table, positions)
        return wide(g, g.reshape(taken, [taken.shape[0] if taken.rank == 3 else 1, 1, rows, pairs]))

    c, s = angles(cos), angles(sin)
    turned: Any = wide(g, _cut(g, x, {3: (0, 2 * pairs)}))
    if interleaved:
        turned = g.reshape(turned, [batch, heads, rows, pairs, 2])
        a, b = (
            g.reshape(_cut(g, turned, {4: (i, i + 1)}), [batch, heads, rows, pairs])
            for i in range(2)
        )
    else:
        a, b = (_cut(g, turned, {3: (i * pairs, (i + 1) * pairs)}) for i in range(2))
    made = [g.sub(g.mul(a, c), g.mul(b, s)), g.add(g.mul(b, c), g.mul(a, s))]
    if interleaved:
        made = [g.reshape(one, [batch, heads, rows, pairs, 1]) for one in made]
        made = [g.reshape(g.concat(made, 4), [batch, heads, rows, 2 * pairs])]
    made = [narrow(g, one, x.data_type) for one in made]
    if undecided(2 * pairs, size):  # a tensor has elements, but there may be none behind the pairs
        longer = g.pad(x, [0, 0, 0, 0], [0, 0, 0, 1])
        made.append(_cut(g, longer, {3: (2 * pairs, size + 1)}))
        return _cut(g, g.concat(made, 3), {3: (0, size)})
    if 2 * pairs != size:
        made.append(_cut(g, x, {3: (2 * pairs, size)}))
    return g.concat(made, 3) if len(made) > 1 else made[0]

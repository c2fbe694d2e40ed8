"""Attention and rotary position embeddings, which are extensions; see D50 in spec/deviations.md."""

from __future__ import annotations

from webnn_py.core.dimensions import check_divides, fixed, undecided
from webnn_py.core.dtypes import FLOATS
from webnn_py.core.errors import ValidationError
from webnn_py.core.shapes import check_broadcast_to
from webnn_py.ir import Descriptor
from webnn_py.ops.declare import Inferred, Limits, operator, result
from webnn_py.ops.operand import MLOperand

POSITIONS = ("int32", "int64")


def _check_size(name: str, operand: MLOperand, axis: int, expected: int, what: str) -> None:
    if operand.shape[axis] != expected:
        raise ValidationError(
            f"operand {name!r}: shape {list(operand.shape)}, expected {expected} {what} in"
            f" dimension {axis}{undecided(operand.shape[axis], expected)}"
        )


class Attention:
    """Builder methods of attention."""

    @operator(
        query=Limits(FLOATS, 4),
        key=Limits("query", 4),
        value=Limits("query", 4),
        mask=Limits((*FLOATS, "uint8"), (0, 4)),
        lengths=Limits(POSITIONS, 1),
        output="query",
        extension=True,
    )
    def scaled_dot_product_attention(
        self,
        query: MLOperand,
        key: MLOperand,
        value: MLOperand,
        *,
        mask: MLOperand | None = None,
        scale: float | None = None,
        causal: bool = False,
        window: int | None = None,
        softcap: float | None = None,
        lengths: MLOperand | None = None,
        label: str = "",
    ) -> Inferred:
        """Compute softmax(scale * query x key^T + mask) x value for each head.

        The scores of all queries and keys are no operand, so their size has no limit.

        Queries are the last positions of their sequence: query i is at position
        n - rows + i, where n is `lengths` or, without it, the number of keys. A query that sees
        no key gives zeros.

        Args:
            query: [batch, heads, rows, size].
            key: [batch, shared, keys, size], where `shared` divides `heads`: each
                heads / shared neighboring heads of queries share one head of keys and values.
            value: [batch, shared, keys, width].
            mask: A uint8 mask, 0 for keys to ignore, or a float tensor that is added to the
                scores; broadcasts to [batch, heads, rows, keys].
            scale: Factor of the scores; default: 1 / sqrt(size).
            causal: Ignore keys behind the query's position.
            window: Number of keys up to the query's position that a query sees, its own included;
                default: all. It does not hide keys behind the position, as `causal` does.
            softcap: Bound c of the scores before the mask: c * tanh(score / c); default: none.
            lengths: [batch] or [1], the number of keys that count in each batch; the keys behind
                are ignored. Default: all keys.

        Returns:
            [batch, heads, rows, width].
        """
        batch, heads, rows, size = query.shape
        shared, keys = key.shape[1:3]
        for name, operand in (("key", key), ("value", value)):
            _check_size(name, operand, 0, batch, "batches")
        _check_size("key", key, 3, size, "elements as in the query")
        _check_size("value", value, 1, shared, "heads as in the key")
        _check_size("value", value, 2, keys, "keys")
        check_divides(
            shared,
            heads,
            f"operand 'key': {shared} heads, expected a divisor of the query's {heads}",
        )
        if mask is not None:
            check_broadcast_to(mask.shape, (batch, heads, rows, keys), "mask")
        if lengths is not None and lengths.shape[0] != 1:
            _check_size("lengths", lengths, 0, batch, "lengths, or 1,")
        if window is not None and window < 1:
            raise ValidationError(f"option 'window': got {window}, expected at least 1")
        if softcap is not None and softcap <= 0:
            raise ValidationError(
                f"option 'softcap': got {softcap}, expected a number above 0; leave it out for none"
            )
        if scale is None:
            scale = float(fixed(size, "the size of a head, for the default of 'scale'") ** -0.5)
        shape = (batch, heads, rows, value.shape[3])
        return result(Descriptor(query.data_type, shape), scale=scale)

    @operator(
        x=Limits(FLOATS, 4),
        cos=Limits("x", (2, 3)),
        sin=Limits("x", (2, 3)),
        positions=Limits(POSITIONS, (1, 2)),
        output="x",
        extension=True,
    )
    def rotary_embedding(
        self,
        x: MLOperand,
        cos: MLOperand,
        sin: MLOperand,
        *,
        positions: MLOperand | None = None,
        interleaved: bool = False,
        label: str = "",
    ) -> Inferred:
        """Rotate pairs of elements by angles of their positions (RoPE).

        The pair (a, b) becomes (a cos - b sin, b cos + a sin). Elements behind the first
        2 * pairs of a head stay as they are.

        Args:
            x: [batch, heads, rows, size].
            cos: Cosines of the angles: [rows, pairs] or [batch or 1, rows, pairs]; with
                `positions` a table [any, pairs].
            sin: Sines of the angles, of the shape of `cos`.
            positions: [rows] or [batch or 1, rows], the row of the tables for each row of `x`.
                Negative ones count from the end; positions outside are clamped.
            interleaved: The elements of a pair are neighbors; False: the first comes from the
                first half of the rotated elements, the second from the second half.

        Returns:
            A tensor of the shape of `x`.
        """
        batch, _, rows, size = x.shape
        pairs = cos.shape[-1]
        if sin.shape != cos.shape:
            raise ValidationError(
                f"operand 'sin': shape {list(sin.shape)}, expected that of 'cos',"
                f" {list(cos.shape)}{undecided(sin.shape, cos.shape)}"
            )
        if not 2 * pairs <= size:
            raise ValidationError(
                f"operand 'cos': {pairs} pairs, expected at most half of the {size} elements of"
                " a head"
            )
        if positions is None:
            _check_rows("cos", cos.shape[:-1], batch, rows)
        elif cos.rank != 2:
            raise ValidationError(
                f"operand 'cos': shape {list(cos.shape)}, expected a table of rank 2 with"
                " 'positions'"
            )
        else:
            _check_rows("positions", positions.shape, batch, rows)
        return result(Descriptor(x.data_type, x.shape))


def _check_rows(name: str, shape: tuple[int, ...], batch: int, rows: int) -> None:
    """Check that a shape is [rows], [1, rows] or [batch, rows]."""
    lead, given = (shape[0] if len(shape) == 2 else 1), shape[-1]
    if given != rows or lead not in (1, batch):
        raise ValidationError(
            f"operand {name!r}: dimensions {list(shape)}, expected [{rows}] or [{batch}, {rows}]"
            f" as rows of 'x'"
            f"{undecided(given, rows) or undecided(lead, batch) or undecided(lead, 1)}"
        )

"""Gathering and scattering by indices. Source: WebNN 2026, the section of each name.

A negative index counts from the end of its dimension; an index outside is clamped to it. If several
indices scatter to one element, the reference engine keeps the last in row-major order; other
engines may keep any of them.
"""

from __future__ import annotations

from collections.abc import Sequence

from webnn_py.core.dimensions import fixed, undecided
from webnn_py.core.dtypes import ANY
from webnn_py.core.errors import ValidationError
from webnn_py.core.shapes import MAX_RANK, check_axis
from webnn_py.ir import Descriptor
from webnn_py.ops.declare import Inferred, Limits, operator, result
from webnn_py.ops.operand import MLOperand

INDICES = ("int32", "uint32", "int64")


def _check_elements(input: MLOperand, indices: MLOperand, axis: int) -> None:
    """Check that the indices have the input's shape except along `axis`."""
    check_axis(axis, input.rank)
    length = indices.shape[axis : axis + 1]
    expected = (*input.shape[:axis], *length, *input.shape[axis + 1 :])
    if indices.shape != expected:
        raise ValidationError(
            f"operand 'indices': shape {list(indices.shape)}, expected the input's"
            f" {list(input.shape)} but for axis {axis}{undecided(indices.shape, expected)}"
        )


def _slices(input: MLOperand, indices: MLOperand) -> tuple[int, ...]:
    """Return the shape of the slices that the coordinates in `indices` select."""
    *places, last = indices.shape
    length = fixed(last, "operand 'indices': the last dimension")
    if length > input.rank:
        raise ValidationError(
            f"operand 'indices': coordinates of {length} numbers (shape {list(indices.shape)}),"
            f" expected at most the input's rank {input.rank}"
        )
    return (*places, *input.shape[length:])


def _check_updates(updates: MLOperand, expected: Sequence[int]) -> None:
    if updates.shape != tuple(expected):
        raise ValidationError(
            f"operand 'updates': shape {list(updates.shape)}, expected {list(expected)}"
            f"{undecided(updates.shape, tuple(expected))}"
        )


class Indexing:
    """Builder methods of gathering and scattering."""

    @operator(input=Limits(ANY, (1, MAX_RANK)), indices=Limits(INDICES), output_rank=(0, MAX_RANK))
    def gather(
        self, input: MLOperand, indices: MLOperand, *, axis: int = 0, label: str = ""
    ) -> Inferred:
        """Gather slices of the input at `indices` along `axis`.

        An input of shape [a, b, c] and indices of shape [i, j] along axis 1 give [a, i, j, c].

        Args:
            indices: Positions along `axis`. Negative ones count from the end; positions outside
                are clamped.

        Returns:
            A tensor of the input's shape, with the shape of `indices` in place of `axis`.
        """
        check_axis(axis, input.rank)
        shape = (*input.shape[:axis], *indices.shape, *input.shape[axis + 1 :])
        return result(Descriptor(input.data_type, shape))

    @operator(input=Limits(ANY, (1, MAX_RANK)), indices=Limits(INDICES, (1, MAX_RANK)))
    def gather_elements(
        self, input: MLOperand, indices: MLOperand, *, axis: int = 0, label: str = ""
    ) -> Inferred:
        """Gather one element for each index: the one at its position, with the index along `axis`.

        Args:
            indices: Positions along `axis`, of the input's shape except along `axis`. Negative ones
                count from the end; positions outside are clamped.

        Returns:
            A tensor of the shape of `indices`.
        """
        _check_elements(input, indices, axis)
        return result(Descriptor(input.data_type, indices.shape))

    @operator(
        input=Limits(ANY, (1, MAX_RANK)),
        indices=Limits(INDICES, (1, MAX_RANK)),
        output_rank=(0, MAX_RANK),
    )
    def gather_nd(self, input: MLOperand, indices: MLOperand, *, label: str = "") -> Inferred:
        """Gather slices of the input at the coordinates in the last dimension of `indices`.

        Args:
            input: A tensor of rank n.
            indices: [..., k] with k at most n: coordinates along the input's first k dimensions.
                Negative ones count from the end; coordinates outside are clamped.

        Returns:
            [..., and the input's last n - k dimensions].
        """
        return result(Descriptor(input.data_type, _slices(input, indices)))

    @operator(
        input=Limits(ANY, (1, MAX_RANK)),
        indices=Limits(INDICES, (1, MAX_RANK)),
        updates=Limits("input", (1, MAX_RANK)),
    )
    def scatter_elements(
        self,
        input: MLOperand,
        indices: MLOperand,
        updates: MLOperand,
        *,
        axis: int = 0,
        label: str = "",
    ) -> Inferred:
        """Copy the input and write each update at its position, with its index along `axis`.

        Args:
            indices: Positions along `axis`, of the input's shape except along `axis`. Negative ones
                count from the end; positions outside are clamped.
            updates: New elements, of the shape of `indices`.

        Returns:
            A tensor of the input's shape.
        """
        _check_elements(input, indices, axis)
        _check_updates(updates, indices.shape)
        return result(Descriptor(input.data_type, input.shape))

    @operator(
        input=Limits(ANY, (1, MAX_RANK)),
        indices=Limits(INDICES, (1, MAX_RANK)),
        updates=Limits("input"),
    )
    def scatter_nd(
        self, input: MLOperand, indices: MLOperand, updates: MLOperand, *, label: str = ""
    ) -> Inferred:
        """Copy the input and write slices of `updates` at the coordinates in `indices`.

        Args:
            input: A tensor of rank n.
            indices: [..., k] with k at most n: coordinates along the input's first k dimensions.
                Negative ones count from the end; coordinates outside are clamped.
            updates: [..., and the input's last n - k dimensions].

        Returns:
            A tensor of the input's shape.
        """
        _check_updates(updates, _slices(input, indices))
        return result(Descriptor(input.data_type, input.shape))

    @operator(
        cache=Limits(ANY, (2, MAX_RANK)),
        rows=Limits("cache", (2, MAX_RANK)),
        starts=Limits(("int32", "int64"), 1),
        output="cache",
        extension=True,
    )
    def scatter_rows(
        self,
        cache: MLOperand,
        rows: MLOperand,
        starts: MLOperand,
        *,
        axis: int = 2,
        label: str = "",
    ) -> Inferred:
        """Copy the cache and write new rows into each batch, from its own start on along `axis`.

        Args:
            cache: A tensor whose first dimension is the batch.
            rows: New rows, of the shape of `cache` except along `axis`.
            starts: [batch] or [1]: the position along `axis` of the first new row in each batch.
                Rows at positions outside of the cache are dropped.
            axis: The dimension, counted from 0; not the first one.

        Returns:
            A tensor of the shape of `cache`.
        """
        check_axis(axis, cache.rank)
        if axis == 0:
            raise ValidationError("axis: got 0, the batch, expected at least 1")
        expected = (*cache.shape[:axis], *rows.shape[axis : axis + 1], *cache.shape[axis + 1 :])
        if rows.shape != expected:
            raise ValidationError(
                f"operand 'rows': shape {list(rows.shape)}, expected the cache's"
                f" {list(cache.shape)} but for axis {axis}{undecided(rows.shape, expected)}"
            )
        if starts.shape[0] not in (1, cache.shape[0]):
            raise ValidationError(
                f"operand 'starts': shape {list(starts.shape)}, expected [{cache.shape[0]}] or [1]"
                f"{undecided(starts.shape[0], cache.shape[0]) or undecided(starts.shape[0], 1)}"
            )
        return result(Descriptor(cache.data_type, cache.shape))

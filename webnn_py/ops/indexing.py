"""Gathering and scattering by indices. Source: WebNN 2026, the section of each name.

A negative index counts from the end of its dimension; what is still outside is clamped to it. Where
several indices scatter to one element, the last one in row-major order wins on the reference
engine; which one does on another is not said.
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
    """Indices have the input's shape but for `axis`."""
    check_axis(axis, input.rank)
    length = indices.shape[axis : axis + 1]
    expected = (*input.shape[:axis], *length, *input.shape[axis + 1 :])
    if indices.shape != expected:
        raise ValidationError(
            f"operand 'indices': shape {list(indices.shape)}, expected the input's"
            f" {list(input.shape)} but for axis {axis}{undecided(indices.shape, expected)}"
        )


def _slices(input: MLOperand, indices: MLOperand) -> tuple[int, ...]:
    """Shape of the slices that coordinates in the last dimension of `indices` select."""
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
        """Slices of the input at `indices` along `axis`, which is replaced by the indices' shape.

        An input [a, b, c] gathered along axis 1 by indices [i, j] gives [a, i, j, c].

        Args:
            indices: Negative ones count from the end; what is outside is clamped.

        Returns:
            The input's shape with that of `indices` in the place of `axis`.
        """
        check_axis(axis, input.rank)
        shape = (*input.shape[:axis], *indices.shape, *input.shape[axis + 1 :])
        return result(Descriptor(input.data_type, shape))

    @operator(input=Limits(ANY, (1, MAX_RANK)), indices=Limits(INDICES, (1, MAX_RANK)))
    def gather_elements(
        self, input: MLOperand, indices: MLOperand, *, axis: int = 0, label: str = ""
    ) -> Inferred:
        """For each index, the input's element at the same place but at that index along `axis`.

        Args:
            indices: Of the input's shape but for `axis`. Negative ones count from the end; what
                is outside is clamped.

        Returns:
            Of the shape of `indices`.
        """
        _check_elements(input, indices, axis)
        return result(Descriptor(input.data_type, indices.shape))

    @operator(
        input=Limits(ANY, (1, MAX_RANK)),
        indices=Limits(INDICES, (1, MAX_RANK)),
        output_rank=(0, MAX_RANK),
    )
    def gather_nd(self, input: MLOperand, indices: MLOperand, *, label: str = "") -> Inferred:
        """Slices of the input at the coordinates in the last dimension of `indices`.

        Args:
            input: Of some rank n.
            indices: [..., k], k up to n. Negative ones count from the end; what is outside is
                clamped.

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
        """The input, with each of `updates` put at the same place but at its index along `axis`.

        Args:
            indices: Of the input's shape but for `axis`. Negative ones count from the end; what
                is outside is clamped.
            updates: Of the shape of `indices`.

        Returns:
            Of the input's shape.
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
        """The input, with slices of `updates` put at the coordinates in `indices`.

        Args:
            input: Of some rank n.
            indices: [..., k], k up to n. Negative ones count from the end; what is outside is
                clamped.
            updates: [..., and the input's last n - k dimensions].

        Returns:
            Of the input's shape.
        """
        _check_updates(updates, _slices(input, indices))
        return result(Descriptor(input.data_type, input.shape))

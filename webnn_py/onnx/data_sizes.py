"""Sizes that contents of tensors decide, such as the number of elements that are not zero."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from webnn_py.api.staged_graph import Choose
from webnn_py.core.convert import unsigned
from webnn_py.core.dimensions import MLDimension, span
from webnn_py.core.errors import ValidationError
from webnn_py.core.messages import shown, suggestion
from webnn_py.core.polynomials import MAX_DIMENSION
from webnn_py.onnx.tensor import NarrowerError
from webnn_py.ops.operand import MLOperand


@dataclass(frozen=True, slots=True)
class Choice:
    """The elements of a tensor that a mask chooses, in row-major order.

    Attributes:
        mask: 0 for each element that is not chosen, in the tensor's shape.
        chosen: The numbers of the chosen elements, int64 [count].
        places: The coordinates of the chosen elements, int64 [rank, count].
        everything: The numbers of all elements, int64 [elements].
    """

    mask: MLOperand
    chosen: MLOperand
    places: MLOperand
    everything: MLOperand


@dataclass(slots=True)
class DataSize:
    """An open dimension whose size a run computes.

    Attributes:
        title: The name of the node that decides it.
        dimension: The open dimension.
        carrier: The name of the input whose shape is the size.
        count: Its value, an int64 scalar; or what `choose` reads.
        choice: The elements that it counts, if it does.
        choose: Computes the contents of the carrier on the host.
        highest: The highest value that the node accepts.
    """

    title: str
    dimension: MLDimension
    carrier: str
    count: MLOperand
    choice: Choice | None = None
    choose: Choose | None = None
    highest: int | MLDimension = MAX_DIMENSION


class DataSizes:
    """The data-dependent sizes of one model, collected during its import.

    Args:
        bounds: Their highest values, by the name of the node that decides the size.

    Attributes:
        found: The sizes, in the order of the model.

    Raises:
        ValidationError: A bound is no number from 1 on.
    """

    def __init__(self, bounds: Mapping[str, int]) -> None:
        self._accepted: dict[str, tuple[int, int]] = {}  # values that all nodes accept
        self._same: dict[str, str] = {}  # the earlier dimension that a later one must equal
        self._bounds = {n: unsigned(high, f"onnx: bounds[{n!r}]") for n, high in bounds.items()}
        for name, high in self._bounds.items():
            if not 1 <= high <= MAX_DIMENSION:
                raise ValidationError(
                    f"onnx: bounds[{name!r}]: got {high}, expected 1 to {MAX_DIMENSION}"
                )
        self.found: list[DataSize] = []

    def begin(self) -> None:
        """Forget the sizes of an earlier attempt at the import, but not what nodes need of them."""
        self.found = []

    def narrow(self, error: NarrowerError) -> None:
        """Take what a node needs of the sizes into account in the next attempt."""
        if error.same is not None:
            order = [str(size.dimension) for size in self.found]
            first, other = sorted(error.same, key=order.index)
            self._same[other] = first
        elif error.bounds is not None:
            name, low, high = error.bounds
            before = self._accepted.get(name, (low, high))
            self._accepted[name] = max(low, before[0]), min(high, before[1])

    def add(
        self,
        title: str,
        count: MLOperand,
        highest: int | MLDimension,
        declare: Callable[[str, Callable[[str], tuple[int, int]]], MLDimension],
        carry: Callable[[MLDimension], str],
        choose: Choose | None = None,
    ) -> DataSize:
        """Add a size.

        Args:
            title: The name of the node that decides it.
            count: Its value.
            highest: The highest value that the node accepts.
            declare: Makes the open dimension from a name, and from a function that returns the
                lowest and highest value by the whole name.
            carry: Makes the carrier of a dimension.
            choose: Computes the carrier's contents.
        """
        high = min(span(highest)[1], self._bounds.get(title, MAX_DIMENSION))

        def bounds(name: str) -> tuple[int, int]:
            low, most = self._accepted.get(name, (1, high))
            return low, min(high, most)

        name = re.sub(r"\W+", "_", title).strip("_")
        made = declare(name if name.isidentifier() else f"size_{name}", bounds)
        by_name = {str(size.dimension): size.dimension for size in self.found}
        while (equal := self._same.get(str(made))) is not None:
            made = by_name[equal]
        self.found.append(DataSize(title, made, carry(made), count, None, choose, highest))
        return self.found[-1]

    @property
    def names(self) -> set[str]:
        """The names of the dimensions."""
        return {str(size.dimension) for size in self.found}

    def check_bounds(self) -> None:
        """Check that each bound is for a node that decides a size.

        Raises:
            ValidationError: One is not.
        """
        titles = [size.title for size in self.found]
        for name in self._bounds:
            if name not in titles:
                raise ValidationError(
                    f"onnx: bounds: the contents of node {shown(name)} decide no size; those of"
                    f" {', '.join(titles) or 'no node'} do{suggestion(str(name), titles)}"
                )

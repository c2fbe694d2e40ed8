"""Calls of an operator with as many open dimensions as its rules allow."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from hypothesis import HealthCheck, Phase, given, settings

from tests.property.drawing import Array, Call
from tests.property.strategies import calls
from tests.property.test_valid_calls import frozen
from webnn_py import MLOperand, ValidationError
from webnn_py.core.dimensions import named
from webnn_py.core.dtypes import DTYPES
from webnn_py.core.open_dims import evaluated
from webnn_py.ir import Descriptor, Graph
from webnn_py.ops.graph_builder import GraphBuilder

Place = tuple[str, int]
"""An operand by its place in the call, and one of its dimensions."""
MAX_ELEMENTS = 2048


@dataclass
class MostOpen:
    """A call, and which of its dimensions are open.

    Dimensions of one size are of one name, and so are options; where there is a hidden size, they
    are multiples of it if they can.

    Attributes:
        call: As drawn, on inputs but for operands that must be constants.
        more: By how much sizes may be larger than drawn.
        places: The dimensions that are open.
    """

    call: Call
    more: int = 1
    places: set[Place] = field(default_factory=set)

    def __post_init__(self) -> None:
        every: dict[int, set[Place]] = {}
        for name, tensor in self.call.named().items():
            for axis, size in enumerate(() if tensor.constant else tensor.shape):
                every.setdefault(self._factors(size)[1], set()).add((name, axis))
        groups = [*every.values(), *({place} for places in every.values() for place in places)]
        for group in groups:
            if not group <= self.places and self._passes(self.places | group):
                self.places |= group

    def _passes(self, places: set[Place]) -> bool:
        before, self.places = self.places, places
        passes = self._records(self._options())
        self.places = before
        return passes

    def _records(self, options: Mapping[str, Any]) -> bool:
        """Whether the operator takes these, open and at larger sizes."""
        try:
            for numbers in (None, self.larger(1), self.larger(self.more)):
                self._recorded(options, numbers)
        except ValidationError:
            return False
        return True

    @property
    def sizes(self) -> dict[str, int]:
        """The open sizes as they were drawn."""
        tensors = self.call.named()
        units = {self._factors(tensors[name].shape[axis])[1] for name, axis in self.places}
        return {f"n{unit}": unit for unit in units}

    def larger(self, by: int) -> dict[str, int]:
        """The open sizes, each larger by so much than it was drawn."""
        return {name: size + by for name, size in self.sizes.items()}

    @property
    def largest(self) -> int:
        """The most elements of a result for larger sizes."""
        return max(value.size for _, value in self.record(self.larger(1)).outputs)

    def _factors(self, size: int) -> tuple[int, int]:
        """A size as a number times the open size that it is of."""
        unit = self.call.options.get("hidden_size", 1)
        return (size // unit, unit) if unit > 1 and size % unit == 0 else (1, size)

    def _dimension(self, size: int) -> Any:
        times, unit = self._factors(size)
        return times * named(f"n{unit}", unit, unit + self.more)

    def _option(self, value: Any) -> Any:
        if isinstance(value, (list, tuple)):
            return [self._option(item) for item in value]
        if type(value) is not int or f"n{self._factors(value)[1]}" not in self.sizes:
            return value
        return self._dimension(value)

    def record(self, numbers: Mapping[str, int] | None = None) -> Graph:
        """The graph, open or for some sizes.

        Raises:
            ValidationError: The operator does not let it pass.
        """
        return self._recorded(self._options(), numbers)

    def _options(self) -> Mapping[str, Any]:
        """The call's, open ones where the operator lets them pass."""
        sizes = self.call.op.sizes
        opened = {n: self._option(v) if n in sizes else v for n, v in self.call.options.items()}
        return opened if self._records(opened) else self.call.options

    def _recorded(self, options: Mapping[str, Any], numbers: Mapping[str, int] | None) -> Graph:
        def fixed(value: Any) -> Any:
            if isinstance(value, list):
                return [fixed(item) for item in value]
            return value if numbers is None else evaluated(value, numbers)

        builder = GraphBuilder()
        operands: dict[str, MLOperand] = {}
        for name, tensor in self.call.named().items():
            if tensor.constant:
                operands[name] = builder.add_constant(tensor.array, tensor.data_type)
                continue
            shape = tuple(
                self._dimension(size) if (name, axis) in self.places else size
                for axis, size in enumerate(tensor.shape)
            )
            operands[name] = builder.add_input(name, Descriptor(tensor.data_type, fixed(shape)))
        arguments: dict[str, Any] = {
            name: [operands[f"{name}{i}"] for i in range(len(members))]
            if isinstance(members, list)
            else operands[f"{name}0"]
            for name, members in self.call.operands.items()
        }
        given = {name: fixed(value) for name, value in options.items()}
        made = getattr(builder, self.call.op.name)(**arguments, **given)
        outputs = made if isinstance(made, list) else [made]
        return builder.recorded({f"y{i}": output for i, output in enumerate(outputs)})

    def inputs(self, graph: Graph) -> dict[str, Array]:
        """The drawn contents, as often as it takes to fill the inputs of a graph of numbers."""
        drawn = self.call.named()
        return {
            value.name: np.resize(drawn[value.name].array, value.shape).astype(
                DTYPES[value.data_type].numpy
            )
            for value in graph.inputs
        }


def most_open_calls(name: str, count: int, more: int = 1) -> Iterator[MostOpen]:
    """Of so many drawn calls of an operator those that open what none before did."""
    drawn: list[Call] = []

    @settings(
        database=None,
        derandomize=True,
        deadline=None,
        max_examples=count,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(calls(name))
    def draw(call: Call) -> None:
        drawn.append(frozen(call, constant=False))

    draw()
    known: set[tuple[str, int]] = set()
    for made in sorted(
        (MostOpen(call, more) for call in drawn), key=lambda made: -len(made.places)
    ):
        if not made.places <= known and made.largest <= MAX_ELEMENTS:
            known |= made.places
            yield made

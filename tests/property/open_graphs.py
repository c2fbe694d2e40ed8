"""Random graphs with open dimensions, grown beside ones of numbers.

Each node is added to a graph of numbers, and then to one with open dimensions, whose options are
expressions that have these numbers, where the shape rules let that pass.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tests.property.graphs import MAKERS
from tests.property.growing import Grower, Picks, Rejected, SeededPicks
from webnn_py import MLDimension, MLOperand, ValidationError
from webnn_py.core.dimensions import is_open, named, symbols_of
from webnn_py.core.open_dims import evaluated
from webnn_py.ir import Array, Descriptor, Graph, Node, Value
from webnn_py.ops.declare import REGISTRY
from webnn_py.ops.graph_builder import GraphBuilder
from webnn_py.ops.operand import value_of

BASE = {"n": 5, "m": 7, "k": 3}
"""The open sizes, and what they are in the graph of numbers: few numbers are others' sums."""
TRIED = 20
"""Sets of sizes that are drawn before those of the graph of numbers are taken."""


@dataclass(frozen=True)
class OpenCase:
    """A graph with open dimensions, and some sizes for them.

    Attributes:
        graph: As recorded, before any pass.
        sizes: By name, several times.
    """

    graph: Graph
    sizes: Sequence[Mapping[str, int]]

    def fixed(self, sizes: Mapping[str, int]) -> Graph:
        """The same calls of operators, on numbers."""
        builder = GraphBuilder()
        made: dict[Value, MLOperand] = {
            value: builder.add_input(
                value.name, Descriptor(value.data_type, evaluated(value.shape, sizes))
            )
            for value in self.graph.inputs
        }
        for value, array in self.graph.constants.items():
            made[value] = builder.add_constant(array, value.data_type)
        for node in self.graph.nodes:
            given = REGISTRY[node.op].given_arguments(node, made)
            numbers = {name: evaluated(option, sizes) for name, option in given.items()}
            made.update(zip(node.outputs, called(builder, node.op, numbers), strict=True))
        return builder.recorded({name: made[value] for name, value in self.graph.outputs})

    def inputs(self, sizes: Mapping[str, int]) -> dict[str, Array]:
        """Contents for these sizes: small numbers."""
        rng = np.random.default_rng(list(sizes.values()))
        return {
            value.name: (rng.integers(0, 40, evaluated(value.shape, sizes)) / 16).astype(
                value.data_type
            )
            for value in self.graph.inputs
        }


def called(builder: GraphBuilder, op: str, arguments: Mapping[str, Any]) -> list[MLOperand]:
    made = getattr(builder, op)(**arguments)
    return made if isinstance(made, list) else [made]


class OpenGrower(Grower):
    """Records a graph of numbers, and one with open dimensions."""

    def __init__(self, picks: Picks) -> None:
        super().__init__(picks)
        self._open = GraphBuilder()
        self._opened: dict[Value, MLOperand] = {}
        self._dimensions: dict[str, Any] = {
            name: named(
                name,
                picks.integer(1, size),
                self.choice([size, size + 4, 2**31 - 1]),
            )
            for name, size in BASE.items()
        }

    def new_input(self, shape: Sequence[int], data_type: str) -> MLOperand:
        """An input, some dimensions of which are open."""
        chosen: list[Any] = [
            self._dimensions[self.choice(sorted(BASE))] if self.chance(60) else min(size, 4)
            for size in shape
        ]
        while math.prod(evaluated(tuple(chosen), BASE)) > 128:
            chosen[self.picks.integer(0, len(chosen) - 1)] = 1
        made = super().new_input(evaluated(tuple(chosen), BASE), data_type)
        value = value_of(made)
        descriptor = Descriptor(value.data_type, tuple(chosen))
        self._opened[value] = self._open.add_input(value.name, descriptor)
        return made

    def constant(self, array: Array) -> MLOperand:
        """A constant, of both graphs."""
        made = super().constant(array)
        value = value_of(made)
        self._opened[value] = self._open.add_constant(self._constants[value], value.data_type)
        return made

    def emit(self, node: Node) -> list[MLOperand]:
        """Add a node to both graphs.

        Raises:
            Rejected: Its results cannot be compared, or its rules are not known to hold.
        """
        made = super().emit(node)
        arguments = REGISTRY[node.op].given_arguments(node, self._opened)
        opened = self._lifted(node, arguments)
        self._opened.update(zip(node.outputs, opened, strict=True))
        return made

    def _lifted(self, node: Node, arguments: dict[str, Any]) -> list[MLOperand]:
        """The outputs of the node's operator in the open graph."""
        sizes = [name for name in REGISTRY[node.op].sizes if arguments.get(name) is not None]
        for keeps in (30, 0, 60, 100) if sizes else (0,):
            options = {name: self._expressed(arguments[name], keeps) for name in sizes}
            count = len(self._open._nodes)
            try:
                made = called(self._open, node.op, arguments | options)
            except ValidationError:
                continue
            if [evaluated(operand.shape, BASE) for operand in made] == [
                value.shape for value in node.outputs
            ]:
                return made
            del self._open._nodes[count:]
        raise Rejected

    def _expressed(self, option: Any, keeps: int) -> Any:
        """An option, its numbers replaced by expressions that have them, but for some."""
        if isinstance(option, (list, tuple)):
            return [self._expressed(item, keeps) for item in option]
        if type(option) is not int or self.chance(keeps):
            return option
        fits = [made for made in self._expressions() if evaluated(made, BASE) == option]
        return self.choice(fits) if fits else option

    def _expressions(self) -> Iterator[Any]:
        """Simple ones of the open sizes."""
        known = symbols_of(value.shape for value in self._open._inputs)
        dimensions = [self._dimensions[name] for name in known]
        for n in dimensions:
            yield from (n, n - 1, n + 1, 2 * n, 3 * n, 4 * n, n // 2, (n - 1) // 2)
            for m in dimensions:
                yield from (n * m, n + m)

    def attempt(self, maker: Callable[[Grower], MLOperand | list[MLOperand]]) -> None:
        """Add what `maker` makes to both graphs, or nothing."""
        count, nodes = len(self._open._nodes), len(self._nodes)
        super().attempt(maker)
        if len(self._nodes) == nodes:
            del self._open._nodes[count:]

    def finish_open(self, count: int) -> OpenCase:
        """The open graph, and so many sets of sizes."""
        results = self.finish().graph.outputs
        outputs = {name: self._opened[value] for name, value in results}
        graph = self._open.recorded(outputs)
        nodes, read = graph.nodes, {value for node in graph.nodes for value in node.operands}
        constants = {value: array for value, array in graph.constants.items() if value in read}
        case = OpenCase(graph.replace(constants=constants, nodes=nodes), [])
        return replace(case, sizes=[self._valid_sizes(case) for _ in range(count)])

    def _valid_sizes(self, case: OpenCase) -> Mapping[str, int]:
        """Sizes at which no operator refuses its operands, as it may when these are known."""
        ends = {name: self._dimensions[name].bounds for name in case.graph.open_sizes}
        for _ in range(TRIED):
            sizes = {
                name: self.picks.integer(low, min(high, BASE[name] + 3))
                for name, (low, high) in ends.items()
            }
            with contextlib.suppress(ValidationError):
                case.fixed(sizes)
                return sizes
        return {name: BASE[name] for name in ends}


def open_case(seed: int, most: int = 25, sets: int = 5) -> OpenCase:
    """The random open graph of a seed: always the same."""
    grower = OpenGrower(SeededPicks(seed))
    for _ in range(2):
        grower.pool.append(grower.new_input([4] * grower.picks.integer(1, 4), "float32"))
    count = grower.picks.integer(5, most)
    for _ in range(6 * count):
        if len(grower.nodes) >= count:
            break
        grower.attempt(grower.choice(MAKERS))
    return grower.finish_open(sets)


def is_open_anywhere(node: Node) -> bool:
    """Whether a node has open dimensions: in what it reads, makes, or is given."""
    values = (*node.operands, *node.outputs)
    return is_open([value.shape for value in values]) or any(
        isinstance(size, MLDimension)
        for option in node.given.values()
        for size in (option if isinstance(option, tuple) else (option,))
    )

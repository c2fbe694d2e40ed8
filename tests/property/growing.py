"""Random graphs of many nodes, grown node by node with their results known.

Each node is computed as it is added, once as the reference does and once from disturbed
operands. A node whose result would be huge, not a number, or decided by the last digits of its
operands is not added, so that what two engines say of a graph can be compared; how far the
disturbed results lie apart tells how closely.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import numpy as np

from webnn_py import MLOperand
from webnn_py.core.dtypes import DTYPES
from webnn_py.engines.reference import evaluate
from webnn_py.ir import Array, Descriptor, Graph, Node, Value, make_graph, verify
from webnn_py.ops.declare import REGISTRY, Operator
from webnn_py.ops.graph_builder import GraphBuilder
from webnn_py.ops.operand import value_of

T = TypeVar("T")

DATA_TYPES = ("float32", "int32", "uint8")
FLOAT = "float32"
MAX_ELEMENTS = 512
LARGEST = 50.0
"""No float in a graph is larger."""
NOISE = 4e-6
"""Relative disturbance of each float result: a few units in the last place."""
SENSITIVITY = 2e-4
"""The most by which disturbances may have grown."""
MARGIN = 1e-3
"""How far a float must be from where a result jumps."""
STEPS = ("ceil", "floor", "round_even", "sign")


class Picks(Protocol):
    """Where choices come from: a seeded generator, or hypothesis."""

    def integer(self, low: int, high: int) -> int:
        """A number between the bounds, both inclusive."""
        ...


class SeededPicks:
    """Choices that follow from a seed."""

    def __init__(self, seed: int) -> None:
        self._rng = np.random.default_rng(seed)

    def integer(self, low: int, high: int) -> int:
        return int(self._rng.integers(low, high, endpoint=True))


class Rejected(Exception):
    """What was being added would not do."""


@dataclass(frozen=True)
class Case:
    """A graph, its inputs, and what comes out.

    Attributes:
        graph: As recorded, before any pass.
        inputs: Contents, by name.
        expected: Outputs of the reference engine, by name.
        tolerances: How far another engine's outputs may be off; 0 where they must be equal.
    """

    graph: Graph
    inputs: Mapping[str, Array]
    expected: Mapping[str, Array]
    tolerances: Mapping[str, float]

    def assert_close(self, results: Mapping[str, Array]) -> None:
        """The results are the expected ones, within the tolerances."""
        assert list(results) == list(self.expected)
        for name, expected in self.expected.items():
            got, tolerance = results[name], self.tolerances[name]
            assert (got.dtype, got.shape) == (expected.dtype, expected.shape), name
            np.testing.assert_allclose(
                got, expected, rtol=0, atol=tolerance, err_msg=f"output {name}\n{self.graph}"
            )

    def assert_equal(self, results: Mapping[str, Array]) -> None:
        """The results are the expected ones, in every bit."""
        assert list(results) == list(self.expected)
        for name, expected in self.expected.items():
            got = results[name]
            assert (got.dtype, got.shape) == (expected.dtype, expected.shape), name
            where = f"output {name}: {got} is not {expected}\n{self.graph}"
            assert got.tobytes() == expected.tobytes(), where


class Grower(GraphBuilder):
    """Records a graph and computes it at once."""

    def __init__(self, picks: Picks) -> None:
        super().__init__()
        self.picks = picks
        self.pool: list[MLOperand] = []
        self.arrays: dict[Value, Array] = {}
        self._disturbed: dict[Value, Array] = {}
        self._exact: set[Value] = set()
        self._noise = np.random.default_rng(0)

    @property
    def nodes(self) -> Sequence[Node]:
        """What was added so far."""
        return self._nodes

    def choice(self, options: Sequence[T]) -> T:
        """One of the options."""
        return options[self.picks.integer(0, len(options) - 1)]

    def chance(self, percent: int) -> bool:
        """True so often."""
        return self.picks.integer(0, 99) >= 100 - percent

    def contents(self, shape: Sequence[int], data_type: str) -> Array:
        """Small numbers on a grid; at times all the same one."""
        dtype = DTYPES[data_type].numpy
        if self.chance(15):
            filled = self.choice([0, 1, 2, -0.0 if data_type == "float32" else 0])
            return np.full(shape, filled, dtype)
        rng = np.random.default_rng(self.picks.integer(0, 2**32 - 1))
        low = 0 if data_type == "uint8" else -32
        numbers = rng.integers(low, 32, shape, endpoint=True)
        return np.asarray(numbers / 16 if data_type == "float32" else numbers // 4).astype(dtype)

    def new_input(self, shape: Sequence[int], data_type: str) -> MLOperand:
        """An input with contents."""
        operand = self.add_input(f"x{len(self._inputs)}", Descriptor(data_type, tuple(shape)))
        self._know(value_of(operand), self.contents(shape, data_type))
        return operand

    def new_constant(self, shape: Sequence[int], data_type: str = "float32") -> MLOperand:
        """A constant with contents."""
        return self.constant(self.contents(shape, data_type))

    def constant(self, array: Array) -> MLOperand:
        """A constant of one of the few data types."""
        (data_type,) = (name for name in DATA_TYPES if DTYPES[name].numpy == array.dtype)
        operand = self.add_constant(np.array(array, order="C"), data_type)
        self._know(value_of(operand), array)
        return operand

    def _know(self, value: Value, array: Array) -> None:
        self.arrays[value] = self._disturbed[value] = array
        self._exact.add(value)

    def pick(self, *data_types: str, where: Callable[[MLOperand], bool] | None = None) -> MLOperand:
        """An operand from the pool, rather a young one.

        Raises:
            Rejected: There is none.
        """
        fits = [x for x in self.pool if x.data_type in data_types and (where is None or where(x))]
        if not fits:
            raise Rejected
        return self.choice(fits[-4:] if self.chance(60) else fits)

    def emit(self, node: Node) -> list[MLOperand]:
        """Add a node if its results can be compared.

        Raises:
            Rejected: They cannot.
        """
        if any(output.size > MAX_ELEMENTS for output in node.outputs):
            raise Rejected
        made = super().emit(node)
        arrays = [None if value is None else self.arrays[value] for value in node.inputs]
        moved = [None if value is None else self._disturbed[value] for value in node.inputs]
        exact = self._exact.issuperset(node.operands)
        results, others = evaluate(node, arrays), evaluate(node, moved)
        if not exact:
            self._check_jumps(node, arrays, results)
        for value, result, other in zip(node.outputs, results, others, strict=True):
            copies = REGISTRY[node.op].family == "movement" or result.dtype.kind != "f"
            self.arrays[value] = result
            self._disturbed[value] = other if copies else self._disturb(other)
            if exact and copies:
                self._exact.add(value)
            self._check(value)
        return made

    def _disturb(self, array: Array) -> Array:
        factors = 1 + NOISE * self._noise.uniform(-1, 1, array.shape)
        return np.asarray(array * factors).astype(array.dtype)

    def error(self, value: Value) -> float:
        """How far disturbances moved a value."""
        if self.arrays[value].dtype.kind != "f":
            return float((self.arrays[value] != self._disturbed[value]).any())
        return float(np.abs(self.arrays[value] - self._disturbed[value]).max())

    def _check(self, value: Value) -> None:
        array = self.arrays[value]
        size = float(np.abs(array).max()) if array.dtype.kind == "f" else 0.0
        if not size <= LARGEST or not self.error(value) <= SENSITIVITY * (1 + size):
            raise Rejected

    def _check_jumps(
        self, node: Node, given: list[Array | None], results: tuple[Array, ...]
    ) -> None:
        """Where results are steps, operands must not lie at the edges."""
        steps = node.op in STEPS or any(result.dtype.kind != "f" for result in results)
        place = next(
            (i for i, a in enumerate(given) if a is not None and a.dtype.kind == "f"), None
        )
        if not steps or place is None:
            return
        for side in (-MARGIN, MARGIN):
            shifted = list(given)
            array = given[place]
            shifted[place] = np.asarray(array + side * (1 + np.abs(array))).astype(np.float32)
            for result, other in zip(results, evaluate(node, shifted), strict=True):
                if (result != other).any():
                    raise Rejected

    def attempt(self, maker: Callable[[Grower], MLOperand | list[MLOperand]]) -> None:
        """Add what `maker` makes, or nothing."""
        count, constants = len(self._nodes), len(self._constants)
        try:
            made = maker(self)
        except Rejected:
            del self._nodes[count:]
            for value in list(self._constants)[constants:]:
                del self._constants[value]
        else:
            self.pool += made if isinstance(made, list) else [made]

    def finish(self) -> Case:
        """The graph whose outputs are what nothing reads, and some of the rest."""
        made = [value for node in self._nodes for value in node.outputs]
        read = {value for node in self._nodes for value in node.operands}
        results = [value for value in made if value not in read or self.chance(5)]
        outputs = {f"y{i}": value for i, value in enumerate(results)}
        inputs = [value for value in self._inputs if value in read]
        constants = {v: a for v, a in self._constants.items() if v in read}
        graph = make_graph(inputs, constants, self._nodes, outputs.items())
        verify(graph)
        return Case(
            graph,
            {value.name: self.arrays[value] for value in inputs},
            {name: self.arrays[value] for name, value in outputs.items()},
            {name: self._tolerance(value) for name, value in outputs.items()},
        )

    def _tolerance(self, value: Value) -> float:
        if value.data_type != "float32" or value in self._exact:
            return 0.0
        return 5 * self.error(value) + 5e-6 * (1 + float(np.abs(self.arrays[value]).max()))


def called(op: Operator, g: Grower, *operands: Any, **options: Any) -> Any:
    return getattr(g, op.name)(*operands, **options)


def types_of(op: Operator) -> list[str]:
    """Those of the first operand that the graphs have."""
    allowed = op.operand_types(next(iter(op.limits)))
    return [name for name in DATA_TYPES if name in allowed]


def has_rank(*ranks: int) -> Callable[[MLOperand], bool]:
    return lambda operand: operand.rank in ranks


def axis_of(g: Grower, x: MLOperand) -> int:
    if not x.rank:
        raise Rejected
    return g.picks.integer(0, x.rank - 1)


def axes_of(g: Grower, x: MLOperand) -> list[int]:
    return [axis for axis in range(x.rank) if g.chance(50)]

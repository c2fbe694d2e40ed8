"""Joined along its batch axes, a graph gives what it gives for each part alone: every operator."""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.property.drawing import Array, Call
from tests.property.strategies import calls
from tests.property.test_open_shapes import Opened, tried
from tests.property.test_valid_calls import frozen
from webnn_py.core.dimensions import named
from webnn_py.engines.reference import evaluate
from webnn_py.ir import Graph
from webnn_py.ops.batch_axes import RANGES_OF_ALL, Axis, batch_axes
from webnn_py.ops.bind_sizes import fix
from webnn_py.ops.declare import REGISTRY

some = settings(
    database=None,
    derandomize=True,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)


BATCH = "batch"


def computed(graph: Graph, inputs: Mapping[str, Array]) -> list[Array]:
    """The outputs by the reference engine's definitions."""
    arrays = {value: inputs[value.name] for value in graph.inputs} | dict(graph.constants)
    for node in graph.nodes:
        operands = [None if value is None else arrays[value] for value in node.inputs]
        arrays.update(zip(node.outputs, evaluate(node, operands), strict=True))
    return [arrays[value] for _, value in graph.outputs]


def joined(parts: list[Array], axis: Axis) -> Array:
    return parts[0] if axis is None else np.concatenate(parts, axis)


class Batched(Opened):
    """A call, one axis of some operands of which is open, under one name.

    Args:
        places: The open axis of each such operand; all of one size.
        options: Whether options of that size are open, too.
    """

    def __init__(self, call: Call, places: Mapping[str, int], options: bool) -> None:
        self.call = call
        self.tensors = call.named()
        (size,) = {self.tensors[name].shape[axis] for name, axis in places.items()}
        dimension: Any = named(BATCH, 1, 1000)
        self.sizes = {BATCH: size}
        self.shapes = {
            name: tuple(
                dimension if places.get(name) == axis else along
                for axis, along in enumerate(tensor.shape)
            )
            for name, tensor in self.tensors.items()
            if not tensor.constant
        }

        def opened(value: Any) -> Any:
            if isinstance(value, (list, tuple)):
                return [opened(item) for item in value]
            return dimension if type(value) is int and value == size else value

        self.options = {
            name: opened(value) if options and name in call.op.sizes else value
            for name, value in call.options.items()
        }


def placements(call: Call) -> Iterator[Batched]:
    """Every way to give one name to axes of one size, one of each operand."""
    shapes = {name: t.shape for name, t in call.named().items() if not t.constant}
    for size in sorted({size for shape in shapes.values() for size in shape}):
        axes = [[None, *(a for a, n in enumerate(s) if n == size)] for s in shapes.values()]
        for chosen in itertools.product(*axes):
            places = {n: a for n, a in zip(shapes, chosen, strict=True) if a is not None}
            if places:
                yield Batched(call, places, options=False)
                if call.op.sizes:
                    yield Batched(call, places, options=True)


class Parts:
    """Inputs of a graph for several sizes of the batch: rows of those that were drawn."""

    def __init__(self, case: Batched, recipe: Graph, axes: tuple[Axis, ...], seed: int) -> None:
        self._case = case
        self._recipe = recipe
        self._axes = dict(zip((value.name for value in recipe.inputs), axes, strict=True))
        self._rng = np.random.default_rng(seed)

    def inputs(self, count: int) -> dict[str, Array]:
        """Some rows, in any order."""
        made = {}
        for name, axis in self._axes.items():
            array = self._case.tensors[name].array
            if axis is not None:
                array = np.take(array, self._rng.integers(0, array.shape[axis], count), axis)
            made[name] = array
        return made

    def computed(self, count: int, inputs: Mapping[str, Array]) -> list[Array]:
        return computed(fix(self._recipe, {BATCH: count}), inputs)

    def check(self, counts: list[int], outputs: tuple[Axis, ...]) -> None:
        """What is computed alone is what is computed together."""
        apart = [self.inputs(count) for count in counts]
        whole = {name: joined([p[name] for p in apart], a) for name, a in self._axes.items()}
        alone = [self.computed(n, part) for n, part in zip(counts, apart, strict=True)]
        together = self.computed(sum(counts), whole)
        for axis, got, *parts in zip(outputs, together, *alone, strict=True):
            expected = joined(parts, axis).astype(np.float64)
            np.testing.assert_allclose(got.astype(np.float64), expected, rtol=1e-3)


@pytest.mark.parametrize("name", sorted(REGISTRY))
def test_every_operator_is_joined_where_that_changes_no_result(name: str) -> None:
    op, passed = REGISTRY[name], []
    draws = 4 if op.elementwise else 40 if op.sizes else 25

    @settings(some, max_examples=draws)
    @given(st.data())
    def check(data: st.DataObject) -> None:
        call = frozen(data.draw(calls(name)), constant=False)
        for case in itertools.islice(placements(call), 40):
            recipe = tried(case.record)
            if isinstance(recipe, Exception):
                continue
            axes = tried(functools.partial(batch_axes, recipe, BATCH))
            if isinstance(axes, Exception):
                assert re.search(rf"^({name}|input '\w+'): computes .*cannot be joined", str(axes))
                continue
            counts = [data.draw(st.integers(1, 4)) for _ in range(3)]
            Parts(case, recipe, axes.inputs, len(passed)).check(counts, axes.outputs)
            passed.append(counts)

    check()
    assert passed or name in RANGES_OF_ALL, (
        "no call was joined: has it a rule in webnn_py/ops/batch_axes.py?"
    )

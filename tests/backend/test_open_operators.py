"""Every operator with every dimension open that may be gives what it does on numbers."""

from __future__ import annotations

import functools

import pytest

from tests.backend.compared import assert_close, built
from tests.graphs import awaited
from tests.property.most_open import MostOpen, Place, most_open_calls
from tests.public import OPERATORS
from webnn_py import MLContext

DRAWN = 10
MORE = 2
"""The third sizes are those that a device may have compiled for already, with the second."""
each_operator = pytest.mark.parametrize("name", OPERATORS)

DIRECTIONS = {
    (operand, 0)
    for operand in (
        *("weight0", "recurrent_weight0", "bias0", "recurrent_bias0"),
        *("peephole_weight0", "initial_hidden_state0", "initial_cell_state0"),
    )
}
GATES = {
    *(("weight0", 2), ("recurrent_weight0", 2), ("weight_scale0", 1), ("recurrent_scale0", 1)),
    *(
        ("weight_zero_point0", 1),
        ("recurrent_zero_point0", 1),
        ("bias0", 1),
        ("recurrent_bias0", 1),
    ),
}
PACKED = DIRECTIONS | {(name, 0) for name, _ in GATES}
KNOWN_AT_BUILD = {"gru": DIRECTIONS, "lstm": DIRECTIONS, "lstm_packed": PACKED | GATES}
"""Dimensions that cannot be open; nor can the last one of gather_nd's and scatter_nd's indices."""


@functools.cache
def calls_of(name: str) -> list[MostOpen]:
    return list(most_open_calls(name, DRAWN, MORE))


def closed(made: MostOpen) -> set[Place]:
    """The dimensions that are not open, though they could be, and do not broadcast."""
    op = made.call.op.name
    kept = KNOWN_AT_BUILD.get(op, set())
    if op in ("gather_nd", "scatter_nd"):
        kept = {("indices0", len(made.call.named()["indices0"].shape) - 1)}
    return {
        (name, axis)
        for name, tensor in made.call.named().items()
        for axis, size in enumerate(() if tensor.constant else tensor.shape)
        if size > 1 and (name, axis) not in made.places | kept
    }


@each_operator
def test_every_dimension_may_be_open(name: str) -> None:
    assert not min(map(closed, calls_of(name)), key=len)


@each_operator
def test_open_operators_compute_what_fixed_ones_do(
    gpu: MLContext, reference: MLContext, name: str
) -> None:
    """On the engine that compiles kernels for many sizes; others compile for each by itself."""
    made = calls_of(name)[0]
    graph = built(gpu, made.record())
    for more in range(MORE + 1):
        recipe = made.record(made.larger(more))
        inputs = made.inputs(recipe)
        got, wanted = awaited(graph, inputs), awaited(built(reference, recipe), inputs)
        assert got.keys() == wanted.keys()
        for output, array in wanted.items():
            assert_close(got[output], array)

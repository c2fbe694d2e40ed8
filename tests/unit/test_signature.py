"""What is refused before anything runs, and how that is said: the same in every mode."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from tests.graphs import awaited
from webnn_py import (
    DataError,
    MLCommandEncoder,
    MLContext,
    MLError,
    MLExecution,
    MLGraph,
    MLGraphBuilder,
    MLTensor,
    ValidationError,
    ml,
)

Compute = Callable[[MLContext, MLGraph, Any, Any], Any]

MODES: dict[str, tuple[str, type[MLError], Compute]] = {
    "compute": ("cpu", DataError, lambda c, g, i, o: MLExecution(c).compute(g, i, o)),
    "awaited on a CPU": ("cpu", DataError, lambda c, g, i, o: awaited(g, i, o)),
    "awaited on a GPU": ("gpu", DataError, lambda c, g, i, o: awaited(g, i, o)),
    "recorded": ("gpu", DataError, lambda c, g, i, o: MLCommandEncoder(c).dispatch(g, i, o)),
    "dispatch on a CPU": ("cpu", ValidationError, lambda c, g, i, o: c.dispatch(g, i, o)),
    "dispatch on a GPU": ("gpu", ValidationError, lambda c, g, i, o: c.dispatch(g, i, o)),
}


@dataclass
class Given:
    """What an execution is given; tensors are taken in every mode.

    Attributes:
        other: Another context on the same kind of device.
    """

    context: MLContext
    other: MLContext
    inputs: Any
    outputs: Any

    def tensor(self, data_type: str = "float32", shape: tuple[int, ...] = (2, 3)) -> MLTensor:
        return self.context.create_tensor_sync(data_type, shape, readable=True, writable=True)

    def destroyed(self) -> MLTensor:
        made = self.tensor()
        made.destroy()
        return made

    def foreign(self) -> MLTensor:
        return self.other.create_tensor_sync("float32", (2, 3))

    def fixed(self) -> MLTensor:
        return self.context.create_constant_tensor_sync(np.ones((2, 3), np.float32))


Fault = tuple[Callable[[Given], None], str]
"""What is changed of it to be wrong, and what is said then."""


def inputs(change: Callable[[Given], Any]) -> Callable[[Given], None]:
    def apply(given: Given) -> None:
        given.inputs = change(given)

    return apply


def outputs(change: Callable[[Given], Any]) -> Callable[[Given], None]:
    def apply(given: Given) -> None:
        given.outputs = change(given)

    return apply


def with_x(make: Callable[[Given], Any]) -> Callable[[Given], None]:
    return inputs(lambda given: {"x": make(given)})


def with_y(make: Callable[[Given], Any]) -> Callable[[Given], None]:
    return outputs(lambda given: {**given.outputs, "y": make(given)})


FAULTS: dict[str, Fault] = {
    "no input": (
        inputs(lambda g: {}),
        r"input 'x' is missing; expected MLOperandDescriptor\('float32', \[2, 3\]\)",
    ),
    "unknown input": (
        inputs(lambda g: {**g.inputs, "w": g.tensor()}),
        "unknown input 'w'; this graph has 'x'",
    ),
    "unknown output": (
        outputs(lambda g: {**g.outputs, "w": g.tensor()}),
        "unknown output 'w'; this graph has 'y', 'z'",
    ),
    "inputs in a list": (
        inputs(lambda g: [g.tensor()]),
        "inputs: got list, expected a mapping by name",
    ),
    "outputs in a list": (
        outputs(lambda g: [g.tensor()]),
        "outputs: got list, expected a mapping by name",
    ),
    "input of another type": (
        with_x(lambda g: g.tensor("int32")),
        r"input 'x': the MLTensor is int32\[2,3\], expected float32\[2,3\]",
    ),
    "input of another shape": (
        with_x(lambda g: g.tensor(shape=(3, 2))),
        r"input 'x': the MLTensor is float32\[3,2\], expected float32\[2,3\]",
    ),
    "destroyed input": (with_x(Given.destroyed), "input 'x': the MLTensor is destroyed"),
    "input that is nothing": (with_x(lambda g: object()), "input 'x': got .*object"),
    "output of another type": (
        with_y(lambda g: g.tensor("int32")),
        r"output 'y': the MLTensor is int32\[2,3\], expected float32\[2,3\]",
    ),
    "smaller output": (
        with_y(lambda g: g.tensor(shape=(2, 2))),
        r"output 'y': the MLTensor is float32\[2,2\], expected float32\[2,3\]",
    ),
    "destroyed output": (with_y(Given.destroyed), "output 'y': the MLTensor is destroyed"),
    "constant output": (with_y(Given.fixed), "output 'y': the MLTensor (cannot be|is constant)"),
    "output that is nothing": (with_y(lambda g: object()), "output 'y': got .*object"),
    "one tensor for two outputs": (
        with_y(lambda g: g.outputs["z"]),
        "outputs '[yz]' and '[yz]' share memory; give each one of its own",
    ),
}
# On a GPU, the tensors of all contexts on a device are taken where no context's order is kept.
OF_ONE_CONTEXT: dict[str, Fault] = {
    "input of another context": (with_x(Given.foreign), "input 'x': .*belongs to another context"),
    "output of another context": (
        with_y(Given.foreign),
        "output 'y': .*belongs to another context",
    ),
}
OF_DISPATCHES: dict[str, Fault] = {
    "no output": (
        outputs(lambda g: {"z": g.outputs["z"]}),
        "output 'y' is missing; a dispatch needs every output",
    ),
}


def faults(mode: str) -> dict[str, Fault]:
    """By name, those that are some in a mode."""
    found = dict(FAULTS)
    is_dispatch = mode.startswith("dispatch")
    if is_dispatch or MODES[mode][0] == "cpu":
        found |= OF_ONE_CONTEXT
    return found | OF_DISPATCHES if is_dispatch else found


@pytest.fixture
def context(mode: str, cpu: MLContext, request: pytest.FixtureRequest) -> MLContext:
    made: MLContext = request.getfixturevalue(MODES[mode][0])
    return made


@pytest.fixture
def other(context: MLContext) -> Iterator[MLContext]:
    device = {"device_type": "cpu"} if context.device is None else {"device": context.device}
    with ml.create_context_sync(**device) as made:
        yield made


def graph_of(context: MLContext) -> MLGraph:
    builder = MLGraphBuilder(context)
    x = builder.input("x", "float32", [2, 3])
    return builder.build_sync({"y": builder.add(x, x), "z": builder.neg(x)})


def given_on(context: MLContext, other: MLContext) -> Given:
    given = Given(context, other, {}, {})
    given.inputs = {"x": given.tensor()}
    given.outputs = {"y": given.tensor(), "z": given.tensor()}
    context.write_tensor(given.inputs["x"], np.ones((2, 3), np.float32))
    return given


CASES = [(mode, fault) for mode in MODES for fault in faults(mode)]


@pytest.mark.parametrize(("mode", "fault"), CASES, ids=[": ".join(case) for case in CASES])
def test_faults_are_refused_alike(
    mode: str, fault: str, context: MLContext, other: MLContext
) -> None:
    _, error, compute = MODES[mode]
    break_rule, message = faults(mode)[fault]
    graph, given = graph_of(context), given_on(context, other)
    targets = dict(given.outputs)
    break_rule(given)
    with pytest.raises(MLError, match=message) as raised:
        compute(context, graph, given.inputs, given.outputs)
    assert type(raised.value) is error
    for tensor in targets.values():  # nothing has run
        assert not context.read_tensor_sync(tensor).any()


@pytest.mark.parametrize("mode", MODES)
def test_what_is_right_is_taken(mode: str, context: MLContext, other: MLContext) -> None:
    """Else the test above would show little."""
    graph, given = graph_of(context), given_on(context, other)
    MODES[mode][2](context, graph, given.inputs, given.outputs)
    expected = 0 if mode == "recorded" else 2  # its commands are never submitted
    for name, factor in (("y", 1), ("z", -0.5)):
        result = context.read_tensor_sync(given.outputs[name])
        np.testing.assert_array_equal(result, np.full((2, 3), factor * expected, np.float32))

"""Whatever is given to a builder, it either works or raises an MLError that says where."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.property.strategies import calls, shapes
from tests.public import DATA_TYPES, OPERATORS, WHOLE_BYTES
from webnn_py import (
    MLContext,
    MLDimension,
    MLError,
    MLGraphBuilder,
    MLOperand,
    MLOperandDescriptor,
    ml,
)

quick = settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck))

LONG = 2**32
NUMBERS = [-1, 0, 1, 7, 8192, 8193, 2**31 - 1, 2**31, LONG - 1, LONG, 2**70, -(10**400)]
FLOATS = [0.0, -0.5, 0.5, 1e308, float("inf"), float("-inf"), float("nan")]
NUMPY = [np.float32(2), np.int64(-3), np.bool_(True), np.array(2), np.array([1, 2]), np.array("x")]

numbers = st.sampled_from(NUMBERS) | st.integers() | st.sampled_from(FLOATS) | st.floats()
scalars = (
    numbers
    | st.none()
    | st.booleans()
    | st.text(max_size=4)
    | st.binary(max_size=4)
    | st.sampled_from(NUMPY)
    | st.complex_numbers()
    | st.builds(object)
)
junk = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=9)
        | st.tuples(inner)
        | st.dictionaries(st.text(max_size=2), inner, max_size=2)
        | st.just(range(3))
        | st.sets(st.integers(), max_size=2)
    ),
    max_leaves=9,
)


@pytest.fixture(scope="module")
def context() -> MLContext:
    return ml.create_context_sync(engine="reference")


@st.composite
def some_operand(draw: Any, builder: MLGraphBuilder, name: str) -> MLOperand:
    """An operand of any data type and rank."""
    return builder.input(name, draw(st.sampled_from(WHOLE_BYTES)), draw(shapes()))


@st.composite
def changed(draw: Any, value: Any) -> Any:
    """A value that is a little off."""
    if isinstance(value, (list, tuple)) and value:
        place = draw(st.integers(0, len(value) - 1))
        return draw(
            st.sampled_from(
                [
                    [*value, value[-1]],
                    list(value[:-1]),
                    [*value[:place], draw(scalars), *value[place + 1 :]],
                    [*value[:place], draw(st.sampled_from(NUMBERS)), *value[place + 1 :]],
                ]
            )
        )
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return draw(st.sampled_from([-value - 1, value + 1, 0, 8, value * 2**31]))
    return draw(junk)


@st.composite
def broken(draw: Any, builder: MLGraphBuilder, arguments: dict[str, Any]) -> dict[str, Any]:
    """Arguments of which one to three are left out, added or replaced."""
    arguments = dict(arguments)
    for number in range(draw(st.integers(1, 3))):
        name = draw(st.sampled_from([*arguments, "unknown", "label"]))
        match draw(st.sampled_from(["change", "change", "junk", "drop", "operand", "foreign"])):
            case "drop":
                arguments.pop(name, None)
            case "junk":
                arguments[name] = draw(junk)
            case "change":
                arguments[name] = draw(changed(arguments.get(name)))
            case "operand":
                arguments[name] = draw(some_operand(builder, f"other{number}"))
            case "foreign":
                foreign = MLGraphBuilder(ml.create_context_sync(engine="reference"))
                arguments[name] = draw(some_operand(foreign, "foreign"))
    return arguments


@pytest.mark.parametrize("name", OPERATORS)
@quick
@given(data=st.data())
def test_an_operator_raises_nothing_but_an_ml_error(
    context: MLContext, name: str, data: st.DataObject
) -> None:
    builder = MLGraphBuilder(context)
    call = data.draw(calls(name))
    arguments = data.draw(broken(builder, call.arguments(builder)))
    try:
        made = getattr(builder, name)(**arguments)
    except MLError as caught:
        error = str(caught)
        made = []
    else:
        error = name
    # The message says which operator it was.
    assert error.startswith(name)
    for output in made if isinstance(made, list) else [made]:
        assert isinstance(output, MLOperand)
        assert output.data_type in DATA_TYPES
        assert all(isinstance(size, int) and size > 0 for size in output.shape)


@pytest.mark.parametrize("name", OPERATORS)
@settings(quick, max_examples=5)
@given(arguments=st.lists(junk, max_size=4), options=st.dictionaries(st.text(max_size=3), junk))
def test_an_operator_called_with_anything_raises_an_ml_error(
    context: MLContext, name: str, arguments: list[Any], options: dict[str, Any]
) -> None:
    with pytest.raises(MLError, match=f"^{name}"):
        getattr(MLGraphBuilder(context), name)(*arguments, **options)


anything = junk | st.sampled_from(DATA_TYPES)
shape_like = junk | st.lists(st.integers(0, 3), max_size=9) | shapes()


@settings(max_examples=150, deadline=None)
@given(name=anything, data_type=anything, shape=shape_like)
def test_an_input_raises_nothing_but_an_ml_error(
    context: MLContext, name: Any, data_type: Any, shape: Any
) -> None:
    builder = MLGraphBuilder(context)
    try:
        operand = builder.input(name, data_type, shape)
    except MLError:
        return
    assert operand.data_type == data_type
    for got, size in zip(operand.shape, [] if shape is None else shape, strict=True):
        is_open = isinstance(size, str) or int(size) == -1
        assert isinstance(got, MLDimension) if is_open else got == int(size)


@settings(max_examples=80, deadline=None)
@given(data_type=anything, shape=shape_like)
def test_a_descriptor_raises_nothing_but_an_ml_error(data_type: Any, shape: Any) -> None:
    try:
        descriptor = MLOperandDescriptor(data_type, shape)
    except MLError:
        return
    assert descriptor.data_type == data_type


@settings(max_examples=150, deadline=None)
@given(value=junk, data_type=anything, shape=shape_like | st.none())
def test_a_constant_raises_nothing_but_an_ml_error(
    context: MLContext, value: Any, data_type: Any, shape: Any
) -> None:
    builder = MLGraphBuilder(context)
    try:
        operand = builder.constant(value, data_type, shape)
    except MLError:
        return
    assert operand.data_type in DATA_TYPES


@settings(max_examples=100, deadline=None)
@given(outputs=junk)
def test_a_build_raises_nothing_but_an_ml_error(context: MLContext, outputs: Any) -> None:
    with pytest.raises(MLError):
        MLGraphBuilder(context).build_sync(outputs)

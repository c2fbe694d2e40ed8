"""MLTensors on both kinds of contexts: contents, order, what is refused, failures, the end."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest

from tests.backend.tensors import ONES, SHAPE, Array, Parked, adding, tensor
from tests.graphs import build, doubling
from tests.loops import Run, cancel_after, pause, together
from tests.threads import in_threads
from webnn_py import (
    InvalidStateError,
    MLContext,
    MLGraphBuilder,
    MLOperand,
    MLOperandDescriptor,
    ValidationError,
    ml,
)

TYPES = ("float32", "float16", "int32", "uint32", "int64", "uint64", "int8", "uint8")
# Creation


@pytest.mark.parametrize("data_type", TYPES)
@pytest.mark.parametrize("shape", [(), (1,), (5,), (2, 3), (3, 1, 7)])
def test_tensors_hold_what_is_written(
    context: MLContext, data_type: str, shape: tuple[int, ...]
) -> None:
    made = context.create_tensor_sync(data_type, shape, readable=True, writable=True)
    assert (made.data_type, made.shape) == (data_type, shape)
    dtype = np.dtype(data_type)
    np.testing.assert_array_equal(context.read_tensor_sync(made), np.zeros(shape, dtype))
    high = np.iinfo(dtype).max if dtype.kind in "iu" else np.finfo(dtype).max
    array = np.full(shape, high, dtype)
    context.write_tensor(made, array)
    result = context.read_tensor_sync(made)
    assert result.dtype == dtype
    np.testing.assert_array_equal(result, array)


def test_a_descriptor_gives_type_and_shape(context: MLContext) -> None:
    descriptor = MLOperandDescriptor("int8", [4, 5])
    made = context.create_tensor_sync(descriptor)
    assert (made.data_type, made.shape) == ("int8", (4, 5))
    assert not any([made.readable, made.writable, made.exportable, made.constant])
    constant = context.create_constant_tensor_sync(bytes(20), descriptor)
    assert (constant.data_type, constant.shape, constant.constant) == ("int8", (4, 5), True)


def test_tensors_are_made_awaited(context: MLContext, run: Run) -> None:
    async def main() -> None:
        made = await context.create_tensor_async("float32", SHAPE, readable=True)
        np.testing.assert_array_equal(await context.read_tensor_async(made), np.zeros(SHAPE))
        constant = await context.create_constant_tensor_async(ONES)
        assert constant.shape == SHAPE

    run(main)


@pytest.mark.parametrize(
    "given",
    [
        ("float64", SHAPE),
        ("int4", SHAPE),
        ("float32", (0,)),
        ("float32", (-1,)),
        ("float32", "23"),
        ("float32", 5),
        ("float32", (2**31, 2**31)),
        (None, SHAPE),
        (np.dtype("float32"), SHAPE),
        (5, SHAPE),
    ],
    ids=str,
)
def test_what_is_no_tensor_is_refused(context: MLContext, given: Any) -> None:
    with pytest.raises(ValidationError, match=r"^create_tensor: "):
        context.create_tensor_sync(*given)
    with pytest.raises(ValidationError, match=r"^create_constant_tensor: "):
        context.create_constant_tensor_sync(object(), *given)


@pytest.mark.parametrize("flag", ["readable", "writable", "exportable"])
def test_flags_are_booleans(context: MLContext, flag: str) -> None:
    with pytest.raises(ValidationError, match=flag):
        context.create_tensor_sync("float32", SHAPE, **{flag: 1})  # type: ignore[arg-type]


def test_tensors_print(context: MLContext) -> None:
    made = tensor(context, ONES)
    assert "float32" in repr(made)
    assert context.device_type in repr(made)
    made.destroy()
    assert "destroyed" in repr(made)


# Writing and reading


@pytest.mark.parametrize(
    "value",
    [
        ONES,
        ONES.tobytes(),
        bytearray(ONES.tobytes()),
        memoryview(ONES),
        np.asfortranarray(ONES),
        np.ones((4, 6), np.float32)[::2, ::2],
        {"resource": ONES, "dimensions": [2, 3]},
    ],
    ids=["array", "bytes", "bytearray", "memoryview", "fortran", "strided", "resource"],
)
def test_anything_of_the_right_size_is_written(context: MLContext, value: Any) -> None:
    made = tensor(context)
    context.write_tensor(made, value)
    np.testing.assert_array_equal(context.read_tensor_sync(made), ONES)


@pytest.mark.parametrize(
    "value",
    [ONES.T, ONES.astype(np.float64), bytes(23), [[1.0] * 3] * 2, None, 1.0, ONES[:1]],
    ids=["shape", "type", "size", "list", "none", "number", "part"],
)
def test_what_does_not_fit_is_not_written(context: MLContext, value: Any) -> None:
    made = tensor(context, ONES)
    with pytest.raises(ValidationError, match="write_tensor"):
        context.write_tensor(made, value)
    np.testing.assert_array_equal(context.read_tensor_sync(made), ONES)


def test_writing_copies_before_it_returns(context: MLContext) -> None:
    parked, made = Parked(context), tensor(context)
    array = ONES.copy()
    context.write_tensor(made, array)
    array[:] = 7
    parked.go()
    np.testing.assert_array_equal(context.read_tensor_sync(made), ONES)


def test_writing_after_recorded_work_copies_too(context: MLContext) -> None:
    x, y = tensor(context, ONES), tensor(context)
    graph, array = doubling(context), ONES * 5
    context.dispatch(graph, {"x": x}, {"y": y})
    context.write_tensor(x, array)
    array[:] = 7
    np.testing.assert_array_equal(context.read_tensor_sync(y), ONES * 2)
    np.testing.assert_array_equal(context.read_tensor_sync(x), ONES * 5)


def test_what_is_read_belongs_to_the_reader(context: MLContext) -> None:
    made = tensor(context, ONES)
    first = context.read_tensor_sync(made)
    first[:] = 9
    np.testing.assert_array_equal(context.read_tensor_sync(made), ONES)


def test_reading_fills_the_given_array(context: MLContext, run: Run) -> None:
    made = tensor(context, ONES)
    out = np.zeros(SHAPE, np.float32)
    assert context.read_tensor_sync(made, out) is out
    np.testing.assert_array_equal(out, ONES)
    larger = np.zeros(9, np.float32)
    assert context.read_tensor_sync(made, larger) is larger
    np.testing.assert_array_equal(larger, [1] * 6 + [0] * 3)
    raw = bytearray(24)
    np.testing.assert_array_equal(context.read_tensor_sync(made, raw), ONES)
    assert bytes(raw) == ONES.tobytes()

    async def main() -> None:
        out[:] = 0
        assert await context.read_tensor_async(made, out) is out
        np.testing.assert_array_equal(out, ONES)

    run(main)


@pytest.mark.parametrize(
    "out",
    [np.zeros(5, np.float32), np.zeros(SHAPE), bytes(24), [1.0]],
    ids=["small", "type", "read-only", "list"],
)
def test_an_array_that_does_not_fit_is_not_read_into(context: MLContext, out: Any) -> None:
    with pytest.raises(ValidationError, match="read_tensor"):
        context.read_tensor_sync(tensor(context, ONES), out)


def test_a_tensor_is_not_read_into(context: MLContext) -> None:
    one, other = tensor(context, ONES), tensor(context)
    with pytest.raises(ValidationError, match="option 'out': got MLTensor, expected an array"):
        context.read_tensor_sync(one, out=other)
    np.testing.assert_array_equal(context.read_tensor_sync(other), ONES * 0)


def test_flags_decide_who_may_read_and_write(context: MLContext) -> None:
    closed = context.create_tensor_sync("float32", SHAPE)
    with pytest.raises(ValidationError, match="not created readable"):
        context.read_tensor_sync(closed)
    with pytest.raises(ValidationError, match="not created writable"):
        context.write_tensor(closed, ONES)
    context.dispatch(doubling(context), {"x": tensor(context, ONES)}, {"y": closed})


def test_reading_refuses_to_block_an_event_loop(context: MLContext, run: Run) -> None:
    made = tensor(context, ONES)

    async def main() -> None:
        with pytest.raises(InvalidStateError, match="read_tensor_async"):
            context.read_tensor_sync(made)
        np.testing.assert_array_equal(await context.read_tensor_async(made), ONES)

    run(main)


def test_many_reads_are_awaited_at_once(context: MLContext, run: Run) -> None:
    tensors = [tensor(context, ONES * index) for index in range(40)]
    results: dict[int, Array] = {}

    async def read(index: int) -> None:
        results[index] = await context.read_tensor_async(tensors[index])

    run(lambda: together([lambda index=index: read(index) for index in range(40)]))
    for index in range(40):
        np.testing.assert_array_equal(results[index], ONES * index)


def test_a_cancelled_read_leaves_the_array_alone(context: MLContext, run: Run) -> None:
    parked = Parked(context)
    out = np.full(SHAPE, 7, np.float32)

    async def read() -> None:
        await context.read_tensor_async(parked.target, out)

    async def main() -> None:
        await cancel_after(read, lambda: pause(0.01))

    run(main)
    parked.go()
    np.testing.assert_array_equal(context.read_tensor_sync(parked.target), ONES * 2)
    np.testing.assert_array_equal(out, np.full(SHAPE, 7))


# Order


def test_work_runs_in_the_order_of_calls(context: MLContext) -> None:
    graph, add = doubling(context), adding(context)
    x, y, z = tensor(context, ONES), tensor(context), tensor(context)
    for turn in range(30):
        context.dispatch(graph, {"x": x}, {"y": y})
        context.dispatch(add, {"x": y, "k": x}, {"y": z})
        if turn % 7 == 0:
            np.testing.assert_array_equal(context.read_tensor_sync(z), ONES * 3 * (turn + 1))
        if turn % 5 == 0:
            context.flush()
        context.write_tensor(x, ONES * (turn + 2))
    np.testing.assert_array_equal(context.read_tensor_sync(z), ONES * 90)


def test_parked_work_holds_back_what_follows(context: MLContext, run: Run) -> None:
    parked = Parked(context)
    made = tensor(context, ONES)
    context.flush()
    results: list[Array] = []

    async def read() -> None:
        results.append(await context.read_tensor_async(made))

    async def check() -> None:
        await pause(0.05)
        assert not results
        context.write_tensor(made, ONES * 9)
        parked.go()

    run(lambda: together([read, check]))
    np.testing.assert_array_equal(results[0], ONES)
    np.testing.assert_array_equal(context.read_tensor_sync(made), ONES * 9)


def test_more_dispatches_than_a_batch_holds(context: MLContext) -> None:
    graph = adding(context)
    one, x, y = tensor(context, ONES), tensor(context, ONES * 0), tensor(context)
    for _ in range(300):
        context.dispatch(graph, {"x": x, "k": one}, {"y": y})
        x, y = y, x
    np.testing.assert_array_equal(context.read_tensor_sync(x), ONES * 300)


def test_more_writes_than_a_batch_holds(context: MLContext) -> None:
    graph, x, y = doubling(context), tensor(context, ONES), tensor(context)
    context.dispatch(graph, {"x": x}, {"y": y})
    for turn in range(600):
        context.write_tensor(x, ONES * turn)
    np.testing.assert_array_equal(context.read_tensor_sync(y), ONES * 2)
    np.testing.assert_array_equal(context.read_tensor_sync(x), ONES * 599)


def test_graphs_that_pass_an_input_on_or_name_one_output_twice(context: MLContext) -> None:
    def what(builder: MLGraphBuilder) -> dict[str, MLOperand]:
        x = builder.input("x", "float32", SHAPE)
        twice = builder.add(x, x)
        constant = builder.constant(ONES * 7)
        return {"a": twice, "b": twice, "c": builder.identity(x), "d": builder.identity(constant)}

    outputs = {name: tensor(context) for name in "abcd"}
    context.dispatch(build(context, what), {"x": tensor(context, ONES)}, outputs)
    for name, factor in {"a": 2, "b": 2, "c": 1, "d": 7}.items():
        np.testing.assert_array_equal(context.read_tensor_sync(outputs[name]), ONES * factor)


def test_one_tensor_may_be_two_inputs(context: MLContext) -> None:
    x, y = tensor(context, ONES * 4), tensor(context)
    context.dispatch(adding(context), {"x": x, "k": x}, {"y": y})
    np.testing.assert_array_equal(context.read_tensor_sync(y), ONES * 8)


def test_threads_keep_their_own_order_on_one_context(context: MLContext) -> None:
    graph = adding(context)
    one = tensor(context, ONES)

    def count(turns: int) -> None:
        x, y = tensor(context, ONES * 0), tensor(context)
        for _ in range(turns):
            context.dispatch(graph, {"x": x, "k": one}, {"y": y})
            x, y = y, x
        np.testing.assert_array_equal(context.read_tensor_sync(x), ONES * turns)

    in_threads(*[functools.partial(count, turns) for turns in (20, 33, 50, 47)])


# Refusals


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (({}, "y"), "input 'x' is missing"),
        (({"z": "x"}, "y"), "unknown input 'z'"),
        (({"x": "x"}, None), "output 'y' is missing"),
        (({"x": "x"}, "z"), "unknown output"),
        (({"x": "wide"}, "y"), "input 'x': the MLTensor is"),
        (({"x": "x"}, "wide as y"), "output 'y': the MLTensor is"),
        (({"x": "constant"}, "y"), "constant"),
        (
            ({"x": "array"}, "y"),
            "got ndarray, expected an MLTensor; write_tensor copies it into one",
        ),
        (({"x": "foreign"}, "y"), "belongs to another context"),
        (({"x": "gone"}, "y"), "is destroyed"),
    ],
)
def test_dispatches_that_do_not_fit_are_refused(
    context: MLContext, names: Any, message: str
) -> None:
    with ml.create_context_sync(device_type="cpu") as other:
        x, y = tensor(context, ONES), tensor(context, ONES * 9)
        gone = tensor(context)
        gone.destroy()
        known = {
            "x": x,
            "y": y,
            "wide": tensor(context, np.ones((2, 4), np.float32)),
            "constant": context.create_constant_tensor_sync(ONES),
            "array": ONES,
            "foreign": tensor(other, ONES),
            "gone": gone,
        }
        given, target = names
        inputs: Any = {name: known[value] for name, value in given.items()}
        outputs: Any = {}
        if target is not None:
            value, _, name = target.partition(" as ")
            outputs = {name or value: known.get(value, y)}
        with pytest.raises(ValidationError, match=message):
            context.dispatch(doubling(context), inputs, outputs)
    np.testing.assert_array_equal(context.read_tensor_sync(y), ONES * 9)


def test_graphs_and_points_that_do_not_fit_are_refused(context: MLContext) -> None:
    x, y = {"x": tensor(context, ONES)}, {"y": tensor(context)}
    graph = doubling(context)
    with pytest.raises(ValidationError, match="sync"):
        context.dispatch(graph, x, y, sync=[1])  # type: ignore[list-item]
    with (
        ml.create_context_sync(device_type="cpu") as other,
        pytest.raises(ValidationError, match="another context"),
    ):
        context.dispatch(doubling(other), x, y)
    graph.destroy()
    with pytest.raises(InvalidStateError, match="destroyed"):
        context.dispatch(graph, x, y)


def test_constant_tensors_are_for_builders(context: MLContext) -> None:
    source = ONES.copy()
    constant = context.create_constant_tensor_sync(source)
    source[:] = 9

    def what(builder: MLGraphBuilder) -> dict[str, MLOperand]:
        x = builder.input("x", "float32", SHAPE)
        return {"y": builder.add(x, builder.constant(constant))}

    graph, y = build(context, what), tensor(context)
    context.dispatch(graph, {"x": tensor(context, ONES)}, {"y": y})
    np.testing.assert_array_equal(context.read_tensor_sync(y), ONES * 2)
    for call in (
        lambda: context.read_tensor_sync(constant),
        lambda: context.write_tensor(constant, ONES),
        lambda: context.dispatch(doubling(context), {"x": y}, {"y": constant}),
    ):
        with pytest.raises(ValidationError, match="constant"):
            call()
    with pytest.raises(ValidationError, match="not constant"):
        build(context, lambda builder: {"y": builder.identity(builder.constant(y))})
    constant.destroy()
    assert constant.constant
    with pytest.raises(ValidationError, match="destroyed"):
        build(context, lambda builder: {"y": builder.identity(builder.constant(constant))})
    context.dispatch(graph, {"x": y}, {"y": tensor(context)})

"""Whatever is given for whichever argument, only an MLError comes out, and all still works."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from tests.graphs import ONES, TWOS, awaited, doubling
from tests.property.wrong_objects import WRONG
from webnn_py import (
    MLAwaitedExecution,
    MLCommandEncoder,
    MLContext,
    MLError,
    MLExecution,
    MLGraphBuilder,
    MLOperandDescriptor,
    Timeline,
    TimelinePoint,
    ml,
)

LONGEST = 1000
"""Characters of a message at most; a signature and a list of data types are the longest parts."""


class World:
    """What calls need besides the argument that is wrong."""

    def __init__(self, context: MLContext) -> None:
        self.context = context
        self.graph = doubling(context)
        self.x = context.create_tensor_sync("float32", [2, 3], readable=True, writable=True)
        self.y = context.create_tensor_sync("float32", [2, 3], readable=True, writable=True)
        self.execution = MLAwaitedExecution(context)
        self.timeline = Timeline(5)
        self.again()

    def buffer(self) -> Any:
        """A buffer of the user's."""
        usage = "STORAGE|COPY_SRC|COPY_DST"
        return self.context.device.create_buffer(size=64, usage=usage)

    def again(self) -> None:
        """A builder that has built nothing."""
        self.builder = MLGraphBuilder(self.context)
        self.a = self.builder.input("a", "float32", [2, 3, 4])
        self.image = self.builder.input("image", "float32", [1, 2, 4, 4])
        self.filter = self.builder.input("filter", "float32", [2, 2, 1, 1])
        self.matrix = self.builder.input("matrix", "float32", [3, 3])
        self.index = self.builder.input("index", "int32", [2])

    def compute(self, *arguments: Any, **options: Any) -> Any:
        """Awaited, and on CPU contexts synchronously too."""
        if self.context.device_type == "cpu":
            MLExecution(self.context).compute(*arguments)
        return asyncio.run(self.awaited(*arguments, **options))

    async def awaited(self, *arguments: Any, **options: Any) -> Any:
        return await self.execution.compute(*arguments, **options)

    async def created(self, method: str, *arguments: Any, **options: Any) -> Any:
        return await getattr(self.context, method)(*arguments, **options)

    def assert_works(self) -> None:
        """Nothing is broken: graph, tensors, timeline, builder, context."""
        np.testing.assert_array_equal(awaited(self.graph, {"x": ONES})["y"], TWOS)
        self.context.write_tensor(self.x, ONES)
        self.context.dispatch(self.graph, {"x": self.x}, {"y": self.y})
        np.testing.assert_array_equal(self.context.read_tensor_sync(self.y), TWOS)
        sum_ = self.builder.add(self.a, self.a)
        graph = self.builder.build_sync({"sum": sum_})
        made = awaited(graph, {"a": np.ones((2, 3, 4), np.float32)})["sum"]
        assert (made == 2).all()
        self.again()
        assert self.timeline.value == 5


Call = Callable[[World, Any], Any]
ALWAYS: dict[str, Call] = {
    "builder of": lambda w, o: MLGraphBuilder(o),
    "bounds": lambda w, o: MLGraphBuilder(w.context, dimensions=o),
    "bounds of a dimension": lambda w, o: MLGraphBuilder(w.context, dimensions={"n": o}),
    "highest size": lambda w, o: MLGraphBuilder(w.context, dimensions={"n": (1, o)}),
    "execution of": lambda w, o: MLExecution(o),
    "awaited execution of": lambda w, o: MLAwaitedExecution(o),
    "encoder of": lambda w, o: MLCommandEncoder(o),
    "descriptor type": lambda w, o: MLOperandDescriptor(o, [2]),
    "descriptor shape": lambda w, o: MLOperandDescriptor("float32", o),
    # Building
    "input name": lambda w, o: w.builder.input(o, "float32", [2]),
    "input type": lambda w, o: w.builder.input("n", o, [2]),
    "input shape": lambda w, o: MLGraphBuilder(w.context).input("n", "float32", o),
    "constant": lambda w, o: w.builder.constant(o),
    "constant of float32": lambda w, o: w.builder.constant(o, "float32"),
    "constant of int8": lambda w, o: w.builder.constant(o, "int8", [2]),
    "constant of int4": lambda w, o: w.builder.constant(o, "int4", [2]),
    "constant type": lambda w, o: w.builder.constant(ONES, o),
    "constant shape": lambda w, o: w.builder.constant(ONES, "float32", o),
    "constant name": lambda w, o: w.builder.constant(ONES, name=o),
    "number's shape": lambda w, o: w.builder.constant(1.0, "float32", o),
    "outputs": lambda w, o: w.builder.build_sync(o),
    "output": lambda w, o: w.builder.build_sync({"y": o}),
    "output name": lambda w, o: w.builder.build_sync(named(o, 5)),
    "build_async": lambda w, o: asyncio.run(w.builder.build_async(o)),
    "operand": lambda w, o: w.builder.relu(o),
    "second operand": lambda w, o: w.builder.add(w.a, o),
    "list of operands": lambda w, o: w.builder.concat(o, 0),
    "member": lambda w, o: w.builder.concat([w.a, o], 0),
    "optional operand": lambda w, o: w.builder.conv2d(w.image, w.filter, bias=o),
    "condition": lambda w, o: w.builder.where(o, w.a, w.a),
    "label": lambda w, o: w.builder.relu(w.a, label=o),
    "axis": lambda w, o: w.builder.softmax(w.a, o),
    "axes": lambda w, o: w.builder.reduce_sum(w.a, axes=o),
    "keep_dimensions": lambda w, o: w.builder.reduce_sum(w.a, keep_dimensions=o),
    "new_shape": lambda w, o: w.builder.reshape(w.a, o),
    "expanded": lambda w, o: w.builder.expand(w.a, o),
    "permutation": lambda w, o: w.builder.transpose(w.a, permutation=o),
    "splits": lambda w, o: w.builder.split(w.a, o),
    "padding": lambda w, o: w.builder.conv2d(w.image, w.filter, padding=o),
    "strides": lambda w, o: w.builder.conv2d(w.image, w.filter, strides=o),
    "groups": lambda w, o: w.builder.conv2d(w.image, w.filter, groups=o),
    "layout": lambda w, o: w.builder.conv2d(w.image, w.filter, input_layout=o),
    "window": lambda w, o: w.builder.max_pool2d(w.image, window_dimensions=o),
    "output_sizes": lambda w, o: w.builder.max_pool2d(w.image, output_sizes=o),
    "min_value": lambda w, o: w.builder.clamp(w.a, min_value=o),
    "alpha": lambda w, o: w.builder.elu(w.a, alpha=o),
    "pad": lambda w, o: w.builder.pad(w.a, o, [0, 0, 0]),
    "pad value": lambda w, o: w.builder.pad(w.a, [1, 1, 1], [0, 0, 0], value=o),
    "pad mode": lambda w, o: w.builder.pad(w.a, [1, 1, 1], [0, 0, 0], mode=o),
    "data type": lambda w, o: w.builder.cast(w.a, o),
    "position type": lambda w, o: w.builder.arg_max(w.a, 0, output_data_type=o),
    "scales": lambda w, o: w.builder.resample2d(w.image, scales=o),
    "diagonal": lambda w, o: w.builder.triangular(w.matrix, diagonal=o),
    "starts": lambda w, o: w.builder.slice(w.a, o, [1, 1, 1]),
    "repetitions": lambda w, o: w.builder.tile(w.index, o),
    "steps": lambda w, o: w.builder.gru(w.a, w.a, w.a, o, 2),
    "activations": lambda w, o: w.builder.gru_cell(
        w.matrix, w.matrix, w.matrix, w.matrix, 1, activations=o
    ),
    # Running
    "graph": lambda w, o: w.compute(o, {"x": ONES}),
    "inputs": lambda w, o: w.compute(w.graph, o),
    "input": lambda w, o: w.compute(w.graph, {"x": o}),
    "resource": lambda w, o: w.compute(w.graph, {"x": {"resource": o}}),
    "dimensions": lambda w, o: w.compute(w.graph, {"x": {"resource": ONES, "dimensions": o}}),
    "unknown key": lambda w, o: w.compute(w.graph, {"x": {"resource": ONES, "other": o}}),
    "input's buffer": lambda w, o: w.compute(w.graph, {"x": {"buffer": o}}),
    "computed outputs": lambda w, o: w.compute(w.graph, {"x": ONES}, o),
    "computed output": lambda w, o: w.compute(w.graph, {"x": ONES}, {"y": o}),
    "computed name": lambda w, o: w.compute(w.graph, {"x": ONES}, named(o, ONES)),
    "sync": lambda w, o: w.compute(w.graph, {"x": ONES}, sync=o),
    "member of sync": lambda w, o: w.compute(w.graph, {"x": ONES}, sync=[o]),
    "forged timeline": lambda w, o: w.compute(
        w.graph, {"x": ONES}, sync=[TimelinePoint(o, None, None)]
    ),
    "forged wait": lambda w, o: w.compute(
        w.graph, {"x": ONES}, sync=[TimelinePoint(w.timeline, o, None)]
    ),
    "forged signal": lambda w, o: w.compute(
        w.graph, {"x": ONES}, sync=[TimelinePoint(Timeline(), None, o)]
    ),
    # Tensors
    "tensor type": lambda w, o: w.context.create_tensor_sync(o, [2]),
    "tensor shape": lambda w, o: w.context.create_tensor_sync("float32", o),
    "readable": lambda w, o: w.context.create_tensor_sync("float32", [2], readable=o),
    "exportable": lambda w, o: w.context.create_tensor_sync("float32", [2], exportable=o),
    "async tensor": lambda w, o: asyncio.run(w.created("create_tensor_async", o, [2])),
    "constant tensor": lambda w, o: w.context.create_constant_tensor_sync(o),
    "constant tensor of": lambda w, o: w.context.create_constant_tensor_sync(o, "uint8", [2]),
    "constant tensor type": lambda w, o: w.context.create_constant_tensor_sync(ONES, o),
    "constant tensor shape": lambda w, o: w.context.create_constant_tensor_sync(ONES, "float32", o),
    "written tensor": lambda w, o: w.context.write_tensor(o, ONES),
    "written value": lambda w, o: w.context.write_tensor(w.x, o),
    "read tensor": lambda w, o: w.context.read_tensor_sync(o),
    "read out": lambda w, o: w.context.read_tensor_sync(w.x, o),
    "async read": lambda w, o: asyncio.run(w.created("read_tensor_async", o)),
    "async read out": lambda w, o: asyncio.run(w.created("read_tensor_async", w.x, o)),
    "dispatched graph": lambda w, o: w.context.dispatch(o, {"x": w.x}, {"y": w.y}),
    "dispatched inputs": lambda w, o: w.context.dispatch(w.graph, o, {"y": w.y}),
    "dispatched input": lambda w, o: w.context.dispatch(w.graph, {"x": o}, {"y": w.y}),
    "dispatched outputs": lambda w, o: w.context.dispatch(w.graph, {"x": w.x}, o),
    "dispatched output": lambda w, o: w.context.dispatch(w.graph, {"x": w.x}, {"y": o}),
    "dispatched sync": lambda w, o: w.context.dispatch(w.graph, {"x": w.x}, {"y": w.y}, sync=o),
    "submitted": lambda w, o: w.context.submit(o),
    "submitted member": lambda w, o: w.context.submit([o]),
    "submitted sync": lambda w, o: w.context.submit([], sync=o),
    "exported": lambda w, o: w.context.export_to_gpu(o).__enter__(),
    "from_dlpack": lambda w, o: w.context.from_dlpack(o),
    "stream": lambda w, o: w.x.__dlpack__(stream=o, dl_device=(1, 0)),
    "max_version": lambda w, o: w.x.__dlpack__(max_version=o, dl_device=(1, 0)),
    "dl_device": lambda w, o: w.x.__dlpack__(dl_device=o),
    "copy": lambda w, o: w.x.__dlpack__(copy=o, dl_device=(1, 0)),
    "array's dtype": lambda w, o: w.x.__array__(o),
    "array's copy": lambda w, o: w.x.__array__(None, copy=o),
    # Timelines
    "timeline": lambda w, o: Timeline(o),
    "wait": lambda w, o: w.timeline(wait=o),
    "signal": lambda w, o: w.timeline(signal=o),
    "signalled": lambda w, o: Timeline(2**64 - 1).signal(o),
    "waited for": lambda w, o: w.timeline.wait_sync(o, 0),
    "timeout": lambda w, o: w.timeline.wait_sync(5, o),
    "awaited value": lambda w, o: asyncio.run(
        asyncio.wait_for(Timeline(2**64 - 1).wait_async(o), 10)
    ),
}
GPU: dict[str, Call] = {
    "encoder": lambda w, o: MLCommandEncoder(w.context, encoder=o),
    "initialized graph": lambda w, o: MLCommandEncoder(w.context).initialize_graph(o),
    "bound constants": lambda w, o: MLCommandEncoder(w.context).initialize_graph(
        doubling(w.context), o
    ),
    "bound constant": lambda w, o: MLCommandEncoder(w.context).initialize_graph(
        doubling(w.context), {"x": o}
    ),
    "recorded graph": lambda w, o: MLCommandEncoder(w.context).dispatch(o, {}, {}),
    "recorded inputs": lambda w, o: MLCommandEncoder(w.context).dispatch(w.graph, o, {"y": w.y}),
    "recorded input": lambda w, o: MLCommandEncoder(w.context).dispatch(
        w.graph, {"x": o}, {"y": w.y}
    ),
    "recorded outputs": lambda w, o: MLCommandEncoder(w.context).dispatch(w.graph, {"x": w.x}, o),
    "recorded output": lambda w, o: MLCommandEncoder(w.context).dispatch(
        w.graph, {"x": w.x}, {"y": o}
    ),
    "binding's offset": lambda w, o: w.compute(w.graph, {"x": {"buffer": w.buffer(), "offset": o}}),
    "binding's size": lambda w, o: w.compute(w.graph, {"x": {"buffer": w.buffer(), "size": o}}),
    "binding's key": lambda w, o: w.compute(w.graph, {"x": {"buffer": w.buffer(), "other": o}}),
    "finished": lambda w, o: MLCommandEncoder(w.context).finish(label=o),
}
ONCE: dict[str, Call] = {  # of no context
    "device": lambda w, o: made(device=o),
    "device_type": lambda w, o: made(device_type=o),
    "power_preference": lambda w, o: made(power_preference=o),
    "accelerated": lambda w, o: made(accelerated=o),
    "engine": lambda w, o: made(engine=o),
    "workers": lambda w, o: made(workers=o),
    "max_prepared_sizes": lambda w, o: made(max_prepared_sizes=o),
    "max_prepared_bytes": lambda w, o: made(max_prepared_bytes=o),
    "async engine": lambda w, o: asyncio.run(made_async(engine=o)),
    "allow_blocking": lambda w, o: MLExecution(w.context, allow_blocking=o),
}


def named(name: Any, value: Any) -> dict[Any, Any]:
    try:
        return {name: value}
    except Exception as error:  # no dictionary has such a key
        raise MLError("not hashable") from error


def made(**options: Any) -> None:
    ml.create_context_sync(**options).destroy()


async def made_async(**options: Any) -> None:
    (await ml.create_context_async(**options)).destroy()


def wrong_objects(call: Call, world: World) -> Iterator[str]:
    """Give each object once; tells what went wrong."""
    for name, make in WRONG.items():
        wrong = make()
        try:
            call(world, wrong)
        except MLError as error:
            text = str(error)
            if not text or len(text) > LONGEST:
                yield f"{name}: a message of {len(text)} characters"
        except Exception as error:
            yield f"{name}: {type(error).__name__}: {error!s:.200}"


def check(call: Call, context: MLContext) -> None:
    world = World(context)
    faults = list(wrong_objects(call, world))
    assert not faults, "\n".join(faults)
    with contextlib.suppress(MLError):  # the builder may have built
        world.builder.build_sync({"kept": world.builder.relu(world.a)})
    world.again()
    world.assert_works()


@pytest.fixture(scope="module")
def host() -> Iterator[MLContext]:
    with ml.create_context_sync(device_type="cpu") as context:
        yield context


@pytest.mark.parametrize("argument", [*ALWAYS, *ONCE])
def test_a_wrong_object_raises_nothing_but_an_ml_error(host: MLContext, argument: str) -> None:
    check((ALWAYS | ONCE)[argument], host)


@pytest.mark.parametrize("argument", [*ALWAYS, *GPU])
def test_a_wrong_object_is_refused_on_a_gpu_too(gpu: MLContext, argument: str) -> None:
    check((ALWAYS | GPU)[argument], gpu)

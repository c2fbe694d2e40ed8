"""Random programs on two contexts and three timelines do what a sequential model does.

WEBNN_RANDOM_CASES is the number of programs of each pair of contexts (30 if not set).
"""

from __future__ import annotations

import functools
import gc
import os
import sys
import threading
import weakref
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from tests.graphs import doubling, lost_info
from tests.property.scheduling import (
    LOOP,
    ModelContext,
    ModelOperation,
    ModelTensor,
    ModelTimeline,
    simulate,
)
from webnn_py import (
    InvalidStateError,
    MLAwaitedExecution,
    MLContext,
    MLGraph,
    MLGraphBuilder,
    MLTensor,
    OperationError,
    Timeline,
    TimelinePoint,
    ml,
)

CASES = int(os.environ.get("WEBNN_RANDOM_CASES", "30"))
STEPS = 40
TENSORS = 4
SIZE = 3
LONG = 20.0
KINDS = {
    "cpu": {"device_type": "cpu"},
    "several": {"device_type": "cpu", "workers": 4},
}


@functools.cache
def broken() -> Timeline:
    """A timeline whose work failed that was to signal 1."""
    timeline = Timeline()
    with ml.create_context_sync(engine="reference") as context:
        x, y = (context.create_tensor_sync("float32", [2, 3]) for _ in range(2))
        never = Timeline()(wait=1)
        context.dispatch(doubling(context), {"x": x}, {"y": y}, sync=[never, timeline(signal=1)])
    return timeline


@functools.cache
def own_device(side: int) -> Any:
    """A side's device, for all of its contexts: opening one takes longer than a program."""
    return ml.create_context_sync(device_type="gpu").device


slots = st.integers(0, TENSORS - 1)
sides = st.integers(0, 1)
numbers = st.integers(-9, 9)
maybe = st.booleans()


class Side:
    """One of the two contexts, its model, and its tensors."""

    def __init__(self, kind: str, side: int) -> None:
        options: Any = {"device": own_device(side)} if kind == "gpu" else KINDS[kind]
        self.context: MLContext = ml.create_context_sync(**options)
        self.model = ModelContext()
        self.adding = self._adding()
        self.tensors = [self.tensor() for _ in range(TENSORS)]

    def _adding(self) -> MLGraph:
        builder = MLGraphBuilder(self.context)
        x, k = (builder.input(name, "int32", [SIZE]) for name in "xk")
        return builder.build_sync({"y": builder.add(x, k)})

    def tensor(self) -> tuple[MLTensor, ModelTensor]:
        exportable = self.context.device_type == "gpu"
        made = self.context.create_tensor_sync(
            "int32", [SIZE], readable=True, writable=True, exportable=exportable
        )
        return made, ModelTensor(np.zeros(SIZE, np.int32))


class Programs(RuleBasedStateMachine):
    """Two contexts; each signals a timeline of its own, the host a third."""

    kinds: tuple[str, str]

    @initialize()
    def begin(self) -> None:
        gc.freeze()  # what hypothesis remembers grows: collections pass over it
        self.sides = [Side(kind, side) for side, kind in enumerate(self.kinds)]
        self.timelines = [(Timeline(), ModelTimeline()) for _ in range(3)]
        self.broken = broken(), ModelTimeline()
        self.broken[1].failed.add(1)
        self.last = [0, 0, 0]
        self.operations: list[ModelOperation] = []
        self.gone: list[weakref.ref[Any]] = []

    # What work waits for and signals

    def points(self, side: int, data: st.DataObject) -> tuple[list[TimelinePoint], dict[str, Any]]:
        sync: list[TimelinePoint] = []
        waits: list[tuple[ModelTimeline, int]] = []
        signals: list[tuple[ModelTimeline, int]] = []
        if data.draw(maybe, label="on its own"):
            return sync, {"waits": waits, "signals": signals}
        signal = data.draw(st.integers(-1, 3), label="signal by")
        for index, (timeline, model) in enumerate(self.timelines):
            if data.draw(st.integers(0, 4), label=f"waits for {index}") == 0:
                ahead = index != side and data.draw(st.integers(0, 3), label="ahead") == 0
                wait = data.draw(st.integers(0, self.last[index] + ahead), label="value")
                sync.append(timeline(wait=wait))
                waits.append((model, wait))
        if data.draw(st.integers(0, 7), label="fails") == 0:
            sync.append(self.broken[0](wait=1))
            waits.append((self.broken[1], 1))
        if signal > 0:
            self.last[side] += signal
            timeline, model = self.timelines[side]
            sync.append(timeline(signal=self.last[side]))
            signals.append((model, self.last[side]))
        return sync, {"waits": waits, "signals": signals}

    def probe(self, sync: list[TimelinePoint]) -> Timeline | None:
        """A timeline that tells how the work ended, for work that ends a batch anyway."""
        if not sync:
            return None
        probe = Timeline()
        sync.append(probe(signal=1))
        return probe

    def submitted(self, side: int, operation: ModelOperation) -> None:
        self.operations.append(operation)
        self.sides[side].model.submit(operation, [here.model for here in self.sides])
        self.advance()

    def advance(self) -> None:
        simulate([side.model for side in self.sides])
        left = []
        for operation in self.operations:
            if operation.outcome is None:
                left.append(operation)
            else:
                operation.check(LONG)
        self.operations = left
        for timeline, model in self.timelines:
            assert timeline.value <= model.value

    # Rules

    @rule(side=sides, slot=slots, number=numbers)
    def write(self, side: int, slot: int, number: int) -> None:
        here, array = self.sides[side], np.full(SIZE, number, np.int32)
        made, model = here.tensors[slot]
        here.context.write_tensor(made, array)
        array[:] = 99
        self.submitted(
            side,
            ModelOperation(writes=[model], effect=lambda: [np.full(SIZE, number, np.int32)]),
        )

    @rule(side=sides, x=slots, k=slots, y=slots, data=st.data())
    def dispatch(self, side: int, x: int, k: int, y: int, data: st.DataObject) -> None:
        sync, points = self.points(side, data)
        self.add(side, x, k, y, sync, points)

    @rule(side=sides, x=slots, k=slots, y=slots, over=slots, number=numbers)
    def dispatch_and_write(self, side: int, x: int, k: int, y: int, over: int, number: int) -> None:
        """Nothing comes between them that would submit what is recorded."""
        self.add(side, x, k, y, [], {})
        self.write(side=side, slot=over, number=number)

    def add(
        self, side: int, x: int, k: int, y: int, sync: list[TimelinePoint], points: dict[str, Any]
    ) -> None:
        while y in (x, k):
            y = (y + 1) % TENSORS
        here = self.sides[side]
        probe = self.probe(sync)
        (tx, mx), (tk, mk), (ty, my) = (here.tensors[slot] for slot in (x, k, y))
        here.context.dispatch(here.adding, {"x": tx, "k": tk}, {"y": ty}, sync)
        self.submitted(
            side,
            ModelOperation(
                reads=[mx, mk],
                writes=[my],
                effect=lambda: [mx.value + mk.value],
                probe=probe,
                **points,
            ),
        )

    @rule(side=sides, x=slots, y=slots, number=numbers, into=maybe, data=st.data())
    def compute(
        self, side: int, x: int, y: int, number: int, into: bool, data: st.DataObject
    ) -> None:
        if x == y:
            y = (y + 1) % TENSORS
        here = self.sides[side]
        sync, points = self.points(side, data)
        (tx, mx), (ty, my) = here.tensors[x], here.tensors[y]
        k = np.full(SIZE, number, np.int32)
        out = np.full(SIZE, -77, np.int32)
        execution = MLAwaitedExecution(here.context)
        awaited = LOOP.start(
            execution.compute(here.adding, {"x": tx, "k": k}, {"y": ty if into else out}, sync)
        )
        self.submitted(
            side,
            ModelOperation(
                reads=[mx],
                writes=[my] if into else [],
                effect=lambda: [mx.value + k],
                awaited=awaited,
                out=None if into else out,
                **points,
            ),
        )

    @rule(side=sides, number=numbers, data=st.data())
    def compute_apart(self, side: int, number: int, data: st.DataObject) -> None:
        here, before = self.sides[side], self.last[side]
        sync, points = self.points(side, data)
        if points["signals"]:  # out of the order of the timeline
            self.last[side] = before
            sync.pop()
            points["signals"] = []
        x, out = np.full(SIZE, number, np.int32), np.full(SIZE, -77, np.int32)
        execution = MLAwaitedExecution(here.context)
        awaited = LOOP.start(execution.compute(here.adding, {"x": x, "k": x}, {"y": out}, sync))
        operation = ModelOperation(effect=lambda: [2 * x], awaited=awaited, out=out, **points)
        self.submitted(side, operation)

    @rule(side=sides, slot=slots, into=maybe)
    def read(self, side: int, slot: int, into: bool) -> None:
        here = self.sides[side]
        made, model = here.tensors[slot]
        out = np.full(SIZE, -77, np.int32)
        awaited = LOOP.start(here.context.read_tensor_async(made, out if into else None))
        operation = ModelOperation(
            reads=[model],
            effect=lambda: [model.value],
            awaited=awaited,
            out=out if into else None,
        )
        self.submitted(side, operation)

    @rule(side=sides, slot=slots)
    def share(self, side: int, slot: int) -> None:
        """Hand the memory to another library, or rent it as a GPUBuffer."""
        here = self.sides[side]
        made, model = here.tensors[slot]
        self.settle()
        if here.context.device_type == "cpu":
            if not here.model.uses(model) and model.value is not None:
                np.testing.assert_array_equal(np.from_dlpack(made), model.value)
            return
        if here.model.uses(model):
            with pytest.raises(InvalidStateError), here.context.export_to_gpu(made):
                pass
        elif model.value is None:
            with pytest.raises(OperationError), here.context.export_to_gpu(made):
                pass
        else:
            with here.context.export_to_gpu(made) as buffer:
                data = here.context.device.queue.read_buffer(buffer)
            np.testing.assert_array_equal(np.frombuffer(data, np.int32), model.value)

    @rule(index=st.integers(0, 200))
    def cancel(self, index: int) -> None:
        """Cancel an await whose work has surely not begun."""
        waiting = [op for op in self.operations if op.awaited is not None]
        if waiting:
            operation = waiting[index % len(waiting)]
            assert operation.awaited is not None
            operation.awaited.cancel(LONG)
            for side in self.sides:
                side.model.withdraw(operation)
            self.advance()

    @rule(by=st.integers(1, 6))
    def signal(self, by: int) -> None:
        timeline, model = self.timelines[2]
        self.last[2] += by
        timeline.signal(self.last[2])
        model.signal(self.last[2])
        self.advance()

    @rule(index=st.integers(0, 2), over=st.integers(-3, 3))
    def wait(self, index: int, over: int) -> None:
        timeline, model = self.timelines[index]
        value = max(0, model.value + over)
        if model.reached(value):
            timeline.wait_sync(value, timeout=LONG)
        elif model.doomed(value):
            with pytest.raises(OperationError):
                timeline.wait_sync(value, timeout=LONG)
        else:
            with pytest.raises(TimeoutError):
                timeline.wait_sync(value, timeout=0)

    @rule(index=sides)
    def mend(self, index: int) -> None:
        """Signal past a failure from the host."""
        timeline, model = self.timelines[index]
        if model.limit is None:
            return
        self.settle()
        value = model.limit
        timeline.signal(value)
        model.signal(value)
        self.advance()

    @rule(side=sides)
    def flush(self, side: int) -> None:
        self.sides[side].context.flush()

    @rule(side=sides, slot=slots)
    def replace_tensor(self, side: int, slot: int) -> None:
        here = self.sides[side]
        here.tensors[slot][0].destroy()
        here.tensors[slot] = here.tensor()

    @precondition(lambda self: len(self.gone) < 3)
    @rule(side=sides, rarely=st.integers(0, 3))
    def replace_context(self, side: int, rarely: int) -> None:
        if rarely:
            return
        self.settle()
        self.end(self.sides[side])
        self.sides[side] = Side(self.kinds[side], side)

    def settle(self) -> None:
        """Wait for the real timelines to be where those of the model are."""
        for timeline, model in self.timelines:
            timeline.wait_sync(model.value, timeout=LONG)

    def finish(self) -> None:
        """Let all work that is left run or fail, and look at what it leaves."""
        for timeline, model in self.timelines:
            self.settle()
            model.signal(max(self.last) + 3)
            timeline.signal(model.value)
            self.advance()
        assert not self.operations
        for side in self.sides:
            for made, model in side.tensors:
                if model.value is None:
                    with pytest.raises(OperationError):
                        side.context.read_tensor_sync(made)
                else:
                    found = side.context.read_tensor_sync(made)
                    np.testing.assert_array_equal(found, model.value)

    def end(self, side: Side) -> None:
        side.context.destroy()
        side.model.end()
        assert "destroy" in lost_info(side.context).message
        self.gone.append(weakref.ref(side.context))
        for made, _ in side.tensors:
            self.gone.append(weakref.ref(made))
        self.advance()  # what waited for it fails, before that fails for another reason

    def teardown(self) -> None:
        if not hasattr(self, "sides"):
            return
        if sys.exc_info()[0] is not None:  # that is what is to be told
            for side in self.sides:
                side.context.destroy()
            return
        self.finish()
        while self.sides:
            self.end(self.sides[-1])
            self.sides.pop()
        assert not self.operations
        pause = threading.Event()
        for _ in range(50):
            gc.collect()
            if not any(gone() for gone in self.gone):
                break
            pause.wait(0.02)
        gc.unfreeze()
        # The timelines are still there: they hold nothing that waited for them.
        assert [gone() for gone in self.gone] == [None] * len(self.gone)


def case(*kinds: str, examples: int) -> Any:
    machine = type("Programs", (Programs,), {"kinds": kinds})
    test: Any = machine.TestCase  # type: ignore[attr-defined]
    test.settings = settings(
        max_examples=examples,
        stateful_step_count=STEPS,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    return test


TestTwoHosts = case("cpu", "cpu", examples=CASES)
TestSeveralWorkers = case("several", "cpu", examples=CASES)
TestHostAndDevice = case("cpu", "gpu", examples=CASES)
TestTwoDevices = case("gpu", "gpu", examples=max(1, CASES // 3))

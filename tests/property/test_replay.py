"""A graph is recorded again from what its nodes were given: the same one, or one of other shapes.

WEBNN_RANDOM_CASES is the number of random graphs (30 if not set).
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings

from tests.internals import recipe_of, replay, replayed
from tests.property.graphs import MAKERS, first_input
from tests.property.growing import Grower, SeededPicks
from tests.property.strategies import calls
from tests.property.test_valid_calls import frozen
from webnn_py import MLContext, MLError, MLGraphBuilder, MLOperand, ml
from webnn_py.core.dtypes import DTYPES
from webnn_py.engines.reference import ReferenceEngine
from webnn_py.ir import Array, Descriptor, Graph, Value
from webnn_py.ops.declare import REGISTRY, Operator
from webnn_py.ops.graph_builder import GraphBuilder
from webnn_py.ops.operand import value_of
from webnn_py.passes.pipeline import verify_types

CASES = int(os.environ.get("WEBNN_RANDOM_CASES", "30"))
Record = Callable[[GraphBuilder, Mapping[str, MLOperand]], dict[str, MLOperand]]
Descriptors = Mapping[str, Descriptor]

few = settings(
    max_examples=6,
    database=None,
    derandomize=True,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
each_operator = pytest.mark.parametrize("name", sorted(REGISTRY))


@pytest.fixture(scope="module")
def context() -> MLContext:
    return ml.create_context_sync(engine="reference")


def results(graph: Graph, inputs: Mapping[str, Array]) -> dict[str, Array]:
    outputs = {
        name: np.empty(value.shape, DTYPES[value.data_type].numpy) for name, value in graph.outputs
    }
    given = [inputs[value.name] for value in graph.inputs]
    ReferenceEngine().compile(graph).run(given, [*outputs.values()])
    return outputs


def assert_same(graph: Graph, expected: Graph, inputs: Mapping[str, Array]) -> None:
    """The same listing, the same options given, and the same bits in all outputs."""
    verify_types(graph)
    assert str(graph) == str(expected)
    for node, other in zip(graph.nodes, expected.nodes, strict=True):
        assert repr((node.given, node.inferred)) == repr((other.given, other.inferred))
        assert node.label == other.label
    shaped = {
        value.name: np.resize(inputs[value.name], value.shape).astype(inputs[value.name].dtype)
        for value in graph.inputs
    }
    made = results(graph, shaped)
    for name, array in results(expected, shaped).items():
        assert made[name].tobytes() == array.tobytes(), f"output {name}\n{graph}"


def recorded(record: Record, descriptors: Descriptors) -> Graph:
    """What the calls of `record` make of inputs of these data types and shapes."""
    builder = GraphBuilder()
    inputs = {name: builder.add_input(name, what) for name, what in descriptors.items()}
    return builder.recorded(record(builder, inputs))


def other_shapes(descriptors: Descriptors) -> Iterator[Descriptors]:
    """The inputs in other sizes: a size wherever it stands, or one dimension of one input."""

    def where(change: Callable[[str, int, int], int]) -> Descriptors:
        return {
            name: Descriptor(
                what.data_type,
                tuple(change(name, axis, size) for axis, size in enumerate(what.shape)),
            )
            for name, what in descriptors.items()
        }

    sizes = sorted({size for what in descriptors.values() for size in what.shape})
    for new in (lambda size: 2 * size, lambda size: size + 1, lambda size: 1):
        yield where(lambda name, axis, size, new=new: new(size))
        for old in sizes:
            yield where(
                lambda name, axis, size, new=new, old=old: new(size) if size == old else size
            )
        for name, what in descriptors.items():
            for axis in range(what.rank):
                yield where(
                    lambda n, a, size, new=new, place=(name, axis): (
                        new(size) if (n, a) == place else size
                    )
                )
    yield {name: Descriptor(d.data_type, d.shape[::-1]) for name, d in descriptors.items()}
    for name, what in descriptors.items():
        yield {**descriptors, name: Descriptor(what.data_type, (2, *what.shape))}


def tried(make: Callable[[], Graph]) -> Graph | str:
    """A graph, or why there is none."""
    try:
        return make()
    except MLError as error:
        return repr(error)


def check_other_shapes(graph: Graph, record: Record, inputs: Mapping[str, Array]) -> int:
    """The replay at other shapes is the graph recorded there, or as wrong; how many there were."""
    descriptors = {v.name: Descriptor(v.data_type, v.shape) for v in graph.inputs}
    found = 0
    for shapes in other_shapes(descriptors):
        if shapes == descriptors or any(what.size > 2048 for what in shapes.values()):
            continue
        expected = tried(functools.partial(recorded, record, shapes))
        made = tried(functools.partial(replayed, graph, shapes))
        if isinstance(expected, str) or isinstance(made, str):
            assert made == expected
            continue
        assert_same(made, expected, inputs)
        found += 1
        if found == 3:
            break
    return found


@each_operator
def test_every_operator_is_replayed(context: MLContext, name: str) -> None:
    @few
    @given(calls(name))
    def check(call: Any) -> None:
        builder = MLGraphBuilder(context)
        made = call(builder)
        graph = recipe_of(builder.build_sync({f"y{i}": output for i, output in enumerate(made)}))
        assert_same(replayed(graph), graph, call.inputs)
        again = MLGraphBuilder(context)
        inputs = {v.name: again.input(v.name, v.data_type, v.shape) for v in graph.inputs}
        assert_same(recipe_of(again.build_sync(replay(graph, again, inputs))), graph, call.inputs)

    check()


@each_operator
def test_every_operator_is_replayed_at_other_shapes(name: str) -> None:
    found = []

    @few
    @given(calls(name))
    def check(drawn: Any) -> None:
        call = frozen(drawn, constant=False)

        def record(builder: GraphBuilder, inputs: Mapping[str, MLOperand]) -> dict[str, MLOperand]:
            def operand(place: str) -> MLOperand:
                tensor = named[place]
                if place in inputs:
                    return inputs[place]
                return builder.add_constant(tensor.array, tensor.data_type)

            operands = {
                key: [operand(f"{key}{i}") for i in range(len(members))]
                if isinstance(members, list)
                else operand(f"{key}0")
                for key, members in call.operands.items()
            }
            made = getattr(builder, name)(**operands, **call.options, label="it")
            outputs = made if isinstance(made, list) else [made]
            return {f"y{i}": output for i, output in enumerate(outputs)}

        named = call.named()
        descriptors = {
            place: Descriptor(named[place].data_type, named[place].shape) for place in call.inputs
        }
        graph = recorded(record, descriptors)
        found.append(check_other_shapes(graph, record, call.inputs))

    check()
    assert any(found), "no drawn call was valid at another shape"


class Calls(Grower):
    """Grows a graph, and notes the calls of operators as they were made."""

    def __init__(self, seed: int) -> None:
        super().__init__(SeededPicks(seed))
        self.made: dict[Value, tuple[Operator, tuple[Any, ...], dict[str, Any]]] = {}

    def __getattribute__(self, name: str) -> Any:
        method = super().__getattribute__(name)
        if name not in REGISTRY:
            return method

        def noting(*args: Any, **options: Any) -> Any:
            outputs = method(*args, **options)
            first = outputs[0] if isinstance(outputs, list) else outputs
            self.made[value_of(first)] = (REGISTRY[name], args, options)
            return outputs

        return noting


def called_again(calls: Calls, graph: Graph) -> Record:
    """The calls that a graph was made by, on other operands."""

    def record(builder: GraphBuilder, inputs: Mapping[str, MLOperand]) -> dict[str, MLOperand]:
        of = {value: inputs[value.name] for value in graph.inputs}
        for value, array in graph.constants.items():
            of[value] = builder.add_constant(array, value.data_type)

        def moved(argument: Any) -> Any:
            if isinstance(argument, MLOperand):
                return of[value_of(argument)]
            return list(map(moved, argument)) if isinstance(argument, list) else argument

        for node in graph.nodes:
            op, args, options = calls.made[node.outputs[0]]
            again = {key: moved(option) for key, option in options.items()}
            made = getattr(builder, op.name)(*map(moved, args), **again)
            outputs = made if isinstance(made, list) else [made]
            of.update(zip(node.outputs, outputs, strict=True))
        return {name: of[value] for name, value in graph.outputs}

    return record


def test_random_graphs_are_replayed() -> None:
    found = 0
    for seed in range(CASES):
        grower = Calls(seed)
        grower.pool += [first_input(grower) for _ in range(3)]
        for _ in range(grower.picks.integer(5, 40)):
            grower.attempt(grower.choice(MAKERS))
        case = grower.finish()
        again = replayed(case.graph)
        assert_same(again, case.graph, case.inputs)
        case.assert_equal(results(again, case.inputs))
        found += check_other_shapes(case.graph, called_again(grower, case.graph), case.inputs) > 0
    assert found >= CASES // 4


def test_a_global_pool_stays_global(context: MLContext) -> None:
    builder = MLGraphBuilder(context)
    x = builder.input("x", "float32", [1, 2, 8, 8])
    graph = recipe_of(builder.build_sync({"y": builder.average_pool2d(x)}))
    (output,) = replayed(graph, {"x": Descriptor("float32", (1, 2, 16, 16))}).outputs
    assert output[1].shape == (1, 2, 1, 1)


def test_constants_are_shared(context: MLContext) -> None:
    builder = MLGraphBuilder(context)
    w = builder.constant(np.ones(3, np.float32))
    graph = recipe_of(builder.build_sync({"y": builder.relu(w)}))
    (array,), (again,) = graph.constants.values(), replayed(graph).constants.values()
    assert again is array


def test_what_does_not_fit_is_said_with_its_label(context: MLContext) -> None:
    builder = MLGraphBuilder(context)
    x = builder.input("x", "float32", [2, 3])
    flat = builder.reshape(x, [6], label="flat")
    graph = recipe_of(builder.build_sync({"y": flat}))
    with pytest.raises(MLError, match=r"reshape \[flat\]: new_shape \[6\] has 6 elements"):
        replayed(graph, {"x": Descriptor("float32", (2, 4))})

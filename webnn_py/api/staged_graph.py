"""Graphs with sizes that their own results decide: compiled in stages, presented as one graph."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from webnn_py.api.compiled import CHOOSE, CompiledGraph
from webnn_py.api.graph import MLGraph
from webnn_py.api.session import Session
from webnn_py.api.signature import Signature
from webnn_py.core import convert
from webnn_py.core.dimensions import MLDimension, symbols_of
from webnn_py.core.dtypes import DTYPES
from webnn_py.core.errors import DataError, NotSupportedError
from webnn_py.core.messages import shown
from webnn_py.core.open_dims import evaluated, plain_names
from webnn_py.core.polynomials import MAX_DIMENSION
from webnn_py.ir import Array, Graph, Node, Value, make_graph

Choose = Callable[[Array], Array]
"""Computes a tensor on the host whose first size is not known before."""
Step = tuple[MLGraph, dict[str, Any], dict[str, Any]]
"""A run of one stage: its graph, its inputs and the user's destinations."""
Steps = Generator[Step | Callable[[], Any], Any, dict[str, Any]]
"""Runs of a graph's stages and calls on the host, in order.

It receives the outputs of each run and the result of each call, and returns all outputs.
"""


@dataclass(frozen=True, slots=True)
class CountedSize:
    """An open size that a graph computes.

    Attributes:
        dimension: The size.
        title: What decides it, for messages.
        output: The name of the output that holds it, an int64 scalar; or what `choose` reads.
        carrier: The name of an input whose first size it is, which nothing else reads.
        choose: Computes the contents of the carrier, if these matter.
        highest: The highest value that is valid.
    """

    dimension: MLDimension
    title: str
    output: str
    carrier: str
    choose: Choose | None = None
    highest: int | MLDimension = MAX_DIMENSION

    @property
    def name(self) -> str:
        """The name of the open dimension."""
        return self.dimension.names[0]


class StagedGraph(MLGraph):
    """Graph that runs in stages, each of which computes the sizes of those after it.

    Args:
        session: The session of the context.
        recipe: The graph as recorded.
        sizes: The sizes that it computes.
    """

    def __init__(self, session: Session, recipe: Graph, sizes: Iterable[CountedSize]) -> None:
        self._counted = [*sizes]
        self._names = {size.name for size in self._counted}
        outputs, carriers = (
            {getattr(size, kind) for size in self._counted} for kind in ("output", "carrier")
        )
        self._results = {n: value for n, value in recipe.outputs if n not in outputs}
        read = {value for node in recipe.nodes for value in node.operands}
        nodes = [*_with_choices(recipe, self._counted)]
        read -= {value for node in nodes for value in node.outputs}
        inputs = [v for v in recipe.inputs if v.name not in carriers or v in read]
        whole = recipe.replace(inputs=inputs, nodes=nodes, outputs=self._results.items())
        self._undivided = session, whole
        public = Signature.of(whole)
        self._outputs = public.public("outputs")
        given = public.public("inputs")
        self._inputs = {name: given[name] for name in given if name not in carriers}
        self._stages = [
            MLGraph(CompiledGraph(session, stage)) for stage in _split(recipe, self._counted)
        ]

    @property
    def _compiled(self) -> CompiledGraph:
        """Refuse all that needs a graph whose sizes are known before it runs."""
        raise NotSupportedError(
            f"contents decide the sizes {', '.join(sorted(self._names))} of this graph: it runs by"
            " MLExecution.compute and MLAwaitedExecution.compute only, and cannot be saved or"
            " profiled"
        )

    def steps(self, inputs: Any, outputs: Any) -> Steps:
        """Return the runs of the stages for the arguments of `compute`.

        Raises:
            DataError: A name, data type or size does not fit.
        """
        given = dict(convert.mapping(inputs, "inputs", DataError))
        targets = {} if outputs is None else convert.mapping(outputs, "outputs", DataError)
        for kind, names, known in (
            ("input", given, self._inputs),
            ("output", targets, self._outputs),
        ):
            unknown = [name for name in names if name not in known]
            if unknown:
                raise DataError(
                    f"unknown {kind} {shown(unknown[0])}; this graph has"
                    f" {', '.join(map(shown, known))}"
                )
        values, sizes, made = dict(given), dict[str, int](), dict[str, Any]()
        for stage in self._stages:
            if 0 in sizes.values():
                made.update(self._without_elements(sizes, made))
                break
            arguments = {
                name: self._argument(name, descriptor.shape, values, sizes)
                for name, descriptor in stage.inputs.items()
                if name in values or name not in self._inputs
            }
            _, solved = stage._compiled.fixed(arguments)
            sizes.update(solved)
            written = {name: targets[name] for name in stage.outputs if name in targets}
            results = yield stage, arguments, written
            values.update(results)
            made.update({name: results[name] for name in results if name in self._outputs})
            for size in self._counted:
                if size.output in results:
                    held = results[size.output]
                    if size.choose is not None:
                        values[size.carrier] = yield functools.partial(size.choose, held)
                        held = len(values[size.carrier])
                    count = self._checked(size, int(held))
                    self._check_equal(size, count, sizes.setdefault(size.name, count))
        return {name: made[name] for name in self._outputs}

    def _checked(self, size: CountedSize, count: int) -> int:
        low, high = size.dimension.bounds
        if count and not low <= count <= high:
            raise DataError(
                f"{size.title}: the contents decide a size of {count}, expected {low} to {high},"
                " by load(bounds=...) or by what reads it"
            )
        return count

    def _check_equal(self, size: CountedSize, count: int, before: int) -> None:
        if count != before:
            first = next(one.title for one in self._counted if one.name == size.name)
            raise DataError(
                f"{size.title}: the contents decide a size of {count}, expected {before}, as those"
                f" of {first} decide: their results are used together"
            )

    def _argument(
        self, name: str, shape: tuple[Any, ...], values: Mapping[str, Any], sizes: Mapping[str, int]
    ) -> Any:
        """Return an input of a stage; what is longer than a size of this run is cut."""
        counted = [bool(symbols_of([size]).keys() & self._names) for size in shape]
        if name not in values:
            return np.zeros(evaluated(shape, sizes), np.uint8)
        value = values[name]
        if name not in self._inputs or not any(counted) or not isinstance(value, np.ndarray):
            return value
        wanted = [
            evaluated(size, sizes) if is_counted else None
            for size, is_counted in zip(shape, counted, strict=True)
        ]
        if value.ndim == len(shape):
            for axis, size in enumerate(wanted):
                if size is not None and value.shape[axis] < size:
                    raise DataError(
                        f"input {shown(name)}: got shape {list(value.shape)}, and this run needs"
                        f" {size} along axis {axis}, which is {shape[axis]}; more is cut"
                    )
            value = value[tuple(slice(size) for size in wanted)]
        return value

    def _without_elements(
        self, sizes: Mapping[str, int], made: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Return the missing outputs if they have no elements, as WebNN has no such tensors."""
        title = next(size.title for size in self._counted if sizes.get(size.name) == 0)
        sizes, empty = dict(sizes), {}
        for size in self._counted:  # such as the best of no elements
            known = symbols_of([size.highest]).keys() <= sizes.keys()
            if known and evaluated(size.highest, sizes) == 0:
                sizes[size.name] = 0
        for name, value in self._results.items():
            if name in made:
                continue
            known = symbols_of([value.shape]).keys() <= sizes.keys()
            shape = evaluated(value.shape, sizes) if known else ()
            if 0 not in shape:
                raise DataError(
                    f"{title}: its result has no elements, and output {shown(name)} depends on it;"
                    " WebNN has no such tensors"
                )
            empty[name] = np.empty(shape, DTYPES[value.data_type].numpy)
        return empty

    def output_shapes(self, sizes: Mapping[str, int]) -> dict[str, tuple[int, ...]]:
        """Return the output shapes for these sizes, with those that the graph computes."""
        return {name: evaluated(value.shape, sizes) for name, value in self._results.items()}

    def destroy(self) -> None:
        """Release memory and device objects of all stages."""
        self._undivided = None
        for stage in self._stages:
            stage.destroy()

    def __str__(self) -> str:
        return "\n".join(map(str, self._stages))

    def __repr__(self) -> str:
        return f"<MLGraph in {len(self._stages)} stages {self._inputs} -> {self._outputs}>"


def _with_choices(recipe: Graph, counted: Iterable[CountedSize]) -> Iterator[Node]:
    """Yield the nodes, and before its first reader what computes a tensor on the host."""
    carriers = {value.name: value for value in recipe.inputs}
    outputs = dict(recipe.outputs)
    waiting = {
        carriers[size.carrier]: Node(CHOOSE, (outputs[size.output],), {}, (carriers[size.carrier],))
        for size in counted
        if size.choose is not None
    }
    for node in recipe.nodes:
        for value in node.operands:
            if value in waiting:
                yield dataclasses.replace(waiting.pop(value), label=node.label)
        yield node


def _split(recipe: Graph, counted: Iterable[CountedSize]) -> list[Graph]:
    """Split a graph into stages: each node is in the first one that knows its sizes."""
    outputs = dict(recipe.outputs)
    counts: dict[str, Value] = {}
    for size in counted:
        counts.setdefault(size.name, outputs[size.output])
    stages: dict[Value, int] = dict.fromkeys(recipe.constants, 0)

    def of_sizes(*options: object) -> int:
        names = symbols_of(options).keys() & counts.keys()
        return max((stages[counts[name]] + 1 for name in names), default=0)

    def of_value(value: Value) -> int:
        return stages[value] if value in stages else of_sizes(value.shape)  # an input

    nodes: list[list[Node]] = []
    for node in recipe.nodes:
        shapes = [value.shape for value in node.outputs]
        own = of_sizes(*shapes, *node.attrs.values())
        stage = max([own, *map(of_value, node.operands)])
        stages.update(dict.fromkeys(node.outputs, stage))
        while len(nodes) <= stage:
            nodes.append([])
        nodes[stage].append(node)
    crossing: dict[Value, Value] = {}
    mark = "between"
    while any(mark in name for name in (*outputs, *(value.name for value in recipe.inputs))):
        mark += "_"
    for number, some in enumerate(nodes):
        for node in some:
            for value in node.operands:
                if value in recipe.producers and stages[value] < number and value not in crossing:
                    name = f"{len(crossing)} {mark}"
                    crossing[value] = Value(value.data_type, value.shape, name)
    return [_stage(recipe, n, some, stages, crossing) for n, some in enumerate(nodes) if some]


def _stage(
    recipe: Graph,
    number: int,
    nodes: Iterable[Node],
    stages: Mapping[Value, int],
    crossing: Mapping[Value, Value],
) -> Graph:
    """Return one stage as a graph: values of earlier stages are inputs."""
    made: list[Node] = []
    inputs: dict[Value, None] = {}
    constants = {}
    for node in nodes:
        operands: list[Value | None] = []
        for value in node.inputs:
            if value is None or value in recipe.constants:
                if value is not None:
                    constants[value] = recipe.constants[value]
            elif value not in recipe.producers:
                inputs[value] = None
            elif stages[value] < number:
                value = crossing[value]
                inputs[value] = None
            operands.append(value)
        made.append(dataclasses.replace(node, inputs=tuple(operands)))
    shapes = [value.shape for node in made for value in node.outputs]
    options = [option for node in made for option in node.attrs.values()]
    untold = {*symbols_of([*shapes, *options, *(v.shape for v in inputs)])}
    untold -= set[str]().union(*(plain_names(value.shape) for value in inputs))
    for value in recipe.inputs:  # inputs that alone tell a size
        if plain_names(value.shape) & untold:
            inputs[value] = None
            untold -= plain_names(value.shape)
    ends = [(n, v) for n, v in recipe.outputs if stages[v] == number]
    ends += [(new.name, old) for old, new in crossing.items() if stages[old] == number]
    return make_graph(inputs, constants, made, ends)

"""Facts: a description of a compiled graph as plain data, for pages, notebooks and commands."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from webnn_py.api.compiled import CHOOSE, CompiledOwner, compiled_of, undivided_of
from webnn_py.api.view.formats import format_bytes, format_shape
from webnn_py.core.open_dims import check_sizes
from webnn_py.engines.base import Step, Steps
from webnn_py.ir import Graph, Node, Value
from webnn_py.memory.plan import Plan, plan_buffers


@dataclass(frozen=True)
class TensorFacts:
    """A tensor.

    Attributes:
        name: Its name in listings, without "%".
        data_type: WebNN's name of the data type.
        shape: Sizes; open ones as text.
    """

    name: str
    data_type: str
    shape: tuple[int | str, ...]

    def __str__(self) -> str:
        return f"{self.data_type}{format_shape(self.shape)}"


@dataclass(frozen=True)
class NodeFacts:
    """A node of the compiled graph.

    Attributes:
        operator: The operator's name.
        label: The node's label.
        inputs: Indices of the nodes that produce its operands.
        graph_inputs: Names of the graph's inputs among its operands.
        constants: Its constant operands.
        options: Its options as text.
        outputs: Its results.
        engine: The name of the engine that runs it.
        steps: Numbers of the steps that compute it.
    """

    operator: str
    label: str
    inputs: tuple[int, ...]
    graph_inputs: tuple[str, ...]
    constants: tuple[TensorFacts, ...]
    options: Mapping[str, str]
    outputs: tuple[TensorFacts, ...]
    engine: str
    steps: tuple[int, ...]


@dataclass(frozen=True)
class StepFacts:
    """A step of an engine, such as a kernel.

    Attributes:
        name: Its name.
        nodes: Indices of the nodes that it computes.
        reads: Bytes that it reads from memory.
        writes: Bytes that it writes to memory.
    """

    name: str
    nodes: tuple[int, ...]
    reads: int
    writes: int


@dataclass(frozen=True)
class Facts:
    """A graph.

    Attributes:
        device: "cpu" or "gpu".
        engine: The name of the context's engine.
        inputs: The graph's inputs.
        outputs: The graph's outputs, each with the index of its node; None for a constant or input.
        parameters: Number of elements of all constants.
        constant_bytes: Bytes of all constants.
        intermediate_bytes: Bytes of intermediate values as planned; None if sizes are open.
        live_bytes: Most bytes of intermediate values in use at once; None if sizes are open.
        operators: Number of nodes by operator, most frequent first.
        nodes: The nodes in execution order.
        steps: The steps in execution order; empty if unknown to the engine or if sizes are open.
    """

    device: str
    engine: str
    inputs: tuple[TensorFacts, ...]
    outputs: tuple[tuple[TensorFacts, int | None], ...]
    parameters: int
    constant_bytes: int
    intermediate_bytes: int | None
    live_bytes: int | None
    operators: Mapping[str, int]
    nodes: tuple[NodeFacts, ...]
    steps: tuple[StepFacts, ...]

    def as_json(self) -> dict[str, Any]:
        """Return the facts as data for JSON."""
        return asdict(self)

    def summary(self) -> dict[str, object]:
        """Return the main facts by name."""
        between, live = self.intermediate_bytes, self.live_bytes
        memory = "depends on sizes"
        if between is not None and live is not None:
            memory = f"{format_bytes(between)}, up to {format_bytes(live)} in use at once"
        facts: dict[str, object] = {"device": self.device, "engine": self.engine}
        facts |= {f"input {tensor.name}": str(tensor) for tensor in self.inputs}
        facts |= {f"output {tensor.name}": str(tensor) for tensor, _ in self.outputs}
        facts |= {
            "parameters": self.parameters,
            "memory of constants": format_bytes(self.constant_bytes),
            "memory between nodes": memory,
            "nodes": len(self.nodes),
        }
        return facts | ({"kernels": len(self.steps)} if self.steps else {})

    def where(self, node: NodeFacts) -> str:
        """Return the kernels that compute a node, or its engine if there are none."""
        if not node.steps:
            return node.engine
        kernels = ", ".join(f"{number} {self.steps[number].name}" for number in node.steps[:3])
        return f"{kernels}, ..." if len(node.steps) > 3 else kernels


def facts_of(graph: CompiledOwner, sizes: Mapping[str, int]) -> Facts:
    """Describe a graph.

    Args:
        graph: The graph.
        sizes: Sizes of its open dimensions. If some are missing, or the graph computes some, it is
            described before compilation.
    """
    undivided = undivided_of(graph)
    if undivided is not None:
        session, recipe = undivided
        engine = session.engine.name
        engines = {node: "host" if node.op == CHOOSE else engine for node in recipe.nodes}
        return _Description(recipe, engines, None, engine).facts(session.device_type)
    compiled = compiled_of(graph)
    session, recipe = compiled.session, compiled.recipe
    open_sizes = recipe.open_sizes
    if not set(open_sizes) <= set(sizes):
        description = _Description(recipe, {}, None, session.engine.name)
        return description.facts(session.device_type)
    numbers = check_sizes(open_sizes, {name: sizes[name] for name in open_sizes})
    prepared = compiled.check_usable(session).get(tuple(sorted(numbers.items())))
    listing, steps = prepared.listing, prepared.executable.steps()
    runs = listing.graph if steps is None else steps.graph
    description = _Description(runs, listing.engines, steps, session.engine.name)
    return description.facts(session.device_type)


class _Description:
    """Builds the Facts of a graph.

    Args:
        graph: The graph to describe.
        engines: The engine of each node, where a partition names one.
        steps: The engine's steps, if known.
        engine: The name of the context's engine.
    """

    def __init__(
        self, graph: Graph, engines: Mapping[Node, str], steps: Steps | None, engine: str
    ) -> None:
        self._graph = graph
        self._engines = engines
        self._steps = () if steps is None else steps.steps
        self._engine = engine
        self._places = {node: place for place, node in enumerate(graph.nodes)}

    def facts(self, device: str) -> Facts:
        """Return the facts."""
        graph = self._graph
        makers = {value: self._places[node] for value, node in graph.producers.items()}
        plan = self._plan()
        return Facts(
            device=device,
            engine=self._engine,
            inputs=tuple(map(self._tensor, graph.inputs)),
            outputs=tuple(
                (self._tensor(value, name), makers.get(value)) for name, value in graph.outputs
            ),
            parameters=sum(value.size for value in graph.constants),
            constant_bytes=sum(value.byte_length for value in graph.constants),
            intermediate_bytes=None if plan is None else plan.total,
            live_bytes=None if plan is None else plan.bound,
            operators=dict(Counter(node.op for node in graph.nodes).most_common()),
            nodes=self._nodes(),
            steps=tuple(map(self._step, self._steps)),
        )

    def _tensor(self, value: Value, name: str = "") -> TensorFacts:
        shape = tuple(size if type(size) is int else str(size) for size in value.shape)
        own = self._graph.names[value].removeprefix("%")
        return TensorFacts(name or own, value.data_type, shape)

    def _nodes(self) -> tuple[NodeFacts, ...]:
        computed_by: dict[Node, list[int]] = {}
        for number, step in enumerate(self._steps):
            for node in step.nodes:
                computed_by.setdefault(node, []).append(number)
        engine = self._engine
        found = []
        for node in self._graph.nodes:
            engine = self._engines.get(node, engine)
            found.append(self._node(node, engine, tuple(computed_by.get(node, ()))))
        return tuple(found)

    def _node(self, node: Node, engine: str, steps: tuple[int, ...]) -> NodeFacts:
        producers, constants = self._graph.producers, self._graph.constants
        operands = list(dict.fromkeys(node.operands))
        inputs = [v for v in operands if v not in producers and v not in constants]
        return NodeFacts(
            operator=node.op,
            label=node.label,
            inputs=tuple(
                dict.fromkeys(self._places[producers[v]] for v in operands if v in producers)
            ),
            graph_inputs=tuple(self._tensor(v).name for v in inputs),
            constants=tuple(self._tensor(v) for v in operands if v in constants),
            options={k: _shown(v) for k, v in node.attrs.items() if v is not None},
            outputs=tuple(map(self._tensor, node.outputs)),
            engine=engine,
            steps=steps,
        )

    def _step(self, step: Step) -> StepFacts:
        return StepFacts(
            name=step.name,
            nodes=tuple(self._places[node] for node in step.nodes),
            reads=sum(value.byte_length for value in step.reads),
            writes=sum(value.byte_length for value in step.writes),
        )

    def _plan(self) -> Plan[Value] | None:
        """Plan buffers of intermediate values between steps, or between nodes without steps."""
        graph = self._graph
        if graph.open_sizes:
            return None
        order: list[tuple[Sequence[Value], Sequence[Value]]] = [
            (step.reads, step.writes) for step in self._steps
        ] or [(tuple(node.operands), node.outputs) for node in graph.nodes]
        own = {v for _, writes in order for v in writes if v not in graph.results}
        return plan_buffers(order, {value: value.byte_length for value in own})


def _shown(value: object) -> str:
    return format_shape(value) if isinstance(value, tuple) else str(value)

"""What there is to say of a compiled graph, as plain data: what `inspect` shows and prints."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from webnn_py.api.graph import MLGraph, compiled_of
from webnn_py.cli.printing import as_text, in_bytes
from webnn_py.core.open_dims import check_sizes
from webnn_py.engines.base import Step, Steps
from webnn_py.ir import Graph, Node, Value
from webnn_py.memory.plan import Plan, plan_buffers


@dataclass(frozen=True)
class TensorFacts:
    """A tensor.

    Attributes:
        name: As in listings, without the sign before it.
        data_type: WebNN's name.
        shape: Numbers, and texts where sizes are open.
    """

    name: str
    data_type: str
    shape: tuple[int | str, ...]

    def __str__(self) -> str:
        return f"{self.data_type}{as_text(self.shape)}"


@dataclass(frozen=True)
class NodeFacts:
    """A node of what runs.

    Attributes:
        operator: Its name.
        label: The node's own name.
        inputs: Places of the nodes that its operands come from.
        graph_inputs: Names of the graph's inputs among its operands.
        constants: Its constant operands.
        options: Those that are set, as texts.
        outputs: Its results.
        engine: What runs it.
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
    """A step, such as a kernel.

    Attributes:
        name: What it is called.
        nodes: Places of the nodes that it computes.
        reads: Bytes that it reads from memory.
        writes: Bytes that it writes there.
    """

    name: str
    nodes: tuple[int, ...]
    reads: int
    writes: int


@dataclass(frozen=True)
class Facts:
    """A graph.

    Attributes:
        device: Where it runs: "cpu" or "gpu".
        engine: What runs it, or most of it.
        inputs: What it is given.
        outputs: What it makes, and the place of the node that makes it; None of a constant or an
            input.
        parameters: Elements of its constants.
        constant_bytes: Their bytes.
        intermediate_bytes: Memory between its steps; None where sizes are open.
        live_bytes: As much of it as is in use at once, at most; None where sizes are open.
        operators: How many nodes there are of each, the most first.
        nodes: In the order in which they run.
        steps: In the order in which they run; none where the engine does not tell, or sizes are
            open.
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
        """For `json.dumps`."""
        return asdict(self)

    def summary(self) -> dict[str, object]:
        """The graph in a few lines."""
        between, live = self.intermediate_bytes, self.live_bytes
        memory = "depends on sizes"
        if between is not None and live is not None:
            memory = f"{in_bytes(between)}, up to {in_bytes(live)} in use at once"
        made: dict[str, object] = {"device": self.device, "engine": self.engine}
        made |= {f"input {tensor.name}": str(tensor) for tensor in self.inputs}
        made |= {f"output {tensor.name}": str(tensor) for tensor, _ in self.outputs}
        made |= {
            "parameters": self.parameters,
            "memory of constants": in_bytes(self.constant_bytes),
            "memory between nodes": memory,
            "nodes": len(self.nodes),
        }
        return made | ({"kernels": len(self.steps)} if self.steps else {})

    def where(self, node: NodeFacts) -> str:
        """What a node runs in: its kernels, or its engine."""
        if not node.steps:
            return node.engine
        kernels = ", ".join(f"{number} {self.steps[number].name}" for number in node.steps[:3])
        return f"{kernels}, ..." if len(node.steps) > 3 else kernels


def facts_of(graph: MLGraph, sizes: Mapping[str, int]) -> Facts:
    """What there is to say of a graph.

    Args:
        graph: Any.
        sizes: Its open sizes; where some are missing, what is not compiled is described.
    """
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
    """What runs, and by what."""

    def __init__(
        self, graph: Graph, engines: Mapping[Node, str], steps: Steps | None, engine: str
    ) -> None:
        self._graph = graph
        self._engines = engines
        self._steps = () if steps is None else steps.steps
        self._engine = engine
        self._places = {node: place for place, node in enumerate(graph.nodes)}

    def facts(self, device: str) -> Facts:
        """All of it."""
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
        """Of buffers between the engine's own steps, or the nodes one by one."""
        graph = self._graph
        if graph.open_sizes:
            return None
        order: list[tuple[Sequence[Value], Sequence[Value]]] = [
            (step.reads, step.writes) for step in self._steps
        ] or [(tuple(node.operands), node.outputs) for node in graph.nodes]
        own = {v for _, writes in order for v in writes if v not in graph.results}
        return plan_buffers(order, {value: value.byte_length for value in own})


def _shown(value: object) -> str:
    return as_text(value) if isinstance(value, tuple) else str(value)

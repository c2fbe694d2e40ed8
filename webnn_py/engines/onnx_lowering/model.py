"""Lowers a whole graph to an ONNX model."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
from onnx import ModelProto, TensorProto, ValueInfoProto, helper

from webnn_py.core.dtypes import PACKED_4BIT, pack_4bit
from webnn_py.core.errors import ValidationError
from webnn_py.core.gil_yield import checkpoints
from webnn_py.engines.onnx_lowering import sizes
from webnn_py.engines.onnx_lowering.emitter import (
    CODES,
    IR_VERSION,
    OPSET,
    Emitter,
    Lowering,
    NotLowered,
    Tensor,
    lower,
)
from webnn_py.engines.onnx_lowering.versions import older_opset
from webnn_py.ir import Array, Graph, Node, Value, titled

MIN_EXTERNAL_BYTES = 1024
"""Least size of a constant that may lie outside of the model."""
EXTERNAL_DATA_KEYS = ("location", "offset", "length")
"""ONNX's keys for the place of data outside of a model."""
NONE: Mapping[str, Lowering] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Names:
    """The names that a model gives the tensors and nodes of a graph.

    Attributes:
        inputs: Names of the inputs, in the graph's order.
        constants: Names of the constants, in the graph's order.
        outputs: Names of the outputs, in the graph's order.
        title: Function that returns a node's name.
    """

    inputs: tuple[str, ...]
    constants: tuple[str, ...]
    outputs: tuple[str, ...]
    title: Callable[[Node], str]


def numbered(graph: Graph) -> Names:
    """Name tensors by their numbers and nodes as in messages, because engines' errors show them."""
    return Names(
        tuple(f"input{i}" for i in range(len(graph.inputs))),
        tuple(f"constant{i}" for i in range(len(graph.constants))),
        tuple(f"output{i}" for i in range(len(graph.outputs))),
        lambda node: titled(node.op, node.label),
    )


@dataclass(frozen=True, slots=True)
class Lowered:
    """A model with its external data.

    Attributes:
        model: The model.
        external: Arrays of initializers outside of the model, by name.
        sizes: Inputs of the model that depend on open sizes, by name.
    """

    model: ModelProto
    external: Mapping[str, Array]
    sizes: Mapping[str, sizes.Given]

    def refer(self, places: Mapping[str, tuple[str, int, int]]) -> None:
        """Set location, offset and length of external initializers."""
        for tensor in self.model.graph.initializer:
            if tensor.name in places:
                del tensor.external_data[:]
                for key, value in zip(EXTERNAL_DATA_KEYS, places[tensor.name], strict=True):
                    tensor.external_data.add(key=key, value=str(value))


def why_not_lowered(node: Node) -> str | None:
    """Return why ONNX cannot express a node, or None if it can."""
    try:
        lower_alone(node)
    except (NotLowered, ValidationError) as error:  # ValidationError: of open dimensions
        return str(error)
    return None


def lower_alone(node: Node, instead: Mapping[str, Lowering] = NONE) -> Emitter:
    """Lower one node with unknown operands; `instead` is as for `lower_graph`.

    Raises:
        NotLowered: ONNX cannot express it.
    """
    e = Emitter(instead=instead)
    lower(e, node, [None if v is None else Tensor(e.name("x"), v.data_type) for v in node.inputs])
    return e


def lower_graph(
    graph: Graph,
    names: Names,
    external: bool = False,
    instead: Mapping[str, Lowering] = NONE,
    given_sizes: bool = False,
    of_nodes: Mapping[Node, Lowering] = MappingProxyType({}),
    older: bool = False,
) -> Lowered:
    """Lower a graph to a model.

    Args:
        graph: The graph, all of whose nodes ONNX can express.
        names: Names of its tensors and nodes.
        external: Keep large constants out of the model.
        instead: Lowerings by operator, for engines whose ONNX operators are not exact enough.
        given_sizes: Make values that depend on open sizes inputs of the model; False: the model
            computes them.
        of_nodes: Lowerings by node, for engines with operators of their own.
        older: Declare an older version of the operators if it means the same.

    Raises:
        NotLowered: ONNX cannot express a node for all open sizes.
    """
    inputs = zip(names.inputs, graph.inputs, strict=True)
    sources = None if given_sizes else sizes.sources(inputs)
    arrays = dict(zip(names.constants, graph.constants.values(), strict=True))
    e = Emitter({*names.inputs, *names.constants, *names.outputs}, instead, sources, arrays)
    tensors: dict[Value, Tensor] = {}
    for value, name in zip(graph.inputs, names.inputs, strict=True):
        tensors[value] = Tensor(name, value.data_type)
    constants: dict[str, tuple[str, Array]] = {}
    for (value, array), name in zip(graph.constants.items(), names.constants, strict=True):
        tensors[value] = Tensor(name, value.data_type)
        constants[name] = value.data_type, array
    for node in checkpoints(graph.nodes):
        first = len(e.nodes)
        operands = [None if value is None else tensors[value] for value in node.inputs]
        own = of_nodes.get(node)
        made = lower(e, node, operands) if own is None else own(e, node, *operands)
        made = made if isinstance(made, list) else [made]
        tensors.update(zip(node.outputs, made, strict=True))
        e.entitle(first, names.title(node))
    opset = older_opset(e) if older else OPSET
    results = (tensors[value] for _, value in graph.outputs)
    _name_outputs(e, list(zip(names.outputs, results, strict=True)))
    constants |= {name: (str(array.dtype), array) for name, array in e.weights.items()}
    for name, (source, shape) in e.views.items():
        data_type, array = constants[source]
        constants[name] = data_type, array.reshape(shape)
    outside, initializers = _initializers(e, constants, external)
    return Lowered(_model(e, graph, names, initializers, opset), outside, e.given)


def _initializers(
    e: Emitter, constants: Mapping[str, tuple[str, Array]], external: bool
) -> tuple[dict[str, Array], list[TensorProto]]:
    """Return the external arrays, and initializers for all constants that nodes read."""
    read = {name for node in e.nodes for name in node.input}
    outside: dict[str, Array] = {}
    initializers = []
    for name, (data_type, array) in constants.items():
        if name not in read:
            continue
        is_large = array.nbytes >= MIN_EXTERNAL_BYTES
        if external and is_large and data_type not in PACKED_4BIT:
            outside[name] = array
            initializers.append(_outside(name, data_type, array))
        else:
            initializers.append(_inside(name, data_type, array))
    own = (_inside(name, str(array.dtype), array) for name, array in e.initializers.items())
    return outside, [*initializers, *own]


def _model(
    e: Emitter, graph: Graph, names: Names, initializers: list[TensorProto], opset: int
) -> ModelProto:
    """Assemble the model from the emitter's nodes and the graph's inputs and outputs."""
    inputs = [_info(name, value) for name, value in zip(names.inputs, graph.inputs, strict=True)]
    inputs += [
        helper.make_tensor_value_info(name, CODES[x.data_type], np.shape(x.values))
        for name, x in e.given.items()
    ]
    outputs = [
        _info(name, value) for name, (_, value) in zip(names.outputs, graph.outputs, strict=True)
    ]
    domains = {node.domain for node in e.nodes} - {""}
    return helper.make_model(
        helper.make_graph(e.nodes, "graph", inputs, outputs, initializers),
        opset_imports=[
            helper.make_opsetid("", opset),
            *(helper.make_opsetid(domain, 1) for domain in sorted(domains)),
        ],
        ir_version=IR_VERSION,
        producer_name="webnn_py",
    )


def _name_outputs(e: Emitter, outputs: list[tuple[str, Tensor]]) -> None:
    """Rename the results to the outputs' names; add an Identity for a result with two names."""
    made = {name for node in e.nodes for name in node.output}
    names: dict[str, str] = {}
    for name, tensor in outputs:
        if tensor.name in made and tensor.name not in names:
            names[tensor.name] = name
    for node in e.nodes:
        for places in (node.input, node.output):
            for i, old in enumerate(places):
                if old in names:
                    places[i] = names[old]
    for name, tensor in outputs:
        source = names.get(tensor.name, tensor.name)
        if source != name:
            e.nodes.append(helper.make_node("Identity", [source], [name]))


def _info(name: str, value: Value) -> ValueInfoProto:
    return helper.make_tensor_value_info(name, CODES[value.data_type], sizes.named(value.shape))


def _inside(name: str, data_type: str, array: Array) -> TensorProto:
    raw = pack_4bit(array) if data_type in PACKED_4BIT else array
    return TensorProto(
        name=name, data_type=CODES[data_type], dims=array.shape, raw_data=raw.tobytes()
    )


def _outside(name: str, data_type: str, array: Array) -> TensorProto:
    tensor = TensorProto(
        name=name,
        data_type=CODES[data_type],
        dims=array.shape,
        data_location=TensorProto.EXTERNAL,
    )
    tensor.external_data.add(key="location", value="memory")
    return tensor

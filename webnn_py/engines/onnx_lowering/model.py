"""A whole graph as an ONNX model."""

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

LARGE = 1024
"""Bytes from which on a constant may be kept out of the model."""
PLACE = ("location", "offset", "length")
"""What ONNX says of data outside of a model."""
NONE: Mapping[str, Lowering] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Names:
    """What a model calls the tensors of a graph.

    Attributes:
        inputs: In the graph's order.
        constants: The same.
        outputs: The same.
        title: Of a node.
    """

    inputs: tuple[str, ...]
    constants: tuple[str, ...]
    outputs: tuple[str, ...]
    title: Callable[[Node], str]


def numbered(graph: Graph) -> Names:
    """Tensors by their numbers, nodes as messages call them: engines' errors name these."""
    return Names(
        tuple(f"input{i}" for i in range(len(graph.inputs))),
        tuple(f"constant{i}" for i in range(len(graph.constants))),
        tuple(f"output{i}" for i in range(len(graph.outputs))),
        lambda node: titled(node.op, node.label),
    )


@dataclass(frozen=True, slots=True)
class Lowered:
    """A model, and what is to be given along with it.

    Attributes:
        model: The model.
        external: Arrays of initializers that it only names.
        sizes: Inputs that follow from open sizes, by name.
    """

    model: ModelProto
    external: Mapping[str, Array]
    sizes: Mapping[str, sizes.Given]

    def refer(self, places: Mapping[str, tuple[str, int, int]]) -> None:
        """Say where initializers lie that the model only names: location, offset and length."""
        for tensor in self.model.graph.initializer:
            if tensor.name in places:
                del tensor.external_data[:]
                for key, value in zip(PLACE, places[tensor.name], strict=True):
                    tensor.external_data.add(key=key, value=str(value))


def why_not_lowered(node: Node) -> str | None:
    """Why ONNX has no operators that compute a node, if so."""
    try:
        lower_alone(node)
    except (NotLowered, ValidationError) as error:  # the latter of open dimensions
        return str(error)
    return None


def lower_alone(node: Node, instead: Mapping[str, Lowering] = NONE) -> Emitter:
    """A node, of operands of any contents; `instead` as for `lower_graph`.

    Raises:
        NotLowered: ONNX has no operators that compute it.
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
    """A graph whose nodes can all be lowered.

    Args:
        graph: What to write.
        names: What its tensors are called.
        external: Keep large constants out of the model.
        instead: Lowerings of some operators, for an engine that does not compute those of ONNX
            well enough.
        given_sizes: What follows from open sizes is given to the model, which calculates it
            otherwise.
        of_nodes: Lowerings of some nodes, for an engine that has operators of its own.
        older: Name an older version of the operators where it says the same.

    Raises:
        NotLowered: ONNX has no operators that compute a node for all open sizes.
    """
    inputs = zip(names.inputs, graph.inputs, strict=True)
    where = None if given_sizes else sizes.sources(inputs)
    arrays = dict(zip(names.constants, graph.constants.values(), strict=True))
    e = Emitter({*names.inputs, *names.constants, *names.outputs}, instead, where, arrays)
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
        alone = of_nodes.get(node)
        made = lower(e, node, operands) if alone is None else alone(e, node, *operands)
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
    """Arrays kept out of the model, and initializers of all constants that nodes read."""
    read = {name for node in e.nodes for name in node.input}
    outside: dict[str, Array] = {}
    initializers = []
    for name, (data_type, array) in constants.items():
        if name not in read:
            continue
        if external and array.nbytes >= LARGE and data_type not in PACKED_4BIT:
            outside[name] = array
            initializers.append(_outside(name, data_type, array))
        else:
            initializers.append(_inside(name, data_type, array))
    own = (_inside(name, str(array.dtype), array) for name, array in e.initializers.items())
    return outside, [*initializers, *own]


def _model(
    e: Emitter, graph: Graph, names: Names, initializers: list[TensorProto], opset: int
) -> ModelProto:
    """The nodes written, between the graph's inputs and outputs."""
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
    """Have results made under their names; by a copy where they have another one already."""
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

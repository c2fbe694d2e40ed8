"""Cache of imported nodes: what one node became is copied for others like it.

The layers of a network repeat, and a handler makes the same of nodes alike. What it makes depends
on the operator, the attributes, the descriptors of the operands, and the contents of small
constants. If it reads a large constant, such as packed weights, nothing is copied.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, NamedTuple

from onnx import AttributeProto

from webnn_py.core import convert
from webnn_py.ir import Node, Value
from webnn_py.onnx.emitter import Emitter, open_sizes_of, wrap
from webnn_py.onnx.liveness import LiveNode
from webnn_py.onnx.tensor import Tensor
from webnn_py.ops.operand import MLOperand, value_of

MAX_BYTES = 256
"""Largest constant or attribute, in bytes, whose contents are compared."""


class _Computed(NamedTuple):
    """A result that the nodes of a template compute.

    Attributes:
        elem: ONNX's element type.
        value: The value.
        sources: Places of the operands that its contents depend on.
        inputs: Names of the model's inputs that it has from no source.
        open_sizes: Names of open dimensions that it has from no source.
    """

    elem: int
    value: Value
    sources: Sequence[int]
    inputs: frozenset[str]
    open_sizes: frozenset[str]

    @classmethod
    def of(cls, result: Tensor, value: Value, operands: Sequence[Tensor | None]) -> _Computed:
        """Return a result; its sources are the operands all of whose names it has."""
        inputs, open_sizes = result.inputs, result.open_sizes
        sources = []
        for place, one in enumerate(operands):
            names = (frozenset(), frozenset()) if one is None else (one.inputs, open_sizes_of(one))
            if any(names) and names[0] <= result.inputs and names[1] <= result.open_sizes:
                sources.append(place)
                inputs, open_sizes = inputs - names[0], open_sizes - names[1]
        return cls(result.elem, value, sources, inputs, open_sizes)


class _Template(NamedTuple):
    """What the first node of a key became.

    Attributes:
        nodes: The nodes that its handler added.
        operands: The values of operands that these read, by the operands' places.
        shared: Operands, by place, from which `Emitter.once` made what these read; a copy must have
            the same ones.
        results: The results: the place of an operand, a computed tensor, or None.
    """

    nodes: Sequence[Node]
    operands: Mapping[int, Value]
    shared: Mapping[int, Tensor]
    results: Sequence[int | _Computed | None]


class RepeatedNodes:
    """The templates of one import.

    Args:
        emitter: The emitter of the import.
    """

    def __init__(self, emitter: Emitter) -> None:
        self._emitter = emitter
        self._templates: dict[Hashable, _Template | None] = {}

    def key(
        self, live: LiveNode, inputs: Sequence[Any], domain: str, version: int
    ) -> Hashable | None:
        """Return all that a handler's result depends on; None if nothing is to be copied.

        Args:
            live: The node.
            inputs: The values of its inputs.
            domain: The domain of its operator.
            version: The version of the domain's operator set.
        """
        node = live.node
        if not all(one is None or type(one) is Tensor for one in inputs):
            return None
        if all(one is None or one.is_known for one in inputs):
            return None  # which are folded, as far as there is memory
        attributes = []
        for one in node.attribute:
            if one.type in (AttributeProto.GRAPH, AttributeProto.GRAPHS):
                return None
            attributes.append(one.SerializeToString())
            if len(attributes[-1]) > MAX_BYTES:
                return None
        present = [id(one.operand or one) for one in inputs if one is not None]
        same = tuple(map(present.index, present)) if len(set(present)) < len(present) else ()
        outputs = (len(node.output), *live.outputs)
        forms = tuple(map(_form, inputs))
        return node.op_type, domain, version, tuple(attributes), outputs, forms, same

    def copy(self, key: Hashable, inputs: Sequence[Any]) -> Sequence[Any] | None:
        """Copy the nodes of a key's template; return their results, None without a template."""
        template = self._templates.get(key)
        if template is None:
            return None
        if any(inputs[place] is not one for place, one in template.shared.items()):
            return None
        values: dict[Value, Value] = {}
        for place, value in template.operands.items():
            values[value] = value_of(self._emitter.operand(inputs[place]))
        nodes = self._emitter.nodes
        nodes.add_copies(template.nodes, values, convert.label(self._emitter.label, "label"))
        results: list[Any] = []
        for one in template.results:
            if isinstance(one, _Computed):
                sources = [inputs[place] for place in one.sources]
                names = one.inputs.union(*(source.inputs for source in sources))
                open_sizes = one.open_sizes.union(*map(open_sizes_of, sources))
                operand = MLOperand(nodes, values[one.value])
                results.append(wrap(operand, one.elem, names, open_sizes))
            else:
                results.append(None if one is None else inputs[one])
        return results

    def record(
        self, key: Hashable, inputs: Sequence[Tensor | None], handle: Callable[[], Any]
    ) -> Any:
        """Call a handler; record what the node becomes as the template of its key."""
        if key in self._templates:  # which did not fit: each such node needs its handler
            return handle()
        opaque = [one for one in inputs if one is not None and _is_opaque(one)]
        for one in opaque:
            one.is_read = False
        emitter = self._emitter
        emitter.asked = []
        nodes, before, shared = emitter.nodes.nodes, emitter.state, emitter.shared_count
        count = len(nodes)
        made = handle()
        if emitter.shared_count > shared:  # which the next node only asks for
            return made
        self._templates[key] = None
        is_alone = before == emitter.state and not any(one.is_read for one in opaque)
        if made is not None and is_alone:  # None: the operator's own definition replaces it
            results = made if isinstance(made, (tuple, list)) else [made]
            self._templates[key] = self._template(inputs, results, nodes[count:])
        return made

    def _template(
        self, inputs: Sequence[Tensor | None], results: Sequence[Any], nodes: Sequence[Node]
    ) -> _Template | None:
        """Return the template of a node; None if nodes or results depend on anything else."""
        asked = {id(part) for key in self._emitter.asked for part in key}
        made = {value for node in nodes for value in node.outputs}
        read = {value for node in nodes for value in node.operands}
        operands: dict[int, Value] = {}
        shared: dict[int, Tensor] = {}
        for place, one in enumerate(inputs):
            if one is not None and one.operand is not None and value_of(one.operand) in read:
                operands[place] = value_of(one.operand)
            if one is not None and not asked.isdisjoint((id(one), id(one.operand or one))):
                shared[place] = one
        others = read.difference(made, operands.values())
        if not asked and not all(map(self._emitter.nodes.is_constant, others)):
            return None
        found: list[int | _Computed | None] = []
        for one in results:
            places = [place for place, given in enumerate(inputs) if given is one]
            if one is None or places:
                found.append(places[0] if places else None)
                continue
            is_unknown = type(one) is Tensor and one.operand is not None and not one.is_known
            if not is_unknown or value_of(one.operand) not in made:
                return None
            found.append(_Computed.of(one, value_of(one.operand), inputs))
        return _Template(nodes, operands, shared, found)


def _form(tensor: Tensor | None) -> Hashable:
    """Return what a handler may know of an operand."""
    if tensor is None:
        return None
    if _is_opaque(tensor):
        return tensor.elem, tensor.shape
    contents = None if tensor.contents is None else tensor.contents.tobytes()
    sizes = None if tensor.sizes is None else tuple(tensor.sizes.flat)
    is_computed = bool(tensor.inputs), bool(tensor.open_sizes), tensor.is_input
    return tensor.elem, tensor.shape, contents, sizes, is_computed


def _is_opaque(tensor: Tensor) -> bool:
    """Whether it has contents that are too large to compare."""
    return tensor.contents is not None and tensor.contents.nbytes > MAX_BYTES

"""Cache of imported nodes: what one node became is copied for others like it.

The layers of a network repeat, and a handler makes the same of nodes alike. What it makes depends
on the operator, the attributes, the descriptors of the operands, and the contents of small
constants. If it reads a large constant, such as packed weights, nothing is copied.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from onnx import AttributeProto

from webnn_py.core import convert
from webnn_py.ir import Node, Value
from webnn_py.onnx.emitter import Emitter, open_sizes_of
from webnn_py.onnx.liveness import LiveNode
from webnn_py.onnx.tensor import Tensor
from webnn_py.ops.operand import MLOperand, value_of

MAX_BYTES = 256
"""Largest constant or attribute, in bytes, whose contents are compared."""


Names = frozenset[str]


class _Origin(NamedTuple):
    """Where a tensor has names from: operands, by their places, and the node itself."""

    places: Sequence[int]
    own: Names

    @classmethod
    def of(cls, names: Names, operands: Sequence[Names]) -> _Origin:
        """Return the origin of names among those of the operands."""
        places = [place for place, given in enumerate(operands) if given and given <= names]
        return cls(places, names.difference(*(operands[place] for place in places)))

    def among(self, operands: Sequence[Names]) -> Names:
        """Return the names, for other operands."""
        return self.own.union(*(operands[place] for place in self.places))


class _Made(NamedTuple):
    """A tensor that a node computes, by its value in the template.

    Attributes:
        elem: ONNX's element type.
        value: The value.
        inputs: Origin of the names of the model's inputs.
        open_sizes: Origin of the names of open dimensions.
    """

    elem: int
    value: Value
    inputs: _Origin
    open_sizes: _Origin


@dataclass(frozen=True, slots=True)
class _Template:
    """What a node became.

    Attributes:
        nodes: The nodes.
        operands: The values of operands that the nodes read, by the operands' places.
        shared: The operands, by place, from which `Emitter.once` made what the nodes share.
        results: The node's results: the place of an operand, a computed tensor, or None.
    """

    nodes: Sequence[Node]
    operands: Mapping[int, Value]
    shared: Mapping[int, Tensor]
    results: Sequence[int | _Made | None]


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

    def copies(self, key: Hashable, inputs: Sequence[Any]) -> Sequence[Any] | None:
        """Copy the nodes of a key's template; return their results, None without a template."""
        template = self._templates.get(key)
        if template is None:
            return None
        if any(inputs[place] is not one for place, one in template.shared.items()):
            return None
        emitter = self._emitter
        values: dict[Value, Value] = {}
        for place, value in template.operands.items():
            values[value] = value_of(emitter.operand(inputs[place]))
        nodes = emitter.nodes
        nodes.add_copies(template.nodes, values, self._label())
        names, open_sizes = _names(inputs)
        results: list[Any] = []
        for one in template.results:
            if isinstance(one, _Made):
                operand = MLOperand(nodes, values[one.value])
                made = one.elem, operand.shape, None, operand, one.inputs.among(names)
                results.append(Tensor(*made, open_sizes=one.open_sizes.among(open_sizes)))
            else:
                results.append(None if one is None else inputs[one])
        return results

    def noting(
        self, key: Hashable, inputs: Sequence[Tensor | None], handle: Callable[[], Any]
    ) -> Any:
        """Call a handler; note what it makes of a node, for the next nodes of this key."""
        if key in self._templates:  # handlers are to be called for each
            return handle()
        opaque = [one for one in inputs if one is not None and _is_opaque(one)]
        for one in opaque:
            one.is_read = False
        emitter = self._emitter
        emitter.asked = []
        nodes, before, shared = emitter.nodes, emitter.state, emitter.shared_count
        count = len(nodes.nodes)
        made = handle()
        if emitter.shared_count > shared:  # which the next node only asks for
            return made
        self._templates[key] = None
        is_alone = before == emitter.state and not any(one.is_read for one in opaque)
        if made is not None and is_alone:  # None: the operator's own definition replaces it
            results = made if isinstance(made, (tuple, list)) else [made]
            self._templates[key] = self._template(nodes.nodes[count:], inputs, results)
        return made

    def _template(
        self, nodes: Sequence[Node], inputs: Sequence[Tensor | None], results: Sequence[Any]
    ) -> _Template | None:
        """Return the template of nodes; None if they or the results depend on anything else."""
        label, is_constant = self._label(), self._emitter.nodes.is_constant
        asked = {id(part) for key in self._emitter.asked for part in _flat(key)}
        shared = {
            place: one
            for place, one in enumerate(inputs)
            if one is not None and not asked.isdisjoint((id(one), id(one.operand)))
        }
        given = {
            value_of(one.operand): place
            for place, one in reversed([*enumerate(inputs)])
            if one is not None and one.operand is not None
        }
        made: set[Value] = set()
        for node in nodes:
            others = [v for v in node.operands if v not in made and v not in given]
            is_closed = bool(asked) or all(map(is_constant, others))
            if node.label != label or not is_closed:
                return None
            made.update(node.outputs)
        read = {value for node in nodes for value in node.operands}
        operands = {place: value for value, place in given.items() if value in read}
        names, open_sizes = _names(inputs)
        found: list[int | _Made | None] = []
        for one in results:
            place = next((i for i, x in enumerate(inputs) if x is one), None)
            if one is None or place is not None:
                found.append(place)
                continue
            if type(one) is not Tensor or one.is_known or one.operand is None:
                return None
            value = value_of(one.operand)
            if value not in made:
                return None
            origins = _Origin.of(one.inputs, names), _Origin.of(one.open_sizes, open_sizes)
            found.append(_Made(one.elem, value, *origins))
        return _Template(nodes, operands, shared, found)

    def _label(self) -> str:
        return convert.label(self._emitter.label, "label")


def _form(tensor: Tensor | None) -> Hashable:
    """Return what a handler may know of an operand."""
    if tensor is None:
        return None
    if _is_opaque(tensor):
        return tensor.elem, tensor.shape
    contents: Hashable = None
    if tensor.contents is not None:
        contents = tensor.contents.tobytes()
    if tensor.sizes is not None:
        contents = tuple(tensor.sizes.flat)
    is_computed = bool(tensor.inputs), bool(tensor.open_sizes), tensor.is_input
    return tensor.elem, tensor.shape, contents, is_computed


def _flat(key: Hashable) -> Iterator[object]:
    """Yield the parts of a key of tuples within each other."""
    if isinstance(key, tuple):
        for part in key:
            yield from _flat(part)
    else:
        yield key


def _names(inputs: Sequence[Tensor | None]) -> tuple[list[Names], list[Names]]:
    """Return the names of the model's inputs, and of open dimensions, by operand."""
    nothing: Names = frozenset()
    return (
        [nothing if one is None else one.inputs for one in inputs],
        [nothing if one is None else open_sizes_of(one) for one in inputs],
    )


def _is_opaque(tensor: Tensor) -> bool:
    """Whether it has contents that are too large to compare."""
    return tensor.contents is not None and tensor.contents.nbytes > MAX_BYTES

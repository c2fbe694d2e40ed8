"""The emitter of ONNX nodes and initializers, and the registry of lowerings."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from onnx import AttributeProto, NodeProto, TensorProto, helper

from webnn_py.core.dimensions import is_dimension, is_open
from webnn_py.core.dtypes import DTYPES, PACKED_4BIT
from webnn_py.engines.onnx_lowering import sizes
from webnn_py.ir import Array, Node

OPSET = 21
"""Version of the ONNX operators that the emitter writes."""
IR_VERSION = 10
"""Version of the ONNX file format that belongs to it."""
ONNX_RUNTIME_DOMAIN = "com.microsoft"
"""The domain of ONNX Runtime's own operators."""

CODES: dict[str, int] = {
    "float32": TensorProto.FLOAT,
    "float16": TensorProto.FLOAT16,
    "int32": TensorProto.INT32,
    "uint32": TensorProto.UINT32,
    "int64": TensorProto.INT64,
    "uint64": TensorProto.UINT64,
    "int8": TensorProto.INT8,
    "uint8": TensorProto.UINT8,
    "int4": TensorProto.INT4,
    "uint4": TensorProto.UINT4,
    "bool": TensorProto.BOOL,
}
"""ONNX's numbers of data types; bool occurs only inside lowerings."""

WIDE = ("int64", "uint64")
"""Integers of which ONNX Runtime's Max, Min and Clip compare only 32 bits."""


class NotLowered(Exception):
    """ONNX cannot express a node; the message says why."""


class Tensor(NamedTuple):
    """A tensor of the model.

    Attributes:
        name: Its name.
        data_type: WebNN's name of its data type, or "bool".
    """

    name: str
    data_type: str


Operands = Sequence[Tensor | None]
Lowering = Callable[..., Tensor | list[Tensor]]
"""Function of the emitter, the node and its operands that writes a node."""


@dataclass(eq=False)
class Emitter:
    """The nodes and initializers of a model under construction.

    Args:
        taken: Names of the graph's inputs, outputs and constants.
        instead: Lowerings that replace the registered ones, by operator.
        sources: Input and axis that has each open size; None if values that depend on open sizes
            become inputs of the model (see `given`).
        arrays: The graph's constants by name.

    Attributes:
        nodes: The nodes so far.
        types: Data types of each node's inputs ("" for an absent one) and outputs.
        initializers: Constants that lowerings added, by name.
        weights: Large constants that lowerings added, which may lie outside of the model.
        given: Inputs of the model that depend on open sizes, by name.
        views: Reshaped 4-bit constants: source and shape by name.
        below: Numbers from 0 that all elements of a tensor are below, by name: sizes that tensors
            of indices belong to.
    """

    taken: set[str] = field(default_factory=set)
    instead: Mapping[str, Lowering] = field(default_factory=dict)
    sources: Mapping[str, sizes.Source] | None = None
    arrays: Mapping[str, Array] = field(default_factory=dict)
    nodes: list[NodeProto] = field(default_factory=list)
    types: list[tuple[tuple[str, ...], tuple[str, ...]]] = field(default_factory=list)
    initializers: dict[str, Array] = field(default_factory=dict)
    weights: dict[str, Array] = field(default_factory=dict)
    given: dict[str, sizes.Given] = field(default_factory=dict)
    views: dict[str, tuple[str, tuple[int, ...]]] = field(default_factory=dict)
    below: dict[str, Any] = field(default_factory=dict)
    _titles: set[str] = field(default_factory=set)
    _known: dict[tuple[str, tuple[int, ...], bytes], Tensor] = field(default_factory=dict)
    _shared: dict[Hashable, Tensor] = field(default_factory=dict)
    _count: int = 0

    def name(self, wanted: str = "") -> str:
        """Return an unused tensor name."""
        return self._unique(wanted or "t", self.taken)

    def entitle(self, first: int, title: str) -> None:
        """Name the nodes from index `first`: the last one `title`, the others `title/operator`."""
        for node in self.nodes[first:]:
            name = title if node is self.nodes[-1] else f"{title}/{node.op_type}"
            node.name = self._unique(name, self._titles)

    def _unique(self, wanted: str, taken: set[str]) -> str:
        name = wanted
        while name in taken:
            self._count += 1
            name = f"{wanted}_{self._count}"
        taken.add(name)
        return name

    def op(
        self, kind: str, *inputs: Tensor | None, to: str | None = None, **attributes: Any
    ) -> Tensor:
        """Write a node with one output.

        Args:
            kind: The ONNX operator.
            inputs: The inputs; None for an absent one.
            to: The output's data type; default: that of the first input.
            attributes: The node's attributes.
        """
        assert inputs[0] is not None or to is not None
        data_type = to or next(t.data_type for t in inputs if t is not None)
        (output,) = self.ops(kind, inputs, [data_type], **attributes)
        assert output is not None
        return output

    def ops(
        self,
        kind: str,
        inputs: Sequence[Tensor | None],
        outputs: Iterable[str | None],
        **attributes: Any,
    ) -> list[Tensor | None]:
        """Write a node; `outputs` are the data types of its outputs, None for an unused one."""
        for name, value in attributes.items():
            if is_open(sizes.flat(value)):
                raise NotLowered(f"ONNX takes no open dimension as {name}, which is {value}")
        made = [None if t is None else Tensor(self.name(), t) for t in outputs]
        present = list(inputs)
        while present and present[-1] is None:
            present.pop()
        node = NodeProto(
            op_type=kind,
            input=["" if t is None else t.name for t in present],
            output=["" if t is None else t.name for t in made],
            attribute=[
                _attribute(name, value)
                for name, value in sorted(attributes.items())
                if value is not None
            ],
        )
        self.nodes.append(node)
        self.types.append(
            (
                tuple("" if t is None else t.data_type for t in present),
                tuple("" if t is None else t.data_type for t in made),
            )
        )
        return made

    def constant(self, values: Any, data_type: str = "int64") -> Tensor:
        """Return a constant, or a tensor computed from open dimensions; equal ones are shared."""
        if is_open(sizes.flat(values)):
            return self._measured(values, data_type)
        dtype = np.dtype(bool) if data_type == "bool" else DTYPES[data_type].numpy
        with np.errstate(over="ignore"):
            array = np.asarray(values, dtype)
        key = (data_type, array.shape, array.tobytes())
        if key not in self._known:
            name = self.name()
            self.initializers[name] = array
            self._known[key] = Tensor(name, data_type)
        return self._known[key]

    def weight(self, array: Array) -> Tensor:
        """Add a large constant, whose data type ONNX and NumPy share."""
        name = self.name("weight")
        self.weights[name] = array
        return Tensor(name, str(array.dtype))

    def _measured(self, values: Any, data_type: str) -> Tensor:
        """Return a tensor of numbers, some of which depend on open sizes."""
        key = (data_type, np.shape(values), str(sizes.flat(values)).encode())
        if key not in self._known and self.sources is None:
            self._known[key] = Tensor(self.name("sizes"), data_type)
            self.given[self._known[key].name] = sizes.Given(values, data_type)
        if key not in self._known:
            parts = [self._element(size) for size in sizes.flat(values)]
            whole = self.op("Concat", *parts, axis=0) if len(parts) > 1 else parts[0]
            made = whole if np.ndim(values) == 1 else self.reshape(whole, np.shape(values))
            self._known[key] = self.cast(made, data_type)
        return self._known[key]

    def _element(self, size: Any) -> Tensor:
        if not is_dimension(size):
            return self.constant([size])
        by_name: dict[str, sizes.Measured] = {}
        assert self.sources is not None
        for name in size.names:
            if name not in self.sources:
                raise NotLowered(f"no input has a dimension that is just {name}")
            source, axis, factor = self.sources[name]
            measured = sizes.Measured(self._calculated, self._size(source, axis))
            by_name[name] = measured // factor if factor > 1 else measured
        made: Tensor = sizes.measured(size, by_name)
        return made

    def _size(self, source: str, axis: int) -> Tensor:
        """Return a dimension of an input as a tensor of one element."""
        key = ("Shape", (axis,), source.encode())
        if key not in self._known:
            of = Tensor(source, "int64")
            self._known[key] = self.op("Shape", of, start=axis, end=axis + 1)
        return self._known[key]

    def _calculated(self, kind: str, *operands: Any) -> Tensor:
        return self.op(kind, *(self.constant([x]) if type(x) is int else x for x in operands))

    def once(self, key: Hashable, make: Callable[[], Tensor]) -> Tensor:
        """Return what `make` writes for the first node that asks by this key."""
        if key not in self._shared:
            self._shared[key] = make()
        return self._shared[key]

    def like(self, value: Any, x: Tensor) -> Tensor:
        """Return a scalar constant with a tensor's data type."""
        return self.constant(value, x.data_type)

    def cast(self, x: Tensor, data_type: str) -> Tensor:
        """Cast a tensor, unless it already has the data type."""
        if x.data_type == data_type:
            return x
        (output,) = self.ops("Cast", [x], [data_type], to=CODES[data_type])
        assert output is not None
        return output

    def where(self, condition: Tensor, true: Tensor, false: Tensor) -> Tensor:
        """Select elements by a bool."""
        return self.op("Where", condition, true, false, to=true.data_type)

    def greater(self, a: Tensor, b: Tensor) -> Tensor:
        """Return the elementwise maximum."""
        if a.data_type in WIDE:
            return self.where(self.op("Less", a, b, to="bool"), b, a)
        return self.op("Max", a, b)

    def smaller(self, a: Tensor, b: Tensor) -> Tensor:
        """Return the elementwise minimum."""
        if a.data_type in WIDE:
            return self.where(self.op("Less", b, a, to="bool"), b, a)
        return self.op("Min", a, b)

    def reshape(self, x: Tensor, shape: Sequence[int], old: Sequence[int] = ()) -> Tensor:
        """Reshape; open dimensions are copied from the `old` shape or inferred where possible."""
        if x.data_type in PACKED_4BIT:  # a constant, as ONNX Runtime cannot reshape 4-bit tensors
            view = Tensor(self.name(), x.data_type)
            self.views[view.name] = x.name, tuple(shape)
            return view
        if not shape:  # OpenVINO crashes when a product is reshaped to a scalar
            return self.op("Squeeze", x)
        new = [0 if is_dimension(a) and a == b else a for a, b in zip(shape, old, strict=False)]
        new += shape[len(new) :]
        if sum(map(is_dimension, new)) == 1:
            new = [-1 if is_dimension(size) else size for size in new]
        return self.op("Reshape", x, self.constant(new))

    def transpose(self, x: Tensor, permutation: Sequence[int]) -> Tensor:
        """Permute the dimensions, unless the permutation is the identity."""
        if list(permutation) == list(range(len(permutation))):
            return x
        return self.op("Transpose", x, perm=list(permutation))

    def reorder(self, x: Tensor, source: str, target: str) -> Tensor:
        """Transpose from one layout, such as "nhwc", to another."""
        return self.transpose(x, [source.index(letter) for letter in target])


def _attribute(name: str, value: Any) -> AttributeProto:
    """Create an attribute; `helper.make_attribute` is slower because it tries all kinds."""
    if type(value) is int:
        return AttributeProto(name=name, type=AttributeProto.INT, i=value)
    if type(value) in (list, tuple) and value and all(type(x) is int for x in value):
        return AttributeProto(name=name, type=AttributeProto.INTS, ints=value)
    return helper.make_attribute(name, value)


LOWERINGS: dict[str, Lowering] = {}
"""The lowering of each operator, by its name."""


def lowering(function: Lowering) -> Lowering:
    """Register a function as the lowering of the operator of the same name."""
    name = function.__name__.rstrip("_")
    assert name not in LOWERINGS, f"the lowering of {name} stands twice"
    LOWERINGS[name] = function
    return function


def lower(e: Emitter, node: Node, operands: Operands) -> list[Tensor]:
    """Write a node of the graph and return its outputs.

    Raises:
        NotLowered: ONNX cannot express it.
    """
    function = e.instead.get(node.op) or LOWERINGS.get(node.op)
    if function is None:
        raise NotLowered("ONNX has no operator for it")
    for value in node.outputs:
        if value.data_type in PACKED_4BIT:
            raise NotLowered(f"results of {value.data_type} are not written")
    made = function(e, node, *operands)
    results = made if isinstance(made, list) else [made]
    _note_bound(e, node, operands, results)
    return results


_INDICES = {"arg_max", "arg_min", "arg_top_k"}
_MOVES = {"expand", "reshape", "slice", "transpose"}


def _note_bound(e: Emitter, node: Node, operands: Operands, results: Sequence[Tensor]) -> None:
    """Note which size indices belong to, so that nobody clamps them."""
    if node.op in _INDICES:
        whole = next(node.operands)
        e.below[results[0].name] = whole.shape[node.attrs["axis"]]
    elif node.op in _MOVES and (first := operands[0]) and first.name in e.below:
        e.below[results[0].name] = e.below[first.name]

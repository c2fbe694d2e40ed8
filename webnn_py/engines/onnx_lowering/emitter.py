"""Writes ONNX nodes and initializers, with the data type of each tensor."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from onnx import AttributeProto, NodeProto, TensorProto, helper

from webnn_py.core.dimensions import is_dimension, is_open
from webnn_py.core.dtypes import DTYPES, PACKED_4BIT
from webnn_py.engines.onnx_lowering import sizes
from webnn_py.ir import Array, Node

OPSET = 21
"""The version of ONNX's operators that is written."""
IR_VERSION = 10
"""The version of ONNX's file format that goes with it."""

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
"""ONNX's numbers of data types; bool exists within lowerings alone."""

WIDE = ("int64", "uint64")
"""Integers of which ONNX Runtime's Max, Min and Clip compare 32 bits."""


class NotLowered(Exception):
    """ONNX has no operators that compute a node; the message says why."""


class Tensor(NamedTuple):
    """A tensor of the model.

    Attributes:
        name: Its name.
        data_type: As WebNN calls it, or "bool".
    """

    name: str
    data_type: str


Operands = Sequence[Tensor | None]
Lowering = Callable[..., Tensor | list[Tensor]]
"""Called with the emitter, the node and its operands."""


@dataclass(eq=False)
class Emitter:
    """A model in the making.

    Args:
        taken: Names that belong to inputs, outputs and constants of the graph.
        instead: Lowerings of some operators for those that are registered.
        sources: Inputs that have the open sizes, and the axes; None where what follows from open
            sizes is given to the model, whose `given` says what.
        arrays: Constants of the graph, by name.

    Attributes:
        nodes: What was written.
        types: For each node the data types of its inputs ("" for one that is left out) and outputs.
        initializers: Constants that lowerings added, by name.
        weights: Those that may lie outside of the model.
        given: What follows from open sizes and is given, by name.
        views: Constants of 4 bits in other shapes: of which, and in which, by name.
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
    _titles: set[str] = field(default_factory=set)
    _known: dict[tuple[str, tuple[int, ...], bytes], Tensor] = field(default_factory=dict)
    _count: int = 0

    def name(self, wanted: str = "") -> str:
        """A name that no tensor has yet."""
        return self._unique(wanted or "t", self.taken)

    def entitle(self, first: int, title: str) -> None:
        """Name the nodes from the `first` on: the last one after a title, those before below it."""
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
        """Write a node of one output.

        Args:
            kind: ONNX's operator.
            inputs: None for one that is left out.
            to: The output's data type; that of the first input if not given.
            attributes: Of the node.
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
        """Write a node of several outputs: their data types, None for one that nobody wants."""
        for name, value in attributes.items():
            if is_open(sizes.flat(value)):
                raise NotLowered(f"ONNX takes no open dimension as {name}, which is {value}")
        made = [None if t is None else Tensor(self.name(), t) for t in outputs]
        given = list(inputs)
        while given and given[-1] is None:
            given.pop()
        node = NodeProto(
            op_type=kind,
            input=["" if t is None else t.name for t in given],
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
                tuple("" if t is None else t.data_type for t in given),
                tuple("" if t is None else t.data_type for t in made),
            )
        )
        return made

    def constant(self, values: Any, data_type: str = "int64") -> Tensor:
        """A constant, or what follows from open dimensions; one for all uses of the same."""
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
        """A weight of a data type that ONNX and NumPy have alike."""
        name = self.name("weight")
        self.weights[name] = array
        return Tensor(name, str(array.dtype))

    def _measured(self, values: Any, data_type: str) -> Tensor:
        """A number, or a list of them, some of which follow from open sizes."""
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
        known: dict[str, sizes.Measured] = {}
        assert self.sources is not None
        for name in size.names:
            if name not in self.sources:
                raise NotLowered(f"no input has a dimension that is just {name}")
            source, axis, factor = self.sources[name]
            measured = sizes.Measured(self._calculated, self._size(source, axis))
            known[name] = measured // factor if factor > 1 else measured
        made: Tensor = sizes.measured(size, known)
        return made

    def _size(self, source: str, axis: int) -> Tensor:
        """A dimension of an input, as a list of one number."""
        key = ("Shape", (axis,), source.encode())
        if key not in self._known:
            of = Tensor(source, "int64")
            self._known[key] = self.op("Shape", of, start=axis, end=axis + 1)
        return self._known[key]

    def _calculated(self, kind: str, *operands: Any) -> Tensor:
        return self.op(kind, *(self.constant([x]) if type(x) is int else x for x in operands))

    def like(self, value: Any, x: Tensor) -> Tensor:
        """A scalar of a tensor's data type."""
        return self.constant(value, x.data_type)

    def cast(self, x: Tensor, data_type: str) -> Tensor:
        """Converted as ONNX does it; the tensor itself where there is nothing to convert."""
        if x.data_type == data_type:
            return x
        (output,) = self.ops("Cast", [x], [data_type], to=CODES[data_type])
        assert output is not None
        return output

    def where(self, condition: Tensor, true: Tensor, false: Tensor) -> Tensor:
        """A choice by a bool."""
        return self.op("Where", condition, true, false, to=true.data_type)

    def greater(self, a: Tensor, b: Tensor) -> Tensor:
        """The greater one."""
        if a.data_type in WIDE:
            return self.where(self.op("Less", a, b, to="bool"), b, a)
        return self.op("Max", a, b)

    def smaller(self, a: Tensor, b: Tensor) -> Tensor:
        """The smaller one."""
        if a.data_type in WIDE:
            return self.where(self.op("Less", b, a, to="bool"), b, a)
        return self.op("Min", a, b)

    def reshape(self, x: Tensor, shape: Sequence[int], old: Sequence[int] = ()) -> Tensor:
        """Another shape; what an open dimension is follows from the `old` one where it can."""
        if x.data_type in PACKED_4BIT:  # a constant; ONNX Runtime has no kernels for more of it
            view = Tensor(self.name(), x.data_type)
            self.views[view.name] = x.name, tuple(shape)
            return view
        if not shape:  # OpenVINO ends the process over a product that is reshaped to a scalar
            return self.op("Squeeze", x)
        wanted = [0 if is_dimension(a) and a == b else a for a, b in zip(shape, old, strict=False)]
        wanted += shape[len(wanted) :]
        if sum(map(is_dimension, wanted)) == 1:
            wanted = [-1 if is_dimension(size) else size for size in wanted]
        return self.op("Reshape", x, self.constant(wanted))

    def transpose(self, x: Tensor, permutation: Sequence[int]) -> Tensor:
        """Dimensions permuted; the tensor itself where they stay in order."""
        if list(permutation) == list(range(len(permutation))):
            return x
        return self.op("Transpose", x, perm=list(permutation))

    def reorder(self, x: Tensor, layout: str, wanted: str) -> Tensor:
        """From one order of dimensions, by their letters, to another."""
        return self.transpose(x, [layout.index(letter) for letter in wanted])


def _attribute(name: str, value: Any) -> AttributeProto:
    """What `helper.make_attribute` makes, which goes through all kinds that there are."""
    if type(value) is int:
        return AttributeProto(name=name, type=AttributeProto.INT, i=value)
    if type(value) in (list, tuple) and value and all(type(x) is int for x in value):
        return AttributeProto(name=name, type=AttributeProto.INTS, ints=value)
    return helper.make_attribute(name, value)


LOWERINGS: dict[str, Lowering] = {}
"""What writes an operator, by its name."""


def lowering(function: Lowering) -> Lowering:
    """Register the lowering of the operator that has the function's name."""
    name = function.__name__.rstrip("_")
    assert name not in LOWERINGS, f"the lowering of {name} stands twice"
    LOWERINGS[name] = function
    return function


def lower(e: Emitter, node: Node, operands: Operands) -> list[Tensor]:
    """Write a node.

    Raises:
        NotLowered: ONNX has no operators that compute it.
    """
    function = e.instead.get(node.op) or LOWERINGS.get(node.op)
    if function is None:
        raise NotLowered("ONNX has no operator for it")
    for value in node.outputs:
        if value.data_type in PACKED_4BIT:
            raise NotLowered(f"results of {value.data_type} are not written")
    made = function(e, node, *operands)
    return made if isinstance(made, list) else [made]

"""Reads and writes saved graphs: the graph in `graph.json`, constants in `weights.safetensors`.

Source: spec/saved_graphs.md.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from webnn_py._version import __version__
from webnn_py.core import dtypes
from webnn_py.core.dimensions import is_dimension, is_open
from webnn_py.core.dtypes import MLOperandDataType
from webnn_py.core.errors import NotSupportedError, ValidationError
from webnn_py.core.gil_yield import checkpoints
from webnn_py.core.open_dims import OpenSizes, plain_names
from webnn_py.core.polynomials import MAX_DIMENSION
from webnn_py.core.shapes import MAX_RANK, check_dimensions
from webnn_py.ir import Array, Descriptor, Graph, Shape, Value
from webnn_py.ops.declare import REGISTRY
from webnn_py.ops.graph_builder import GraphBuilder
from webnn_py.ops.operand import MLOperand
from webnn_py.storage.archive import GRAPH, Archive, Parts
from webnn_py.storage.document import Field, parse, to_json
from webnn_py.storage.expressions import expression_from_json, expression_to_json
from webnn_py.storage.safetensors import read_safetensors, safetensors_parts

FORMAT, VERSION = "webnn-graph", 1
WEIGHTS = "weights.safetensors"
FLOATS = {repr(value): value for value in (math.nan, math.inf, -math.inf)}
"""Floats that JSON cannot represent, by their text."""
MAX_NODES = 2**18
"""Most nodes of a graph; to read, record and compile more would take minutes."""
MAX_LIST_DEPTH = 4
"""Most nested lists in an option."""


def graph_entries(graph: Graph) -> dict[str, Parts]:
    """Return the entries of a graph's file for `write_archive`.

    Only constants of 4-bit integers are copied.

    Args:
        graph: The graph as recorded.

    Raises:
        NotSupportedError: The graph, an option or a dimension is too long for a file.
    """
    if len(graph.nodes) > MAX_NODES:
        raise NotSupportedError(
            f"the graph has {len(graph.nodes)} nodes, and files {MAX_NODES} at most; save it in"
            " parts"
        )
    weights = _Weights(graph.constants)
    numbers = {value: i for i, value in enumerate((*graph.inputs, *graph.constants))}
    for node in graph.nodes:
        for value in node.outputs:
            numbers[value] = len(numbers)
    document = {
        "format": FORMAT,
        "version": VERSION,
        "producer": f"webnn_py {__version__}",
        "sizes": {s.name: [s.low, s.high] for s in graph.open_sizes.values()},
        "inputs": [{"name": value.name, **_descriptor_json(value)} for value in graph.inputs],
        "constants": [
            {"name": value.name, **_descriptor_json(value), "weight": weights.names[value]}
            for value in graph.constants
        ],
        "nodes": [
            {
                "operator": node.op,
                "inputs": [None if value is None else numbers[value] for value in node.inputs],
                "options": {n: _to_json(o) for n, o in node.given.items() if o is not None},
                "label": node.label,
                "outputs": [_descriptor_json(value) for value in node.outputs],
            }
            for node in checkpoints(graph.nodes)
        ],
        "outputs": [{"name": name, "value": numbers[value]} for name, value in graph.outputs],
    }
    return {GRAPH: [to_json(document)], WEIGHTS: safetensors_parts(weights.arrays)}


class _Weights:
    """The arrays of constants as stored in the file, each once.

    Attributes:
        arrays: The arrays by name; 4-bit integers are packed.
        names: Name of each constant's array.
    """

    def __init__(self, constants: Mapping[Value, Array]) -> None:
        self.arrays: dict[str, Array] = {}
        self.names: dict[Value, str] = {}
        by_array: dict[tuple[int, bool], str] = {}
        for value, array in checkpoints(constants.items()):
            packed = value.data_type in dtypes.PACKED_4BIT
            name = by_array.setdefault((id(array), packed), str(len(by_array)))
            self.names[value] = name
            if name not in self.arrays:
                self.arrays[name] = dtypes.pack_4bit(array) if packed else array


def _descriptor_json(value: Value) -> dict[str, Any]:
    return {"data_type": value.data_type, "shape": _to_json(value.shape)}


def _to_json(option: Any) -> Any:
    """Return an option as JSON values; each value has only one form."""
    if isinstance(option, tuple):
        return [_to_json(member) for member in option]
    if is_dimension(option):
        return {"dimension": expression_to_json(option)}
    if isinstance(option, float) and not math.isfinite(option):
        return {"float": repr(option)}
    return option


def read_graph(archive: Archive, builder: GraphBuilder, sizes: OpenSizes) -> dict[str, MLOperand]:
    """Record the graph of a file again, with all checks of its operators.

    Args:
        archive: The file.
        builder: An empty builder, which records and checks the graph.
        sizes: The builder's open sizes, still empty.

    Returns:
        The outputs by name.

    Raises:
        DataError: The file is damaged or contradicts itself; the message says where.
        NotSupportedError: A later version wrote it, or the builder does not support an operator.
    """
    archive.check_names([GRAPH, WEIGHTS])
    document = parse(archive.read(GRAPH), archive.where(GRAPH))
    _check_version(document)
    weights = read_safetensors(archive.view(WEIGHTS), archive.where(WEIGHTS))
    return _Reader(document, weights, builder, sizes).read()


def _check_version(document: Field) -> None:
    fields = document.mapping()
    if "format" not in fields or "version" not in fields:
        raise document.error("it has no 'format' and 'version', so it is no saved graph")
    fields["format"].choice([FORMAT])
    if fields["version"].integer(1, 2**31) > VERSION:
        raise NotSupportedError(
            f"{document.where}: version {fields['version'].value} of the format is later than"
            f" {VERSION}, which this version of webnn_py reads ({__version__}); install a newer one"
        )


class _Reader:
    """The reader of a document, which records its graph.

    Args:
        document: The contents of `graph.json`.
        weights: The arrays by name.
        builder: The builder that records and checks the graph.
        sizes: The builder's open sizes.
    """

    def __init__(
        self,
        document: Field,
        weights: Mapping[str, Array],
        builder: GraphBuilder,
        sizes: OpenSizes,
    ) -> None:
        self._parts = document.members(
            *("format", "version", "producer", "sizes", "inputs", "constants", "nodes", "outputs")
        )
        self._weights = weights
        self._builder = builder
        self._sizes = sizes
        self._values: list[MLOperand] = []
        self._descriptors: dict[str, Descriptor] = {}
        self._arrays: dict[tuple[str, Descriptor], Array] = {}

    def read(self) -> dict[str, MLOperand]:
        """Record the graph and return its outputs by name."""
        self._parts["producer"].text()
        for name, bounds in self._parts["sizes"].mapping().items():
            with _as_file_error(bounds):
                self._declare(name, bounds)
        self._read_inputs()
        for field in checkpoints(self._parts["constants"].items()):
            with _as_file_error(field):
                self._values.append(self._constant(field))
        first = len(self._values)
        for field in checkpoints(self._parts["nodes"].items(MAX_NODES)):
            with _as_file_error(field):
                self._values += self._node(field)
        return self._outputs(first)

    def _declare(self, name: str, bounds: Field) -> None:
        ends = [end.integer(1, MAX_DIMENSION) for end in bounds.items(2)]
        if len(ends) != 2 or ends[0] == ends[1]:
            raise bounds.unlike("the lowest and the highest size, which differ")
        self._sizes.declare(name, ends[0], ends[1])

    def _read_inputs(self) -> None:
        plain: set[str] = set()
        names: set[str] = set()
        for field in self._parts["inputs"].items():
            parts = field.members("name", "data_type", "shape")
            descriptor = self._descriptor(parts)
            name = parts["name"].text()
            if not name or name in names:
                raise parts["name"].unlike("a name that no other input has")
            if descriptor.data_type in dtypes.PACKED_4BIT:
                raise parts["data_type"].unlike("a data type of inputs")
            with _as_file_error(field):
                self._values.append(self._builder.add_input(name, descriptor))
            names.add(name)
            plain |= plain_names(descriptor.shape)
        for name, bounds in self._parts["sizes"].mapping().items():
            if name not in plain:
                raise bounds.error("no input has a dimension of this size")

    def _constant(self, field: Field) -> MLOperand:
        parts = field.members("name", "data_type", "shape", "weight")
        descriptor = self._descriptor(parts)
        if is_open(descriptor.shape):
            raise parts["shape"].unlike("integers")
        check_dimensions(descriptor.shape, descriptor.data_type)
        weight = parts["weight"]
        name = weight.text()
        if name not in self._weights:
            raise weight.unlike(f"the name of one of the {len(self._weights)} in {WEIGHTS}")
        key = name, descriptor
        if key not in self._arrays:
            self._arrays[key] = _contents(self._weights[name], descriptor, weight)
        return self._builder.add_constant(
            self._arrays[key], descriptor.data_type, parts["name"].text()
        )

    def _node(self, field: Field) -> list[MLOperand]:
        parts = field.members("operator", "inputs", "options", "label", "outputs")
        op = REGISTRY[parts["operator"].choice(REGISTRY)]
        inputs = [self._operand(one) for one in parts["inputs"].items()]
        if not op.variadic and len(inputs) != len(op.limits):
            raise parts["inputs"].unlike(f"the {len(op.limits)} operands of {op.name}, or null")
        options = parts["options"].members(optional=tuple(op.converters))
        values = {name: self._option(option, MAX_LIST_DEPTH) for name, option in options.items()}
        made = getattr(self._builder, op.name)(
            **op.named(inputs), **values, label=parts["label"].text()
        )
        outputs: list[MLOperand] = made if isinstance(made, list) else [made]
        expected = [
            self._descriptor(output.members("data_type", "shape"))
            for output in parts["outputs"].items()
        ]
        inferred = [Descriptor(made.data_type, made.shape) for made in outputs]
        if inferred != expected:
            raise parts["outputs"].error(
                f"the file says {', '.join(map(str, expected))}, and what follows from the operands"
                f" of {op.name} is {', '.join(map(str, inferred))}"
            )
        return outputs

    def _operand(self, field: Field) -> MLOperand | None:
        if field.value is None:
            return None
        return self._values[field.integer(0, len(self._values) - 1)]

    def _outputs(self, first: int) -> dict[str, MLOperand]:
        outputs: dict[str, MLOperand] = {}
        for field in self._parts["outputs"].items():
            parts = field.members("name", "value")
            name = parts["name"].text()
            if not name or name in outputs:
                raise parts["name"].unlike("a name that no other output has")
            outputs[name] = self._values[parts["value"].integer(first, len(self._values) - 1)]
        if not outputs:
            raise self._parts["outputs"].error("there is no output")
        return outputs

    def _descriptor(self, parts: Mapping[str, Field]) -> Descriptor:
        """Read a data type and shape; the cache pays because most tensors share theirs."""
        key = str((parts["data_type"].value, parts["shape"].value))
        if key not in self._descriptors:
            data_type: MLOperandDataType = dtypes.check(parts["data_type"].choice(dtypes.DTYPES))
            self._descriptors[key] = Descriptor(data_type, self._shape(parts["shape"]))
        return self._descriptors[key]

    def _shape(self, field: Field) -> Shape:
        shape = tuple(self._option(size, 0) for size in field.items(MAX_RANK))
        if not all(is_dimension(size) or type(size) is int for size in shape):
            raise field.unlike("integers and open dimensions")
        return shape

    def _option(self, field: Field, depth: int) -> Any:
        if isinstance(field.value, list):
            if not depth:
                raise field.error("a list is not expected here")
            return tuple(self._option(member, depth - 1) for member in field.items())
        if field.value is None:
            raise field.unlike("a value; what was not given is left out")
        if not isinstance(field.value, dict):
            return field.value
        parts = field.members(optional=("float", "dimension"))
        if "float" in parts and len(parts) == 1:
            return FLOATS[parts["float"].choice(tuple(FLOATS))]
        if "dimension" in parts and len(parts) == 1:
            return expression_from_json(parts["dimension"], self._sizes.symbols)
        raise field.unlike("an object of one member, 'float' or 'dimension'")


@contextlib.contextmanager
def _as_file_error(field: Field) -> Iterator[None]:
    """Turn a ValidationError of the block into a DataError about this field."""
    try:
        yield
    except ValidationError as error:
        raise field.error(str(error)) from None


def _contents(array: Array, descriptor: Descriptor, field: Field) -> Array:
    """Return a constant's contents from its stored array; unpack 4-bit integers."""
    if descriptor.data_type in dtypes.PACKED_4BIT:
        stored = Descriptor("uint8", (descriptor.byte_length,))
    else:
        stored = descriptor
    got = Descriptor(dtypes.from_numpy(array.dtype), array.shape)
    if got != stored:
        raise field.error(f"in {WEIGHTS} it is {got}, expected {stored}")
    if stored is descriptor:
        return array
    unpacked = dtypes.unpack_4bit(array, descriptor.data_type, descriptor.size)
    return np.ascontiguousarray(unpacked).reshape(descriptor.shape)

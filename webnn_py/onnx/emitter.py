"""The emitter, through which handlers call the builder with tensors instead of operands."""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable, Sequence
from typing import Any, TypeVar

import numpy as np
import onnx

from webnn_py.api.builder import MLGraphBuilder, contents_of, declare_size, nodes_of
from webnn_py.api.staged_graph import Choose
from webnn_py.core.dimensions import MLDimension, is_dimension, is_open, symbols_of
from webnn_py.core.dtypes import MLOperandDataType, pack_4bit
from webnn_py.core.errors import ValidationError
from webnn_py.core.polynomials import MAX_DIMENSION
from webnn_py.core.undecided_dims import grant
from webnn_py.onnx.data_sizes import DataSize, DataSizes
from webnn_py.onnx.tensor import (
    ELEMENT_TYPES,
    Array,
    NarrowerError,
    Share,
    Tensor,
    narrowing,
    of_array,
    of_sizes,
    refuse,
)
from webnn_py.ops.graph_builder import NodeList
from webnn_py.ops.operand import MLOperand

T = TypeVar("T")

BOOL = onnx.TensorProto.BOOL
MAX_MADE = 1 << 22
"""Largest number of elements that one node may generate at import."""
MAX_TOTAL = 1 << 25
"""Largest number of elements that all nodes of a model may generate at import.

Folded results of at most `folding.MAX_UNCOUNTED_ELEMENTS` elements are not counted.
"""
FOUR_BITS: dict[int, MLOperandDataType] = {
    onnx.TensorProto.INT4: "int4",
    onnx.TensorProto.UINT4: "uint4",
}
"""Data types of 4-bit elements by ONNX element type; only quantization constants have them."""
FOUR_BITS_OF = {name: number for number, name in FOUR_BITS.items()}
_FLAGS = {
    *("equal", "not_equal", "greater", "greater_or_equal", "lesser", "lesser_or_equal"),
    *("logical_and", "logical_or", "logical_xor", "logical_not", "is_nan", "is_infinite"),
}
"""Builder methods whose uint8 results are bools."""


class Emitter:
    """Facade of a graph builder: all its operators, by the same names, on tensors.

    A float argument becomes a scalar constant of the first tensor's data type. A constant tensor
    becomes an operand of the builder when an operator first takes it.

    Args:
        builder: The builder that receives the nodes.
        narrows: Whether an undecided comparison of open sizes raises a NarrowerError.
        data_sizes: Collects the sizes that contents of tensors decide; None if the graph cannot
            have any.

    Attributes:
        label: The label of the next nodes.
        outputs: For each output of the ONNX node under import, whether something reads it.
        asked: The keys that `once` was asked for.
    """

    def __init__(
        self,
        builder: MLGraphBuilder,
        narrows: bool = False,
        data_sizes: DataSizes | None = None,
    ) -> None:
        self._narrows = narrows
        self._data_sizes = data_sizes
        self.builder = builder
        self.label = ""
        self.outputs: list[bool] = []
        self._made = 0
        self._inputs: dict[str, int] = {}
        self._numbers: dict[MLOperand, Tensor] = {}
        self._parts: dict[MLOperand, Sequence[Tensor]] = {}
        self._shared: dict[Hashable, Any] = {}
        self._looked_up = 0
        self.asked: list[tuple[Hashable, ...]] = []

    @property
    def nodes(self) -> NodeList:
        """The nodes so far."""
        return nodes_of(self.builder)

    @property
    def state(self) -> tuple[int, ...]:
        """Return numbers that change with whatever handlers change, but for nodes and constants."""
        counts = len(self._inputs), len(self._numbers), len(self._parts)
        return self.nodes.input_count, self._made, self._looked_up, *counts

    @property
    def shared_count(self) -> int:
        """Number of keys for which `once` has made something."""
        return len(self._shared)

    def once(self, key: tuple[Hashable, ...], make: Callable[[], T]) -> T:
        """Return the result of `make` for this key, which nodes of the model share.

        Args:
            key: Names what is made, with the tensors that it is made from.
            make: Emits it for the first node that asks.
        """
        self.asked.append(key)
        if key not in self._shared:
            self._shared[key] = make()
        made: T = self._shared[key]
        return made

    def affords(self, count: int, most: int = MAX_MADE) -> bool:
        """Return whether a node may generate `count` elements at import; if so, count them.

        The limits keep a file of a few bytes from filling the memory.

        Args:
            count: The number of elements.
            most: The limit for this node; `MAX_TOTAL` limits the sum over the model.
        """
        if count > most or self._made + count > MAX_TOTAL:
            return False
        self._made += count
        return True

    def afford(self, count: int, what: str, most: int = MAX_MADE) -> None:
        """Count elements before a node generates them at import.

        Args:
            count: The number of elements.
            what: The subject of the error message.
            most: The limit for this node; `MAX_TOTAL` limits the sum over the model.

        Raises:
            UnmappableError: The count exceeds a limit.
        """
        if not self.affords(count, most):
            refuse(
                f"{what} needs {count} elements at import, expected at most {most}, and"
                f" {MAX_TOTAL} in the whole model"
            )

    def __getattr__(self, name: str) -> Callable[..., Any]:
        method = getattr(self.builder, name)

        def emit(*given: Any, **options: Any) -> Any:
            tensors = [one for one in _flat([*given, *options.values()]) if type(one) is Tensor]
            first = tensors[0]
            args = [self._argument(one, first) for one in given]
            options = {key: self._option(value) for key, value in options.items()}
            made = self._call(functools.partial(method, *args, **options, label=self.label))
            like = tensors[1] if name == "where" else first
            inputs = frozenset[str]().union(*(one.inputs for one in tensors))
            open_sizes = frozenset[str]().union(*map(open_sizes_of, tensors))
            kind = _kind(name, like)
            if isinstance(made, list):
                return [wrap(one, kind, inputs, open_sizes) for one in made]
            self._trace(name, made, tensors)
            return wrap(made, kind, inputs, open_sizes)

        return emit

    def _trace(self, name: str, made: MLOperand, tensors: Sequence[Tensor]) -> None:
        """Record the numbers that operators move into a list, as sizes may follow from them."""
        if self.has_data_sizes and made.data_type in ("int32", "int64") and made.rank <= 1:
            if name in ("cast", "identity", "reshape") and made.shape in ((), (1,)):
                self._numbers[made] = self.number_of(tensors[0])
            elif name == "concat":
                self._parts[made] = tensors

    def number_of(self, tensor: Tensor) -> Tensor:
        """Return the tensor whose one number another one holds, too."""
        self._looked_up += 1
        return tensor if tensor.operand is None else self._numbers.get(tensor.operand, tensor)

    def numbers_in(self, tensor: Tensor) -> Sequence[Tensor]:
        """Return tensors of one number each, the elements of a list of fixed length."""
        self._looked_up += 1
        if tensor.shape == (1,):
            return [self.number_of(tensor)]
        if tensor.is_known:
            numbers: Any = tensor.sizes if tensor.array is None else tensor.array.astype(object)
            return [of_sizes(numbers[i : i + 1], tensor.elem) for i in range(len(numbers))]
        parts = self._parts.get(self.operand(tensor))
        if parts is None:
            parts = [self.slice(tensor, [i], [1]) for i in range(tensor.shape[0])]
            self._parts[self.operand(tensor)] = parts
        return [number for part in parts for number in self.numbers_in(part)]

    def _call(self, method: Callable[[], Any]) -> Any:
        """Call a builder's method; where the importer can narrow open sizes, ask it to."""
        # Where no constraint helps, sizes decide when the graph runs.
        wanted: list[NarrowerError] = []
        while self._narrows:
            try:
                with grant(one.question for one in wanted if one.question), narrowing():
                    made = method()
            except ValidationError:
                break
            except NarrowerError as error:
                if not self.may_narrow(error) or any(map(error.depends_on, wanted)):
                    break
                wanted.append(error)
            else:
                if not wanted:
                    return made
                break
        if wanted:
            first, *first.also = wanted
            raise first
        return method()

    def may_narrow(self, error: NarrowerError) -> bool:
        """Whether other bounds may decide an error: not where a run alone relates two sizes."""
        asked = {*error.names}
        found = asked & (self._data_sizes.names if self._data_sizes else set())
        if not found:
            return True
        return found == asked and bool(error.same or (error.bounds and len(asked) == 1))

    def _argument(self, value: Any, first: Tensor) -> Any:
        if isinstance(value, Tensor):
            return self.operand(value)
        if isinstance(value, list) and value and isinstance(value[0], Tensor):
            return [self.operand(one) for one in value]
        if isinstance(value, (float, np.floating)):
            return self.builder.constant(float(value), first.data_type)  # type: ignore[arg-type]
        return value

    def _option(self, value: Any) -> Any:
        return self.operand(value) if isinstance(value, Tensor) else value

    def operand(self, tensor: Tensor) -> MLOperand:
        """Return the operand of a tensor; add contents to the builder at their first use."""
        if tensor.operand is None and tensor.sizes is not None:
            tensor.operand = self._measured(tensor)
        if tensor.operand is None:
            data_type = tensor.data_type
            contents = tensor.contents
            if contents is None or not contents.size:
                refuse("WebNN has no tensors without elements")
            array = contents.astype(np.uint8) if tensor.elem == BOOL else contents
            tensor.operand = self.builder.constant(
                np.ascontiguousarray(array).reshape(tensor.shape),
                data_type,  # type: ignore[arg-type]
                name=tensor.name,
            )
            if array is contents:  # refer to the builder's copy, so that this one is freed
                tensor.contents = contents_of(self.builder, tensor.operand)
        return tensor.operand

    def _measured(self, tensor: Tensor) -> MLOperand:
        """Emit nodes that compute contents from open dimensions when the graph runs."""
        assert tensor.sizes is not None
        parts = [self._number(size, tensor.data_type) for size in tensor.sizes.flat]
        whole = self.concat(parts, 0) if len(parts) > 1 else parts[0]
        return self.operand(self.moved(whole, tensor.shape))

    def _number(self, size: Any, data_type: str) -> Tensor:
        """Emit a tensor of shape [1] with one size; an open dimension is a count of ones."""
        if isinstance(size, Share):
            above = self._number(size.numerator, data_type)
            made: Tensor = self.div(above, float(size.denominator))
            return made
        if not is_dimension(size):
            return of_array(np.asarray([size], object).astype(data_type))
        low, high = size.bounds
        if -low > high:
            negative: Tensor = self.mul(self._number(-size, data_type), self._one(-1, data_type))
            return negative
        ones = self.expand(self._one(1, "int64"), [size - low + 1])
        # Count by a cumulative sum: ONNX Runtime lacks reduce_sum for some integer types.
        total = self.slice(self.cumulative_sum(ones, 0, reversed=True), [0], [1])
        return self.to(self.add(total, self._one(low - 1, "int64")), data_type)

    def _one(self, number: int, data_type: str) -> Tensor:
        return of_array(np.asarray([number], data_type))

    def size(self, value: Any) -> Tensor:
        """Return an int64 scalar for a size or index, which may contain open dimensions."""
        return of_sizes(np.asarray(value, object), onnx.TensorProto.INT64)

    @property
    def has_data_sizes(self) -> bool:
        """Whether contents of tensors may decide sizes of this graph."""
        return self._data_sizes is not None

    def can_measure(self, tensor: Tensor) -> bool:
        """Whether a run may compute sizes from a tensor, as its contents depend on the inputs."""
        if self._data_sizes is None or tensor.is_known:
            return False
        if tensor.inputs or is_open(tensor.shape):
            return True
        return not tensor.open_sizes.isdisjoint(self._data_sizes.names)

    def data_size(self, count: Tensor, highest: int | MLDimension = MAX_DIMENSION) -> DataSize:
        """Add an open dimension whose size a run computes.

        Args:
            count: The size, one integer.
            highest: The largest size that the operator accepts.
        """
        sizes = self._data_sizes
        assert sizes is not None
        number = self.to(self.moved(count, ()), "int64")
        carriers = {size.dimension: size.carrier for size in sizes.found}

        def carry(size: MLDimension) -> str:
            if size not in carriers:
                shape: list[Any] = [size]
                self.builder.input(f"{size}:size", "uint8", shape)
            return carriers.get(size, f"{size}:size")

        return sizes.add(self.label, self._result(number), highest, self._declare, carry)

    def chosen_on_host(
        self, source: Tensor, choose: Choose, rest: Sequence[int], highest: int
    ) -> Tensor:
        """Return an int64 tensor whose first size a run decides when it computes it on the host.

        Args:
            source: What `choose` reads.
            choose: Computes the contents.
            rest: The other sizes.
            highest: The largest first size.
        """
        sizes = self._data_sizes
        assert sizes is not None
        made: list[MLOperand] = []

        def carry(size: MLDimension) -> str:
            # Sizes of two nodes may be equal.
            name = f"{size}:chosen by the host{len(sizes.found) or ''}"
            shape: list[Any] = [size, *rest]
            made.append(self.builder.input(name, "int64", shape))
            return name

        found = sizes.add(self.label, self._result(source), highest, self._declare, carry, choose)
        sizes_of = source.open_sizes | {str(found.dimension)}
        chosen: Tensor = self.identity(wrap(made[0], None, source.inputs, sizes_of))
        return chosen

    def _result(self, tensor: Tensor) -> MLOperand:
        """Return an operand that is no input or constant, so that a graph may output it."""
        return self.operand(self.identity(tensor) if tensor.is_leaf else tensor)

    def _declare(self, name: str, bounds: Callable[[str], tuple[int, int]]) -> MLDimension:
        return declare_size(self.builder, name, bounds)

    def dimension(
        self, tensor: Tensor, what: str, highest: int | MLDimension = MAX_DIMENSION
    ) -> Any:
        """Return the contents as one size, which a run of the graph computes if need be.

        Args:
            tensor: One integer.
            what: The subject of the error message, such as "its axes".
            highest: The largest size that the operator accepts.

        Raises:
            UnmappableError: The contents must be known at import, and are not.
            BrokenModelError: The tensor has not one element, or it is no integer.
        """
        if not self.can_measure(tensor) or tensor.shape not in ((), (1,)):
            return tensor.dimension(what)
        number = self.number_of(tensor)
        return self.once(("size", number), lambda: self.data_size(number, highest)).dimension

    def dimensions(self, tensor: Tensor, what: str) -> list[Any]:
        """Return the contents as a list of sizes, as `dimension` does for one."""
        is_list = tensor.rank == 1 and not is_dimension(tensor.shape[0])
        if not (self.can_measure(tensor) and is_list):
            return tensor.dimensions(what)
        return [self.dimension(number, what) for number in self.numbers_in(tensor)]

    def places(self, count: int, axis: int = 0, rank: int = 1) -> Tensor:
        """Return the int64 indices 0 to count - 1 along one axis, with size 1 along the others."""
        shape = [count if i == axis else 1 for i in range(rank)]
        if not is_dimension(count) and self.affords(count):
            return of_array(np.arange(count, dtype=np.int64).reshape(shape))
        ones = self.expand(self._one(1, "int64"), shape)
        made: Tensor = self.cumulative_sum(ones, axis, exclusive=True)
        return made

    def input(self, name: str, data_type: str, shape: Sequence[int]) -> Tensor:
        """Add an input that the model does not have, and return it.

        Nodes of one name, as in an unrolled loop, get inputs with a number at their end.
        """
        self._inputs[name] = count = self._inputs.get(name, 0) + 1
        name = f"{name}{count}" if count > 1 else name
        operand = self.builder.input(name, data_type, shape)  # type: ignore[arg-type]
        return wrap(operand, None, frozenset([name]))

    def packed(self, array: Array, data_type: MLOperandDataType, name: str = "") -> Tensor:
        """Return a constant of 4-bit integers, from an array with one element per byte."""
        contents = pack_4bit(np.ascontiguousarray(array.astype(np.uint8))).tobytes()
        operand = self.builder.constant(contents, data_type, array.shape, name=name)
        return Tensor(FOUR_BITS_OF[data_type], array.shape, None, operand)

    def constant(self, value: Any, like: Tensor) -> Tensor:
        """Return a constant with the data type of another tensor."""
        dtype = np.dtype(like.data_type)
        made = of_array(np.asarray(value).astype(dtype))
        return made

    def array(self, value: Array) -> Tensor:
        """Return a constant with the contents of an array."""
        return of_array(value)

    def to(self, tensor: Tensor, data_type: str) -> Tensor:
        """Cast a tensor if its data type differs; "bool" compares with 0."""
        if data_type == "bool":
            if tensor.elem == BOOL:
                return tensor
            zero = self.constant(0, tensor)
            made: Tensor = self.not_equal(tensor, zero)
            return made
        if tensor.elem == ELEMENT_TYPES[data_type]:
            return tensor
        if tensor.data_type == data_type:  # a bool as uint8
            return Tensor(
                ELEMENT_TYPES[data_type],
                tensor.shape,
                None if tensor.array is None else tensor.array.astype(data_type),
                tensor.operand,
                tensor.inputs,
                is_input=tensor.is_input,
                open_sizes=tensor.open_sizes,
            )
        cast: Tensor = self.cast(tensor, data_type)
        return cast

    def moved(self, tensor: Tensor, shape: Sequence[int]) -> Tensor:
        """Reshape a tensor if its shape differs."""
        if tensor.shape == tuple(shape):
            return tensor
        made: Tensor = self.reshape(tensor, list(shape))
        return made


def _kind(name: str, like: Tensor) -> int | None:
    """Return BOOL if a builder method returns bools for operands like `like`, else None."""
    if name in _FLAGS or (like.elem == BOOL and name != "cast"):
        return int(BOOL)
    return None


def _flat(values: Sequence[Any]) -> list[Any]:
    found: list[Any] = []
    for value in values:
        found += value if isinstance(value, list) else [value]
    return found


def open_sizes_of(tensor: Tensor) -> frozenset[str]:
    """Return the names of the open dimensions that the contents of a tensor follow from."""
    if tensor.sizes is None:
        return tensor.open_sizes
    return frozenset(symbols_of(tensor.sizes.flat))


def wrap(
    operand: MLOperand,
    kind: int | None,
    inputs: frozenset[str],
    open_sizes: frozenset[str] = frozenset(),
) -> Tensor:
    """Wrap an operand in a tensor.

    Args:
        operand: The operand.
        kind: BOOL if a uint8 operand holds bools.
        inputs: Names of the model's inputs that the contents depend on.
        open_sizes: Names of the open dimensions that the contents depend on.
    """
    is_bool = kind == BOOL and operand.data_type == "uint8"
    elem = int(BOOL) if is_bool else ELEMENT_TYPES[operand.data_type]
    return Tensor(elem, operand.shape, None, operand, inputs, open_sizes=open_sizes)

"""Images in blocks of channels, as ONNX Runtime has them, where it would lay them out needlessly.

For its convolutions and poolings ONNX Runtime lays channels out in blocks, and as before for the
roots and quotients of a local response normalization between them: two more walks through memory
each. Here these are computed in the blocks, by its own operators for them, and so is what leads to
them. In blocks, sums over neighbouring channels are a convolution over neighbouring blocks, of
three for each.

It copies the weights of a convolution several times until they lie in blocks, too; large products
of rows that are convolved are written with weights that do.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnxruntime
from onnx import TensorProto, helper

from webnn_py.core.dimensions import is_open
from webnn_py.engines.onnx_lowering import (
    IR_VERSION,
    Emitter,
    Lowering,
    NotLowered,
    Tensor,
    lower,
    lower_alone,
)
from webnn_py.engines.onnx_lowering.window import convolution
from webnn_py.engines.onnxruntime.kernels import PROVIDERS, SILENT
from webnn_py.ir import Array, Graph, Node, Value
from webnn_py.ops.convolution import dims
from webnn_py.ops.declare import REGISTRY

DOMAIN = "com.microsoft.nchwc"
"""Of the operators on blocks."""
IMAGE = 4
"""Dimensions of an image."""
FIRST, LAST = (0, 3, 1, 2), (0, 2, 3, 1)
"""Permutations that put channels before images, and behind."""
MANY = 1 << 17
"""Weights of a product from which on it takes less to lay them out here."""
POOLINGS = ("average_pool2d", "max_pool2d")
OPERATORS = ("Conv", "AveragePool", "MaxPool")
"""Those that are others in blocks, with the same attributes."""
REACH = 3
"""Blocks that a sum over neighbouring channels reads."""


@functools.cache
def block_size() -> int:
    """Channels of a block, which depends on the processor; 1 where there are no blocks."""
    ends = [[helper.make_tensor_value_info(name, TensorProto.FLOAT, None)] for name in "xy"]
    node = helper.make_node("ReorderInput", ["x"], ["y"], domain=DOMAIN)
    model = helper.make_model(
        helper.make_graph([node], "probe", *ends),
        opset_imports=[helper.make_opsetid(DOMAIN, 1)],
        ir_version=IR_VERSION,
    )
    options = onnxruntime.SessionOptions()
    options.log_severity_level = SILENT
    options.intra_op_num_threads = 1
    try:
        session = onnxruntime.InferenceSession(
            model.SerializeToString(), options, providers=PROVIDERS
        )
        (made,) = session.run(None, {"x": np.zeros((1, 4, 1, 1), np.float32)})
    except Exception:  # of ONNX Runtime's own kinds: there are no such operators
        return 1
    return int(made.shape[1])


def in_blocks(graph: Graph) -> Mapping[Node, Lowering]:
    """Lowerings of the nodes of a graph that are computed in blocks.

    That is what sums neighbouring channels and large products of rows, what follows them up to a
    convolution, and what convolves and pools before them.
    """
    sums = [node for node in graph.nodes if _sums_neighbours(graph, node)]
    products = [node for node in graph.nodes if _multiplies_rows(graph, node)]
    if not (sums or products) or block_size() == 1:
        return {}

    def before(node: Node) -> Iterator[Node]:
        read = () if _puts_first(node) else node.operands
        makers = (graph.producers.get(value) for value in read)
        return (m for m in makers if m is not None and _may_be_in_blocks(graph, m))

    def behind(node: Node) -> Iterator[Node]:
        readers = () if _puts_last(node) else graph.readers.get(node.outputs[0], ())
        return (reader for reader in readers if _follows(graph, reader))

    begun = (node for node in (*sums, *products) if _may_be_in_blocks(graph, node))
    found = _reached(_reached(begun, behind), before)
    return dict.fromkeys(found, _Lowering(graph, frozenset(found), frozenset(sums)).lower)


def _reached(nodes: Iterable[Node], step: Callable[[Node], Iterable[Node]]) -> set[Node]:
    """Nodes, those that a step leads to, and so on."""
    found: set[Node] = set()
    waiting = list(nodes)
    while waiting:
        node = waiting.pop()
        if node not in found:
            found.add(node)
            waiting += step(node)
    return found


@dataclass(frozen=True, slots=True)
class _Lowering:
    """Writes nodes in blocks.

    Args:
        graph: Which they are of.
        nodes: Those that are.
        sums: Of neighbouring channels.
    """

    graph: Graph
    nodes: frozenset[Node]
    sums: frozenset[Node]
    _laid: dict[Value, Tensor] = field(default_factory=dict)

    def lower(self, e: Emitter, node: Node, *operands: Any) -> Tensor:
        """Write a node; what it returns lies in blocks if no other nodes read it."""
        if node.op == "conv2d":
            made = self._convolved(e, node, *operands)
        elif node.op == "relu" and self._takes_along(e, node):
            made = self._laid[next(node.operands)]
        elif _puts_first(node):
            made = _on_blocks(e, "ReorderInput", *operands, channels_last=1)
        else:
            pairs = zip(node.inputs, operands, strict=True)
            given = [self._in_blocks(e, *pair) for pair in pairs]
            if _puts_last(node):
                how = {"channels": node.output.shape[3], "channels_last": 1}
                return _on_blocks(e, "ReorderOutput", *given, **how)
            made = self._written(e, node, given)
        value = node.output
        self._laid[value] = made
        readers = self.graph.readers.get(value, ())
        is_inside = all(reader in self.nodes and not _puts_first(reader) for reader in readers)
        if is_inside and value not in self.graph.results:
            return made
        return _on_blocks(e, "ReorderOutput", made, channels=value.shape[1])

    def _takes_along(self, e: Emitter, node: Node) -> bool:
        """Have the convolution before an activation compute it, too, if nothing else reads that."""
        (source,) = node.operands
        maker = self.graph.producers.get(source)
        if maker is None or maker not in self.nodes or self.graph.uses[source] > 1:
            return False
        laid = self._laid[source].name
        written = next(made for made in reversed(e.nodes) if laid in made.output)
        if written.op_type != "Conv":  # a sum is made by one, too, but seen from another side
            return False
        written.attribute.append(helper.make_attribute("activation", "Relu"))
        return True

    def _in_blocks(self, e: Emitter, value: Value | None, given: Tensor | None) -> Tensor | None:
        if value is None or given is None or _is_number(self.graph, value):
            return given
        if value not in self._laid:
            self._laid[value] = _on_blocks(e, "ReorderInput", given)
        return self._laid[value]

    def _written(self, e: Emitter, node: Node, operands: list[Tensor | None]) -> Tensor:
        first = len(e.nodes)
        (made,) = lower(e, node, operands)
        for written in e.nodes[first:]:
            if written.op_type in OPERATORS:
                written.domain = DOMAIN
        return made

    def _convolved(
        self, e: Emitter, node: Node, x: Tensor, filter: Tensor, bias: Tensor | None
    ) -> Tensor:
        source, *others = node.operands
        weights, *shift = (self.graph.constants[value] for value in others)
        weights = weights.transpose([node.attrs["filter_layout"].index(c) for c in "oihw"])
        if node in self.sums and len(weights) > REACH * block_size():
            return self._summed(e, node.output, self._in_blocks(e, source, x), weights, *shift)
        is_direct = node.attrs["groups"] == 1 and weights.shape[1] < block_size()
        laid = x if is_direct else self._in_blocks(e, source, x)
        taps = e.weight(_filters(weights, is_direct or weights.shape[1] == 1))
        assert laid is not None
        made = convolution(e, node, laid, taps, bias)
        e.nodes[-1].domain = DOMAIN
        return made

    def _summed(
        self, e: Emitter, value: Value, x: Tensor | None, weights: Array, shift: Array | None = None
    ) -> Tensor:
        """Sums over neighbours: blocks as rows, places as columns, a window of some rows."""
        assert x is not None
        size = block_size()
        batch, channels, height, width = value.shape
        seen = [batch, size, channels // size, height * width]
        rows = e.reshape(x, seen, value.shape)
        middle = channels // size // 2 * size
        band = weights[middle : middle + size, middle - size : middle + 2 * size, 0, 0]
        taps = band.reshape(size, REACH, size).transpose(0, 2, 1)[..., np.newaxis]
        filters = e.weight(_filters(taps, False))
        bias = None if shift is None else e.weight(shift[:size])
        how = {"kernel_shape": [REACH, 1], "pads": [1, 0, 1, 0]}
        made = _on_blocks(e, "Conv", rows, filters, bias, **how)
        return e.reshape(made, value.shape, seen)


def _on_blocks(e: Emitter, kind: str, *operands: Tensor | None, **attributes: Any) -> Tensor:
    """An operator on blocks."""
    made = e.op(kind, *operands, **attributes)
    e.nodes[-1].domain = DOMAIN
    return made


def _filters(weights: Array, whole: bool) -> Array:
    """Filters as blocks want them: outputs in blocks, and inputs too unless they are `whole`."""
    size = block_size()
    outer, inner, *window = weights.shape
    inside = 1 if whole else size
    parts = weights.reshape(outer // size, size, inner // inside, inside, *window)
    return np.ascontiguousarray(parts.transpose(0, 2, 4, 5, 3, 1)).reshape(weights.shape)


def _follows(graph: Graph, node: Node) -> bool:
    """Whether a node stays in the blocks of what it reads, or lays these out with channels last."""
    (source, *_) = node.operands
    if _puts_last(node):
        return _has_blocks(source)
    if not _may_be_in_blocks(graph, node):
        return False
    if node.op in POOLINGS:
        return math.prod(node.output.shape[1:]) < math.prod(source.shape[1:])
    return node.op != "conv2d" or _has_rows(graph, node)


def _may_be_in_blocks(graph: Graph, node: Node) -> bool:
    value = node.outputs[0]
    if not _has_blocks(value):
        return False
    if node.op == "conv2d":
        return _convolves_blocks(graph, node)
    if node.op in POOLINGS:
        return _has_blocks(next(node.operands)) and _is_one_operator(node)
    if _puts_first(node):
        return True
    return REGISTRY[node.op].elementwise and all(
        (operand.data_type, operand.shape) == (value.data_type, value.shape)
        or _is_number(graph, operand)
        for operand in node.operands
    )


def _is_number(graph: Graph, value: Value) -> bool:
    """Whether a value is a constant of one element, which has no layout."""
    return value in graph.constants and value.size == 1 and value.rank <= IMAGE


def _has_blocks(value: Value) -> bool:
    return (
        value.data_type == "float32"
        and value.rank == IMAGE
        and not is_open(value.shape[1:])
        and value.shape[1] % block_size() == 0
    )


def _is_one_operator(node: Node) -> bool:
    try:
        return node.attrs["layout"] == "nchw" and len(lower_alone(node).nodes) == 1
    except NotLowered:
        return False


def _convolves_blocks(graph: Graph, node: Node) -> bool:
    """Whether there is a kernel for a convolution in blocks."""
    attrs, (source, *others) = node.attrs, node.operands
    if attrs["input_layout"] != "nchw":
        return False
    if is_open(source.shape[1:]) or not all(value in graph.constants for value in others):
        return False
    size, groups = block_size(), attrs["groups"]
    outer, inner = dims(others[0].shape, attrs["filter_layout"], "oi")
    if groups == 1:
        return inner < size or inner % size == 0
    of_each_channel = inner == 1 and outer == groups
    return of_each_channel or (inner % size == 0 and outer // groups % size == 0)


def _puts_first(node: Node) -> bool:
    return node.op == "transpose" and node.attrs["permutation"] == FIRST


def _puts_last(node: Node) -> bool:
    return node.op == "transpose" and node.attrs["permutation"] == LAST


def _multiplies_rows(graph: Graph, node: Node) -> bool:
    """Whether a node is a large product of rows that were laid out as an image for it."""
    if node.op != "conv2d" or not _has_rows(graph, node):
        return False
    maker = graph.producers.get(next(node.operands))
    return maker is not None and maker.op in ("reshape", "transpose")


def _has_rows(graph: Graph, node: Node) -> bool:
    """Whether a convolution multiplies an image of one column by large weights."""
    source, filters, *_ = node.operands
    window = dims(filters.shape, node.attrs["filter_layout"], "hw")
    return (
        tuple(window) == (1, 1)
        and source.shape[3] == 1
        and filters in graph.constants
        and filters.size >= MANY
    )


def _sums_neighbours(graph: Graph, node: Node) -> bool:
    """Whether a node sums neighbouring channels at each place, with the same weights for all."""
    if node.op != "conv2d" or node.attrs["groups"] != 1 or any(node.attrs["padding"]):
        return False
    source, filters, *shift = node.operands
    weights, added = graph.constants.get(filters), [graph.constants.get(v) for v in shift]
    if (
        weights is None
        or weights.shape[2:] != (1, 1)
        or source.shape != node.output.shape
        or len(weights) != weights.shape[1]
        or any(array is None or np.ptp(array) for array in added)
    ):
        return False
    return _is_band(weights[:, :, 0, 0])


def _is_band(weights: Array) -> bool:
    """Whether a matrix has the same numbers along each diagonal, and 0 far from the middle one."""
    size = len(weights)
    if size <= block_size() or weights[0, -1] or weights[-1, 0]:
        return False
    return all(
        np.ptp(diagonal) == 0 and (abs(k) < block_size() or not diagonal[0])
        for k, diagonal in _diagonals(weights)
    )


def _diagonals(weights: Array) -> Iterator[tuple[int, Array]]:
    for k in range(1 - len(weights), len(weights)):
        yield k, weights.diagonal(k)

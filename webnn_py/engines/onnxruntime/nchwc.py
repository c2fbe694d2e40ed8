"""Lowers parts of a graph to ONNX Runtime's operators in the NCHWc layout (channels in blocks).

ONNX Runtime converts images to NCHWc for convolutions and poolings, and back for the square roots
and quotients of a local response normalization. Each conversion takes a pass through memory. The
lowerings here keep such nodes, and the nodes before them, in NCHWc. A sum over neighbouring
channels becomes a convolution over three neighbouring blocks.

ONNX Runtime also copies weights several times to lay them out in blocks. Large products of rows are
written with weights already in blocks.
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
"""Domain of ONNX Runtime's operators in the NCHWc layout."""
IMAGE_RANK = 4
TO_NCHW, TO_NHWC = (0, 3, 1, 2), (0, 2, 3, 1)
"""Permutations from NHWC to NCHW, and from NCHW to NHWC."""
MIN_WEIGHTS = 1 << 17
"""Least number of weights of a product for which laying them out here is faster."""
POOLINGS = ("average_pool2d", "max_pool2d")
OPERATORS = ("Conv", "AveragePool", "MaxPool")
"""Operators that exist in NCHWc with the same attributes."""
SUM_BLOCKS = 3
"""Number of blocks that a sum over neighbouring channels reads."""


@functools.cache
def block_size() -> int:
    """Return the channels in a block, which depend on the processor; 1 if NCHWc is unavailable."""
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
    except Exception:  # ONNX Runtime's own exception classes: there are no such operators
        return 1
    return int(made.shape[1])


def nchwc_lowerings(graph: Graph) -> Mapping[Node, Lowering]:
    """Return lowerings of the nodes to compute in NCHWc.

    These are sums of neighbouring channels, large products of rows, the nodes behind them up to a
    convolution, and convolutions and poolings before them.
    """
    sums = [node for node in graph.nodes if _sums_neighbours(graph, node)]
    products = [node for node in graph.nodes if _multiplies_rows(graph, node)]
    if not (sums or products) or block_size() == 1:
        return {}

    def before(node: Node) -> Iterator[Node]:
        read = () if _is_to_nchw(node) else node.operands
        makers = (graph.producers.get(value) for value in read)
        return (m for m in makers if m is not None and _may_be_in_blocks(graph, m))

    def behind(node: Node) -> Iterator[Node]:
        readers = () if _is_to_nhwc(node) else graph.readers.get(node.outputs[0], ())
        return (reader for reader in readers if _follows(graph, reader))

    seeds = (node for node in (*sums, *products) if _may_be_in_blocks(graph, node))
    found = _closure(_closure(seeds, behind), before)
    return dict.fromkeys(found, _Lowering(graph, frozenset(found), frozenset(sums)).lower)


def _closure(nodes: Iterable[Node], step: Callable[[Node], Iterable[Node]]) -> set[Node]:
    """Return the transitive closure of nodes under `step`."""
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
    """The lowering of a graph's nodes in NCHWc.

    Args:
        graph: The graph.
        nodes: The nodes to compute in NCHWc.
        sums: Those that sum neighbouring channels.
    """

    graph: Graph
    nodes: frozenset[Node]
    sums: frozenset[Node]
    _laid: dict[Value, Tensor] = field(default_factory=dict)

    def lower(self, e: Emitter, node: Node, *operands: Any) -> Tensor:
        """Write a node; its result is in NCHWc if only nodes in NCHWc read it."""
        if node.op == "conv2d":
            made = self._convolve(e, node, *operands)
        elif node.op == "relu" and self._fuse_relu(e, node):
            made = self._laid[next(node.operands)]
        elif _is_to_nchw(node):
            made = _on_blocks(e, "ReorderInput", *operands, channels_last=1)
        else:
            pairs = zip(node.inputs, operands, strict=True)
            in_blocks = [self._in_blocks(e, *pair) for pair in pairs]
            if _is_to_nhwc(node):
                how = {"channels": node.output.shape[3], "channels_last": 1}
                return _on_blocks(e, "ReorderOutput", *in_blocks, **how)
            made = self._write(e, node, in_blocks)
        value = node.output
        self._laid[value] = made
        readers = self.graph.readers.get(value, ())
        is_inside = all(reader in self.nodes and not _is_to_nchw(reader) for reader in readers)
        if is_inside and value not in self.graph.results:
            return made
        return _on_blocks(e, "ReorderOutput", made, channels=value.shape[1])

    def _fuse_relu(self, e: Emitter, node: Node) -> bool:
        """Add relu to the convolution before it, if that has no other reader."""
        (source,) = node.operands
        maker = self.graph.producers.get(source)
        if maker is None or maker not in self.nodes or self.graph.uses[source] > 1:
            return False
        laid = self._laid[source].name
        written = next(made for made in reversed(e.nodes) if laid in made.output)
        if written.op_type != "Conv":  # a sum of neighbours ends in a Reshape behind its Conv
            return False
        written.attribute.append(helper.make_attribute("activation", "Relu"))
        return True

    def _in_blocks(self, e: Emitter, value: Value | None, tensor: Tensor | None) -> Tensor | None:
        """Return an operand in NCHWc; convert it if need be."""
        if value is None or tensor is None or _is_number(self.graph, value):
            return tensor
        if value not in self._laid:
            self._laid[value] = _on_blocks(e, "ReorderInput", tensor)
        return self._laid[value]

    def _write(self, e: Emitter, node: Node, operands: list[Tensor | None]) -> Tensor:
        first = len(e.nodes)
        (made,) = lower(e, node, operands)
        for written in e.nodes[first:]:
            if written.op_type in OPERATORS:
                written.domain = DOMAIN
        return made

    def _convolve(
        self, e: Emitter, node: Node, x: Tensor, filter: Tensor, bias: Tensor | None
    ) -> Tensor:
        source, *others = node.operands
        weights, *shift = (self.graph.constants[value] for value in others)
        weights = weights.transpose([node.attrs["filter_layout"].index(c) for c in "oihw"])
        if node in self.sums and len(weights) > SUM_BLOCKS * block_size():
            return self._sum(e, node.output, self._in_blocks(e, source, x), weights, *shift)
        is_direct = node.attrs["groups"] == 1 and weights.shape[1] < block_size()
        laid = x if is_direct else self._in_blocks(e, source, x)
        taps = e.weight(_filters(weights, is_direct or weights.shape[1] == 1))
        assert laid is not None
        made = convolution(e, node, laid, taps, bias)
        e.nodes[-1].domain = DOMAIN
        return made

    def _sum(
        self, e: Emitter, value: Value, x: Tensor | None, weights: Array, shift: Array | None = None
    ) -> Tensor:
        """Write sums over neighbouring channels as a convolution over blocks (rows) and pixels."""
        assert x is not None
        size = block_size()
        batch, channels, height, width = value.shape
        seen = [batch, size, channels // size, height * width]
        rows = e.reshape(x, seen, value.shape)
        middle = channels // size // 2 * size
        band = weights[middle : middle + size, middle - size : middle + 2 * size, 0, 0]
        taps = band.reshape(size, SUM_BLOCKS, size).transpose(0, 2, 1)[..., np.newaxis]
        filters = e.weight(_filters(taps, False))
        bias = None if shift is None else e.weight(shift[:size])
        how = {"kernel_shape": [SUM_BLOCKS, 1], "pads": [1, 0, 1, 0]}
        made = _on_blocks(e, "Conv", rows, filters, bias, **how)
        return e.reshape(made, value.shape, seen)


def _on_blocks(e: Emitter, kind: str, *operands: Tensor | None, **attributes: Any) -> Tensor:
    """Write an operator of the NCHWc domain."""
    made = e.op(kind, *operands, **attributes)
    e.nodes[-1].domain = DOMAIN
    return made


def _filters(weights: Array, whole: bool) -> Array:
    """Lay out filters with outputs in blocks, and inputs too unless `whole`."""
    size = block_size()
    outer, inner, *window = weights.shape
    inside = 1 if whole else size
    parts = weights.reshape(outer // size, size, inner // inside, inside, *window)
    return np.ascontiguousarray(parts.transpose(0, 2, 4, 5, 3, 1)).reshape(weights.shape)


def _follows(graph: Graph, node: Node) -> bool:
    """Whether a node computes in the NCHWc of its operand, or converts that to NHWC."""
    (source, *_) = node.operands
    if _is_to_nhwc(node):
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
    if _is_to_nchw(node):
        return True
    return REGISTRY[node.op].elementwise and all(
        (operand.data_type, operand.shape) == (value.data_type, value.shape)
        or _is_number(graph, operand)
        for operand in node.operands
    )


def _is_number(graph: Graph, value: Value) -> bool:
    """Whether a value is a constant of one element, which has no layout."""
    return value in graph.constants and value.size == 1 and value.rank <= IMAGE_RANK


def _has_blocks(value: Value) -> bool:
    return (
        value.data_type == "float32"
        and value.rank == IMAGE_RANK
        and not is_open(value.shape[1:])
        and value.shape[1] % block_size() == 0
    )


def _is_one_operator(node: Node) -> bool:
    try:
        return node.attrs["layout"] == "nchw" and len(lower_alone(node).nodes) == 1
    except NotLowered:
        return False


def _convolves_blocks(graph: Graph, node: Node) -> bool:
    """Whether ONNX Runtime has an NCHWc kernel for a convolution."""
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


def _is_to_nchw(node: Node) -> bool:
    return node.op == "transpose" and node.attrs["permutation"] == TO_NCHW


def _is_to_nhwc(node: Node) -> bool:
    return node.op == "transpose" and node.attrs["permutation"] == TO_NHWC


def _multiplies_rows(graph: Graph, node: Node) -> bool:
    """Whether a node is a large product of rows that a pass reshaped to an image."""
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
        and filters.size >= MIN_WEIGHTS
    )


def _sums_neighbours(graph: Graph, node: Node) -> bool:
    """Whether a node sums neighbouring channels with weights that are the same for all channels."""
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
    """Whether a matrix is a band matrix with constant diagonals."""
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

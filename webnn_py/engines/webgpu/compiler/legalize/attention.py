"""Attention as one node: the softmax of changed q · kᵀ, times v, whose matrix nobody stores.

What a node of the operator `ATTENTION` makes is what the second product made. It lives from
`legalize` to the kernels; what fusion must know of it stands in `facts`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from webnn_py.core.traced_queries import keep_below, sampled
from webnn_py.engines.webgpu.compiler.attention_tile import SMALLEST
from webnn_py.engines.webgpu.program.storage import Features, buffer_bytes
from webnn_py.ir import Graph, Node, Value
from webnn_py.ops.operand import MLOperand, value_of
from webnn_py.passes.rewrite import Rewriter

ATTENTION = "attention"
"""Operands: queries [..., rows, depth], keys [..., depth, columns], values [..., columns, width],
and those of `Attention.changes`; attributes: see `Attention`."""

FEWEST_ROWS = 16
"""Of queries: fewer leave most of a workgroup idle, and have products of their own."""

FEWEST_COLUMNS = 16
"""Keys."""

FEW_COLUMNS = 224
"""Keys up to which one kernel takes less time than three, whatever else the sizes are."""

MOST_COLUMNS = 1 << 14
"""Keys, over all of which each invocation goes."""

COLUMNS_BY_WORKGROUP = 2
"""Keys for each workgroup of so many queries, up to which the device has work enough where no one
divides the keys."""

MOST_DEPTH, MOST_WIDTH = 256, 256
"""Of queries and keys, and of values, whose sums invocations hold in registers."""

SHALLOW = 64
"""Depth and width up to which halves of many keys are as fast by one kernel."""

LARGE = 128 << 20
"""Bytes of a matrix that is better not stored, as devices by default bind no more at once."""

MOST_OPERANDS = 2
"""Of changes, as kernels may bind few buffers."""


@dataclass(frozen=True, slots=True)
class Change:
    """A change of all scores before their softmax.

    Attributes:
        kind: "scale": they are multiplied by `number`; "add": an operand is added; "keep" and
            "drop": where an operand is true they stay or become `number`, elsewhere the other.
        number: See `kind`.
    """

    kind: Literal["scale", "add", "keep", "drop"]
    number: float = 0.0

    @property
    def has_operand(self) -> bool:
        """Whether the change takes an operand."""
        return self.kind != "scale"


@dataclass(frozen=True, slots=True)
class Attention:
    """The attributes of a node of ATTENTION.

    Attributes:
        changes: In order; their operands follow the values, in the same order.
    """

    changes: tuple[Change, ...]


@dataclass(frozen=True, slots=True)
class _Found:
    """Scores: the product that they begin as, and how they are changed."""

    product: Node
    changes: tuple[tuple[Change, Value | None], ...] = ()

    def changed(self, change: Change, operand: Value | None = None) -> _Found:
        return _Found(self.product, (*self.changes, (change, operand)))


def attention(rewriter: Rewriter, node: Node, features: Features) -> list[MLOperand] | None:
    """What takes the place of the second product, if it is one of attention and that pays."""
    if node.op != "matmul" or features.kind == "cpu":
        return None
    found = _Finder(rewriter.graph).scores(next(node.operands))
    if found is None or not _is_possible(found, node, features) or not _pays(found, node):
        return None
    queries, keys = found.product.operands
    _, values = node.operands
    operands = [queries, keys, values, *(v for _, v in found.changes if v is not None)]
    what = Attention(tuple(change for change, _ in found.changes))
    inputs = tuple(value_of(rewriter.map[value]) for value in operands)
    output = Value(node.output.data_type, node.output.shape)
    return rewriter.emit(Node(ATTENTION, inputs, {"what": what}, (output,), node.label))


def flops_of_attention(node: Node) -> int:
    """Floating point operations of both products."""
    queries, keys, values, *_ = node.operands
    *_, rows, depth = queries.shape
    batch = math.prod(node.output.shape[:-2])
    return 2 * batch * rows * keys.shape[-1] * (depth + values.shape[-1])


def _is_possible(found: _Found, node: Node, features: Features) -> bool:
    """Whether there is a kernel for the types and sizes."""
    _, values = node.operands
    queries, keys = found.product.operands
    scores = found.product.output
    kinds = {value.data_type for value in (queries, keys, values, node.output)}
    if kinds != {"float32"} and not (kinds == {"float16"} and features.f16):
        return False
    if not SMALLEST.fits("f16" if kinds == {"float16"} else "f32", features):
        return False
    return (
        sum(change.has_operand for change, _ in found.changes) <= MOST_OPERANDS
        and node.output.shape[:-2] == scores.shape[:-2]
        and queries.shape[-1] <= MOST_DEPTH
        and values.shape[-1] <= MOST_WIDTH
        and scores.shape[-1] <= MOST_COLUMNS
        and scores.size < 1 << 32
        and buffer_bytes(Value("float32", node.output.shape)) <= features.binding_bytes
    )


def _pays(found: _Found, node: Node) -> bool:
    """Whether one kernel takes less time than three, or leaves out a large matrix."""
    scores = found.product.output
    *batch, rows, columns = map(sampled, scores.shape)
    if rows < FEWEST_ROWS or columns < FEWEST_COLUMNS:
        return False
    if columns <= FEW_COLUMNS:
        return True
    workgroups = math.prod(batch) * -(-rows // FEWEST_ROWS)
    if columns > COLUMNS_BY_WORKGROUP * workgroups:
        return False
    depths = next(found.product.operands).shape[-1], node.output.shape[-1]
    shallow = all(depth <= SHALLOW for depth in depths)
    if scores.data_type == "float16" and shallow:
        return True
    keep_below(buffer_bytes(scores), LARGE)
    return sampled(buffer_bytes(scores)) >= LARGE


class _Finder:
    """Finds what leads to a value, all of which only the next step reads.

    Args:
        graph: Before it is rewritten.
    """

    def __init__(self, graph: Graph) -> None:
        self._producers: Mapping[Value, Node] = graph.producers
        self._constants = graph.constants
        self._uses, self._results = graph.uses, graph.results

    def scores(self, weights: Value) -> _Found | None:
        """The scores whose softmax along the last axis the weights are."""
        quotient = self._made(self._uncast(weights), "div")
        if quotient is None:
            return None
        exponential, total = quotient.operands
        added = self._made(total, "reduce_sum")
        raised = self._made(exponential, "exp", uses=2)
        if added is None or raised is None or not _is_along_rows(added, exponential):
            return None
        shifted = self._made(next(raised.operands), "sub")
        if shifted is None:
            return None
        scores, top = shifted.operands
        greatest = self._made(top, "reduce_max")
        if greatest is None or not _is_along_rows(greatest, scores):
            return None
        if self._uses[scores] != 2 or scores in self._results:
            return None
        return self._changed(scores, uses=2)

    def _made(self, value: Value, op: str, uses: int = 1) -> Node | None:
        """The node that makes a value, if its operator is this one and nobody else reads it."""
        node = self._producers.get(value)
        if node is None or node.op != op or self._uses[value] != uses or value in self._results:
            return None
        return node

    def _uncast(self, value: Value, uses: int = 1) -> Value:
        """What a value is cast from, if it is between floats, else itself."""
        node = self._made(value, "cast", uses)
        source = value if node is None else next(node.operands)
        return source if source.data_type in ("float16", "float32") else value

    def _changed(self, value: Value, uses: int = 1) -> _Found | None:
        """The product that scores begin as, with the changes up to a value."""
        source = self._uncast(value, uses)
        if source is not value:
            return self._changed(source)
        node = self._producers.get(value)
        if node is None or self._uses[value] != uses or value in self._results:
            return None
        if node.op == "matmul":
            return _Found(node)
        for scores, change, operand in self._changes(node):
            if scores.shape != value.shape:
                continue
            found = self._changed(scores)
            if found is not None:
                return found.changed(change, operand)
        return None

    def _changes(self, node: Node) -> Iterator[tuple[Value, Change, Value | None]]:
        """What a node may change, and how."""
        if node.op == "where":
            condition, kept, other = node.operands
            if (number := self._number(other)) is not None:
                yield kept, Change("keep", number), condition
            if (number := self._number(kept)) is not None:
                yield other, Change("drop", number), condition
        if node.op not in ("mul", "div", "add"):
            return
        a, b = node.operands
        for scores, other in ((a, b), (b, a)):
            constant = self._number(other)
            if node.op == "add":
                yield scores, Change("add"), other
            elif constant is not None and node.op == "mul" and math.isfinite(constant):
                yield scores, Change("scale", constant), None
            elif constant and node.op == "div" and scores is a:
                yield scores, Change("scale", 1 / constant), None

    def _number(self, value: Value) -> float | None:
        """The number of a constant of one element."""
        array = self._constants.get(value)
        number = math.nan if array is None or array.size != 1 else float(array.reshape(-1)[0])
        return None if math.isnan(number) else number


def _is_along_rows(node: Node, operand: Value) -> bool:
    """Whether a node reduces just the last dimension of an operand, and keeps it."""
    rank = len(operand.shape)
    return (
        next(node.operands) is operand
        and tuple(node.attrs["axes"]) == (rank - 1,)
        and len(node.output.shape) == rank
    )

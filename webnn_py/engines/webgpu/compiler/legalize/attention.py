"""Attention as one node: softmax(changed(q · kᵀ)) · v, without a stored score matrix.

A node of the operator `ATTENTION` replaces `scaled_dot_product_attention`, or the second matrix
product of an attention that is spelled out. It exists between `legalize` and the kernels only;
`op_traits` tells fusion about it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Literal

from webnn_py.core.dimensions import is_dimension, is_open, span
from webnn_py.core.traced_queries import require_below, sampled
from webnn_py.engines.webgpu.compiler.attention_tile import SMALLEST
from webnn_py.engines.webgpu.program.storage import Features, buffer_bytes
from webnn_py.ir import Graph, Node, Value
from webnn_py.ops.decompositions.casts import narrow, wide
from webnn_py.ops.operand import MLOperand, value_of
from webnn_py.passes.rewrite import Rewriter

ATTENTION = "attention"
"""Operands: queries [..., rows, depth], keys [..., depth, columns], values [..., columns, width],
then the operands of `Attention.changes`, then the lengths. Attributes: see `Attention`."""

COMPOSITE = "scaled_dot_product_attention"

MIN_QUERY_ROWS = 16
"""Fewer query rows leave most of a tile empty; `attention_few_rows` has the kernel for them."""

MIN_KEYS = 16
"""Fewer keys get separate products."""

MAX_KEYS_ALWAYS_FUSED = 224
"""Up to this many keys one kernel beats three, whatever the other sizes are."""

MAX_KEYS = 1 << 16
"""Each invocation loops over all keys, so their number is bounded; not that for few rows."""

MAX_KEYS_PER_WORKGROUP = 2
"""With more keys per workgroup of queries, the device lacks work: nobody splits the keys."""

MAX_DEPTH, MAX_WIDTH = 256, 256
"""Depth of queries and keys, and width of values: invocations hold their sums in registers."""

MAX_SHALLOW_DEPTH = 64
"""Up to this depth and width, float16 with many keys is as fast in one kernel."""

MAX_STORED_BYTES = 128 << 20
"""Bytes up to which a score matrix may be stored: the default binding limit of devices."""

MAX_DECOMPOSED_BYTES = 1 << 30
"""Bytes of float32 scores up to which the composite operator may be decomposed.

That is faster, and takes parts of at most MAX_STORED_BYTES one after the other. Of more scores no
figure is known.
"""

MAX_CHANGE_OPERANDS = 2
"""Operands of all changes together, as a kernel can bind few buffers."""


@dataclass(frozen=True, slots=True)
class Change:
    """A change of all scores before the softmax.

    Attributes:
        kind: "scale" multiplies by `number`. "cap" bounds scores softly by `number`. "add" adds an
            operand. "keep" writes `number` where a boolean operand is false, "drop" where it is
            true.
        number: See `kind`.
    """

    kind: Literal["scale", "cap", "add", "keep", "drop"]
    number: float = 0.0

    @property
    def has_operand(self) -> bool:
        """Whether the change takes an operand."""
        return self.kind not in ("scale", "cap")


@dataclass(frozen=True, slots=True)
class Attention:
    """The attributes of a node of ATTENTION.

    Attributes:
        changes: In the order of application; their operands follow the values in the same order.
        group: Neighboring matrices of queries that share one of keys and one of values.
        causal: Ignore keys behind the query's position, as in `scaled_dot_product_attention`.
        window: Number of keys up to the query's position that it sees; None for all.
        has_lengths: Whether the last operand is the number of keys that count, int32 [batch or 1].
        zeros: A query that sees no key gives zeros, not NaN.
    """

    changes: tuple[Change, ...]
    group: int = 1
    causal: bool = False
    window: int | None = None
    has_lengths: bool = False
    zeros: bool = False

    @property
    def is_bounded(self) -> bool:
        """Whether some keys are ignored by their positions."""
        return self.causal or self.window is not None or self.has_lengths


@dataclass(frozen=True, slots=True)
class _Match:
    """The matched scores: a matrix product and the changes applied to it."""

    product: Node
    changes: tuple[tuple[Change, Value | None], ...] = ()

    def changed(self, change: Change, operand: Value | None = None) -> _Match:
        return _Match(self.product, (*self.changes, (change, operand)))


def keeps_attention(node: Node, features: Features) -> bool:
    """Whether `fuse_attention` replaces a node of the composite operator, for all open sizes."""
    if node.op != COMPOSITE:
        return False
    queries, keys, values, *_ = node.operands
    sizes = (queries.shape[-1], MAX_DEPTH), (values.shape[-1], MAX_WIDTH)
    largest = buffer_bytes(Value("float32", node.output.shape))
    return (
        SMALLEST.fits("f32", features)
        and all(not is_dimension(size) and size <= most for size, most in sizes)
        and not (span(keys.shape[2])[0] > MAX_KEYS and span(queries.shape[2])[0] >= MIN_QUERY_ROWS)
        and not span(largest)[0] > features.binding_bytes
    )


def is_faster_whole(node: Node, features: Features) -> bool:
    """Whether a node should not be decomposed; True for all but the composite operator.

    Keys that are ignored by position are read by one kernel only as far as needed. Where sizes are
    open, scores may become too many to store.
    """
    if node.op != COMPOSITE:
        return True
    queries, keys, values, _, lengths = node.inputs
    assert queries is not None
    assert keys is not None
    assert values is not None
    scores = Value(queries.data_type, (*queries.shape[:3], keys.shape[2]))
    may_divide = features.kind == "gpu" and scores.data_type == "float32"
    most = MAX_DECOMPOSED_BYTES if may_divide else MAX_STORED_BYTES
    if is_open(scores.shape) or buffer_bytes(scores) > most:
        return True
    if features.kind == "cpu":
        return False
    is_bounded = lengths is not None or node.attrs["causal"] or node.attrs["window"] is not None
    depths = queries.shape[-1], values.shape[-1]
    return is_bounded or scores.shape[2] < MIN_QUERY_ROWS or _pays(scores, depths, features, most)


def fuse_attention(rewriter: Rewriter, node: Node, features: Features) -> list[MLOperand] | None:
    """Return the fused output of an attention; None for other nodes, and if fusion does not pay."""
    if node.op == COMPOSITE:
        return _fuse_composite(rewriter, node, features)
    if node.op != "matmul" or features.kind == "cpu":
        return None
    matched = _Matcher(rewriter.graph).scores(next(node.operands))
    if matched is None or not _is_possible(matched, node, features):
        return None
    queries, keys = matched.product.operands
    _, values = node.operands
    if not _pays(matched.product.output, (queries.shape[-1], values.shape[-1]), features):
        return None
    operands = [queries, keys, values, *(v for _, v in matched.changes if v is not None)]
    what = Attention(tuple(change for change, _ in matched.changes))
    return _emit(rewriter, node, what, [rewriter.map[value] for value in operands])


def _emit(
    rewriter: Rewriter, node: Node, what: Attention, operands: Sequence[MLOperand]
) -> list[MLOperand]:
    """Emit a node of ATTENTION in the place of a node."""
    inputs = tuple(map(value_of, operands))
    output = Value(node.output.data_type, node.output.shape)
    return rewriter.emit(Node(ATTENTION, inputs, {"what": what}, (output,), node.label))


def _fuse_composite(rewriter: Rewriter, node: Node, features: Features) -> list[MLOperand]:
    """Return the fused output of a node of the composite operator."""
    given = rewriter.arguments(node)
    query, key, value = (given[name] for name in ("query", "key", "value"))
    mask, lengths = given["mask"], given["lengths"]
    if query.data_type == "float16" and not features.f16:
        given |= {"query": wide(rewriter, query), "key": wide(rewriter, key)}
        given |= {"value": wide(rewriter, value), "label": node.label}
        made = rewriter.scaled_dot_product_attention(**given)
        return [narrow(rewriter, made, "float16")]
    operands = [query, rewriter.transpose(key, permutation=[0, 1, 3, 2]), value]
    changes = [Change("scale", given["scale"])]
    if given["softcap"] is not None:
        changes.append(Change("cap", given["softcap"]))
    if mask is not None:
        changes.append(Change("keep", -math.inf) if mask.data_type == "uint8" else Change("add"))
        operands.append(mask)
    if lengths is not None:
        operands.append(rewriter.cast(lengths, "int32"))
    what = Attention(
        tuple(changes),
        query.shape[1] // key.shape[1],
        given["causal"],
        given["window"],
        lengths is not None,
        zeros=True,
    )
    return _emit(rewriter, node, what, operands)


def flops_of_attention(node: Node) -> int:
    """Return the floating-point operations of both products."""
    queries, keys, values, *_ = node.operands
    *_, rows, depth = queries.shape
    batch = math.prod(node.output.shape[:-2])
    return 2 * batch * rows * keys.shape[-1] * (depth + values.shape[-1])


def _is_possible(matched: _Match, node: Node, features: Features) -> bool:
    """Whether a kernel exists for these types and sizes."""
    _, values = node.operands
    queries, keys = matched.product.operands
    scores = matched.product.output
    return (
        _has_types({value.data_type for value in (queries, keys, values, node.output)}, features)
        and sum(change.has_operand for change, _ in matched.changes) <= MAX_CHANGE_OPERANDS
        and node.output.shape[:-2] == scores.shape[:-2]
        and queries.shape[-1] <= MAX_DEPTH
        and values.shape[-1] <= MAX_WIDTH
        and scores.shape[-1] <= MAX_KEYS
        and buffer_bytes(Value("float32", node.output.shape)) <= features.binding_bytes
    )


def _has_types(types: Set[str], features: Features) -> bool:
    """Whether a kernel exists for operands and results of these types."""
    if types != {"float32"} and not (types == {"float16"} and features.f16):
        return False
    return SMALLEST.fits("f16" if types == {"float16"} else "f32", features)


def _pays(
    scores: Value, depths: tuple[int, int], features: Features, most: int = MAX_STORED_BYTES
) -> bool:
    """Whether one kernel is faster than three, or avoids a large matrix.

    Args:
        scores: The scores.
        depths: Depth of queries and keys, and width of values.
        features: The device.
        most: Bytes of scores that three kernels may take.
    """
    *batch, rows, columns = map(sampled, scores.shape)
    if rows < MIN_QUERY_ROWS or columns < MIN_KEYS:
        return False
    if columns <= MAX_KEYS_ALWAYS_FUSED:
        return True
    if features.f16_matrix is not None and scores.data_type == "float16":
        return True
    workgroups = math.prod(batch) * -(-rows // MIN_QUERY_ROWS)
    if columns > MAX_KEYS_PER_WORKGROUP * workgroups:
        return False
    if scores.data_type == "float16" and max(depths) <= MAX_SHALLOW_DEPTH:
        return True
    require_below(buffer_bytes(scores), most + 1)
    return sampled(buffer_bytes(scores)) > most


class _Matcher:
    """Matches the operators between the two products of an attention.

    Each value on the way must have no reader outside the match.

    Args:
        graph: The graph before rewriting.
    """

    def __init__(self, graph: Graph) -> None:
        self._producers: Mapping[Value, Node] = graph.producers
        self._constants = graph.constants
        self._uses, self._results = graph.uses, graph.results

    def scores(self, weights: Value) -> _Match | None:
        """Match a softmax along the last axis backwards; return its scores."""
        quotient = self._single_use(self._uncast(weights), "div")
        if quotient is None:
            return None
        exponential, total = quotient.operands
        added = self._single_use(total, "reduce_sum")
        raised = self._single_use(exponential, "exp", uses=2)
        if added is None or raised is None or not _is_along_rows(added, exponential):
            return None
        shifted = self._single_use(next(raised.operands), "sub")
        if shifted is None:
            return None
        scores, top = shifted.operands
        greatest = self._single_use(top, "reduce_max")
        if greatest is None or not _is_along_rows(greatest, scores):
            return None
        if self._uses[scores] != 2 or scores in self._results:
            return None
        return self._changed(scores, uses=2)

    def _single_use(self, value: Value, op: str, uses: int = 1) -> Node | None:
        """Return the node that computes `value` if it is an `op` without other readers."""
        node = self._producers.get(value)
        if node is None or node.op != op or self._uses[value] != uses or value in self._results:
            return None
        return node

    def _uncast(self, value: Value, uses: int = 1) -> Value:
        """Return the operand of a cast between floats, or `value` if it is no cast."""
        node = self._single_use(value, "cast", uses)
        source = value if node is None else next(node.operands)
        return source if source.data_type in ("float16", "float32") else value

    def _changed(self, value: Value, uses: int = 1) -> _Match | None:
        """Follow the changes backwards from `value` to the first product."""
        source = self._uncast(value, uses)
        if source is not value:
            return self._changed(source)
        node = self._producers.get(value)
        if node is None or self._uses[value] != uses or value in self._results:
            return None
        if node.op == "matmul":
            return _Match(node)
        for scores, change, operand in self._changes(node):
            if scores.shape != value.shape:
                continue
            matched = self._changed(scores)
            if matched is not None:
                return matched.changed(change, operand)
        return None

    def _changes(self, node: Node) -> Iterator[tuple[Value, Change, Value | None]]:
        """Yield each reading of `node` as a change: scores, change, operand."""
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
        """Return the number of a one-element constant; None for NaN or anything else."""
        array = self._constants.get(value)
        number = math.nan if array is None or array.size != 1 else float(array.reshape(-1)[0])
        return None if math.isnan(number) else number


def _is_along_rows(node: Node, operand: Value) -> bool:
    """Whether `node` reduces just the last dimension of `operand` and keeps it as size 1."""
    rank = len(operand.shape)
    return (
        next(node.operands) is operand
        and tuple(node.attrs["axes"]) == (rank - 1,)
        and len(node.output.shape) == rank
    )

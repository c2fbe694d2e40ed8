"""Lowers attention, rotary embeddings and caches to ONNX Runtime's own operators.

GroupQueryAttention writes new keys and values into caches in place and reads only the rows in use.
Splits into heads and rotations before it, and the merge of heads behind it, vanish.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Mapping
from typing import Any

from onnx import NodeProto, helper

from webnn_py.engines.onnx_lowering import Emitter, Lowering, Tensor
from webnn_py.engines.onnx_lowering.composites import lower_decomposed
from webnn_py.engines.onnx_lowering.emitter import ONNX_RUNTIME_DOMAIN
from webnn_py.engines.onnxruntime.kernels import has_kernels
from webnn_py.ir import Graph, Node, Value
from webnn_py.passes.cached_attention import cache_writes, is_less, is_state

SPLIT = (0, 2, 1, 3)
"""Permutation between [batch, rows, heads, size] and [batch, heads, rows, size]."""
TYPES = ("float32",)
"""Data types for which ONNX Runtime's operators are exact enough."""
HEAD_MULTIPLE = 8
"""GroupQueryAttention has heads whose size is a multiple of this number."""
ROTATED_MULTIPLE = 16
"""GroupQueryAttention rotates heads whose size is a multiple of this number."""


def attention(e: Emitter, node: Node, *operands: Tensor | None) -> Tensor | list[Tensor]:
    """Write MultiHeadAttention, or the decomposition of forms that it does not compute."""
    if not _is_multi_head(node):
        return lower_decomposed(e, node, operands)
    query, *others = [x for x in operands[:3] if x is not None]
    query = _merge(e, node.inputs[0], query)
    return _split(e, node, _multi_head(e, node, query, *_of_same_rank(e, node, others)))


def rotary_embedding(
    e: Emitter, node: Node, x: Tensor, cos: Tensor, sin: Tensor, positions: Tensor | None
) -> Tensor | list[Tensor]:
    """Write RotaryEmbedding where there are positions, else the decomposition."""
    whole, table = list(node.operands)[:2]
    is_short = is_less(table.shape[0], whole.shape[2])  # RotaryEmbedding refuses such tables
    if positions is None or is_short or x.data_type not in TYPES:
        return lower_decomposed(e, node, (x, cos, sin, positions))
    heads, pairs = whole.shape[1], table.shape[1]
    part = {} if 2 * pairs == whole.shape[3] else {"rotary_embedding_dim": 2 * pairs}
    interleaved = int(node.attrs["interleaved"])
    places = _positions(e, node, positions)
    return _own(
        e, "RotaryEmbedding", x, places, cos, sin, interleaved=interleaved, num_heads=heads, **part
    )


def attentions(graph: Graph) -> tuple[Mapping[Node, Lowering], Mapping[int, int]]:
    """Return the lowerings of attentions together with the nodes around them.

    Returns:
        The lowerings; and for each output that is the new state of a cache, by its index, the
        index of the cache among the inputs, with which it must share memory.
    """
    lowerings: dict[Node, Lowering] = {}
    states: dict[Value, Value] = {}
    for node in graph.nodes:
        if node.op != "scaled_dot_product_attention":
            continue
        if (cached := _cached(graph, node)) is not None:
            lowerings |= cached.lowerings()
            states |= cached.states()
        elif _is_multi_head(node):
            lowerings |= _MultiHead(graph, node).lowerings()
    numbers = {value: number for number, value in enumerate(graph.inputs)}
    return lowerings, {
        number: numbers[states[value]]
        for number, (_, value) in enumerate(graph.outputs)
        if value in states
    }


def _own(e: Emitter, kind: str, *inputs: Tensor | None, **attributes: Any) -> Tensor:
    """Write one of ONNX Runtime's own operators."""
    made = e.op(kind, *inputs, **attributes)
    e.nodes[-1].domain = ONNX_RUNTIME_DOMAIN
    return made


def _positions(e: Emitter, node: Node, positions: Tensor) -> Tensor:
    """Return a rotation's positions as rows of its tables, int64 [batch, rows]."""
    whole, table, _, given = node.operands
    batch, _, rows, _ = whole.shape
    wide, count = e.cast(positions, "int64"), table.shape[0]
    is_negative = e.op("Less", wide, e.constant(0), to="bool")
    wide = e.where(is_negative, e.op("Add", wide, e.constant(count)), wide)
    wide = e.smaller(e.greater(wide, e.constant(0)), e.constant(count - 1))
    if given.shape == (batch, rows):
        return wide
    return e.op("Expand", wide, e.constant([batch, rows]))


def _is_multi_head(node: Node) -> bool:
    """Whether MultiHeadAttention computes a node: all queries see all keys of their own head."""
    query, key, *_ = node.operands
    options = ("causal", "window", "softcap")
    return (
        query.data_type in TYPES
        and node.inputs[3:] == (None, None)
        and not any(node.attrs[name] for name in options)
        and query.shape[1] == key.shape[1]
    )


def _of_same_rank(e: Emitter, node: Node, tensors: list[Tensor]) -> list[Tensor]:
    """Return keys and values split into heads; with heads merged if their sizes differ."""
    _, key, value, *_ = node.operands
    if key.shape[3] == value.shape[3]:
        return tensors
    return [_merge(e, one, x) for one, x in zip((key, value), tensors, strict=True)]


def _multi_head(e: Emitter, node: Node, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    heads, scale = node.output.shape[1], node.attrs["scale"]
    return _own(e, "MultiHeadAttention", query, key, value, num_heads=heads, scale=scale)


def _merge(e: Emitter, value: Value | None, x: Tensor) -> Tensor:
    """Write [batch, heads, rows, size] as [batch, rows, heads * size]."""
    assert value is not None
    batch, heads, rows, size = value.shape
    return e.reshape(e.transpose(x, SPLIT), [batch, rows, heads * size], [batch, rows])


def _split(e: Emitter, node: Node, x: Tensor) -> Tensor:
    """Write an attention's [batch, rows, heads * size] as [batch, heads, rows, size]."""
    batch, heads, rows, size = node.output.shape
    return e.transpose(e.reshape(x, [batch, rows, heads, size], [batch, rows]), SPLIT)


def _pass_on(e: Emitter, node: Node, x: Tensor, *_: Tensor) -> Tensor:
    """Write nothing: the attention reads the first operand."""
    return x


class _MultiHead:
    """An attention with the splits into heads before it and the merge behind it.

    Args:
        graph: The graph.
        node: The attention.
    """

    def __init__(self, graph: Graph, node: Node) -> None:
        self._graph = graph
        self._node = node
        self._merges = self._merge_behind()

    def lowerings(self) -> dict[Node, Lowering]:
        """Return the lowerings of all these nodes."""
        split, *splits = map(self._split_before, self._node.inputs[:3])
        if not all(splits):
            splits = []

        def lower(e: Emitter, node: Node, *operands: Tensor) -> Tensor:
            query, *others = operands[:3]
            query = query if split else _merge(e, node.inputs[0], query)
            others = others if splits else _of_same_rank(e, node, others)
            return self._merged(e, _multi_head(e, node, query, *others))

        vanishing = [*split, *itertools.chain(*splits), *self._merges]
        return {**dict.fromkeys(vanishing, _pass_on), self._node: lower}

    def _merged(self, e: Emitter, x: Tensor) -> Tensor:
        return x if self._merges else _split(e, self._node, x)

    def _is_read_once(self, value: Value) -> bool:
        return self._graph.uses[value] == 1 and value not in self._graph.results

    def _maker(self, value: Value | None, op: str) -> Node | None:
        """Return the node of an operator that makes a value for one reader, or None."""
        made = None if value is None else self._graph.producers.get(value)
        return made if made and made.op == op and self._is_read_once(made.output) else None

    def _split_before(self, value: Value | None) -> list[Node]:
        """Return the nodes that split [batch, rows, heads * size] into heads, if these do."""
        turned = self._maker(value, "transpose")
        apart = None if turned is None else self._maker(turned.inputs[0], "reshape")
        if turned is None or apart is None or turned.attrs["permutation"] != SPLIT:
            return []
        batch, rows, heads, size = apart.output.shape
        (whole,) = apart.operands
        return [apart, turned] if whole.shape == (batch, rows, heads * size) else []

    def _merge_behind(self) -> list[Node]:
        """Return the nodes that merge the heads of the result, if these do."""
        nodes: list[Node] = []
        value = self._node.output
        for op in ("transpose", "reshape"):
            if not self._is_read_once(value):
                return []
            (node,) = self._graph.readers[value]
            if node.op != op:
                return []
            nodes.append(node)
            value = node.output
        batch, heads, rows, size = self._node.output.shape
        fits = nodes[0].attrs["permutation"] == SPLIT
        return nodes if fits and value.shape == (batch, rows, heads * size) else []


class _Cached(_MultiHead):
    """An attention over caches, with the nodes that write its keys and values into them.

    Args:
        graph: The graph.
        node: The attention.
        writes: The nodes that write keys and values.
    """

    def __init__(self, graph: Graph, node: Node, writes: tuple[Node, Node]) -> None:
        super().__init__(graph, node)
        self._writes = writes
        self._rotations = self._rotations_before()
        self._operands: dict[Node, tuple[Tensor, ...]] = {}
        self._states: dict[Node, Tensor] = {}

    def states(self) -> dict[Value, Value]:
        """Return the cache of each new state that is a result."""
        results = self._graph.results
        return {w.output: next(w.operands) for w in self._writes if w.output in results}

    def lowerings(self) -> dict[Node, Lowering]:
        """Return the lowerings of all these nodes."""
        rows = [self._node.inputs[0], *(write.inputs[1] for write in self._writes)]
        for number, rotation in enumerate(self._rotations):
            rows[number] = rotation.inputs[0]
        splits = [self._split_before(value) for value in rows]

        def lower(e: Emitter, node: Node, query: Tensor, *_: Any) -> Tensor:
            (keys, key, starts), (values, value, _) = (self._operands[w] for w in self._writes)
            flat = [
                x if split else _merge(e, whole, x)
                for x, split, whole in zip((query, key, value), splits, rows, strict=True)
            ]
            return self._merged(e, self._grouped(e, [*flat, keys, values], starts))

        return {
            **dict.fromkeys([*itertools.chain(*splits), *self._merges], _pass_on),
            **dict.fromkeys(self._rotations, self._note),
            **dict.fromkeys(self._writes, self._note_write),
            self._node: lower,
        }

    def _note(self, e: Emitter, node: Node, *operands: Tensor) -> Tensor:
        """Write nothing, but note the operands."""
        self._operands[node] = operands
        return operands[0]

    def _note_write(self, e: Emitter, node: Node, *operands: Tensor) -> Tensor:
        cache = self._note(e, node, *operands)
        state = self._states[node] = Tensor(e.name("state"), cache.data_type)
        return state

    def _grouped(self, e: Emitter, data: list[Tensor], starts: Tensor) -> Tensor:
        """Write GroupQueryAttention of queries, new keys and values, and the caches."""
        attrs, whole = self._node.attrs, self._node.output
        cache, new, given = self._writes[0].operands
        batch, heads, rows, _ = whole.shape

        def last_places() -> Tensor:
            places = e.op("Add", e.cast(starts, "int32"), e.constant(rows - 1, "int32"))
            if given.shape == (batch,):
                return places
            return e.op("Expand", places, e.constant([batch]))

        def most_keys() -> Tensor:
            most = e.op("Add", e.op("ReduceMax", last, keepdims=0), e.constant(1, "int32"))
            return e.smaller(most, e.constant(cache.shape[2], "int32"))  # tables may have fewer

        shared = starts.name, batch, rows  # by the attentions of all layers
        last = e.once(("last", *shared), last_places)
        most = e.once(("most", *shared, cache.shape[2]), most_keys)
        counts = e.once(
            ("counts", batch, rows),
            lambda: e.op("Expand", e.constant(rows, "int32"), e.constant([batch])),
        )
        tables: list[Tensor | None] = [None] * 3
        if self._rotations:
            rotation = self._rotations[0]
            _, cos, sin, positions = self._operands[rotation]
            places = e.once(
                ("positions", positions.name, batch, rows, cos.name),
                lambda: _positions(e, rotation, positions),
            )
            tables = [cos, sin, places]
        e.ops(
            "GroupQueryAttention",
            [*data, last, most, *tables, *[None] * 6, counts],
            [data[0].data_type] * 3,
            num_heads=heads,
            kv_num_heads=new.shape[1],
            scale=attrs["scale"],
            softcap=attrs["softcap"] or 0.0,
            local_window_size=attrs["window"] or -1,
            do_rotary=int(bool(self._rotations)),
            rotary_interleaved=int(any(r.attrs["interleaved"] for r in self._rotations)),
        )
        made = e.nodes[-1]
        made.domain = ONNX_RUNTIME_DOMAIN
        for number, write in enumerate(self._writes, 1):
            made.output[number] = self._states[write].name
        return Tensor(made.output[0], data[0].data_type)

    def _rotations_before(self) -> list[Node]:
        """Return the nodes that rotate queries and keys alike, if they rotate whole heads."""
        values = (self._node.inputs[0], self._writes[0].inputs[1])
        found = [self._maker(value, "rotary_embedding") for value in values]
        first, second = found
        if first is None or second is None or first.inputs[1:] != second.inputs[1:]:
            return []
        if first.attrs["interleaved"] != second.attrs["interleaved"] or first.inputs[3] is None:
            return []
        (whole, table, *_), (cache, *_) = first.operands, self._writes[0].operands
        size = whole.shape[3]
        fits = 2 * table.shape[1] == size and size % ROTATED_MULTIPLE == 0
        is_short = is_less(table.shape[0], cache.shape[2])
        return [first, second] if fits and not is_short else []


def _cached(graph: Graph, node: Node) -> _Cached | None:
    """Match attention over two caches into which its own keys and values are written."""
    writes = cache_writes(graph, node)
    if writes is None or not counts_new_rows():
        return None
    query, _, value, *_ = node.operands
    if query.data_type not in TYPES or query.shape[3] != value.shape[3]:
        return None
    cache = next(writes[0].operands)
    if query.shape[3] % HEAD_MULTIPLE != 0 or is_less(cache.shape[2], query.shape[2]):
        return None  # GroupQueryAttention refuses other heads, and more new rows than the cache has
    # Else rows that are not in use would be lost.
    are_states = (is_state(graph, w) or w.output not in graph.results for w in writes)
    return _Cached(graph, node, writes) if all(are_states) else None


@functools.cache
def counts_new_rows() -> bool:
    """Whether GroupQueryAttention takes the number of new rows of each batch."""
    types = (*["float32"] * 5, *["int32"] * 2, *[""] * 9, "int32")
    node = NodeProto(
        op_type="GroupQueryAttention",
        domain=ONNX_RUNTIME_DOMAIN,
        input=[f"x{number}" if kind else "" for number, kind in enumerate(types)],
        output=["y", "keys", "values"],
        attribute=[helper.make_attribute(name, 1) for name in ("num_heads", "kv_num_heads")],
    )
    return has_kernels([(node, types, ("float32",) * 3)])[0]

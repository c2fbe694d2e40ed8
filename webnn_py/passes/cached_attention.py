"""Attention over caches into which new keys and values are written, and a pass that reads both.

Engines that write rows in place read the old keys and the new ones apart, so that no cache is
copied before it is read.
"""

from __future__ import annotations

from typing import Any

from webnn_py.core.dimensions import span
from webnn_py.core.dtypes import DTYPES
from webnn_py.ir import Graph, Node, Value
from webnn_py.ops.decompositions.positions import iota, number, position_type
from webnn_py.ops.operand import MLOperand
from webnn_py.passes.rewrite import Rewriter
from webnn_py.passes.target import Target


def is_less(a: Any, b: Any) -> bool:
    """Whether a size is less than another for all values of the open dimensions."""
    return span(a - b)[1] < 0


def cache_writes(graph: Graph, node: Node) -> tuple[Node, Node] | None:
    """Return the nodes that write an attention's own keys and values, the last ones that it sees.

    Args:
        graph: The graph.
        node: A causal `scaled_dot_product_attention` without a mask, or any other node.

    Returns:
        None for other nodes, and if the attention does not see its caches up to its own rows.
    """
    if node.op != "scaled_dot_product_attention" or not node.attrs["causal"]:
        return None
    (query, key, value, *_), (mask, lengths) = node.operands, node.inputs[3:]
    if mask is not None or lengths is None:
        return None
    keys, values = (_write(graph, one, query.shape[2]) for one in (key, value))
    if keys is None or values is None or keys is values:
        return None
    starts = keys.inputs[2]
    is_last = values.inputs[2] is starts and _is_end(graph, lengths, starts, query.shape[2])
    return (keys, values) if is_last else None


def is_state(graph: Graph, write: Node) -> bool:
    """Whether a node writes rows into an input that nothing else reads, for a result."""
    cache = next(write.operands)
    is_read_once = cache in graph.inputs and graph.uses[cache] == 1
    return is_read_once and write.output in graph.results and cache not in graph.results


def writes_state(graph: Graph, node: Node) -> bool:
    """Whether a node writes rows into an input for a result alone, so that it may run last."""
    if node.op != "scatter_rows" or graph.uses[node.output] != 1:
        return False
    cache = next(node.operands)
    results = graph.results
    return node.output in results and cache in graph.inputs and cache not in results


def _write(graph: Graph, value: Value, rows: int) -> Node | None:
    """Return the node that writes `rows` new rows into a cache for one attention, or None."""
    write = graph.producers.get(value)
    if write is None or write.op != "scatter_rows" or write.attrs["axis"] != 2:
        return None
    _, new, _ = write.operands
    is_read_once = graph.uses[value] == 1 + (value in graph.results)
    return write if is_read_once and new.shape[2] == rows else None


def _is_end(graph: Graph, lengths: Value, starts: Value | None, rows: int) -> bool:
    """Whether lengths are the starts plus a number of rows."""
    made = graph.producers.get(lengths)
    if made is None or made.op != "add" or starts not in made.inputs:
        return False
    a, b = made.operands
    count = _number(graph, b if a is starts else a)
    return count is not None and count == rows


def _number(graph: Graph, value: Value) -> Any:
    """Return the size, open or not, that a tensor of one element holds; None if unknown."""
    array = graph.constants.get(value)
    if array is not None:
        return int(array.item()) if array.size == 1 else None
    made = graph.producers.get(value)
    if made is None:
        return None
    operands = list(made.operands)
    if made.op in ("cast", "identity", "reshape"):
        return _number(graph, operands[0])
    if made.op == "add":
        parts = [_number(graph, one) for one in operands]
        return None if None in parts else parts[0] + parts[1]
    return _counted(graph, operands[0]) if made.op == "slice" and value.shape == (1,) else None


def _counted(graph: Graph, value: Value) -> Any:
    """Return the number of ones that a cumulative sum from the end adds up; None for others."""
    total = graph.producers.get(value)
    if total is None or total.op != "cumulative_sum" or value.rank != 1:
        return None
    ones = graph.producers.get(next(total.operands))
    if ones is None or ones.op != "expand" or total.attrs["exclusive"]:
        return None
    one = graph.constants.get(next(ones.operands))
    is_one = one is not None and one.size == 1 and one.item() == 1
    return value.shape[0] if is_one and total.attrs["reversed"] else None


def attend_in_parts(graph: Graph, target: Target) -> Graph:
    """Attend to the old rows of caches and to new rows, for engines without such attention."""
    found = {
        node: writes
        for node in graph.nodes
        if node.op == "scaled_dot_product_attention"
        and not target.has_kernel(node)
        and node.attrs["window"] is None
        and (writes := cache_writes(graph, node))
        and all(is_state(graph, write) for write in writes)
    }
    if not found:
        return graph

    def rule(rewriter: Rewriter, node: Node) -> list[MLOperand] | None:
        writes = found.get(node)
        return None if writes is None else [_attended(rewriter, node, *writes)]

    return Rewriter(graph).run(rule)


def _attended(g: Rewriter, node: Node, keys: Node, values: Node) -> MLOperand:
    """Emit attention over old and new keys."""
    query = g.arguments(node)["query"]
    (old_keys, new_keys, starts), (old_values, new_values, _) = (
        [g.map[value] for value in write.operands] for write in (keys, values)
    )
    batch, heads, rows, size = query.shape
    shared, count, width = old_values.shape[1:]
    group = heads // shared
    folded = g.mul(query, g.constant_of(node.attrs["scale"], query))
    folded = g.reshape(folded, [batch, shared, group * rows, size])
    turned = [0, 1, 3, 2]  # queries and scores, which are smaller than keys
    columns = g.transpose(folded, permutation=turned)
    parts = [g.matmul(one, columns) for one in (old_keys, new_keys)]
    scores = g.transpose(g.concat(parts, 2), permutation=turned)
    if node.attrs["softcap"] is not None:
        bound = g.constant_of(node.attrs["softcap"], scores)
        scores = g.mul(g.tanh(g.div(scores, bound)), bound)
    kind = position_type(rows + count)
    starts = g.reshape(g.cast(starts, kind), [starts.shape[0], 1, 1, 1])
    own = g.add(iota(g, rows, 2, 4, kind), starts)  # the positions of queries
    keep = _kept(g, starts, own, rows, count)
    if group > 1 and rows != 1:
        lead, both = keep.shape[0], keep.shape[3]
        keep = g.reshape(g.expand(keep, [lead, group, rows, both]), [lead, 1, group * rows, both])
    lowest = g.constant_of(DTYPES[scores.data_type].min, scores)
    weights = g.softmax(g.where(keep, scores, lowest), 3)
    old, new = (
        g.slice(weights, [0, 0, 0, start], [batch, shared, group * rows, length])
        for start, length in ((0, count), (count, rows))
    )
    made = g.add(g.matmul(old, old_values), g.matmul(new, new_values))
    made = g.reshape(made, [batch, heads, rows, width])
    sees = g.greater_or_equal(own, g.constant_of(0, own))
    return g.where(sees, made, g.constant_of(0, made))


def _kept(g: Rewriter, starts: MLOperand, own: MLOperand, rows: int, count: int) -> MLOperand:
    """Return the old and new keys that each query sees, [batch or 1, 1, rows, count + rows]."""
    kind, lead = own.data_type, starts.shape[0]
    old = g.lesser(iota(g, count, 3, 4, kind), starts)
    at = g.add(iota(g, rows, 3, 4, kind), starts)  # the positions of new keys; some are dropped
    end = g.reshape(number(g, count, kind), [1, 1, 1, 1])
    is_inside = g.logical_and(g.greater_or_equal(at, g.constant_of(0, at)), g.lesser(at, end))
    new = g.logical_and(g.lesser_or_equal(at, own), is_inside)
    return g.concat([g.expand(old, [lead, 1, rows, count]), new], 3)

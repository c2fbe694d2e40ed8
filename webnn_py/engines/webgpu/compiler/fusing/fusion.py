"""Fusion: choose the values that are stored; all others are computed where they are read.

Every stored value is the root of one kernel. The stored values that the kernel reads are its
leaves. A kernel may have an anchor: the one node whose loop it is built around. A value is stored
if it is a graph output, or if computing it again costs more than reading it. An anchor's result is
stored unless its reader is an elementwise epilogue, or is computed row by row with it
(`row_fusion`). Products of one row may compute it before their loops, too.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass

from webnn_py.core.gil_yield import checkpoints
from webnn_py.core.traced_queries import divides
from webnn_py.engines.webgpu.compiler.code.affine import broadcast_map
from webnn_py.engines.webgpu.compiler.fusing.inline_dequant import (
    dequantize_node,
    reads_dequantized,
)
from webnn_py.engines.webgpu.compiler.fusing.op_traits import elementwise_leaves, traits_of
from webnn_py.engines.webgpu.compiler.fusing.row_fusion import (
    Rows,
    is_prologue,
    is_step,
    is_writable,
    rows_of,
)
from webnn_py.engines.webgpu.compiler.inplace_concat import Places
from webnn_py.engines.webgpu.compiler.legalize.integer_products import (
    CODES_CONVOLUTION,
    CODES_PRODUCT,
)
from webnn_py.engines.webgpu.compiler.legalize.packed_products import PACKED_PRODUCT
from webnn_py.engines.webgpu.compiler.legalize.split_products import (
    SPLIT_CONVOLUTION,
    SPLIT_PRODUCT,
)
from webnn_py.engines.webgpu.compiler.loop_bounds import MAX_LOOP_ELEMENTS
from webnn_py.engines.webgpu.compiler.lower.window import is_pixelwise, pools_few
from webnn_py.engines.webgpu.program.storage import Features, parts_of, storage_of
from webnn_py.ir import Graph, Node, Value
from webnn_py.ops.declare import REGISTRY

POOLS = ("average_pool2d", "l2_pool2d", "max_pool2d")
PRODUCTS = ("matmul", PACKED_PRODUCT, "conv2d", SPLIT_PRODUCT, SPLIT_CONVOLUTION)
PRODUCTS_OF_CODES = (CODES_PRODUCT, CODES_CONVOLUTION)

MAX_RECOMPUTED_OPS = 4
"""Elementwise operators that are computed twice rather than stored and read."""

MAX_CONV_PROLOGUE_OPS = 8
"""Elementwise operators that a 1x1 convolution computes on each element it loads."""

MAX_POOL_PROLOGUE_OPS = 2
"""Elementwise operators that a pooling of small windows computes on each element it loads."""

MAX_INLINE_ELEMENTS = 32
"""Elements that a kernel computes or reads for one element of its root, each written out.

Compilers take more than twice the time for twice the code.
"""


@dataclass(frozen=True, slots=True)
class Inline:
    """The cost of computing one element of a value where it is read.

    Attributes:
        anchor: The result of a loop that flows, element by element, into this value.
        cost: Elementwise operators between buffers and the value.
        size: Elements computed or read for it, each as often as its readers ask for it. No chain
            of operators is longer, so recursive lowerings stay within Python's stack.
        leaves: The stored values it reads.
        iterations: Iterations of the loops in those operators' functions.
    """

    anchor: Value | None
    cost: int
    size: int
    leaves: frozenset[Value]
    iterations: int


class Fusion:
    """The stored values of a graph.

    Attributes:
        roots: The values that kernels write, in the order of the kernels.
        places: The values that lie in the buffers of others.
    """

    def __init__(self, graph: Graph, features: Features) -> None:
        self._graph = graph
        self._features = features
        self._most_bindings = features.max_bindings - 1
        self._uses = graph.uses
        self._producers = graph.producers
        self._outputs = {value for _, value in graph.outputs}
        self._stored: set[Value] = set(graph.inputs) | set(graph.constants)
        self._inline: dict[Value, Inline] = {}
        self._rows = rows_of(graph, features)
        found = dict.fromkeys(self._rows.values())
        self._prologues = {r.nodes[-1].output for r in found if is_prologue(r, graph, features)}
        is_stored = self._stored.__contains__  # makes no reference cycle with this object
        self.places = Places(graph, features, is_stored)  # for the values stored so far
        for node in checkpoints(graph.nodes):
            self._decide(node)
        self.places = Places(graph, features, is_stored)
        for node in graph.nodes:
            if node.op == "concat" and node.output in self._stored:
                self.places.join(node)
        made = [value for node in graph.nodes for value in node.outputs]
        self.roots: tuple[Value, ...] = tuple(v for v in made if v in self._stored)

    def is_stored(self, value: Value) -> bool:
        """Whether the value lies in a buffer."""
        return value in self._stored

    def leaves_of(self, root: Value) -> frozenset[Value]:
        """Return the stored values that a root's kernel reads."""
        return self._inline[root].leaves

    def anchor_of(self, root: Value) -> Node | None:
        """Return the node whose loop a root's kernel is built around, or None."""
        anchor = self._inline[root].anchor
        return None if anchor is None else self._producers[anchor]

    def rows_at(self, root: Value) -> Rows | None:
        """Return the rows that a root's kernel computes, or None."""
        anchor = self.anchor_of(root)
        return None if anchor is None else self._rows.get(anchor)

    def is_needed_whole(self, root: Value) -> bool:
        """Whether a root must lie in a buffer although its readers could compute it."""
        return root in self._outputs or self.places.buffer_of(root) is not root

    def _decide(self, node: Node) -> None:
        """Store the operands that a node needs stored, and compute the cost of its outputs."""
        for value in node.operands:
            if value not in self._stored and self._must_store(value, node):
                self._store_for(value, node)
        inline = self._inlined(node)
        while self._bindings(inline) > self._most_bindings and self._store(node, self._bindings):
            inline = self._inlined(node)
        while inline.size > MAX_INLINE_ELEMENTS and self._store(node, lambda operand: operand.size):
            inline = self._inlined(node)
        for output in node.outputs:
            if traits_of(node.op).loops:
                inline = dataclasses.replace(inline, anchor=output)
            self._inline[output] = inline
            if output in self._outputs or self._takes_no_kernel(node):
                self._stored.add(output)

    def _store_for(self, value: Value, reader: Node) -> None:
        """Store a value, or what its reader computes it from: weights, float16, or codes."""
        if self._stores_codes(value, reader):
            return
        half = self._half_under(value, reader)
        if half is not None:
            self._stored.add(half)
            self._inline[value] = self._inlined(self._producers[value])
            return
        weights = None
        if reader.op == "matmul":
            weights = dequantize_node(value, self._producers, self.is_stored)
        if weights is None:
            self._stored.add(value)
            return
        # In the order of the codes, so that each word is read once.
        self._stored.add(weights.output)
        views = []
        while value is not weights.output:
            views.append(self._producers[value])
            value = next(views[-1].operands)
        for node in reversed(views):
            self._inline[node.output] = self._inlined(node)

    def _stores_codes(self, value: Value, reader: Node) -> bool:
        """Store the codes that a kernel quantizes and a reader dequantizes, if that suffices."""
        node, old = self._producers[value], self._inline[value]
        codes = next(node.operands, None)
        if node.op != "dequantize_linear" or codes is None or codes in self._stored:
            return False
        self._stored.add(codes)
        self._inline[value] = self._inlined(node)
        if self._must_store(value, reader):
            self._stored.remove(codes)
            self._inline[value] = old
            return False
        return True

    def _half_under(self, value: Value, reader: Node) -> Value | None:
        """Return the float16 that a product by matrices reads under a cast to float32, if any."""
        node = self._producers[value]
        if self._features.f16_matrix is None or reader.op not in ("matmul", "conv2d"):
            return None
        if node.op != "cast" or value.data_type != "float32":
            return None
        half = next(node.operands)
        return half if half.data_type == "float16" else None

    def _takes_no_kernel(self, node: Node) -> bool:
        """Whether the kernels of a node's operands store its result."""
        if node.op != "concat" or self._is_scattered(node.output):
            return False
        return self.places.join(node, whole=True)

    def _is_scattered(self, value: Value) -> bool:
        """Whether a value is only written into a state, whose kernel reads each element once."""
        readers = self._graph.readers.get(value, ())
        is_one = [node.op for node in readers] == ["scatter_rows"] and value not in self._outputs
        return is_one and readers[0].inputs[1] is value and self._features.kind != "cpu"

    def _inlined(self, node: Node) -> Inline:
        """Return the cost of a node's element from the costs of its operands' elements."""
        traits = traits_of(node.op)
        computed = [self._inline[v] for v in node.operands if v not in self._stored]
        anchors = [operand.anchor for operand in computed if operand.anchor is not None]
        leaves = {v for v in node.operands if v in self._stored and not self._is_number(v)}
        leaves = leaves.union(*(operand.leaves for operand in computed))
        anchor = anchors[0] if anchors else None
        rows = self._rows.get(node)
        if rows is not None and rows.is_one(node.output):
            return Inline(anchor, cost=0, size=1, leaves=frozenset(leaves), iterations=0)
        reads = traits.reads(node)
        return Inline(
            anchor=anchor,
            cost=sum(operand.cost for operand in computed) + (not traits.free),
            size=1 + reads * sum(operand.size for operand in computed),
            leaves=frozenset(leaves),
            iterations=reads * sum(operand.iterations for operand in computed)
            + traits.iterations(node, self._features),
        )

    def _is_number(self, value: Value) -> bool:
        """Whether a value is a literal in the code."""
        return value.size == 1 and value in self._graph.constants

    def _must_store(self, value: Value, reader: Node) -> bool:
        """Whether a value must lie in a buffer for a node that reads it."""
        inline, traits = self._inline[value], traits_of(reader.op)
        if value in self._prologues:
            return False
        if reader.op == PACKED_PRODUCT:  # its kernels read words and vectors
            return True
        if (traits.loops or traits.reduced is not None) and self._unpacks(value):
            return True
        rows = self._common_rows(value, reader)
        if rows is not None and rows.is_one(value):
            return False
        if rows is None and inline.anchor is not None:
            return not self._is_epilogue(value, reader)
        if reader in self._rows and inline.iterations:
            return True
        if traits.reduced is not None:
            return (
                inline.cost > MAX_RECOMPUTED_OPS
                or inline.iterations * traits.reduced(reader) > MAX_LOOP_ELEMENTS
            )
        if traits.loops or _is_repeated(value, reader):
            # Each window or row reads the value. A view costs only index arithmetic.
            return inline.cost > 0 and not self._is_computed_by(value, reader)
        return self._uses[value] > 1 and inline.cost > MAX_RECOMPUTED_OPS

    def _is_packed(self, value: Value) -> bool:
        """Whether two float16 share a word, which loops read slowly and cannot write."""
        return value.data_type == "float16" and not self._features.f16

    def _unpacks(self, value: Value) -> bool:
        """Whether a value is a cast from a packed type to one that is not packed."""
        node = self._producers[value]
        return node.op == "cast" and self._is_packed(next(node.operands)) > self._is_packed(value)

    def _is_computed_by(self, value: Value, reader: Node) -> bool:
        """Whether a reader computes its input as it loads it, each element few times."""
        if self._uses[value] > 1 or storage_of(value.data_type, self._features).per_word > 1:
            return False
        if reads_dequantized(reader, value):
            return dequantize_node(value, self._producers, self.is_stored) is not None
        if self._features.kind == "cpu":
            return False
        made = reader.outputs[0] if reader.op == "concat" else value
        if self._is_dequantized_to(reader, value) or self._is_scattered(made):
            return True
        if pools_few(reader):
            return self._inline[value].cost <= MAX_POOL_PROLOGUE_OPS
        if not is_pixelwise(reader, value):
            return False
        leaves = elementwise_leaves(value, self._producers, self.is_stored) or []
        whole = any(leaf.shape == value.shape for leaf in leaves)
        return whole and self._inline[value].cost <= MAX_CONV_PROLOGUE_OPS

    def _is_dequantized_to(self, reader: Node, value: Value) -> bool:
        """Whether a pooling reads stored codes, of which each takes a quarter of the bytes."""
        node = self._producers[value]
        if reader.op not in POOLS or node.op != "dequantize_linear":
            return False
        return self.is_stored(next(node.operands))

    def _common_rows(self, value: Value, reader: Node) -> Rows | None:
        """Return the rows that both a value and its reader belong to, or None."""
        rows = self._rows.get(reader)
        made = self._producers.get(value)
        return rows if made is not None and self._rows.get(made) is rows else None

    def _is_of_rows(self, value: Value) -> bool:
        """Whether a kernel computes a value row by row."""
        anchor = self._inline[value].anchor
        return anchor is not None and self._producers[anchor] in self._rows

    def _extends_rows(self, reader: Node) -> bool:
        """Whether a value that is computed row by row may flow into a reader."""
        inlined = (v for v in reader.operands if v not in self._stored)
        has_loops = any(self._inline[value].iterations for value in inlined)
        step = is_step(reader, self._features) or traits_of(reader.op).view is not None
        return step and not has_loops and is_writable(reader.output, self._features)

    def _is_epilogue(self, value: Value, reader: Node) -> bool:
        """Whether a loop's result can flow into its one reader, element by element."""
        traits = traits_of(reader.op)
        if traits.loops or len(reader.outputs) > 1 or not self._rejoins(value):
            return False
        if self._is_packed(reader.output) > self._is_packed(value):
            return False
        if not self._writes_bytes(value, reader.output):
            return False
        others = [v for v in reader.operands if v is not value and v not in self._stored]
        anchors = {self._inline[v].anchor for v in others} - {None, self._inline[value].anchor}
        if anchors:
            return False
        if self._is_of_rows(value) and not self._extends_rows(reader):
            return False
        if traits.view is not None:
            return traits.view(reader, 0).identity and reader.output.size == value.size
        return traits.fuses and broadcast_map(value.shape, reader.output.shape).identity

    def _writes_bytes(self, value: Value, output: Value) -> bool:
        """Whether the kernel of a value can write an output, if that consists of bytes.

        A product writes whole words: four neighbors, where the extents are multiples of four.
        """
        anchor = self._inline[value].anchor
        is_bytes = storage_of(output.data_type, self._features).per_word == 4
        node = None if anchor is None else self._producers[anchor]
        if not is_bytes or node is None or node.op not in (*PRODUCTS, *PRODUCTS_OF_CODES):
            return True
        if node.op in PRODUCTS:
            return False
        is_nchw = node.attrs.get("input_layout") == "nchw"
        return divides(4, math.prod(output.shape[-2:]) if is_nchw else output.shape[-1])

    def _rejoins(self, value: Value) -> bool:
        """Whether all readers of a value flow, element by element, into its last reader."""
        if self._uses[value] == 1:
            return True
        *others, last = self._graph.readers[value]
        if value in self._outputs or not _is_step(last, value):
            return False
        for node in others:
            while node is not last:
                if not _is_step(node, value) or self._uses[node.output] > 1:
                    return False
                if node.output in self._outputs:
                    return False
                (node,) = self._graph.readers[node.output]
        return True

    def _bindings(self, inline: Inline) -> int:
        return sum(binding_count(leaf, self._features) for leaf in inline.leaves)

    def _store(self, node: Node, measure: Callable[[Inline], int]) -> bool:
        """Store the operand with the largest measure; return False if all are zero."""
        computed = [v for v in node.operands if v not in self._stored and measure(self._inline[v])]
        if not computed:
            return False
        self._stored.add(max(computed, key=lambda v: measure(self._inline[v])))
        return True


def binding_count(value: Value, features: Features) -> int:
    """Return the bindings that a stored value takes."""
    size = storage_of(value.data_type, features).buffer_bytes(value.size)
    return len(parts_of(size, features.binding_bytes))


def _is_step(node: Node, value: Value) -> bool:
    """Whether a node is elementwise and has the shape of a value."""
    return (
        len(node.outputs) == 1
        and node.output.shape == value.shape
        and node.op in REGISTRY
        and REGISTRY[node.op].wgsl is not None
    )


def _is_repeated(value: Value, reader: Node) -> bool:
    """Whether one element of `value` is read for several elements of the reader."""
    return max(output.size for output in reader.outputs) >= 2 * value.size

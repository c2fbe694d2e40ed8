"""Products with weights of 4 bits, by ONNX Runtime's own operator, which keeps them so."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from webnn_py.core.dtypes import PACKED_4BIT, pack_4bit
from webnn_py.engines.onnx_lowering import Emitter, Lowering, Tensor
from webnn_py.ir import Array, Graph, Node, Value

DOMAIN = "com.microsoft"
LEAST_BLOCK = 16
"""Elements of a row with a scale of their own; ONNX Runtime takes so many or more, powers of 2."""


@dataclass(frozen=True, slots=True)
class _Weights:
    """What a product's second operand is made of.

    Attributes:
        nodes: Those that make it, which nothing else reads.
        codes: [columns, blocks, block], one element a byte.
        scales: [columns, blocks, 1].
        zeros: The same, as codes.
        data_type: Of the codes.
    """

    nodes: tuple[Node, ...]
    codes: Array
    scales: Array
    zeros: Array
    data_type: str

    def lower(self, e: Emitter, node: Node, x: Tensor, _: Tensor) -> Tensor:
        """Write the product."""
        columns, blocks, block = self.codes.shape
        moved = 8 if self.data_type == "int4" else 0  # ONNX Runtime's are from 0 to 15
        codes, zeros = (
            ((part.view(np.uint8) + moved) & 15).reshape(columns, blocks, -1)
            for part in (self.codes, self.zeros)
        )
        odd = np.pad(zeros[..., 0], [(0, 0), (0, blocks % 2)])
        made = e.op(
            "MatMulNBits",
            e.cast(x, "float32"),  # as ONNX Runtime computes float16
            e.weight(pack_4bit(codes).reshape(columns, blocks, block // 2)),
            e.weight(self.scales.reshape(-1).astype(np.float32, copy=False)),
            e.weight(pack_4bit(odd)),
            K=next(node.operands).shape[-1],
            N=columns,
            bits=4,
            block_size=block,
        )
        e.nodes[-1].domain = DOMAIN
        return e.cast(made, x.data_type)


def products_of_few_bits(graph: Graph) -> Mapping[Node, Lowering]:
    """Lowerings of such products, and of what makes their weights, which is not written."""
    found: dict[Node, Lowering] = {}
    for node in graph.nodes:
        weights = _weights_of(graph, node) if node.op == "matmul" else None
        if weights is not None:
            found |= dict.fromkeys(weights.nodes, lambda e, node, x, *_: x)
            found[node] = weights.lower
    return found


def _weights_of(graph: Graph, node: Node) -> _Weights | None:
    """Of a product, [rows of weights, blocks, block] become [rows · blocks · block, or fewer]ᵀ."""
    _, value = node.operands
    if len(value.shape) != 2:
        return None
    nodes = []
    for op in ("transpose", "slice", "reshape", "dequantize_linear"):
        maker = graph.producers.get(value)
        if op == "slice" and maker is not None and maker.op != op:
            continue
        if maker is None or maker.op != op or not _is_read_once(graph, value):
            return None
        nodes.append(maker)
        value = next(maker.operands)
    *_, made = nodes
    return _of_blocks(graph, node, made, tuple(nodes))


def _is_read_once(graph: Graph, value: Value) -> bool:
    return graph.uses[value] == 1 and value not in graph.results


def _of_blocks(graph: Graph, product: Node, made: Node, nodes: tuple[Node, ...]) -> _Weights | None:
    """If they are as the operator takes them."""
    codes, scales, zeros = made.operands
    arrays = [graph.constants.get(value) for value in made.operands]
    if codes.data_type not in PACKED_4BIT or any(array is None for array in arrays):
        return None
    if len(codes.shape) != 3 or not scales.shape == zeros.shape == (*codes.shape[:2], 1):
        return None
    columns, blocks, block = codes.shape
    depth = next(product.operands).shape[-1]
    rows = next(node for node in nodes if node.op == "reshape").output.shape
    starts = next((node.attrs["starts"] for node in nodes if node.op == "slice"), (0, 0))
    if block < LEAST_BLOCK or block & (block - 1) or -(-depth // block) != blocks:
        return None
    if rows != (columns, blocks * block) or product.output.shape[-1] != columns or any(starts):
        return None
    first, second, third = (array for array in arrays if array is not None)
    return _Weights(nodes, first, second, third, codes.data_type)

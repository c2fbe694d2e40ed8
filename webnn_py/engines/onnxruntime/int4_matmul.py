"""Lowers products with 4-bit weights to ONNX Runtime's MatMulNBits, which keeps weights packed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from webnn_py.core.dtypes import PACKED_4BIT, pack_4bit
from webnn_py.engines.onnx_lowering import Emitter, Lowering, Tensor
from webnn_py.engines.onnx_lowering.emitter import ONNX_RUNTIME_DOMAIN
from webnn_py.engines.onnx_lowering.linalg import MIN_BLOCK_ELEMENTS
from webnn_py.ir import Array, Graph, Node, Value


@dataclass(frozen=True, slots=True)
class _Weights:
    """The quantized weights of a product.

    Attributes:
        nodes: The nodes that dequantize them for this product alone.
        codes: Quantized elements [columns, blocks, block], one in each byte.
        scales: Scales [columns, blocks, 1].
        zeros: Zero points [columns, blocks, 1].
        data_type: Data type of codes and zero points.
    """

    nodes: tuple[Node, ...]
    codes: Array
    scales: Array
    zeros: Array
    data_type: str

    def lower(self, e: Emitter, node: Node, x: Tensor, _: Tensor) -> Tensor:
        """Write the product."""
        columns, blocks, block = self.codes.shape
        offset = 8 if self.data_type == "int4" else 0  # ONNX Runtime's codes are from 0 to 15
        codes, zeros = (
            ((part.view(np.uint8) + offset) & 15).reshape(columns, blocks, -1)
            for part in (self.codes, self.zeros)
        )
        odd = np.pad(zeros[..., 0], [(0, 0), (0, blocks % 2)])
        made = e.op(
            "MatMulNBits",
            e.cast(x, "float32"),  # ONNX Runtime also computes float16 in float32
            e.weight(pack_4bit(codes).reshape(columns, blocks, block // 2)),
            e.weight(self.scales.reshape(-1).astype(np.float32, copy=False)),
            e.weight(pack_4bit(odd)),
            K=next(node.operands).shape[-1],
            N=columns,
            bits=4,
            block_size=block,
        )
        e.nodes[-1].domain = ONNX_RUNTIME_DOMAIN
        return e.cast(made, x.data_type)


def int4_products(graph: Graph) -> Mapping[Node, Lowering]:
    """Return lowerings of products with 4-bit weights; the nodes that dequantize vanish."""
    found: dict[Node, Lowering] = {}
    for node in graph.nodes:
        weights = _weights_of(graph, node) if node.op == "matmul" else None
        if weights is not None:
            found |= dict.fromkeys(weights.nodes, lambda e, node, x, *_: x)
            found[node] = weights.lower
    return found


def _weights_of(graph: Graph, node: Node) -> _Weights | None:
    """Match a second operand that is dequantized, reshaped, possibly sliced, and transposed."""
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
    """Return the weights if their shapes are those that MatMulNBits accepts."""
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
    if block < MIN_BLOCK_ELEMENTS or block & (block - 1) or -(-depth // block) != blocks:
        return None
    if rows != (columns, blocks * block) or product.output.shape[-1] != columns or any(starts):
        return None
    first, second, third = (array for array in arrays if array is not None)
    return _Weights(nodes, first, second, third, codes.data_type)

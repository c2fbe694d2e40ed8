"""Lowers a composite operator node by node, for engines whose own operator fits in some forms."""

from __future__ import annotations

from webnn_py.engines.onnx_lowering.emitter import Emitter, NotLowered, Operands, Tensor, lower
from webnn_py.ir import Node, make_graph
from webnn_py.ops.decompositions import DECOMPOSITIONS
from webnn_py.ops.operand import MLOperand
from webnn_py.passes.rewrite import Rewriter, as_list


def lower_decomposed(e: Emitter, node: Node, operands: Operands) -> list[Tensor]:
    """Write the nodes into which a composite is decomposed; return its outputs.

    Raises:
        NotLowered: ONNX cannot express one of them.
    """

    def rule(rewriter: Rewriter, whole: Node) -> list[MLOperand]:
        return as_list(DECOMPOSITIONS[whole.op](rewriter, **rewriter.arguments(whole)))

    given = {
        value: tensor
        for value, tensor in zip(node.inputs, operands, strict=True)
        if value is not None and tensor is not None
    }
    outputs = [(str(number), value) for number, value in enumerate(node.outputs)]
    made = Rewriter(make_graph(given, {}, (node,), outputs)).run(rule)
    if node in made.nodes:
        raise NotLowered(f"{node.op} has no decomposition for these operands")
    tensors = dict(given)
    for value, array in made.constants.items():
        tensors[value] = e.constant(array, value.data_type)
    for part in made.nodes:
        read = [None if value is None else tensors[value] for value in part.inputs]
        tensors.update(zip(part.outputs, lower(e, part, read), strict=True))
    return [tensors[value] for _, value in made.outputs]

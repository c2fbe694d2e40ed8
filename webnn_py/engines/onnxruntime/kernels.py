"""Tests which ONNX operators have CPU kernels in ONNX Runtime, by creating sessions."""

from __future__ import annotations

import functools
import threading

import numpy as np
import onnxruntime
from onnx import GraphProto, NodeProto, ValueInfoProto, helper

from webnn_py.engines.onnx_lowering import CODES, IR_VERSION, OPSET

PROVIDERS = ["CPUExecutionProvider"]
SILENT = 4
"""Log level at which ONNX Runtime logs only fatal errors."""

Types = tuple[str, ...]
_known: dict[tuple[str, Types, Types], bool] = {}
_lock = threading.Lock()


def has_kernel(node: NodeProto, inputs: Types, outputs: Types) -> bool:
    """Whether there is a kernel for a node's operator and data types; the answer is cached.

    Args:
        node: The node.
        inputs: Data types of its inputs, "" for an absent one.
        outputs: Data types of its outputs, "" for an absent one.
    """
    key = (node.op_type, inputs, outputs)
    with _lock:
        if key not in _known:
            _known[key] = _loads(node, inputs, outputs)
        return _known[key]


@functools.cache
def has_exact_int8_products() -> bool:
    """Whether MatMulInteger with int8 weights keeps all bits, by multiplying extreme numbers.

    Without VNNI instructions, ONNX Runtime adds pairs of products in 16 bits, which saturate.
    """
    for data_type, extreme in (("uint8", 255), ("int8", -128)):
        a = np.full((1, 64), extreme, data_type)
        b = np.full((64, 32), 127, np.int8)
        ends = [
            helper.make_tensor_value_info(name, CODES[str(x.dtype)], x.shape)
            for name, x in (("a", a), ("b", b))
        ]
        result = helper.make_tensor_value_info("y", CODES["int32"], (1, 32))
        node = helper.make_node("MatMulInteger", ["a", "b"], ["y"])
        (made,) = _session(helper.make_graph([node], "probe", ends, [result])).run(
            None, {"a": a, "b": b}
        )
        if np.any(made != 64 * extreme * 127):
            return False
    return True


def _session(graph: GraphProto) -> onnxruntime.InferenceSession:
    """Create a session of one thread; optimizers would take half the time."""
    domains = {node.domain for node in graph.node} - {""}
    opsets = [helper.make_opsetid("", OPSET), *(helper.make_opsetid(d, 1) for d in domains)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=IR_VERSION)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = SILENT
    options.intra_op_num_threads = 1
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    return onnxruntime.InferenceSession(model.SerializeToString(), options, providers=PROVIDERS)


def _loads(node: NodeProto, inputs: Types, outputs: Types) -> bool:
    """Whether ONNX Runtime creates a session for this node with inputs of any shape."""
    alone = NodeProto()
    alone.CopyFrom(node)
    ends: list[list[ValueInfoProto]] = []
    for places, types, letter in ((alone.input, inputs, "i"), (alone.output, outputs, "o")):
        ends.append([])
        for number, data_type in enumerate(types):
            if data_type:
                places[number] = f"{letter}{number}"
                info = helper.make_tensor_value_info(places[number], CODES[data_type], None)
                ends[-1].append(info)
    graph = helper.make_graph([alone], "probe", *ends)
    try:
        _session(graph)
    except Exception:  # ONNX Runtime's own exception classes: there is no such kernel
        return False
    return True

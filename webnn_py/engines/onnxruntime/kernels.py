"""Tests which ONNX operators have CPU kernels in ONNX Runtime, by creating sessions."""

from __future__ import annotations

import functools
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnxruntime
from onnx import GraphProto, NodeProto, ValueInfoProto, helper

from webnn_py.engines.onnx_lowering import CODES, IR_VERSION, OPSET

PROVIDERS = ["CPUExecutionProvider"]
SILENT = 4
"""Log level at which ONNX Runtime logs only fatal errors."""

Types = tuple[str, ...]
Typed = tuple[NodeProto, Types, Types]
"""A node with the data types of its inputs and outputs, "" for an absent one."""
_known: dict[tuple[str, Types, Types], bool] = {}
_lock = threading.Lock()


def has_kernels(nodes: Sequence[Typed]) -> list[bool]:
    """Whether there is a kernel for each node's operator and data types; answers are cached.

    All unknown ones are asked about at once, as a session for each takes a third of a millisecond.
    """
    keys = [(node.op_type, *types) for node, *types in nodes]
    with _lock:
        unknown = {key: node for key, node in zip(keys, nodes, strict=True) if key not in _known}
        _ask([*unknown.items()])
        return [_known[key] for key in keys]


def _ask(unknown: Sequence[tuple[Any, Typed]]) -> None:
    """Note which nodes have kernels; halve them until all or none have."""
    loads = not unknown or _loads([node for _, node in unknown])
    if loads or len(unknown) == 1:
        _known.update((key, loads) for key, _ in unknown)
        return
    half = len(unknown) // 2
    _ask(unknown[:half])
    _ask(unknown[half:])


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


def _loads(nodes: Sequence[Typed]) -> bool:
    """Whether ONNX Runtime creates a session for these nodes, each with inputs of any shape."""
    copies: list[NodeProto] = []
    ends: tuple[list[ValueInfoProto], list[ValueInfoProto]] = ([], [])
    for count, (node, inputs, outputs) in enumerate(nodes):
        alone = NodeProto()
        alone.CopyFrom(node)
        alone.name = ""
        copies.append(alone)
        for end, places, types, letter in zip(
            ends, (alone.input, alone.output), (inputs, outputs), "io", strict=True
        ):
            for number, data_type in enumerate(types):
                if data_type:
                    places[number] = f"{letter}{count}_{number}"
                    info = helper.make_tensor_value_info(places[number], CODES[data_type], None)
                    end.append(info)
    try:
        _session(helper.make_graph(copies, "probe", *ends))
    except Exception:  # ONNX Runtime's own exception classes: there is no such kernel
        return False
    return True

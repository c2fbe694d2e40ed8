"""Function bodies: operators that ONNX defines by other operators, with attributes bound."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import onnx

from webnn_py.onnx.tensor import Tensor, UnmappableError


def has_body(schema: Any) -> bool:
    """Return whether ONNX defines an operator by a function body."""
    return schema is not None and (schema.has_function or schema.has_context_dependent_function)


def _newest(versions: Sequence[int], most: int) -> int:
    fitting = [version for version in versions if version <= most]
    return max(fitting) if fitting else min(versions)


def body_of(node: Any, inputs: Sequence[Any], schema: Any, opsets: Mapping[str, int]) -> Any:
    """Return the onnx.FunctionProto that defines a node's operator, or None without a body.

    Args:
        node: The node.
        inputs: Its input tensors; their types select the body of some operators.
        schema: The operator's onnx.defs.OpSchema, or None.
        opsets: Versions of the operator sets by domain.

    Raises:
        UnmappableError: ONNX has no body for these inputs.
    """
    if not has_body(schema):
        return None
    most = opsets.get(node.domain if node.domain != "ai.onnx" else "", 1)
    most = max(most, schema.since_version)
    function = onnx.FunctionProto()
    if schema.has_context_dependent_function:
        version = _newest(schema.context_dependent_function_opset_versions, most)
        types = [_type(one).SerializeToString() for one in inputs]
        try:
            contents = schema.get_context_dependent_function_with_opset_version(
                version, node.SerializeToString(), types
            )
        except RuntimeError:  # ONNX rejects the combination of node and operand types
            contents = b""
    else:
        version = _newest(schema.function_opset_versions, most)
        contents = schema.get_function_with_opset_version(version)
    if not contents:
        raise UnmappableError("ONNX defines it by no other operators for these inputs")
    function.ParseFromString(contents)
    if not any(one.domain in ("", "ai.onnx") for one in function.opset_import):
        default = opsets.get("", 1)
        newest = onnx.defs.onnx_opset_version()
        version = default if default > 1 else newest
        function.opset_import.append(onnx.helper.make_opsetid("", version))
    return function


def _type(tensor: Any) -> Any:
    if not isinstance(tensor, Tensor):
        return onnx.TypeProto()
    shape = [size if isinstance(size, int) else str(size) for size in tensor.shape]
    return onnx.helper.make_tensor_type_proto(tensor.elem, shape)


def bound(body: Any, node: Any, schema: Any = None) -> list[Any]:
    """Return the nodes of a body with attribute references replaced by values.

    Args:
        body: The onnx.FunctionProto.
        node: The calling node, whose attributes are the values.
        schema: The operator's onnx.defs.OpSchema with default values, or None.
    """
    given = {attribute.name: attribute for attribute in node.attribute}
    for name, attribute in schema.attributes.items() if schema is not None else ():
        if name not in given and attribute.default_value.type:
            given[name] = attribute.default_value
    for default in body.attribute_proto:
        given.setdefault(default.name, default)
    return [_bound(inner, given) for inner in body.node]


def _refers(node: Any) -> bool:
    """Return whether a node or its subgraphs refer to attributes of the function."""
    return any(
        attribute.ref_attr_name or any(map(_refers, attribute.g.node))
        for attribute in node.attribute
    )


def _bound(node: Any, given: Mapping[str, Any]) -> Any:
    if not _refers(node):
        return node
    copy = onnx.NodeProto()
    copy.CopyFrom(node)
    del copy.attribute[:]
    for attribute in node.attribute:
        if attribute.ref_attr_name:
            if attribute.ref_attr_name in given:
                made = copy.attribute.add()
                made.CopyFrom(given[attribute.ref_attr_name])
                made.name = attribute.name
            continue
        made = copy.attribute.add()
        made.CopyFrom(attribute)
        if made.HasField("g"):
            inner = [_bound(one, given) for one in attribute.g.node]
            del made.g.node[:]
            made.g.node.extend(inner)
    return copy

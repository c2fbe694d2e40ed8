"""What a user may rely on: names, docstrings, signatures."""

from __future__ import annotations

import inspect
import re
import types
import typing
from collections.abc import Iterator

import pytest

import webnn_py
from webnn_py.ops.declare import REGISTRY

CLASSES = {name: getattr(webnn_py, name) for name in webnn_py.__all__ if name[0].isupper()}

# Base classes of the errors: the MLError, and what Python code would catch.
ERRORS = {
    "ContextLostError": RuntimeError,
    "DLPackError": BufferError,
    "DataError": ValueError,
    "InvalidStateError": RuntimeError,
    "NotSupportedError": NotImplementedError,
    "OperationError": RuntimeError,
    "ValidationError": ValueError,
    "WaitTimeoutError": TimeoutError,
}

# Members and their parameters; a parameter after "*" is keyword-only.
CONTRACT = {
    "MLContext": {
        "accelerated": None,
        "create_constant_tensor_sync": "value data_type shape",
        "create_tensor_sync": "data_type shape * readable writable exportable",
        "destroy": "",
        "device": None,
        "device_type": None,
        "dispatch": "graph inputs outputs sync",
        "export_to_gpu": "tensor",
        "flush": "",
        "from_dlpack": "value",
        "lost": None,
        "op_support_limits": "",
        "read_tensor_async": "tensor out",
        "read_tensor_sync": "tensor out",
        "submit": "command_buffers sync",
        "write_tensor": "tensor value",
    },
    "MLGraphBuilder": {
        "build_async": "outputs",
        "build_sync": "outputs",
        "constant": "value data_type shape * name",
        "input": "name data_type shape",
    },
    "MLGraph": {"destroy": "", "inputs": None, "outputs": None},
    "MLOperand": {"data_type": None, "shape": None},
    "MLExecution": {"compute": "graph inputs outputs"},
    "MLAwaitedExecution": {"compute": "graph inputs outputs sync"},
    "MLCommandEncoder": {
        "dispatch": "graph inputs outputs",
        "finish": "* label",
        "initialize_graph": "graph constants",
    },
    "MLTensor": {
        "__dlpack__": "* stream max_version dl_device copy",
        "__dlpack_device__": "",
        "data_type": None,
        "shape": None,
    },
    "Timeline": {
        "__call__": "* wait signal",
        "signal": "value",
        "value": None,
        "wait_async": "value",
        "wait_sync": "value timeout",
    },
}
CREATE = "device * device_type power_preference accelerated engine"


def members(owner: type) -> Iterator[tuple[str, object]]:
    for name in dir(owner):
        if not name.startswith("_"):
            yield name, inspect.getattr_static(owner, name)


def parameters(function: object) -> str:
    assert callable(function)
    names: list[str] = []
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind is parameter.KEYWORD_ONLY and "*" not in names:
            names.append("*")
        names.append(parameter.name)
    return " ".join(name for name in names if name != "self")


def test_all_is_sorted_and_complete() -> None:
    assert list(webnn_py.__all__) == sorted(webnn_py.__all__)
    homes = [name for names in webnn_py._HOMES.values() for name in names]
    assert sorted([*homes, "__version__"]) == webnn_py.__all__
    assert set(webnn_py.__all__) <= set(dir(webnn_py))


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'MLNothing'"):
        webnn_py.MLNothing  # noqa: B018


def test_classes_of_the_contract_are_public() -> None:
    assert set(CONTRACT) | set(ERRORS) | {"MLError"} <= set(CLASSES)


@pytest.mark.parametrize("name", ERRORS)
def test_errors_are_ml_errors_and_python_errors(name: str) -> None:
    assert CLASSES[name].__bases__ == (webnn_py.MLError, ERRORS[name])


@pytest.mark.parametrize("owner", CONTRACT)
def test_members_of_the_contract(owner: str, cpu: webnn_py.MLContext) -> None:
    for member, expected in CONTRACT[owner].items():
        annotated = inspect.getdoc(CLASSES[owner]) or ""
        found = getattr(CLASSES[owner], member, None)
        if expected is None:  # a property, or an attribute that the class docstring tells
            assert isinstance(found, property) or f"    {member}: " in annotated, member
        else:
            assert parameters(found) == expected, member


@pytest.mark.parametrize("owner", [webnn_py.MLContext, webnn_py.MLGraphBuilder])
def test_what_takes_time_has_both_forms(owner: type) -> None:
    stems = [name.removesuffix("_sync") for name in dir(owner) if name.endswith("_sync")]
    assert stems
    for stem in stems:
        assert inspect.iscoroutinefunction(getattr(owner, f"{stem}_async")), stem


@pytest.mark.parametrize("method", ["create_context_sync", "create_context_async"])
def test_contexts_are_made_alike_in_both_forms(method: str) -> None:
    function = getattr(webnn_py.ml, method)
    assert parameters(function) == CREATE
    assert inspect.iscoroutinefunction(function) == method.endswith("async")


@pytest.mark.parametrize("name", CLASSES)
def test_classes_and_their_members_have_docstrings(name: str) -> None:
    owner = CLASSES[name]
    assert owner.__doc__, name
    bare = [
        member
        for member, value in members(owner)
        if isinstance(value, (property, types.FunctionType, classmethod, staticmethod))
        and not inspect.getdoc(value)
    ]
    assert not bare


@pytest.mark.parametrize("name", REGISTRY)
def test_operators_are_builder_methods_with_keyword_options(name: str) -> None:
    op = REGISTRY[name]
    assert callable(getattr(webnn_py.MLGraphBuilder, name))
    for parameter in list(op.signature.parameters.values())[1:]:
        is_operand = parameter.name in op.limits
        if not is_operand and parameter.default is not parameter.empty:
            assert parameter.kind is parameter.KEYWORD_ONLY, parameter
        assert parameter.annotation is not parameter.empty, parameter


def test_every_operator_takes_a_label() -> None:
    assert not [n for n, op in REGISTRY.items() if "label" not in op.signature.parameters]


@pytest.mark.parametrize("name", REGISTRY)
def test_signatures_say_what_an_operator_returns_and_takes(name: str) -> None:
    method = getattr(webnn_py.MLGraphBuilder, name)
    signature = inspect.signature(method)
    returned = typing.get_type_hints(method)["return"]
    assert signature.return_annotation == {
        webnn_py.MLOperand: "MLOperand",
        list[webnn_py.MLOperand]: "list[MLOperand]",
    }.get(returned)
    assert "Inferred" not in str(signature)
    for parameter in list(signature.parameters.values())[1:]:
        # No alias that only the sources explain.
        words = set(re.findall(r"\b[A-Z]\w+", parameter.annotation))
        assert words <= {"MLOperand", "Sequence", "Literal", "None"}, parameter

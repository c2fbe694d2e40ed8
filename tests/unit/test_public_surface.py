"""What a user may rely on: names, docstrings, signatures."""

from __future__ import annotations

import inspect
import re
import types
import typing
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Literal

import numpy as np
import pytest

import webnn_py
from tests.public import DATA_TYPES, OPERANDS, OPERATORS

NAMES = {name: getattr(webnn_py, name) for name in webnn_py.__all__ if name[0].isupper()}
LITERALS = {name: value for name, value in NAMES.items() if typing.get_origin(value) is Literal}
CLASSES: dict[str, type] = {name: value for name, value in NAMES.items() if name not in LITERALS}
OWNERS = CLASSES | {"ml": type(webnn_py.ml)}

# Base classes of the errors: the MLError, and what Python code would catch.
ERRORS = {
    "ContextLostError": RuntimeError,
    "DLPackError": BufferError,
    "DataError": ValueError,
    "FileError": OSError,
    "InvalidStateError": RuntimeError,
    "NotSupportedError": NotImplementedError,
    "OperationError": RuntimeError,
    "ValidationError": ValueError,
    "WaitTimeoutError": TimeoutError,
}

CREATE = (
    "device * device_type power_preference accelerated engine engine_options workers"
    " max_prepared_sizes max_prepared_bytes float32_precision"
)

# All public members and their parameters; a parameter after "*" is keyword-only. The builder has
# the operators' methods besides, and the errors have those of Python's exceptions.
GENERATION = "ids * max_tokens stop temperature top_k top_p repetition_penalty seed logits sync"
CONTRACT = {
    "MLContext": {
        "accelerated": None,
        "create_constant_tensor_async": "value data_type shape",
        "create_constant_tensor_sync": "value data_type shape",
        "create_tensor_async": "data_type shape * readable writable exportable",
        "create_tensor_sync": "data_type shape * readable writable exportable",
        "destroy": "",
        "device": None,
        "device_type": None,
        "dispatch": "graph inputs outputs sync",
        "engine": None,
        "export_to_gpu": "tensor",
        "flush": "",
        "load_program_async": "path * progress",
        "load_program_sync": "path * progress",
        "from_dlpack": "value",
        "load_graph_async": "path * verify progress",
        "load_graph_sync": "path * verify progress",
        "lost": None,
        "op_support_limits": "",
        "read_tensor_async": "tensor out * timeout",
        "read_tensor_sync": "tensor out * timeout",
        "slice_dispatch": "graph inputs outputs",
        "submit": "command_buffers sync",
        "write_tensor": "tensor value",
    },
    "MLGraphBuilder": {
        "build_async": "outputs * progress",
        "build_sync": "outputs * progress",
        "constant": "value data_type shape * name",
        "input": "name data_type shape",
    },
    "MLContextLostInfo": {"message": None},
    "MLDecoder": {
        "compile_to": "path * steps",
        "destroy": "",
        "from_graph": "graph * inputs outputs length slots",
        "generate": GENERATION,
        "generate_sync": GENERATION,
        "graph": None,
        "length": None,
        "sequence": "",
        "slots": None,
        "vocabulary": None,
    },
    "MLSequence": {
        "close": "",
        "feed_async": "ids sync",
        "feed_sync": "ids sync",
        "fork": "",
        "tokens": None,
        "truncate": "length",
    },
    "MLGraph": {
        "compile_to": "path sizes",
        "destroy": "",
        "inputs": None,
        "output_shapes": "sizes",
        "outputs": None,
        "prepare_async": "sizes * progress",
        "prepare_sync": "sizes * progress",
        "profile": "inputs * runs",
        "profile_async": "inputs * runs",
        "save": "path",
    },
    "MLDimension": {"bounds": None, "evaluate": "sizes", "names": None},
    "MLOperand": {"data_type": None, "rank": None, "shape": None, "size": None},
    "MLOperandDescriptor": {"data_type": None, "shape": None},
    "MLExecution": {"compute": "graph inputs outputs"},
    "MLAwaitedExecution": {"compute": "graph inputs outputs sync"},
    "MLCommandEncoder": {
        "dispatch": "graph inputs outputs",
        "dispatch_slice": "job * budget_ms",
        "execute": "program arguments",
        "finish": "* label",
        "initialize_graph": "graph constants",
    },
    "MLProfile": {
        "clock": None,
        "milliseconds": None,
        "peak_bytes": None,
        "peak_flops": None,
        "rows": None,
        "save_trace": "path",
    },
    "MLProfileRow": {
        "bytes": None,
        "flop": None,
        "kernel": None,
        "milliseconds": None,
        "operator": None,
        "roof": None,
        "share": None,
        "step": None,
    },
    "MLProgram": {
        "append": "sequence repeat",
        "argument": "name data_type shape",
        "arguments": None,
        "buffer": "data_type shape initial",
        "profile": "arguments * runs",
        "profile_async": "arguments * runs",
        "compile_async": "* progress",
        "compile_sync": "* progress",
        "run_async": "arguments sync",
        "run_sync": "arguments",
        "save": "path",
        "sequence": "",
    },
    "MLProgramBuffer": {"data_type": None, "name": None, "shape": None},
    "MLProgramSequence": {
        "compute": "wgsl resources workgroups entry_point constants",
        "dispatch": "graph inputs outputs",
    },
    "MLPromise": {"done": None},
    "MLSlicedDispatch": {"done": None, "progress": None},
    "MLTensor": {
        "__dlpack__": "* stream max_version dl_device copy",
        "__dlpack_device__": "",
        "constant": None,
        "data_type": None,
        "destroy": "",
        "destroyed": None,
        "exportable": None,
        "readable": None,
        "shape": None,
        "writable": None,
    },
    "OperationError": {"root": None},
    "Timeline": {
        "__call__": "* wait signal",
        "signal": "value",
        "value": None,
        "wait_async": "value",
        "wait_sync": "value timeout",
    },
    "TimelinePoint": {"signal": None, "timeline": None, "wait": None},
    "ml": {
        "create_context_async": CREATE,
        "create_context_sync": CREATE,
        "default_context": None,
    },
}
# Methods that raise nothing.
HARMLESS = {
    "MLContext.destroy",
    "MLDecoder.destroy",
    "MLGraph.destroy",
    "MLSequence.close",
    "MLTensor.destroy",
    "MLTensor.__dlpack_device__",
    "MLContext.op_support_limits",
}


CITED = re.compile(r'spec/(\w+\.md), (?:"(.+?)"|(D\d+))')
"""A section of a document, or a row of one, in a docstring."""


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
    homes = [name for names in webnn_py._MODULES.values() for name in names]
    assert sorted([*homes, "__version__"]) == webnn_py.__all__
    assert set(webnn_py.__all__) <= set(dir(webnn_py))


def public(thing: object) -> set[str]:
    """What completion shows of an object, but for what Python's exceptions have."""
    return {n for n in dir(thing) if not n.startswith("_")} - set(dir(OSError))


def things(context: webnn_py.MLContext) -> dict[str, object]:
    """One of each class whose objects have state."""
    builder = webnn_py.MLGraphBuilder(context)
    operand = builder.relu(builder.input("x", "float32", [2]))
    dimension = builder.input("n", "float32", ["n"]).shape[0]
    graph = builder.build_sync({"y": operand})
    profile = graph.profile({"x": np.ones(2, np.float32)}, runs=1)
    return {
        "MLAwaitedExecution": webnn_py.MLAwaitedExecution(context),
        "MLContext": context,
        "MLDimension": dimension,
        "MLExecution": webnn_py.MLExecution(context),
        "MLGraph": graph,
        "MLGraphBuilder": builder,
        "MLOperand": operand,
        "MLOperandDescriptor": webnn_py.MLOperandDescriptor("float32", [2]),
        "MLProfile": profile,
        "MLProfileRow": profile[0],
        "MLPromise": context.lost,
        "MLTensor": context.create_tensor_sync("float32", [2]),
        "Timeline": webnn_py.Timeline(),
        "TimelinePoint": webnn_py.Timeline()(wait=1),
        "ml": webnn_py.ml,
    }


def test_completion_shows_what_is_public(cpu: webnn_py.MLContext) -> None:
    for name, thing in (OWNERS | things(cpu)).items():
        documented = {m for m in CONTRACT.get(name, ()) if not m.startswith("_")}
        if name == "MLGraphBuilder":
            documented |= set(OPERATORS)
        assert public(thing) == documented, name


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'MLNothing'"):
        webnn_py.MLNothing  # noqa: B018


def test_classes_of_the_contract_are_public() -> None:
    assert set(CONTRACT) | set(ERRORS) | {"MLError"} == set(OWNERS)


@pytest.mark.parametrize("name", ERRORS)
def test_errors_are_ml_errors_and_python_errors(name: str) -> None:
    base = webnn_py.DataError if name == "FileError" else webnn_py.MLError
    assert CLASSES[name].__bases__ == (base, ERRORS[name])


@pytest.mark.parametrize("owner", CONTRACT)
def test_members_of_the_contract(owner: str) -> None:
    for member, expected in CONTRACT[owner].items():
        annotated = inspect.getdoc(OWNERS[owner]) or ""
        found = getattr(OWNERS[owner], member, None)
        if expected is None:  # a property, or an attribute that the class docstring tells
            assert isinstance(found, property) or f"    {member}: " in annotated, member
        else:
            assert parameters(found) == expected, member


@pytest.mark.parametrize("owner", [webnn_py.MLContext, webnn_py.MLGraphBuilder, webnn_py.ml])
def test_what_takes_time_has_both_forms(owner: object) -> None:
    stems = [name.removesuffix("_sync") for name in dir(owner) if name.endswith("_sync")]
    assert stems
    for stem in stems:
        blocking, awaited = getattr(owner, f"{stem}_sync"), getattr(owner, f"{stem}_async")
        assert inspect.iscoroutinefunction(awaited), stem
        assert inspect.signature(awaited) == inspect.signature(blocking), stem


def test_names_that_options_take_are_public_types() -> None:
    assert set(LITERALS) == {"MLDeviceType", "MLOperandDataType", "MLPowerPreference"}
    assert set(DATA_TYPES) == {
        kind for op in OPERANDS.values() for kinds in op.values() for kind in kinds
    }
    told = typing.get_type_hints(inspect.getattr_static(webnn_py.MLContext, "device_type").fget)
    assert told["return"] is webnn_py.MLDeviceType


@pytest.mark.parametrize(
    ("owner", "member", "name"),
    [
        ("MLGraphBuilder", "input", "data_type"),
        ("MLGraphBuilder", "constant", "data_type"),
        ("MLGraphBuilder", "cast", "data_type"),
        ("MLGraphBuilder", "arg_min", "output_data_type"),
        ("MLGraphBuilder", "arg_max", "output_data_type"),
        ("MLContext", "create_tensor_sync", "data_type"),
        ("MLContext", "create_constant_tensor_sync", "data_type"),
        ("MLOperandDescriptor", "__init__", "data_type"),
        ("MLOperandDescriptor", "data_type", "return"),
        ("MLOperand", "data_type", "return"),
    ],
)
def test_data_types_are_typed(owner: str, member: str, name: str) -> None:
    found = inspect.getattr_static(CLASSES[owner], member)
    hint = typing.get_type_hints(found.fget if isinstance(found, property) else found)[name]
    assert webnn_py.MLOperandDataType in (hint, *typing.get_args(hint))


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


METHODS = {
    f"{owner}.{name}": getattr(OWNERS[owner], name)
    for owner, names in CONTRACT.items()
    for name, expected in names.items()
    if expected is not None
} | {f"MLGraphBuilder.{name}": getattr(webnn_py.MLGraphBuilder, name) for name in OPERATORS}


def documents(things: Mapping[str, object]) -> dict[str, str]:
    return {name: inspect.getdoc(thing) or "" for name, thing in things.items()}


def test_classes_and_methods_say_where_they_come_from_and_what_they_raise() -> None:
    sources = documents(OWNERS | METHODS)
    last = {name: doc.rpartition("\n\n")[2] for name, doc in sources.items()}
    # Pages show a paragraph of indented lines as something else.
    assert not [n for n, text in last.items() if text[:8] != "Source: " or "\n " in text]
    methods = documents(METHODS)
    assert {name for name, doc in methods.items() if "Raises:\n" not in doc} == HARMLESS


def test_methods_tell_of_every_argument() -> None:
    for name, doc in documents(METHODS).items():
        if f"As `{name.rpartition('.')[2].removesuffix('_async')}_sync`" in doc:
            continue  # told there
        names = [word for word in parameters(METHODS[name]).split() if word != "*"]
        told = re.findall(r"^    (\w+): ", doc, re.MULTILINE)
        assert [word for word in told if word in names] == names, name


def test_sections_that_sources_name_are_there() -> None:
    spec = Path(__file__).parents[2] / "spec"
    cited: set[str] = set()
    for name, doc in documents(OWNERS | METHODS).items():
        for file, section, row in CITED.findall(" ".join(doc.split())):
            text = (spec / file).read_text(encoding="utf-8")
            assert (f"| {row} |" if row else f"\n## {section}\n") in text, (name, file)
            cited.add(file)
    assert cited == {"deviations.md", "execution.md", "programs.md", "saved_graphs.md"}


@pytest.mark.parametrize("name", OPERATORS)
def test_operators_are_builder_methods_with_keyword_options(name: str) -> None:
    method = getattr(webnn_py.MLGraphBuilder, name)
    for parameter in list(inspect.signature(method).parameters.values())[1:]:
        is_operand = parameter.name in OPERANDS[name]
        if not is_operand and parameter.default is not parameter.empty:
            assert parameter.kind is parameter.KEYWORD_ONLY, parameter
        assert parameter.annotation is not parameter.empty, parameter


def test_every_operator_takes_a_label() -> None:
    methods = {name: getattr(webnn_py.MLGraphBuilder, name) for name in OPERATORS}
    assert not [n for n, m in methods.items() if "label" not in inspect.signature(m).parameters]


@pytest.mark.parametrize("name", OPERATORS)
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
        assert words <= {"MLOperand", "MLOperandDataType", "Sequence", "Literal", "None"}, parameter
